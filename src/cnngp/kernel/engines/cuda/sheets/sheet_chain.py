"""A network with pools cut into segments, and the cyclic shifts that each segment runs.

A sheet is the map p ↦ K(p, p + d). Along an axis of n places the sheets d and d − n share one map: the second image is
read cyclically shifted by d, places before n − d belong to d and the others to d − n, and no sum crosses the *wall*
between them. A convolution without padding leaves fewer places: they keep the shifts of the larger map, and a sum that
crosses the wall belongs to no displacement and counts nothing. Between pools all shifts run the same steps; a pool
takes each place of a shift to the shift it belongs to on the coarser map; what follows the last nonlinearity is one
weighted sum over all shifts.

Pure functions of the network, with no CUDA text in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from cnngp.kernel.program import PIXELS, Program
from cnngp.kernel.program.lowering import Builder, Maps
from cnngp.kernel.program.nodes import Node, Value
from cnngp.kernel.program.ops import as_shape
from cnngp.kernel.program.scheduling import assign_buffers, fused
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    Elementwise,
    GlobalAvgPool,
    Identity,
    Sequential,
    as_layer,
)
from cnngp.network.placed import Placed, placed
from cnngp.network.shapes import AxisMap, sum_scale

from ..registers import Map, Registers, Step, in_registers


@dataclass(frozen=True)
class Shifts:
    """The sheets of a segment along one axis, each item one cyclic shift.

    `at[n]` are the items' shifts on the maps with n places along this axis; `members` the displacements of the
    segment's output that an item stands for; `period` the places after which a shift begins again, where maps shrink
    more than the output has.
    """

    size: int
    at: dict[int, tuple[int, ...]]
    members: tuple[frozenset[int], ...]
    period: int | None = None

    @property
    def count(self) -> int:
        return len(self.members)

    def displacement(self, item: int, place: int) -> int | None:
        """The displacement at a place of the output, or None if it is not one of the item's own."""
        shift = self.at[self.size][item]
        d = shift if place < self.size - shift else shift - (self.period or self.size)
        return d if d in self.members[item] and 0 <= place + d < self.size else None

    def cycle(self, n: int) -> int:
        """Number of places after which a shift begins again on the map with n places."""
        return self.period or n


@dataclass(frozen=True)
class Segment:
    """Steps between pools, and the shifts along rows and columns that run them."""

    registers: Registers
    rows: Shifts
    columns: Shifts

    @property
    def start(self) -> Map:
        return self.registers.starts[0]

    @property
    def steps(self) -> tuple[Step, ...]:
        return self.registers.steps


@dataclass(frozen=True)
class Chain:
    """A network as segments with pools of 2 × 2 between them, a weighted sum at the end, and scalar steps behind it.

    `row_weights[item][place]` and `column_weights` are what a place counts in the sums, of K and perhaps of what stands
    for Θ beside it. The scalars that the tail starts from are `scales` · sums, to the first of which `bias` is added;
    `units` times the tail's results are K and Θ.
    """

    segments: tuple[Segment, ...]
    row_weights: tuple[tuple[float, ...], ...]
    column_weights: tuple[tuple[float, ...], ...]
    scales: tuple[float, ...]
    bias: float
    tail: Registers
    units: tuple[float, ...]

    @property
    def cycles(self) -> dict[int, int]:
        """For maps of so many rows, after how many rows a shift begins again, where that is not their number."""
        rows = (segment.rows for segment in self.segments)
        return {n: r.cycle(n) for r in rows for n in r.at if r.cycle(n) != n}


