"""A network as its layers with their places, such as layers[3].branches[1], which messages and parameters name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .layers import Layer, Sequential, Sum


def child(place: str, field: str, i: int) -> str:
    """The place of a layer that stands in another one's field."""
    return f"{place}.{field}[{i}]" if place else f"{field}[{i}]"


def at(place: str, message: str) -> str:
    return f"{place}: {message}" if place else message


def inside(net: Layer, place: str = "") -> list[tuple[str, Layer]]:
    """The layers that a `Sequential` or a `Sum` is made of, with their places; none of any other layer."""
    match net:
        case Sequential():
            return [(child(place, "layers", i), layer) for i, layer in enumerate(net.layers)]
        case Sum():
            return [(child(place, "branches", i), branch) for i, branch in enumerate(net.branches)]
        case _:
            return []


def leaves(net: Layer, place: str = "") -> Iterator[tuple[str, Layer]]:
    """All layers that are not made of others, with their places, in the order of the network."""
    if not isinstance(net, Sequential | Sum):
        yield place, net
    for where, layer in inside(net, place):
        yield from leaves(layer, where)


def with_leaves(net: Layer, change: Callable[[str, Layer], Layer], place: str = "") -> Layer:
    """The network with `change(place, layer)` in place of each layer that is not made of others."""
    parts = [with_leaves(layer, change, where) for where, layer in inside(net, place)]
    match net:
        case Sequential():
            return Sequential(*parts)
        case Sum():
            return Sum(*parts, allow_non_gaussian=net.allow_non_gaussian)
        case _:
            return change(place, net)
