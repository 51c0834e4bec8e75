"""A network on one input shape: each layer with its sizes, what it does along each axis, and the sheets it gives."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import assert_never

from .geometry import SizeError
from .layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Identity,
    Layer,
    NetworkError,
    Nonlinearity,
    Sequential,
    Sum,
)
from .shapes import Spatial, axis_maps, check_branches_agree, output_spatial, shape_text
from .sheets import AxisMap, Displacement, needed
from .walk import at, inside


@dataclass
class Placed:
    """A layer at its place: the shapes before and after it, and the displacements that are asked of its output."""

    place: str
    layer: Layer
    before: Spatial
    after: Spatial
    axes: tuple[AxisMap, ...] = ()
    """What a linear layer does along each axis."""
    children: list[Placed] = field(default_factory=list)
    wanted: frozenset[Displacement] = frozenset()
    asked: frozenset[Displacement] = frozenset()
    """The displacements that it asks of its own input in turn."""

    def along(self, D: Displacement) -> Displacement:
        """A displacement of the output along the axes of the input: where one location is left, 0 along each."""
        return D if self.after else (0,) * len(self.before)

    @property
    def along_axes(self) -> frozenset[Displacement]:
        """`wanted`, along the axes of the input."""
        return frozenset(map(self.along, self.wanted))

    @property
    def elements(self) -> int:
        """How many covariances a pair of images has after this layer."""
        if len(self.wanted) == 1:  # without pools, which needs no NumPy
            (d,) = self.wanted
            return math.prod(max(0, size - abs(x)) for size, x in zip(self.after, d, strict=True))
        import numpy as np

        D = np.array(list(self.wanted), np.int64).reshape(len(self.wanted), len(self.after))
        return int(np.maximum(0, np.array(self.after, np.int64) - np.abs(D)).prod(axis=1).sum())

    def walk(self) -> Iterator[Placed]:
        """This layer and all inside it; what is inside comes first, in the order of the network."""
        for inner in self.children:
            yield from inner.walk()
        yield self


def placed(net: Layer, spatial: Spatial, place: str = "") -> Placed:
    """The network on images of one shape; refuses what does not fit, by its place."""
    root = _forwards(net, spatial, place)
    _backwards(root, frozenset({(0,) * len(root.after)}))
    return root


def _forwards(net: Layer, spatial: Spatial, place: str) -> Placed:
    match net:
        case Conv() | ConvTranspose() | Dense() | AvgPool() | GlobalAvgPool():
            axes = axis_maps(net, spatial, place)
            return Placed(place, net, spatial, output_spatial(net, axes), axes)
        case Nonlinearity() | Identity():
            return Placed(place, net, spatial, spatial)
        case Sequential():
            children, after = [], spatial
            for where, layer in inside(net, place):
                children.append(_forwards(layer, after, where))
                after = children[-1].after
            return Placed(place, net, spatial, after, (), children)
        case Sum():
            children = [_forwards(branch, spatial, where) for where, branch in inside(net, place)]
            check_branches_agree([c.after for c in children], place)
            return Placed(place, net, spatial, children[0].after, (), children)
        case _:
            assert_never(net)


def _backwards(here: Placed, wanted: frozenset[Displacement]) -> frozenset[Displacement]:
    """Notes what is wanted of each layer and what it asks of its input; returns the latter."""
    here.wanted = here.asked = wanted
    match here.layer:
        case Conv() | ConvTranspose() | Dense() | AvgPool() | GlobalAvgPool() as layer:
            if isinstance(layer, Conv) and layer.padding_mode in ("reflect", "replicate") and any(map(any, wanted)):
                raise NetworkError(
                    at(
                        here.place,
                        f"{layer!r} stands before a pool, which asks for covariances of different locations, and "
                        f"padding_mode={layer.padding_mode!r} does not keep their displacement; "
                        "use padding_mode='zeros' or 'circular'",
                    )
                )
            try:
                here.asked = needed(here.axes, here.along_axes)
            except SizeError as error:
                raise NetworkError(at(here.place, f"{layer!r} on {shape_text(here.before)} {error}")) from None
        case Sequential():
            for inner in reversed(here.children):
                here.asked = _backwards(inner, here.asked)
        case Sum():
            here.asked = frozenset().union(*(_backwards(branch, wanted) for branch in here.children))
        case _:
            pass
    return here.asked