def chain(program: Program) -> Chain | None:
    """The program's network as a chain, or None where it is not one that the kernels of this folder run."""
    layer = as_layer(program.network)
    if len(program.spatial) != 2 or program.input is not None:
        return None
    if any(isinstance(a.layer, Elementwise) for a in program.activations):
        return None
    leaves = list(_flat(placed(layer, program.spatial)))
    if any(
        isinstance(inner.layer, AvgPool | GlobalAvgPool) for leaf in leaves for c in leaf.children for inner in c.walk()
    ):
        return None
    single = next(i for i, leaf in enumerate(leaves) if math.prod(leaf.after) == 1)
    if any(math.prod(inner.after) != 1 for leaf in leaves[single + 1 :] for inner in leaf.walk()):
        return None  # what follows the one location is a map again
    first = single if isinstance(leaves[single].layer, AvgPool | GlobalAvgPool | Dense) else single + 1
    while first > 0 and isinstance(leaves[first - 1].layer, AvgPool):
        first -= 1
    return _Cutter(program, leaves).cut(first, max(single + 1, first))


def _flat(here: Placed) -> Iterator[Placed]:
    if isinstance(here.layer, Sequential):
        for inner in here.children:
            yield from _flat(inner)
    elif not isinstance(here.layer, Identity):
        yield here


class _Cutter:
    """Lowers the leaves of a network segment by segment, with the units that the whole network has."""

    def __init__(self, program: Program, leaves: list[Placed]) -> None:
        self.program, self.leaves = program, leaves
        self.tangents = program.theta is not None
        self.builder = Builder(self.tangents)

    def cut(self, last: int, tail: int) -> Chain | None:
        """The leaves before `last` are segments and pools, those before `tail` the weighted sum, the rest the tail."""
        lower, leaves = self.builder.lower, self.leaves
        x = self._standing(Maps(self.builder.new_input(self.program.spatial, 1.0 / self.program.channels)))
        pieces: list[Registers] = []
        ends: list[Placed] = []
        nonneg = False
        for i in range(last + 1):
            pools = i < last and isinstance(leaves[i].layer, AvgPool)
            if i < last and not pools:
                x = lower(leaves[i], x)
                continue
            if i == 0 or (pools and not _halves(leaves[i])):
                return None
            pieces.append(self._steps(x, nonneg))
            ends.append(leaves[i - 1])
            if not pieces[-1].steps:
                return None
            nonneg = pieces[-1].ends[0].nonneg
            if pools:
                x = self._standing(lower(leaves[i], x))
        if self.tangents and x.T is None:
            return None
        units, bias = [value.unit for value in x.values], 0.0
        weights = _weights(leaves[last:tail], ends[-1].after)
        for leaf in leaves[last:tail]:
            assert isinstance(leaf.layer, AvgPool | GlobalAvgPool | Dense)
            if isinstance(leaf.layer, Dense) and leaf.layer.bias_var > 0 and x.own > 0 and self.tangents:
                return None  # Θ is not the sum of T alone
            x = lower(leaf, x)
            units = [unit * sum_scale(leaf.layer, leaf.before) for unit in units]
            bias += leaf.layer.bias_var if isinstance(leaf.layer, Dense) else 0.0
        before = [value.unit for value in x.values]
        x = self._standing(x)
        for leaf in leaves[tail:]:
            x = lower(leaf, x)
        if self.tangents:
            x = Maps(x.K, self.builder.theta(x, ""), 0)
        scalar = self._steps(x, nonneg)
        segments = _with_shifts(pieces, ends, leaves[:last])
        if segments is None:
            return None
        shifts = segments[-1].rows, segments[-1].columns
        rows, columns = (_item_weights(axis, form) for axis, form in zip(shifts, weights, strict=True))
        tall, wide = (max(map(max, items)) for items in (rows, columns))
        if min(tall, wide) <= 0:
            return None
        rows, columns = (
            tuple(tuple(v / top for v in item) for item in w) for w, top in ((rows, tall), (columns, wide))
        )
        scales = tuple(unit * tall * wide / old for unit, old in zip(units, before, strict=True))
        last_units = tuple(value.unit for value in x.values)
        return Chain(segments, rows, columns, scales, bias / before[0], scalar, last_units)

    def _standing(self, x: Maps) -> Maps:
        """Maps that stand for what came before, at the beginning of a segment."""
        self.builder.nodes = []
        shape = as_shape(x.K.spatial)

        def standing(value: Value) -> Value:
            node = self.builder.add(Node("(input)", PIXELS, None, shape, shape))
            return Value(value.unit, value.spatial, value.level, lambda d: node)

        return Maps(standing(x.K), None if x.T is None else standing(x.T), x.own)

    def _steps(self, x: Maps, nonneg: bool) -> Registers:
        """The steps of the sheets without displacement, since the last `_standing`."""
        still = (0,) * len(x.K.spatial)
        x.make()
        ends = [value.sheet(still) for value in x.values]
        ops, buffers, start, outs = assign_buffers(fused(self.builder.nodes, *ends), *ends)
        inputs = [op.dst for op in ops if op.src == PIXELS] if start is None else [start]
        ops = tuple(op for op in ops if op.src != PIXELS)
        p = self.program
        theta = outs[1] if len(outs) > 1 else None
        shape = self.builder.nodes[0].shape
        part = Program(p.network, p.channels, p.spatial, shape, ops, buffers, start, outs[0], 1.0, 0, theta)
        return in_registers(part, nonneg, inputs)


