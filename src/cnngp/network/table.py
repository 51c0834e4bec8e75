"""The table of a network's shapes and costs that a person reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import assert_never

from cnngp.common.tables import aligned

from .composition import check_network
from .demands import Placed, placed
from .layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Identity,
    Network,
    Nonlinearity,
    Sequential,
    Sum,
    as_layer,
)
from .shapes import Spatial, check_input_shape, shape_text


@dataclass(frozen=True)
class ShapeRow:
    place: str
    layer: str
    output: Spatial
    cost: int
    sheets: int = 1
    """How many displacements between locations are carried here; 1 without pooling."""
    elements: int = 0
    """Covariances that a nonlinearity reads here for a pair of images; 0 for other layers."""


@dataclass(frozen=True)
class ShapeTable:
    """Rows of (place, layer, output shape, operations per pair of images); prints as a table."""

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
        """Covariances that the nonlinearities read for a pair of images: what most of the time goes into."""
        return sum(row.elements for row in self.rows)

    def __iter__(self) -> Iterator[ShapeRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        cells = [(r.place, r.layer, shape_text(r.output), f"{r.sheets:,}", f"{r.cost:,}") for r in self.rows]
        head = ("place", "layer", "output", "sheets", "operations per pair")
        cells = [head, *cells, ("all", "", "", "", f"{self.cost:,}")]
        shown = [0, 1, 2, 4] if all(row.sheets == 1 for row in self.rows) else range(5)  # without pools, no sheets
        return aligned([[row[i] for i in shown] for row in cells], right=(2, 3, 4))


def shape_table(net: Network, input_shape: Sequence[int]) -> ShapeTable:
    layer = as_layer(net)
    channels, spatial = check_input_shape(input_shape)
    check_network(layer)
    root = placed(layer, spatial)
    name = f"{channels} channel{'s' if channels > 1 else ''}"
    # The sheets of the input: all that any layer asks of it, each a product over the channels.
    start = Placed("", Identity(), spatial, spatial, wanted=root.asked)
    rows = [ShapeRow("(input)", name, spatial, channels * start.elements, len(start.wanted))]
    rows += (
        ShapeRow(
            *(here.place or "(network)", _name(here), here.after, _cost(here), len(here.wanted)),
            here.elements if isinstance(here.layer, Nonlinearity) else 0,
        )
        for here in root.walk()
        if not isinstance(here.layer, Sequential)
    )
    return ShapeTable(channels, tuple(rows))


def elements_of(net: Network, input_shape: Sequence[int]) -> int:
    """The `elements` of a network's table alone, in a tenth of the table's time."""
    _, spatial = check_input_shape(input_shape)
    layer = as_layer(net)
    check_network(layer)
    return sum(here.elements for here in placed(layer, spatial).walk() if isinstance(here.layer, Nonlinearity))


def _name(here: Placed) -> str:
    return f"Sum of {len(here.children)}" if isinstance(here.layer, Sum) else repr(here.layer)


def _cost(here: Placed) -> int:
    """Operations per pair of images, for all the sheets that are asked of the layer."""
    match here.layer:
        case Conv() | ConvTranspose() | Dense() | AvgPool() | GlobalAvgPool():
            return here.elements + sum(_sheet_cost(here, D) for D in here.along_axes)
        case Nonlinearity() as layer:
            return layer.operations * here.elements
        case Identity() | Sequential():
            return 0
        case Sum():
            return (len(here.children) - 1) * here.elements
        case _:
            assert_never(here.layer)


def _sheet_cost(here: Placed, D: tuple[int, ...]) -> int:
    """Additions that make one sheet of a linear layer's output: one pass an axis, the map shrinking on the way."""
    cost = 0
    for pieces in product(*(axis.pieces(d) for axis, d in zip(here.axes, D, strict=True))):
        left = math.prod(piece.sums.size for piece in pieces)
        for piece in pieces:
            left //= piece.sums.size
            cost += piece.sums.taps * left
            left *= piece.sums.out_size
    return cost
