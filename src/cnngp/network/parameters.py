"""The numbers of a network that may be learned, by their place: {"layers[0].weight_var": 1.0, …}.

Places are those of `net.shapes(...)` and of messages, so a name says where to look. What a name stands for is a field
of the layer there: the variances of weights and biases, the gain of a ReLU, the slope of a LeakyReLU, the gamma of an
Rbf or NormalizedExp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .composition import child
from .layers import (
    Conv,
    ConvTranspose,
    Dense,
    Layer,
    Network,
    NetworkError,
    Nonlinearity,
    Sequential,
    Sum,
    as_layer,
)


def parameters(net: Network) -> dict[str, float]:
    found: dict[str, float] = {}
    _collect(as_layer(net), "", found)
    return found


def with_parameters(net: Network, values: Mapping[str, float]) -> Layer:
    known = parameters(net)
    unknown = [name for name in values if name not in known]
    if unknown:
        some = ", ".join(list(known)[:4])
        raise NetworkError(f"no parameter is named {unknown[0]!r}; this network has {len(known)}: {some or 'none'}, …")
    return _changed(as_layer(net), "", values)


def fields_of(layer: Layer) -> tuple[str, ...]:
    """The fields of one layer that are parameters."""
    match layer:
        case Conv() | ConvTranspose() | Dense():
            return ("weight_var", "bias_var")
        case Nonlinearity():
            return layer.learned
        case _:
            return ()


def name_of(place: str, field: str) -> str:
    """The name of a field of the layer at a place; of a network that is one layer, the field itself."""
    return f"{place}.{field}" if place else field


def _collect(layer: Layer, place: str, found: dict[str, float]) -> None:
    match layer:
        case Sequential():
            for i, inner in enumerate(layer.layers):
                _collect(inner, child(place, "layers", i), found)
        case Sum():
            for i, inner in enumerate(layer.branches):
                _collect(inner, child(place, "branches", i), found)
        case _:
            found |= {name_of(place, field): getattr(layer, field) for field in fields_of(layer)}


def _changed(layer: Layer, place: str, values: Mapping[str, float]) -> Layer:
    match layer:
        case Sequential():
            return Sequential(
                *(_changed(inner, child(place, "layers", i), values) for i, inner in enumerate(layer.layers))
            )
        case Sum():
            return Sum(
                *(_changed(inner, child(place, "branches", i), values) for i, inner in enumerate(layer.branches)),
                allow_non_gaussian=layer.allow_non_gaussian,
            )
        case _:
            new = {field: values[name] for field in fields_of(layer) if (name := name_of(place, field)) in values}
            return replace(layer, **new) if new else layer  # type: ignore[arg-type]
