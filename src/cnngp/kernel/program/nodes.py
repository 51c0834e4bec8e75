"""network → nodes: the operations in single-assignment form, each a new map.

Convolutions, transposed convolutions, dense layers, pools, nonlinearities and sums of branches all become the one form
of `Op`, with the unit of each result chosen; which buffer holds it is decided later (scheduling.py).

A layer's result is a `Value`: its sheets (network/sheets.py), each made when it is first asked for. Without pools that
is one sheet of displacement zero, the map itself. With pools, asking from the output makes one sheet after the other,
from the images to the pool that adds it up, so few of them are alive at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import assert_never

from cnngp.network.demands import Placed
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Identity,
    Nonlinearity,
    Sequential,
    Sum,
)
from cnngp.network.shapes import Linear, Spatial, sum_scale
from cnngp.network.sheets import Displacement, Piece, in_order, overlap

from .formulas import formula
from .ops import NOTHING, PIXELS, Activation, Shape, as_shape
from .units import checked, log2, log2_sum, within_headroom

# So many sheets are added into one sum before a new one is begun, so that rounding does not grow with their number.
# Along an axis longer sums than the second number are made of sums of blocks.
_BLOCK = 64
_LONGEST_SUM = 256


@dataclass(frozen=True)
class Node:
    """An operation in single-assignment form: it reads `src`, adds to `base` where there is one, and is a new map.

    `first` and `second` say where the map that it reads begins in the first image and in the second.
    """

    place: str
    src: int
    base: int | None
    shape: Shape
    out_shape: Shape
    activation: Activation | None = None
    sums: tuple[AxisSum, AxisSum, AxisSum] | None = None
    keep: float = 0.0
    scale: float = 1.0
    bias: float = 0.0
    first: Shape = (0, 0, 0)
    second: Shape = (0, 0, 0)


@dataclass(frozen=True)
class Value:
    """The sheets of a map while lowering: node · unit is the true value.

    `level` is log₂ of the map's size for pixels of order one; `make(d)` adds the nodes of a sheet and returns its last.
    """

    unit: float
    spatial: Spatial
    level: float
    make: Callable[[Displacement], int]
    made: dict[Displacement, int] = field(default_factory=dict)

    def sheet(self, d: Displacement) -> int:
        if d not in self.made:
            self.made[d] = self.make(d)
        return self.made[d]

    def overlap(self, d: Displacement) -> tuple[Shape, Shape, Shape]:
        """The shape of a sheet, and where it begins in the first and in the second image."""
        parts = [overlap(n, x) for n, x in zip(self.spatial, d, strict=True)]
        first = tuple(begin for begin, _ in parts)
        second = tuple(begin + x for begin, x in zip(first, d, strict=True))
        return as_shape(tuple(size for _, size in parts)), _origin(first), _origin(second)


def _origin(begins: tuple[int, ...]) -> Shape:
    a, b, c = (*(0,) * (3 - len(begins)), *begins)
    return a, b, c


@dataclass(frozen=True)
class _Affine:
    """A linear operation in the units of its maps: result ← keep · base + scale · sum + bias."""

    unit: float
    level: float
    keep: float
    scale: float
    bias: float


class Builder:
    """Collects the nodes of a network, and counts the nonlinearities and the table entries that they need."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.elements = 0
        self.sites = 0

    def new_input(self, spatial: Spatial, unit: float) -> Value:
        def make(d: Displacement) -> int:
            shape, first, second = value.overlap(d)
            return self.add(Node("(input)", PIXELS, None, shape, shape, first=first, second=second))

        value = Value(unit, spatial, 0.0, make)
        return value

    def add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def lower(self, here: Placed, x: Value, into: Value | None = None) -> Value:
        """The map of a layer applied to `x`, added to `into` where given."""
        match here.layer:
            case Conv() | ConvTranspose() | Dense() | AvgPool() | GlobalAvgPool() as layer:
                return self._linear(here, layer, x, into)
            case Nonlinearity() as layer:
                return self._added(self._activation(layer, x, here.place), here.place, into)
            case Identity():
                return self._added(x, here.place, into)
            case Sequential():
                if not here.children:
                    return self._added(x, here.place, into)
                for inner in here.children[:-1]:
                    x = self.lower(inner, x)
                    x.sheet((0,) * len(x.spatial))  # always needed; made here, deep networks do not recurse
                return self.lower(here.children[-1], x, into)
            case Sum():
                # A bare skip goes first: what is added to it then costs no operation of its own.
                total = into
                for branch in sorted(here.children, key=lambda branch: not _is_skip(branch)):
                    total = self.lower(branch, x, total)
                    total.sheet((0,) * len(total.spatial))
                assert total is not None
                return total
            case _:
                assert_never(here.layer)

    def _activation(self, layer: Nonlinearity, x: Value, place: str) -> Value:
        shape = as_shape(x.spatial)
        row = formula(layer)
        factor, level = row.factor(x.unit), row.level(x.level)
        activation = Activation(layer, place, self.sites, self.elements, shape, x.unit, factor)
        self.sites += 1
        self.elements += activation.size

        def make(d: Displacement) -> int:
            part, first, second = x.overlap(d)
            return self.add(Node(place, x.sheet(d), None, part, part, activation, first=first, second=second))

        return Value(factor, x.spatial, level, make)

    def _linear(self, here: Placed, layer: Linear, x: Value, into: Value | None) -> Value:
        """A sheet of the output is a sum of box sums over sheets of the input: for most layers of one."""
        weight = sum_scale(layer, here.before)
        bias = 0.0 if isinstance(layer, AvgPool | GlobalAvgPool) else layer.bias_var
        level = x.level
        if not isinstance(layer, AvgPool | GlobalAvgPool):
            still = (axis.pieces(0)[0].sums for axis in here.axes)
            terms = math.prod(s.longest for s in still)
            weight = weight if terms else 0.0  # every patch may lie in the padding
            level = log2_sum(log2(bias), log2(weight * terms) + x.level)
        if into is None and bias == 0 and weight > 0 and _is_pointwise(here):
            unit = checked(x.unit * weight, level, here.place)  # a change of unit only
            return Value(unit, here.after, level, lambda D: x.sheet(here.along(D)))
        affine = _affine(here.place, level, x.unit * weight, bias, into)
        if isinstance(layer, AvgPool | GlobalAvgPool):
            return self._pool(here, x, into, affine)

        def make(D: Displacement) -> int:
            total = _Total(self, here.place, affine, value.overlap(D)[0], None if into is None else into.sheet(D))
            for d, term in _terms(here, D):
                total.add(x.sheet(d), x.overlap(d), term)
            return total.node()

        value = Value(affine.unit, here.after, affine.level, make)
        return value

    def _pool(self, here: Placed, x: Value, into: Value | None, affine: _Affine) -> Value:
        """A sheet of the input belongs to several of the output: it is made once, and added to each of them at once."""

        def make(D: Displacement) -> int:
            totals: dict[Displacement, _Total] = {}
            readers: dict[Displacement, list[tuple[_Total, tuple[Piece, ...]]]] = {}
            for E in in_order(here.wanted):
                base = None if into is None else into.sheet(E)
                totals[E] = _Total(self, here.place, affine, value.overlap(E)[0], base)
                for d, term in _terms(here, E):
                    readers.setdefault(d, []).append((totals[E], term))
            for d in in_order(readers):
                sheet = x.sheet(d)
                for total, term in readers[d]:
                    total.add(sheet, x.overlap(d), term)
            value.made.update((E, total.node()) for E, total in totals.items())
            return value.made[D]

        value = Value(affine.unit, here.after, affine.level, make)
        return value

    def _added(self, x: Value, place: str, into: Value | None) -> Value:
        if into is None:
            return x
        affine = _affine(place, x.level, x.unit, 0.0, into)

        def make(d: Displacement) -> int:
            base = into.sheet(d)
            shape, first, second = x.overlap(d)
            return self.add(
                Node(place, x.sheet(d), base, shape, shape, None, None, affine.keep, affine.scale, 0.0, first, second)
            )

        return Value(affine.unit, x.spatial, affine.level, make)


