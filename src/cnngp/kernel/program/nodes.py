"""Lowering of single layers to nodes: operations in single-assignment form, each of which makes a new map.

Convolutions, transposed convolutions, dense layers, pools, nonlinearities and sums of branches all take the one form
of `Op`, with a unit chosen for each result; scheduling.py decides later which buffer holds it.

A layer's result is a `Value`: its sheets (network/shapes.py), each made at first use. Without pools that is one sheet
of displacement zero, the map itself. With pools, requests from the output make one sheet after the other, from the
images to the pool that adds it, so few of them are alive at a time.

A map's level is log₂ of its size for pixels of order one. It depends on the network alone, so the unit chosen from it
cannot change the bits of an entry between batches.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

from cnngp.kernel.formulas import formula
from cnngp.kernel.formulas.family import log2
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import AvgPool, Conv, ConvTranspose, Dense, GlobalAvgPool, NetworkError, Nonlinearity
from cnngp.network.placed import Placed
from cnngp.network.shapes import Displacement, Piece, Spatial, in_order, overlap, sum_scale

from .ops import NOTHING, PIXELS, Activation, Op, Shape, Sums, as_shape

# Number of sheets added into one sum before a new one is begun, so that rounding does not grow with their number.
# Sums along an axis with more than `_LONGEST_SUM` terms are made of sums of blocks.
_BLOCK = 64
_LONGEST_SUM = 256
# A buffer's typical value stays within 2^±24 for pixels of order one; float32 has 2^±126, so images of any usual scale
# (0 to 255, standardised, …) stay far from both ends.
_HEADROOM = 24.0


@dataclass(frozen=True)
class Value:
    """The sheets of a map while lowering: node · unit is the true value.

    `level` is log₂ of the map's size for pixels of order one; `make(d)` adds a sheet's nodes and returns the last one.
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
        """Shape of a sheet, and its first location in the first and in the second image."""
        return _overlap(self.spatial, d)


@lru_cache(maxsize=1 << 16)  # called for every reader of every sheet, in every layer of the same size
def _overlap(spatial: Spatial, d: Displacement) -> tuple[Shape, Shape, Shape]:
    parts = [overlap(n, x) for n, x in zip(spatial, d, strict=True)]
    first = tuple(begin for begin, _ in parts)
    second = tuple(begin + x for begin, x in zip(first, d, strict=True))
    return as_shape(tuple(size for _, size in parts)), as_shape(first, 0), as_shape(second, 0)


@dataclass(frozen=True)
class _Affine:
    """A linear operation in the units of its maps: result ← keep · base + scale · sum + bias."""

    unit: float
    level: float
    keep: float
    scale: float
    bias: float
    per_weight: float = 0.0
    per_bias: float = 0.0