def _halves(leaf: Placed) -> bool:
    """Whether a pool is of 2 × 2 without padding, on a map of even sides."""
    layer = leaf.layer
    assert isinstance(layer, AvgPool)
    plain = layer.size in (2, (2, 2)) and layer.stride in (None, 2, (2, 2)) and layer.padding in (0, (0, 0))
    return plain and all(n % 2 == 0 for n in leaf.before)


def _with_shifts(
    pieces: Sequence[Registers], ends: Sequence[Placed], leaves: Sequence[Placed]
) -> tuple[Segment, ...] | None:
    found = []
    strides = [_strides(leaves, axis) for axis in (0, 1)]
    for piece, end in zip(pieces, ends, strict=True):
        wanted = [frozenset(d[axis] for d in end.wanted) for axis in (0, 1)]
        axes = []
        for axis, known in enumerate(strides):
            shifts = None if known is None else _shifts(piece, axis, wanted[axis], known)
            if shifts is None and known is not None and len(pieces) == 1:
                shifts = _shrinking(piece, axis, wanted[axis], known)
            if shifts is None:
                return None
            axes.append(shifts)
        if len(end.wanted) != len(wanted[0]) * len(wanted[1]):
            return None
        found.append(Segment(piece, *axes))
    for fine, coarse in pairwise(found):
        for axis, (a, b) in enumerate(((fine.rows, coarse.rows), (fine.columns, coarse.columns))):
            into, there = b.at[coarse.start.shape[1 + axis]], set(a.at[a.size])
            needed = {(2 * s + e) % a.size for s in into for e in (-1, 0, 1)}
            if len(set(into)) < len(into) or not needed <= there or len(there) < a.count:
                return None
    return tuple(found)


def _shifts(piece: Registers, axis: int, wanted: frozenset[int], strides: dict[AxisSum, int]) -> Shifts | None:
    """The items of a segment along an axis, where every sum multiplies displacements by its stride."""
    size = piece.ends[0].shape[1 + axis]
    scale = {size: 1}
    for step in reversed(piece.steps):
        op = step.op
        n, out, stride = op.shape[1 + axis], op.out_shape[1 + axis], 1
        if op.sums is not None and not op.sums[1 + axis].is_identity and out > 1:
            if op.sums[1 + axis] not in strides:
                return None
            stride = strides[op.sums[1 + axis]]
        if out not in scale or scale.setdefault(n, stride * scale[out]) != stride * scale[out]:
            return None
    if any(abs(c * d) >= n for n, c in scale.items() for d in wanted):
        return None
    members: list[frozenset[int]]
    if all(n == c * size for n, c in scale.items()):  # d and d − size share a map on every level
        members = [frozenset(d for d in wanted if d % size == s) for s in sorted({d % size for d in wanted})]
    else:
        members = [frozenset({d}) for d in sorted(wanted)]
    at = {n: tuple(c * min(item) % n for item in members) for n, c in scale.items()}
    if piece.starts[0].shape[1 + axis] not in at or any(len(set(shift)) < len(members) for shift in at.values()):
        return None
    return Shifts(size, at, tuple(members))