class _Total:
    """One sheet of a linear layer's output while terms are added to it."""

    def __init__(self, builder: Builder, place: str, affine: _Affine, shape: Shape, base: int | None) -> None:
        self.builder, self.place, self.affine, self.shape, self.base = builder, place, affine, shape, base
        self.total: int | None = None
        """What has been added up before the present block of terms."""
        self.block: int | None = None
        self.count = 0

    def add(self, src: int, overlap: tuple[Shape, Shape, Shape], term: tuple[Piece, ...]) -> None:
        if self.count == _BLOCK:
            self._end_block()
        shape, first, second = overlap
        sums = _three_sums(tuple(piece.sums for piece in term))
        while any(s.longest > _LONGEST_SUM for s in sums):
            blocks, sums = _in_blocks(sums)
            within = (blocks[0].out_size, blocks[1].out_size, blocks[2].out_size)
            src = self.builder.add(Node(self.place, src, None, shape, within, None, blocks, first=first, second=second))
            shape, first, second = within, (0, 0, 0), (0, 0, 0)
        scale = self.affine.scale * math.prod(piece.weight for piece in term)
        node = Node(
            self.place, src, self.block, shape, self.shape, None, None if all(s.is_identity for s in sums) else sums,
            1.0, scale, 0.0, first, second,
        )  # fmt: skip
        self.block = self._begin(node) if self.block is None else self.builder.add(node)
        self.count += 1

    def node(self) -> int:
        if self.block is None:  # no two locations share a weight: the bias alone
            return self._begin(Node(self.place, NOTHING, None, self.shape, self.shape, scale=0.0))
        if self.total is not None:
            self._end_block()
            return self.total
        return self.block

    def _begin(self, node: Node) -> int:
        """The first term also brings what is added to, and the bias; later blocks begin with nothing."""
        if self.total is not None:
            return self.builder.add(replace(node, keep=0.0))
        return self.builder.add(replace(node, base=self.base, keep=self.affine.keep, bias=self.affine.bias))

    def _end_block(self) -> None:
        assert self.block is not None
        if self.total is None:
            self.total = self.block
        else:
            self.total = self.builder.add(Node(self.place, self.block, self.total, self.shape, self.shape, keep=1.0))
        self.block, self.count = None, 0


