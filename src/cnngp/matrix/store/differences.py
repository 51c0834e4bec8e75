"""Networks in messages: by name, and where two of them differ."""

from __future__ import annotations

import json
from typing import Any

from cnngp.network.layers import Network, NetworkError
from cnngp.network.names import zoo_name
from cnngp.network.serialize import from_json

_LONGEST = 80


def told(network: Network) -> str:
    """A network by its name, as the code that makes it where that is short, else by how many layers it has.

    >>> from cnngp import Conv, Dense, ReLU, Sequential, zoo
    >>> told(zoo.resnet(20)), told(Sequential(*[Conv(3), ReLU()] * 9, Dense()))
    ('resnet20', 'a Sequential of 19 layers')
    """
    name = _name(network)
    return name if len(name) <= _LONGEST else f"a {type(network).__name__} of {_leaves(network.to_json()):,} layers"


def difference(there: str | None, now: str | None) -> str:
    """What tells two networks apart, given as JSON, or None for one with a Python function.

    >>> from cnngp import Conv, Dense, ReLU, Sequential, zoo
    >>> difference(zoo.resnet(20).to_json(), zoo.resnet(32).to_json())
    'resnet20 there, resnet32 now'
    >>> difference(*(Sequential(Conv(k), ReLU(), Dense()).to_json() for k in (3, 5)))
    'layers[0].kernel_size is 3 there, 5 now'
    """
    try:
        networks = [None if text is None else from_json(text) for text in (there, now)]
    except NetworkError:
        return "one that this version cannot read there"
    names = ["one with a Python function" if network is None else told(network) for network in networks]
    if there is None or now is None or all("(" not in name and " " not in name for name in names):
        return f"{names[0]} there, {names[1]} now"
    place = _first(json.loads(there)["network"], json.loads(now)["network"], "")
    return place if all("(" in name or " " in name for name in names) else f"{names[0]} there, {names[1]} now; {place}"


def _name(network: Network) -> str:
    name = zoo_name(network)
    for depth in range(8, 111, 6):  # of the ResNets, which may have any depth
        if "(" not in name:
            break
        from cnngp.network.zoo import resnet

        name = f"resnet{depth}" if network == resnet(depth) else name
    return name


def _leaves(text: str) -> int:
    return text.count('"layer":') - text.count('"layers":') - text.count('"branches":')


def _first(there: Any, now: Any, place: str) -> str:
    """The first place where two documents differ."""
    if isinstance(there, dict) and isinstance(now, dict) and there.get("layer") == now.get("layer"):
        keys = [key for key in there if key in now]
        found = (_first(there[key], now[key], f"{place}.{key}" if place else key) for key in keys)
        return next((text for text in found if text), "")
    if isinstance(there, list) and isinstance(now, list):
        found = (_first(a, b, f"{place}[{k}]") for k, (a, b) in enumerate(zip(there, now, strict=False)))
        text = next((text for text in found if text), "")
        return text or ("" if len(there) == len(now) else f"{place} are {len(there)} there, {len(now)} now")
    return "" if there == now else f"{place or 'it'} is {_short(there)} there, {_short(now)} now"


def _short(value: Any) -> str:
    return str(value["layer"]) if isinstance(value, dict) and "layer" in value else str(value)[:_LONGEST]