def _shrinking(piece: Registers, axis: int, wanted: frozenset[int], strides: dict[AxisSum, int]) -> Shifts | None:
    """The items where sums of whole windows, which move by one, make maps smaller than the first.

    So small a map as three places looks the same with a stride of two and padding, which multiplies displacements.
    """
    size, period = piece.ends[0].shape[1 + axis], piece.starts[0].shape[1 + axis]
    at = {period}
    for step in piece.steps:
        n, out = step.op.shape[1 + axis], step.op.out_shape[1 + axis]
        sums = None if step.op.sums is None else step.op.sums[1 + axis]
        at |= {n, out}
        if sums is None or sums.is_identity:
            continue
        smaller = not n == out == period
        if (out > 1 and strides.get(sums) != 1) or (smaller and sums.offsets(1) != tuple(range(n - out + 1))):
            return None
    if not size < period or max(at) > period or any(abs(d) >= size for d in wanted):
        return None
    shifts = sorted({d % period for d in wanted})
    members = tuple(frozenset(d for d in wanted if d % period == s) for s in shifts)
    return Shifts(size, dict.fromkeys(sorted(at), tuple(shifts)), members, period)


def _strides(leaves: Sequence[Placed], axis: int) -> dict[AxisSum, int] | None:
    """Factor by which each convolution's sum multiplies a displacement; None where one does more than multiply."""
    found: dict[AxisSum, int] = {}
    for here in (inner for leaf in leaves for inner in leaf.walk()):
        if not isinstance(here.layer, Conv | ConvTranspose | Dense) or any(n == 1 for n in here.after):
            continue
        linear = here.axes[axis]
        factors = {Fraction(piece.d, D[axis]) for D in here.wanted if D[axis] for piece in linear.pieces(D[axis])}
        if len(factors) > 1 or any(len(linear.pieces(D[axis])) != 1 for D in here.wanted):
            return None
        factor = factors.pop() if factors else Fraction(1)
        if factor.denominator > 1 or found.setdefault(linear.pieces(0)[0].sums, factor.numerator) != factor:
            return None
    return found


def _weights(leaves: Sequence[Placed], spatial: Sequence[int]) -> list[list[list[float]]]:
    """Weights of V(p, q), for each axis, in the sum that the leaves make of it; their scales are left out."""
    found = []
    for axis, n in enumerate(spatial):
        form = [[1.0]]
        for leaf in reversed(leaves):
            form = _pulled_back(leaf.axes[axis], form)
        assert len(form) == n
        found.append(form)
    return found


def _pulled_back(linear: AxisMap, form: list[list[float]]) -> list[list[float]]:
    """The quadratic form on a linear layer's input that a form on its output is."""
    n, out = linear.size, linear.out_size
    result = [[0.0] * n for _ in range(n)]
    for D in range(1 - out, out):
        for piece in linear.pieces(D):
            for i, row in enumerate(piece.sums.sources):
                P = i + max(0, -D)
                for p in row:
                    q = p + max(0, -piece.d)
                    result[q][q + piece.d] += form[P][P + D] * piece.weight
    return result


def _item_weights(shifts: Shifts, form: list[list[float]]) -> tuple[tuple[float, ...], ...]:
    """What each place of each item counts in a quadratic form; places of no displacement count nothing."""
    found = [[(p, shifts.displacement(item, p)) for p in range(shifts.size)] for item in range(shifts.count)]
    return tuple(tuple(0.0 if d is None else form[p][p + d] for p, d in row) for row in found)


def targets(fine: Shifts, coarse: Shifts, size: int) -> tuple[tuple[int, int], ...]:
    """For each fine item the coarse items that its even and its odd places go to, −1 where they are not needed.

    `size` is that of the coarse segment's first map. With p = 2P + a and q = 2Q + b, a shift of 2D takes both places
    to D; one of 2D + 1 takes even places to D and odd ones to D + 1.
    """
    item = {shift: k for k, shift in enumerate(coarse.at[size])}
    return tuple((item.get(s // 2, -1), item.get((s + 1) // 2 % size, -1)) for s in fine.at[fine.size])