def _terms(here: Placed, D: Displacement) -> list[tuple[Displacement, tuple[Piece, ...]]]:
    """The sheets of a linear layer's input that make the sheet D of its output, with what is summed along each axis."""
    pieces = product(*(axis.pieces(d) for axis, d in zip(here.axes, here.along(D), strict=True)))
    return [(tuple(piece.d for piece in term), term) for term in pieces]


def _is_pointwise(here: Placed) -> bool:
    """Whether every sheet of the output is the same sheet of the input."""

    def passes(pieces: tuple[Piece, ...], d: int) -> bool:
        return len(pieces) == 1 and pieces[0].d == d and pieces[0].weight == 1.0 and pieces[0].sums.is_identity

    return all(passes(axis.pieces(d), d) for i, axis in enumerate(here.axes) for d in {D[i] for D in here.along_axes})


def _affine(place: str, level: float, true_scale: float, true_bias: float, into: Value | None) -> _Affine:
    """Choose the unit of a result, which fixes keep, scale and bias.

    A fresh map takes the unit in which its scale is 1; a sum keeps the unit of what it adds to. Either is shifted by a
    power of two when the typical value would leave the headroom.
    """
    if into is None:
        unit = true_scale if true_scale > 0 else 1.0
    else:
        unit, level = into.unit, log2_sum(into.level, level)
    unit = checked(within_headroom(unit, level), level, place)
    keep = 0.0 if into is None else into.unit / unit
    return _Affine(unit, level, keep, true_scale / unit, true_bias / unit)


def _is_skip(here: Placed) -> bool:
    """A branch that lowers to no operation, or to a mere change of unit."""
    match here.layer:
        case Identity():
            return True
        case Sequential():
            return all(map(_is_skip, here.children))
        case Conv() as net:
            one = net.kernel_size == 1 or (isinstance(net.kernel_size, tuple) and set(net.kernel_size) == {1})
            still = net.stride == 1 or (isinstance(net.stride, tuple) and set(net.stride) == {1})
            unpadded = net.padding in ("same", "valid", 0)
            return one and still and unpadded and net.bias_var == 0 and net.weight_var > 0
        case _:
            return False


Sums = tuple[AxisSum, AxisSum, AxisSum]


def _in_blocks(sums: Sums) -> tuple[Sums, Sums]:
    """The longest sums in two steps: sums over blocks, and sums of those. One number after the other would round as
    often as there are numbers, which in float32 costs 1e-6 at ten thousand of them.
    """
    longest = max(range(3), key=lambda axis: sums[axis].longest)
    pairs = [s.in_blocks(_BLOCK) if axis == longest else (AxisSum.identity(s.size), s) for axis, s in enumerate(sums)]
    (a, b, c), (d, e, f) = zip(*pairs, strict=True)
    return (a, b, c), (d, e, f)


def _three_sums(sums: tuple[AxisSum, ...]) -> Sums:
    one = (AxisSum.identity(1),) * (3 - len(sums))
    a, b, c = (*one, *sums)
    return a, b, c