class NodeBuilder:
    """Makes the nodes of single layers, and counts the nonlinearities and their table entries."""

    def __init__(self, every_layer: bool = False) -> None:
        self.every_layer = every_layer
        self.nodes: list[Op] = []
        self.elements = 0
        self.sites = 0

    def add(self, node: Op) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def on_sheet(
        self, place: str, x: Value, d: Displacement, dst: int = NOTHING, src: int | None = None, **rest: Any
    ) -> int:
        """Add an operation without sums on a sheet."""
        shape, first, second = x.overlap(d)
        src = x.sheet(d) if src is None else src
        return self.add(Op(place, src, dst, shape, shape, first=first, second=second, **rest))

    def new_input(self, spatial: Spatial, unit: float) -> Value:
        pixels = Value(unit, spatial, 0.0, lambda d: self.on_sheet("(input)", pixels, d, src=PIXELS))
        return pixels

    def site(self, layer: Nonlinearity, x: Value, place: str) -> Activation:
        """Return the activation of a nonlinearity at this place, with entries of its own in the images' tables."""
        row = formula(layer)
        unit, factor = x.unit * row.argument, row.factor(x.unit)
        activation = Activation(layer, place, self.sites, self.elements, as_shape(x.spatial), unit, factor)
        self.sites += 1
        self.elements += activation.size
        return activation

    def activated(self, activation: Activation, x: Value) -> Value:
        make = partial(self.on_sheet, activation.place, x, activation=activation)
        return Value(activation.factor, x.spatial, activation.formula.level(x.level), make)

    def linear(self, here: Placed, layer: Conv | ConvTranspose | Dense, x: Value, into: Value | None) -> Value:
        """Lower a layer with weights: an output sheet is a sum of box sums over input sheets, mostly over one."""
        weight, bias = sum_scale(layer, here.before), layer.bias_var
        still = (axis.pieces(0)[0].sums for axis in here.axes)
        terms = math.prod(s.longest for s in still)
        weight = weight if terms else 0.0  # every patch may lie in the padding
        level = log2_sum(log2(bias), log2(weight * terms) + x.level)
        if into is None and bias == 0 and weight > 0 and not self.every_layer and _is_pointwise(here):
            return self._same_sheets(here, x, weight, level)
        affine = _affine(here.place, level, x.unit * weight, bias, into)
        one = x.unit * sum_scale(replace(layer, weight_var=1.0), here.before)
        affine = replace(affine, per_weight=one / affine.unit, per_bias=1.0 / affine.unit)

        def make(D: Displacement) -> int:
            total = _Total(self, here.place, affine, value.overlap(D)[0], _sheet(into, D))
            for d, term in _terms(here, D):
                total.add(x.sheet(d), x.overlap(d), term)
            return total.node()

        value = Value(affine.unit, here.after, affine.level, make)
        return value

    def _same_sheets(self, here: Placed, x: Value, weight: float, level: float) -> Value:
        """Lower a layer that only changes the unit."""
        unit = _checked(x.unit * weight, level, here.place)
        return Value(unit, here.after, level, lambda D: x.sheet(here.along(D)))

    def pool(self, here: Placed, *maps: tuple[Value, Value | None]) -> tuple[Value, ...]:
        """Lower a pool of one map, or of K and T together, each with the map that the result is added to or None.

        Each input sheet contributes to several output sheets: it is made once and added to all of them right away, and
        the same sheets of all maps follow each other, so few are alive at a time.
        """
        assert isinstance(here.layer, AvgPool | GlobalAvgPool)
        weight = sum_scale(here.layer, here.before)
        plain = all(into is None for _, into in maps) and not self.every_layer
        if weight > 0 and plain and _is_pointwise(here):
            return tuple(self._same_sheets(here, x, weight, x.level) for x, _ in maps)
        affines = [_affine(here.place, x.level, x.unit * weight, 0.0, into) for x, into in maps]

        def make(D: Displacement, wanted: int) -> int:
            totals: dict[tuple[int, Displacement], _Total] = {}
            readers: dict[Displacement, list[tuple[Displacement, tuple[Piece, ...]]]] = {}
            for E in in_order(here.wanted):
                for i, ((_, into), affine) in enumerate(zip(maps, affines, strict=True)):
                    totals[i, E] = _Total(self, here.place, affine, values[i].overlap(E)[0], _sheet(into, E))
                for d, term in _terms(here, E):
                    readers.setdefault(d, []).append((E, term))
            for d in in_order(readers):
                for i, (x, _) in enumerate(maps):
                    sheet = x.sheet(d)
                    for E, term in readers[d]:
                        totals[i, E].add(sheet, x.overlap(d), term)
            for (i, E), total in totals.items():
                values[i].made[E] = total.node()
            return values[wanted].made[D]

        values = tuple(Value(a.unit, here.after, a.level, partial(make, wanted=i)) for i, a in enumerate(affines))
        return values

    def added(self, x: Value, place: str, into: Value | None) -> Value:
        if into is None:
            return x
        affine = _affine(place, x.level, x.unit, 0.0, into)

        def make(d: Displacement) -> int:
            return self.on_sheet(place, x, d, into.sheet(d), keep=affine.keep, scale=affine.scale)

        return Value(affine.unit, x.spatial, affine.level, make)


