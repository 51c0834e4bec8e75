"""Traversal of a network: its layers with their places, such as layers[3].branches[1], and their learnable parameters.

Messages and parameters use these places: {"layers[0].weight_var": 1.0, …}. Parameters are the variances of weights and
biases, the gain of a ReLU, the slope of a LeakyReLU, and the gamma of an Rbf or NormalizedExp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .layers import Conv, ConvTranspose, Dense, Elementwise, Layer, Nonlinearity, Sequential, Sum


def name_of(place: str, field: str) -> str:
    """Name of a field of the layer at a place; if the network is a single layer, the field alone."""
    return f"{place}.{field}" if place else field


def inside(net: Layer, place: str = "") -> list[tuple[str, Layer]]:
    """Children of a `Sequential` or `Sum` with their places; empty for any other layer."""
    if not isinstance(net, Sequential | Sum):
        return []
    field, parts = ("layers", net.layers) if isinstance(net, Sequential) else ("branches", net.branches)
    return [(name_of(place, f"{field}[{i}]"), layer) for i, layer in enumerate(parts)]


def leaves(net: Layer, place: str = "") -> Iterator[tuple[str, Layer]]:
    """Yield all layers that are not containers, with their places, in the order of the network."""
    if not isinstance(net, Sequential | Sum):
        yield place, net
    for where, layer in inside(net, place):
        yield from leaves(layer, where)


def with_leaves(net: Layer, change: Callable[[str, Layer], Layer], place: str = "") -> Layer:
    """Return the network with each layer that is not a container replaced by `change(place, layer)`."""
    parts = [with_leaves(layer, change, where) for where, layer in inside(net, place)]
    match net:
        case Sequential():
            return Sequential(*parts)
        case Sum():
            return Sum(*parts, allow_non_gaussian=net.allow_non_gaussian)
        case _:
            return change(place, net)


def has_bare_function(net: Layer) -> bool:
    """True if a network holds an unnamed function, whose values may change between calls."""
    return any(isinstance(layer, Elementwise) and not isinstance(layer.fn, str) for _, layer in leaves(net))


def learned(layer: Layer) -> tuple[str, ...]:
    """Fields of one layer that are learnable parameters."""
    match layer:
        case Conv() | ConvTranspose() | Dense():
            return ("weight_var", "bias_var")
        case Nonlinearity():
            return layer.learned
        case _:
            return ()
