"""Networks in messages: by name, and where two of them differ."""

from __future__ import annotations

import json
from typing import Any

from cnngp.network.layers import Network, NetworkError
from cnngp.network.names import zoo_name
from cnngp.network.serialize import from_json
from cnngp.network.zoo import resnet

_LONGEST = 80


def told(network: Network) -> str:
    """A network by its name, as the code that makes it where that is short, else by how many layers it has.

    >>> from cnngp import Conv, Dense, ReLU, Sequential, zoo
    >>> told(zoo.resnet(20)), told(Sequential(*[Conv(3), ReLU()] * 9, Dense()))
    ('resnet20', 'a Sequential of 19 layers')
    """
    name = zoo_name(network)
    if "(" in name:  # a ResNet may have any depth
        name = next((f"resnet{depth}" for depth in range(8, 111, 6) if network == resnet(depth)), name)
    if len(name) <= _LONGEST:
        return name
    text = network.to_json()
    leaves = text.count('"layer":') - text.count('"layers":') - text.count('"branches":')
    return f"a {type(network).__name__} of {leaves:,} layers"


def difference(there: str | None, now: str | None) -> str:
    """What tells two networks apart, given as JSON, or None for one with a Python function.

    >>> from cnngp import Conv, Dense, ReLU, Sequential, zoo
    >>> difference(zoo.resnet(20).to_json(), zoo.resnet(32).to_json())
    'resnet20 there, resnet32 now'
    >>> difference(*(Sequential(Conv(k), ReLU(), Dense()).to_json() for k in (3, 5)))
    'layers[0].kernel_size is 3 there, 5 now'
    """
    try:
        names = ["one with a Python function" if text is None else told(from_json(text)) for text in (there, now)]
    except NetworkError:
        return "one that this version cannot read there"
    both = f"{names[0]} there, {names[1]} now"
    of_the_zoo = [" " not in name and "(" not in name for name in names]
    if there is None or now is None or all(of_the_zoo):
        return both
    place = _first(json.loads(there)["network"], json.loads(now)["network"], "")
    return f"{both}; {place}" if any(of_the_zoo) else place


def _first(there: Any, now: Any, place: str) -> str:
    """The first place where two documents differ."""
    if isinstance(there, dict) and isinstance(now, dict) and there.get("layer") == now.get("layer"):
        found = (_first(there[k], now[k], f"{place}.{k}" if place else k) for k in there if k in now)
        return next(filter(None, found), "")
    if isinstance(there, list) and isinstance(now, list):
        found = (_first(a, b, f"{place}[{k}]") for k, (a, b) in enumerate(zip(there, now, strict=False)))
        lengths = "" if len(there) == len(now) else f"{place} are {len(there)} there, {len(now)} now"
        return next(filter(None, found), lengths)
    return "" if there == now else f"{place or 'it'} is {_short(there)} there, {_short(now)} now"


def _short(value: Any) -> str:
    return str(value["layer"]) if isinstance(value, dict) and "layer" in value else str(value)[:_LONGEST]
