"""The numbers of a network that may be learned, by their place: {"layers[0].weight_var": 1.0, …}.

Places are those of `net.shapes(...)` and of messages, so a name says where to look. What a name stands for is a field
of the layer there: the variances of weights and biases, the gain of a ReLU, the slope of a LeakyReLU, the gamma of an
Rbf or NormalizedExp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .layers import (
    Conv,
    ConvTranspose,
    Dense,
    Layer,
    Network,
    NetworkError,
    Nonlinearity,
    as_layer,
)
from .walk import leaves, with_leaves


def parameters(net: Network) -> dict[str, float]:
    return {
        name_of(place, field): getattr(layer, field)
        for place, layer in leaves(as_layer(net))
        for field in fields_of(layer)
    }


def with_parameters(net: Network, values: Mapping[str, float]) -> Layer:
    known = parameters(net)
    unknown = [name for name in values if name not in known]
    if unknown:
        some = ", ".join(list(known)[:4])
        raise NetworkError(f"no parameter is named {unknown[0]!r}; this network has {len(known)}: {some or 'none'}, …")

    def changed(place: str, layer: Layer) -> Layer:
        new = {field: values[name] for field in fields_of(layer) if (name := name_of(place, field)) in values}
        return replace(layer, **new) if new else layer  # type: ignore[arg-type]

    return with_leaves(as_layer(net), changed)


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
