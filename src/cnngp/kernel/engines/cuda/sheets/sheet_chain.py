"""Segments of a network with pools, and the cyclic shifts that each segment runs.

A sheet is the map p ↦ K(p, p + d). Along an axis of n locations the sheets d and d − n share one map: the second image
is read cyclically shifted by d, locations before n − d belong to d and the others to d − n, and no sum crosses the
*wall* between them. A convolution without padding leaves fewer locations: these keep the shifts of the larger map, and
a sum that crosses the wall belongs to no displacement and is not used. Between pools all shifts run the same steps; a
pool takes each location of a shift to its shift on the coarser map; what follows the last nonlinearity is one weighted
sum over all shifts.

A segment before a pool processes its row shifts in *runs*. A pool of 2 × 2 adds the fine shifts 2D − 1 (its odd rows),
2D and 2D + 1 (its even rows) to the coarse shift D. A warp that runs them one after the other adds them in registers,
and stores once instead of three times. A run begins at an even shift; if 2D − 1 is the end of another run, its rows
come late and are stored separately.

Pure functions of the network, without CUDA text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from cnngp.kernel.program import PIXELS, Program
from cnngp.kernel.program.lowering import Maps
from cnngp.kernel.program.ops import NOTHING, Op
from cnngp.kernel.program.scheduling import assign_buffers, fused
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import AvgPool, Conv, ConvTranspose, Dense, Elementwise, GlobalAvgPool, Identity
from cnngp.network.placed import Placed
from cnngp.network.shapes import AxisMap, Spatial, sum_scale

from ..registers import Map, Registers, Step, in_registers


@dataclass(frozen=True)
class Shifts:
    """The sheets of a segment along one axis, each item one cyclic shift.

    `at[n]` are the items' shifts on the maps with n locations along this axis; `members` are the displacements of the
    segment's output that an item represents; `period` is the number of locations after which a shift begins again, if
    that is not the size of each map because maps shrink without padding.
    """

    size: int
    at: dict[int, tuple[int, ...]]
    members: tuple[frozenset[int], ...]
    period: int | None = None

    @property
    def count(self) -> int:
        return len(self.members)

    def displacement(self, item: int, place: int) -> int | None:
        """Displacement at a location of the output, or None if it is not one of the item's own."""
        shift = self.at[self.size][item]
        d = shift if place < self.size - shift else shift - (self.period or self.size)
        return d if d in self.members[item] and 0 <= place + d < self.size else None

    def cycle(self, n: int) -> int:
        """Number of locations after which a shift begins again on the map with n locations."""
        return self.period or n


@dataclass(frozen=True)
class Segment:
    """Steps between pools, and the shifts along rows and columns for which they run."""

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
    """A network as segments with pools of 2 × 2 between them, a weighted sum at the end, and scalar steps after it.

    `row_weights[item][location]` and `column_weights` are the weights of a location in the sums, of K and optionally of
    the map for Θ. The tail starts from the scalars `scales` · sums, to the first of which `bias` is added; `units`
    times the tail's results are K and Θ.
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
        """For maps of n rows, the number of rows after which a shift begins again, if that is not n."""
        rows = (segment.rows for segment in self.segments)
        return {n: r.cycle(n) for r in rows for n in r.at if r.cycle(n) != n}


def chain(program: Program) -> Chain | None:
    """Return the program's network as a chain, or None if the kernels of this folder cannot run it."""
    if program.lowered is None or len(program.spatial) != 2:
        return None
    if any(isinstance(a.layer, Elementwise) for a in program.activations):
        return None
    parts = [part for part in program.lowered.leaves if not isinstance(part.here.layer, Identity)]
    leaves = [part.here for part in parts]
    maps = [parts[0].before, *(part.after for part in parts)]
    if any(isinstance(x.layer, AvgPool | GlobalAvgPool) for leaf in leaves for c in leaf.children for x in c.walk()):
        return None
    single = next(i for i, leaf in enumerate(leaves) if math.prod(leaf.after) == 1)
    if any(math.prod(inner.after) != 1 for leaf in leaves[single + 1 :] for inner in leaf.walk()):
        return None  # a map follows after the single location
    last = single if isinstance(leaves[single].layer, AvgPool | GlobalAvgPool | Dense) else single + 1
    while last > 0 and isinstance(leaves[last - 1].layer, AvgPool):
        last -= 1
    tail = max(single + 1, last)
    # The leaves before `last` are segments and pools, those from there to `tail` the weighted sum, the rest scalars.
    pieces: list[Registers] = []
    ends: list[Placed] = []
    start, nonneg = maps[0], False
    for i in (*(i for i in range(last) if isinstance(leaves[i].layer, AvgPool)), last):
        pool = leaves[i].layer if i < last else None
        if i == 0 or (isinstance(pool, AvgPool) and not _halves(pool, leaves[i].before)):
            return None
        pieces.append(_steps(program, start, _still(maps[i]), nonneg))
        ends.append(leaves[i - 1])
        if not pieces[-1].steps:
            return None
        start, nonneg = maps[min(i + 1, last)], pieces[-1].ends[0].nonneg
    if program.theta is not None and maps[last].T is None:
        return None
    segments = _with_shifts(pieces, ends, leaves[:last])
    if segments is None:
        return None
    # The map for Θ must go through the weighted sum alone: a bias would add K to it.
    units, bias = [value.unit for value in maps[last].values], 0.0
    for leaf, before in zip(leaves[last:tail], maps[last:tail], strict=True):
        assert isinstance(leaf.layer, AvgPool | GlobalAvgPool | Dense)
        units = [unit * sum_scale(leaf.layer, leaf.before) for unit in units]
        if isinstance(leaf.layer, Dense) and leaf.layer.bias_var > 0:
            bias += leaf.layer.bias_var
            if before.own > 0:
                return None
    shifts = segments[-1].rows, segments[-1].columns
    weights = [_item_weights(shifts[axis], [leaf.axes[axis] for leaf in leaves[last:tail]]) for axis in (0, 1)]
    tops = [max(map(max, items)) for items in weights]
    if min(tops) <= 0:
        return None
    rows, columns = (tuple(tuple(v / t for v in w) for w in items) for items, t in zip(weights, tops, strict=True))
    scales = tuple(unit * tops[0] * tops[1] / value.unit for unit, value in zip(units, maps[tail].values, strict=True))
    scalars = _steps(program, maps[tail], program.lowered.ends, nonneg)
    last_units = (program.unit,) if program.theta is None else (program.unit, program.theta_unit)
    return Chain(segments, rows, columns, scales, bias / maps[tail].K.unit, scalars, last_units)


