"""A network on one input shape: the size, sheets (see shapes.py) and cost of each layer, and a table of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import assert_never

from cnngp.common.tables import aligned

from .composition import check_network
from .geometry import SizeError
from .layers import Conv, Identity, Layer, Linear, Network, NetworkError, Nonlinearity, Sequential, Sum, as_layer
from .shapes import AxisMap, Displacement, Spatial, axis_maps, check_input_shape, needed, output_spatial, shape_text
from .walk import inside


@dataclass
class Placed:
    """A layer at its place: input and output shape, and the displacements (`wanted`) that its output must provide."""

    place: str
    layer: Layer
    before: Spatial
    after: Spatial
    axes: tuple[AxisMap, ...] = ()
    """Effect of a linear layer along each axis."""
    children: list[Placed] = field(default_factory=list)
    wanted: frozenset[Displacement] = frozenset()
    asked: frozenset[Displacement] = frozenset()
    """The displacements that it needs of its own input in turn."""

    def along(self, D: Displacement) -> Displacement:
        """Displacement of the output along the axes of the input; 0 along each if the output is one location."""
        return D if self.after else (0,) * len(self.before)

    @property
    def along_axes(self) -> frozenset[Displacement]:
        """`wanted` along the axes of the input."""
        return frozenset(map(self.along, self.wanted))

    @property
    def elements(self) -> int:
        """Number of covariances of a pair of images after this layer."""
        if len(self.wanted) == 1:  # without pools; needs no NumPy
            (d,) = self.wanted
            return math.prod(max(0, size - abs(x)) for size, x in zip(self.after, d, strict=True))
        import numpy as np

        D = np.array(list(self.wanted), np.int64).reshape(len(self.wanted), len(self.after))
        return int(np.maximum(0, np.array(self.after, np.int64) - np.abs(D)).prod(axis=1).sum())

    @property
    def cost(self) -> int:
        """Operations per pair of images, for all the sheets that the layer computes."""
        match self.layer:
            case Linear():  # one pass per axis for each sheet; the map shrinks from pass to pass
                cost = self.elements
                for D in self.along_axes:
                    for pieces in product(*(axis.pieces(d) for axis, d in zip(self.axes, D, strict=True))):
                        left = math.prod(piece.sums.size for piece in pieces)
                        for piece in pieces:
                            left //= piece.sums.size
                            cost += piece.sums.taps * left
                            left *= piece.sums.out_size
                return cost
            case Nonlinearity() as layer:
                return layer.operations * self.elements
            case Identity() | Sequential():
                return 0
            case Sum():
                return (len(self.children) - 1) * self.elements
            case _:
                assert_never(self.layer)

    def walk(self) -> Iterator[Placed]:
        """Yield the layers inside this one, in the order of the network, and then this layer."""
        for inner in self.children:
            yield from inner.walk()
        yield self


def placed_network(net: Network, input_shape: Sequence[int], place: str = "") -> tuple[int, Placed]:
    """Return the number of channels and the placed network; raise `NetworkError` if it is no Gaussian process."""
    layer = as_layer(net)
    channels, spatial = check_input_shape(input_shape)
    check_network(layer)
    return channels, placed(layer, spatial, place)


def placed(net: Layer, spatial: Spatial, place: str = "") -> Placed:
    """Place a network on images of one spatial shape; a layer that does not fit raises an error with its place."""
    root = _forwards(net, spatial, place)
    _backwards(root, frozenset({(0,) * len(root.after)}))
    return root


def _forwards(net: Layer, spatial: Spatial, place: str) -> Placed:
    match net:
        case Linear():
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
            if len({c.after for c in children}) > 1:
                told = ", ".join(f"branches[{i}] gives {shape_text(c.after)}" for i, c in enumerate(children))
                advice = "give the skip a Conv(1, stride=…)"
                raise NetworkError(f"the branches of a Sum must have one shape, but {told}; {advice}", place)
            return Placed(place, net, spatial, children[0].after, (), children)
        case _:
            assert_never(net)


def _backwards(here: Placed, wanted: frozenset[Displacement]) -> frozenset[Displacement]:
    """Set `wanted` and `asked` of each layer, from the output backwards; return `asked`."""
    here.wanted = here.asked = wanted
    match here.layer:
        case Linear() as layer:
            if isinstance(layer, Conv) and layer.padding_mode in ("reflect", "replicate") and any(map(any, wanted)):
                raise NetworkError(
                    f"{layer!r} stands before a pool, which asks for covariances of different locations, and "
                    f"padding_mode={layer.padding_mode!r} does not keep their displacement; "
                    "use padding_mode='zeros' or 'circular'",
                    here.place,
                )
            try:
                here.asked = needed(here.axes, here.along_axes)
            except SizeError as error:
                raise NetworkError(f"{layer!r} on {shape_text(here.before)} {error}", here.place) from None
        case Sequential():
            for inner in reversed(here.children):
                here.asked = _backwards(inner, here.asked)
        case Sum():
            here.asked = frozenset().union(*(_backwards(branch, wanted) for branch in here.children))
        case _:
            pass
    return here.asked


@dataclass(frozen=True)
class ShapeRow:
    place: str
    layer: str
    output: Spatial
    cost: int
    sheets: int = 1
    """Number of displacements between locations that are computed here; 1 without pooling."""
    elements: int = 0
    """Number of covariances that a nonlinearity reads for a pair of images; 0 for other layers."""


@dataclass(frozen=True)
class ShapeTable:
    """A row per layer: place, layer, output shape, operations per pair of images. Prints as a table."""

    channels: int
    rows: tuple[ShapeRow, ...]

    @property
    def output(self) -> Spatial:
        return self.rows[-1].output

    @property
    def cost(self) -> int:
        return sum(row.cost for row in self.rows)

    @property
    def elements(self) -> int:
        """Number of covariances that the nonlinearities read for a pair of images, which dominates the time."""
        return sum(row.elements for row in self.rows)

    def __iter__(self) -> Iterator[ShapeRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        cells = [(r.place, r.layer, shape_text(r.output), f"{r.sheets:,}", f"{r.cost:,}") for r in self.rows]
        head = ("place", "layer", "output", "sheets", "operations per pair")
        cells = [head, *cells, ("all", "", "", "", f"{self.cost:,}")]
        shown = [0, 1, 2, 4] if all(row.sheets == 1 for row in self.rows) else range(5)  # sheets only with pools
        return aligned([[row[i] for i in shown] for row in cells], right=(2, 3, 4))


def shape_table(net: Network, input_shape: Sequence[int]) -> ShapeTable:
    channels, root = placed_network(net, input_shape)
    name = f"{channels} channel{'s' if channels > 1 else ''}"
    # The sheets of the input: all that the network needs, each a product over the channels.
    start = Placed("", Identity(), root.before, root.before, wanted=root.asked)
    rows = [ShapeRow("(input)", name, root.before, channels * start.elements, len(start.wanted))]
    for here in root.walk():
        if not isinstance(here.layer, Sequential):
            layer = f"Sum of {len(here.children)}" if isinstance(here.layer, Sum) else repr(here.layer)
            elements = here.elements if isinstance(here.layer, Nonlinearity) else 0
            place = here.place or "(network)"
            rows.append(ShapeRow(place, layer, here.after, here.cost, len(here.wanted), elements))
    return ShapeTable(channels, tuple(rows))


def elements_of(net: Network, input_shape: Sequence[int]) -> int:
    """The `elements` of a network's table, in a tenth of the time that the table takes."""
    _, root = placed_network(net, input_shape)
    return sum(here.elements for here in root.walk() if isinstance(here.layer, Nonlinearity))
