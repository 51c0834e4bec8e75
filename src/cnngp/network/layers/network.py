"""What all layers share: how they print, and the questions that every network answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING

from ..arguments import NetworkError

if TYPE_CHECKING:
    from ..placed import ShapeTable
    from . import Layer


@dataclass(frozen=True, repr=False)
class Network:
    """What all layers share. A single layer is a network too.

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> net = Sequential(Conv(3), ReLU(), Dense())
    >>> net
    Sequential(Conv(3), ReLU(), Dense())
    """

    def __repr__(self) -> str:
        parts = []
        for f in fields(self):
            value = getattr(self, f.name)
            if f.default is MISSING:
                parts.append(repr(value))
            elif value != f.default:
                parts.append(f"{f.name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def to_json(self) -> str:
        """The network as JSON text, read back by `cnngp.from_json`."""
        from ..serialize import to_json

        return to_json(self)

    @property
    def fingerprint(self) -> str:
        """A hash of the network's canonical form: equal for networks that compute the same kernel by the same steps."""
        from ..serialize import fingerprint

        return fingerprint(self)

    def shapes(self, input_shape: Sequence[int]) -> ShapeTable:
        """Every layer with its output shape and its cost per pair of images; refuses what does not fit.

        >>> from cnngp import Conv, Dense, ReLU, Sequential
        >>> print(Sequential(Conv(3, stride=2), ReLU(), Dense()).shapes((1, 28, 28)))
        place      layer               output  operations per pair
        (input)    1 channel          28 × 28                  784
        layers[0]  Conv(3, stride=2)  14 × 14                1,918
        layers[1]  ReLU()             14 × 14                2,940
        layers[2]  Dense()                  1                  211
        all                                                  5,853
        """
        from ..placed import shape_table

        return shape_table(self, input_shape)

    def parameters(self) -> dict[str, float]:
        """The numbers that may be learned, by their place: variances, gains of ReLUs and slopes of LeakyReLUs.

        >>> from cnngp import Conv, Dense, ReLU, Sequential
        >>> Sequential(Conv(3), ReLU(), Dense(2.0, 0.1)).parameters()  # doctest: +NORMALIZE_WHITESPACE
        {'layers[0].weight_var': 1.0, 'layers[0].bias_var': 0.0, 'layers[1].gain': 1.0,
         'layers[2].weight_var': 2.0, 'layers[2].bias_var': 0.1}
        """
        from ..walk import learned, leaves, name_of
        from .composed import as_layer

        fields = ((where, layer, field) for where, layer in leaves(as_layer(self)) for field in learned(layer))
        return {name_of(where, field): getattr(layer, field) for where, layer, field in fields}

    def with_parameters(self, values: Mapping[str, float]) -> Layer:
        """The same network with other values for some of its `parameters`.

        >>> from cnngp import Conv, Dense, ReLU, Sequential
        >>> Sequential(Conv(3), ReLU(), Dense()).with_parameters({"layers[0].bias_var": 0.5})
        Sequential(Conv(3, bias_var=0.5), ReLU(), Dense())
        """
        from ..walk import learned, name_of, with_leaves
        from .composed import as_layer

        known = self.parameters()
        if unknown := [name for name in values if name not in known]:
            some = ", ".join(list(known)[:4]) or "none"
            raise NetworkError(f"no parameter is named {unknown[0]!r}; this network has {len(known)}: {some}, …")

        def changed(place: str, layer: Layer) -> Layer:
            new = {field: values[name] for field in learned(layer) if (name := name_of(place, field)) in values}
            return replace(layer, **new) if new else layer  # type: ignore[arg-type]

        return with_leaves(as_layer(self), changed)