def _still(maps: Maps) -> list[int]:
    """Nodes of the sheets of displacement zero, of K and optionally of the map for Θ."""
    return [value.sheet((0,) * len(value.spatial)) for value in maps.values]


def _steps(program: Program, start: Maps, ends: Sequence[int], nonneg: bool) -> Registers:
    """Return the steps from the maps `start` to the nodes `ends`."""
    assert program.lowered is not None
    nodes, starts, open_ends = program.lowered.nodes, _still(start), list(ends)
    shape = nodes[starts[0]].out_shape
    part = {i: Op("(input)", PIXELS, NOTHING, shape, shape) for i in starts}
    while open_ends:
        i = open_ends.pop()
        if i not in part:
            part[i] = nodes[i]
            open_ends += nodes[i].maps
    ops, buffers, only, outs = assign_buffers(fused(dict(sorted(part.items())), *ends), *ends)
    given = [op.dst for op in ops if op.src == PIXELS] if only is None else [only]
    inputs = dict(zip(sorted(starts), given, strict=True))
    steps = replace(
        program, shape=shape, buffers=buffers, output=outs[0], theta=outs[1] if len(outs) > 1 else None,
        ops=tuple(op for op in ops if op.src != PIXELS),
    )  # fmt: skip
    return in_registers(steps, nonneg, [inputs[i] for i in starts])


def _halves(pool: AvgPool, spatial: Spatial) -> bool:
    """True if a pool is 2 × 2 without padding, on a map with even sides."""
    plain = pool.size in (2, (2, 2)) and pool.stride in (None, 2, (2, 2)) and pool.padding in (0, (0, 0))
    return plain and all(n % 2 == 0 for n in spatial)


def _with_shifts(
    pieces: Sequence[Registers], ends: Sequence[Placed], leaves: Sequence[Placed]
) -> tuple[Segment, ...] | None:
    found = []
    strides = [_strides(leaves, axis) for axis in (0, 1)]
    for piece, end in zip(pieces, ends, strict=True):
        wanted = [frozenset(d[axis] for d in end.wanted) for axis in (0, 1)]
        rows, columns = (
            None if known is None else _shifts(piece, axis, wanted[axis], known, len(pieces) == 1)
            for axis, known in enumerate(strides)
        )
        if rows is None or columns is None or len(end.wanted) != len(wanted[0]) * len(wanted[1]):
            return None
        found.append(Segment(piece, rows, columns))
    for fine, coarse in pairwise(found):
        for axis, (a, b) in enumerate(((fine.rows, coarse.rows), (fine.columns, coarse.columns))):
            into, there = b.at[coarse.start.shape[1 + axis]], set(a.at[a.size])
            needed = {(2 * s + e) % a.size for s in into for e in (-1, 0, 1)}
            if len(set(into)) < len(into) or not needed <= there or len(there) < a.count:
                return None
    return tuple(found)


