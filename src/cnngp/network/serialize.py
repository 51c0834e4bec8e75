"""Networks as JSON and back, and the fingerprint that stores and caches use as a key."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields
from typing import Any

from .layers import LAYERS, Elementwise, Identity, Layer, Network, NetworkError, Sequential, Sum, as_layer

FORMAT = 1
_MAX_DEPTH = 200


def to_json(net: Network) -> str:
    return json.dumps({"cnngp_network": FORMAT, "network": _encode(as_layer(net))})


def from_json(text: str) -> Network:
    """Read a network from the JSON text of `to_json`. Unknown layers, fields and versions raise `NetworkError`.

    >>> from cnngp import Conv, from_json
    >>> from_json(Conv(3).to_json())
    Conv(3)
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or set(data) != {"cnngp_network", "network"}:
            raise NetworkError('expected {"cnngp_network": 1, "network": …} as to_json writes')
        if data["cnngp_network"] != FORMAT:
            raise NetworkError(f"it has format {data['cnngp_network']!r}, and this version reads format {FORMAT}")
        return _decode(data["network"], 0)
    except (ValueError, TypeError, RecursionError) as error:
        raise NetworkError(f"not the JSON of a network: {error}") from None


def fingerprint(net: Network) -> str:
    canonical = json.dumps(_encode(_flatten(as_layer(net)), by_value=True), sort_keys=True)
    return hashlib.sha256(f"cnngp network {FORMAT} {canonical}".encode()).hexdigest()


def _encode(net: Layer, by_value: bool = False, depth: int = 0) -> dict[str, Any]:
    """Write all fields, including defaults, so that a changed default never changes what an old file means."""
    if depth > _MAX_DEPTH and not by_value:  # `_decode` has the same limit, so whatever is written can be read
        raise NetworkError(f"the network is nested more than {_MAX_DEPTH} deep; put its layers into one Sequential")
    data: dict[str, Any] = {"layer": type(net).__name__}
    if isinstance(net, Elementwise) and not isinstance(net.fn, str):
        if not by_value:
            raise NetworkError(
                f"{net!r} holds a Python function, which cannot be written to a file; "
                "use a named function such as Elementwise('tanh')"
            )
        from .functions import value_hash  # needs NumPy

        return data | {"values": value_hash(net.fn)}
    for f in fields(net):
        value = getattr(net, f.name)
        nested = isinstance(net, (Sequential, Sum)) and isinstance(value, tuple)
        data[f.name] = [_encode(child, by_value, depth + 1) for child in value] if nested else value
    return data


def _decode(data: Any, depth: int) -> Layer:
    if depth > _MAX_DEPTH:
        raise NetworkError(f"the network is nested more than {_MAX_DEPTH} deep")
    if not isinstance(data, dict) or str(data.get("layer")) not in LAYERS:
        raise NetworkError(f"unknown layer in network JSON: {str(data)[:80]}; known: {', '.join(LAYERS)}")
    cls = LAYERS[data["layer"]]
    arguments = {key: value for key, value in data.items() if key != "layer"}
    known = {f.name for f in fields(cls)}
    required = {f.name for f in fields(cls) if f.default is MISSING}
    if not required <= set(arguments) <= known:
        raise NetworkError(
            f"{cls.__name__} in network JSON has fields {sorted(arguments)}; "
            f"it takes {sorted(known)} and needs {sorted(required)}"
        )
    children: list[Layer] = []
    for key in ("layers", "branches"):
        if key in arguments:
            value = arguments.pop(key)
            if not isinstance(value, list):
                raise NetworkError(f"{cls.__name__} in network JSON: {key} is not a list")
            children = [_decode(child, depth + 1) for child in value]
    return as_layer(cls(*children, **arguments))


def _flatten(net: Layer) -> Layer:
    """Flatten nested sequences and drop idle Identity layers: the same steps get the same fingerprint."""
    match net:
        case Sequential():
            flat: list[Layer] = []
            for layer in map(_flatten, net.layers):
                flat.extend(layer.layers if isinstance(layer, Sequential) else [layer])
            flat = [layer for layer in flat if not isinstance(layer, Identity)]
            return flat[0] if len(flat) == 1 else Sequential(*flat) if flat else Identity()
        case Sum():
            return Sum(*map(_flatten, net.branches), allow_non_gaussian=net.allow_non_gaussian)
        case _:
            return net