class _Total:
    """Accumulator of one output sheet of a linear layer: adds its terms in blocks."""

    def __init__(self, builder: NodeBuilder, place: str, affine: _Affine, shape: Shape, base: int) -> None:
        self.builder, self.place, self.affine, self.shape = builder, place, affine, shape
        self.total, self.block, self.count = NOTHING, NOTHING, 0
        # The first block starts from `base` and the bias, later ones from nothing.
        bias = {"bias": affine.bias, "per_bias": affine.per_bias}
        self.beginning: dict[str, Any] = {"dst": base, "keep": affine.keep, **bias}

    def add(self, src: int, overlap: tuple[Shape, Shape, Shape], term: tuple[Piece, ...]) -> None:
        if self.count == _BLOCK:
            self._end_block()
        shape, first, second = overlap
        sums = _three_sums(tuple(piece.sums for piece in term))
        while any(s.longest > _LONGEST_SUM for s in sums):
            blocks, sums = _in_blocks(sums)
            within = (blocks[0].out_size, blocks[1].out_size, blocks[2].out_size)
            src = self._made(src, shape, within, sums=blocks, first=first, second=second)
            shape, first, second = within, (0, 0, 0), (0, 0, 0)
        if self.block != NOTHING:
            self.beginning = {"dst": self.block, "keep": 1.0}
        self.block = self._made(
            src, shape, self.shape, sums=None if all(s.is_identity for s in sums) else sums,
            scale=self.affine.scale * math.prod(piece.weight for piece in term), first=first, second=second,
            per_weight=self.affine.per_weight, **self.beginning,
        )  # fmt: skip
        self.count += 1

    def node(self) -> int:
        if self.block == NOTHING:  # no terms, because no two locations share a weight: the bias alone
            return self._made(NOTHING, self.shape, self.shape, scale=0.0, **self.beginning)
        if self.total == NOTHING:
            return self.block
        self._end_block()
        return self.total

    def _end_block(self) -> None:
        if self.total == NOTHING:
            self.total = self.block
        else:
            self.total = self._made(self.block, self.shape, self.shape, dst=self.total, keep=1.0)
        self.block, self.count, self.beginning = NOTHING, 0, {}

    def _made(self, src: int, shape: Shape, out_shape: Shape, *, dst: int = NOTHING, **numbers: Any) -> int:
        return self.builder.add(Op(self.place, src, dst, shape, out_shape, **numbers))


def _sheet(x: Value | None, d: Displacement) -> int:
    return NOTHING if x is None else x.sheet(d)


def _terms(here: Placed, D: Displacement) -> list[tuple[Displacement, tuple[Piece, ...]]]:
    """Input sheets of a linear layer that make up its output sheet D, with the sums along each axis."""
    pieces = product(*(axis.pieces(d) for axis, d in zip(here.axes, here.along(D), strict=True)))
    return [(tuple(piece.d for piece in term), term) for term in pieces]


def _is_pointwise(here: Placed) -> bool:
    """True if every output sheet equals the input sheet of the same displacement."""

    def passes(pieces: tuple[Piece, ...], d: int) -> bool:
        return len(pieces) == 1 and pieces[0].d == d and pieces[0].weight == 1.0 and pieces[0].sums.is_identity

    return all(passes(axis.pieces(d), d) for i, axis in enumerate(here.axes) for d in {D[i] for D in here.along_axes})


def _affine(place: str, level: float, true_scale: float, true_bias: float, into: Value | None) -> _Affine:
    """Choose the unit of a result, which fixes keep, scale and bias.

    A new map takes the unit in which its scale is 1; a sum keeps the unit of the map it adds to. Either is shifted by a
    power of two if the typical value would exceed the headroom.
    """
    if into is None:
        unit = true_scale if true_scale > 0 else 1.0
    else:
        unit, level = into.unit, log2_sum(into.level, level)
    drift = level - log2(unit)
    if abs(drift) > _HEADROOM and math.isfinite(drift):
        try:
            unit = math.ldexp(unit, round(drift))
        except OverflowError:
            unit = math.inf
    unit = _checked(unit, level, place)
    keep = 0.0 if into is None else into.unit / unit
    return _Affine(unit, level, keep, true_scale / unit, true_bias / unit)


def _in_blocks(sums: Sums) -> tuple[Sums, Sums]:
    """Split the longest sums into two steps: sums over blocks, and sums of those. Adding one number after another
    rounds at every addition, which in float32 costs 1e-6 at ten thousand of them.
    """
    longest = max(range(3), key=lambda axis: sums[axis].longest)
    pairs = [s.in_blocks(_BLOCK) if axis == longest else (AxisSum.identity(s.size), s) for axis, s in enumerate(sums)]
    (a, b, c), (d, e, f) = zip(*pairs, strict=True)
    return (a, b, c), (d, e, f)


def _three_sums(sums: tuple[AxisSum, ...]) -> Sums:
    a, b, c = (*(AxisSum.identity(1),) * (3 - len(sums)), *sums)
    return a, b, c


def _checked(unit: float, level: float, place: str) -> float:
    """Return the unit if float64 can hold it, else raise `NetworkError` with the place."""
    if not sys.float_info.min <= unit < math.inf:  # subnormal numbers have lost digits
        raise NetworkError(f"the variance here is of order 2^{level:.0f}, beyond float64; use other variances", place)
    return unit


def log2_sum(a: float, b: float) -> float:
    """Return log₂(2^a + 2^b)."""
    top = max(a, b)
    return top if math.isinf(top) else top + math.log2(2.0 ** (a - top) + 2.0 ** (b - top))