def _shifts(
    piece: Registers, axis: int, wanted: frozenset[int], strides: dict[AxisSum, int], alone: bool
) -> Shifts | None:
    """Shifts of a segment along an axis, if every sum only multiplies displacements by its stride, else None.

    In the only segment of a network, sums over whole windows of stride 1 may make maps smaller than the first. Strides
    come from the layers: on few locations a window of stride 2 with padding may be the same sum as one of stride 1.
    """
    size, start = (m.shape[1 + axis] for m in (piece.ends[0], piece.starts[0]))
    scale, shrinks = {size: 1}, alone
    for step in reversed(piece.steps):
        n, out, stride = step.op.shape[1 + axis], step.op.out_shape[1 + axis], 1
        sums = None if step.op.sums is None else step.op.sums[1 + axis]
        if sums is not None and not sums.is_identity:
            if out > 1 and sums not in strides:
                return None
            stride = strides[sums] if out > 1 else 1
            shrinks &= stride == 1 and (n == out == start or sums.offsets(1) == tuple(range(n - out + 1)))
        if out not in scale or scale.setdefault(n, stride * scale[out]) != stride * scale[out]:
            return None
    if start not in scale or any(abs(c * d) >= n for n, c in scale.items() for d in wanted):
        return None
    members = tuple(frozenset({d}) for d in sorted(wanted))
    if all(n == c * size for n, c in scale.items()):  # d and d − size share a map on every level
        members = _sharing(wanted, size)
    at = {n: tuple(c * min(item) % n for item in members) for n, c in scale.items()}
    if all(len(set(shift)) == len(members) for shift in at.values()):
        return Shifts(size, at, members)
    if not shrinks or not size < start or max(scale) > start:
        return None
    members = _sharing(wanted, start)
    return Shifts(size, {n: tuple(min(item) % start for item in members) for n in sorted(scale)}, members, start)


def _sharing(wanted: frozenset[int], period: int) -> tuple[frozenset[int], ...]:
    """Group the displacements that share a map with this period."""
    return tuple(frozenset(d for d in wanted if d % period == s) for s in sorted({d % period for d in wanted}))


def _strides(leaves: Sequence[Placed], axis: int) -> dict[AxisSum, int] | None:
    """Factor by which each convolution's sum multiplies a displacement; None if one does not simply multiply it."""
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


def _pulled_back(linear: AxisMap, form: list[list[float]]) -> list[list[float]]:
    """Pull a quadratic form on a linear layer's output back to its input."""
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


def _item_weights(shifts: Shifts, layers: Sequence[AxisMap]) -> tuple[tuple[float, ...], ...]:
    """Weight of each location of each item in the sum of V(p, q) that these linear layers make, without their scales;
    0 for locations without a displacement.
    """
    form = [[1.0]]
    for linear in reversed(layers):
        form = _pulled_back(linear, form)
    found = [[(p, shifts.displacement(item, p)) for p in range(shifts.size)] for item in range(shifts.count)]
    return tuple(tuple(0.0 if d is None else form[p][p + d] for p, d in row) for row in found)


def targets(fine: Shifts, coarse: Shifts, size: int) -> tuple[tuple[int, int], ...]:
    """For each fine item, the coarse items to which its even and its odd locations go, −1 if they are not needed.

    `size` is that of the coarse segment's first map. With p = 2P + a and q = 2Q + b, a shift of 2D takes all locations
    to D; one of 2D + 1 takes even locations to D and odd ones to D + 1.
    """
    item = {shift: k for k, shift in enumerate(coarse.at[size])}
    return tuple((item.get(s // 2, -1), item.get((s + 1) // 2 % size, -1)) for s in fine.at[fine.size])


@dataclass(frozen=True)
class Runs:
    """Division of items into runs: run k has the items from `starts[k]` to before `starts[k + 1]`.

    `own` and `after` are, for each item, the coarse items to which the sums are written once its even rows are added,
    and once its odd rows are; −1 for none. `late` are the coarse items that receive rows from another run.
    """

    starts: tuple[int, ...]
    own: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    @property
    def late(self) -> frozenset[int]:
        return frozenset(self.after) - {-1}


def runs(fine: Shifts, coarse: Shifts, size: int, count: int) -> Runs:
    """Divide the fine items, ordered by their shifts, into about `count` runs; `size` is that of the coarse map."""
    shifts = fine.at[fine.size]
    to = targets(fine, coarse, size)
    # A run may begin at an odd shift if its even rows go nowhere.
    begins = [k for k, s in enumerate(shifts) if k == 0 or s % 2 == 0 or to[k][0] < 0]
    starts = sorted({min(begins, key=lambda k: abs(k - len(shifts) * r / count)) for r in range(count)})
    bounds = (*starts, len(shifts))
    own, after = [], []
    for k, (s, (even, odd)) in enumerate(zip(shifts, to, strict=True)):
        follows = k + 1 not in bounds and shifts[k + 1] == (s + 1) % fine.size
        own.append(even if s % 2 else -1)
        after.append(odd if s % 2 and not follows else -1)
    return Runs(bounds, tuple(own), tuple(after))


def run_count(items: int, groups: int, warps: int) -> int:
    """Number of runs with which `warps` warps finish together; each of `groups` groups of columns takes all runs."""

    def last(count: int) -> float:
        return -(-groups * count // warps) * (-(-items // count) + 0.3)

    return min(range(1, max(2, items // 2 + 1)), key=last)
