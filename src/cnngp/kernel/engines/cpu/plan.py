"""Encoding of a program as the integer and float tables that the compiled interpreter reads.

Nothing here depends on data. Offsets into maps and tables are in map elements; the interpreter multiplies them by the
number of lanes. columns.py names the columns of the tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.program import NOTHING, PIXELS, Op, Program, Shape, lower
from cnngp.kernel.program.ops import Back, Pixels, Reverse, Total
from cnngp.kernel.series.packed import Rows
from cnngp.network.geometry import AxisSum, SlidingWindow

from . import columns as col
from .machine_code import Function, address

Ints = NDArray[np.int64]

# The largest window that gets code for its size, and the sizes that always use such code.
LARGEST_WINDOW = 9
COMMON_WINDOWS = (3, 5, 7)

# Two images are processed at once, each with its own maps and scratch. Without a few elements between them their rows
# would fall into the same cache sets (a 7 × 7 box: 36 cycles a vector instead of 30).
_SKEW = 8


@dataclass(frozen=True)
class CpuPlan:
    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    taps: NDArray[np.int64]
    scratch: int
    """Map elements of scratch: activated planes or the ring of activated rows, and two summed rows."""
    width: int
    """Length of the longest row, and of the row of zeros used as padding."""
    channels: int
    locations: int
    buffers: int
    input: int
    """Offset of the product of the two images, made before the operations; −1 if products are operations."""
    output: int
    theta: int
    """Offset of Θ at the end; −1 for none."""
    table: int
    """Number of entries of an image's table. If products are operations, the pixels come first."""


def make_plan(program: Program, series: dict[int, Rows], reverse: Reverse | None = None) -> CpuPlan:
    """Encode a program. `series` gives, for each site of an Elementwise, the rows of its series that are used;
    `reverse` is the program's gradient, if that is to be run.
    """
    ops = program.ops if reverse is None else reverse.steps
    starts = np.concatenate([[0], np.cumsum(program.buffers)])
    taps: list[int] = []
    ints = np.zeros((len(ops), col.COLUMNS), np.int64)
    floats = np.zeros((len(ops), col.FLOATS))
    scratch = 0
    locations = math.prod(program.shape)
    table = 0 if program.input is not None else program.channels * locations
    tables, shifts = {}, {}
    for a in program.activations:
        tables[a.site] = table
        table += a.size * a.formula.family.entries
        if a.site in series:
            table += a.size * series[a.site].count * (1 if reverse is None else 2)
            shifts[a.site] = len(taps)
            taps.extend(series[a.site].shifts)
    geometry = _Geometry(taps, program)
    for row, numbers, op in zip(ints, floats, ops, strict=True):
        row[col.ACT] = col.NO_ACT if op.activation is None else col.CODES[op.activation.formula.family]
        row[col.SRC], row[col.DST] = starts[max(op.src, 0)], starts[op.dst]
        row[[col.A0, col.B0, col.C0]], row[[col.A1, col.B1, col.C1]] = op.shape, op.out_shape
        numbers[[col.KEEP, col.SCALE, col.BIAS]] = op.keep, op.scale, op.bias
        if op.keep == 0:
            row[col.WRITE] = col.STORE if op.scale == 1 and op.bias == 0 else col.AFFINE
        else:
            row[col.WRITE] = col.ADD if op.keep == 1 and op.bias == 0 else col.GENERAL
        if op.activation is not None:
            site = op.activation.site
            row[col.SITE] = site
            _point_to_tables(row, op, tables[site], op.activation.shape)
            if site in series:
                rows = series[site]
                terms = rows.even, rows.odd, shifts[site], rows.at
                row[[col.EVEN_TERMS, col.ODD_TERMS, col.SHIFTS, col.SERIES_AT]] = terms
            numbers[[col.ALPHA, col.BETA]] = op.activation.coefficients
            numbers[col.UNIT] = op.activation.unit
        if op.tangent is not None:
            row[col.ACT] += col.SLOPE
            # Without a map TIMES is K itself, so OWN is one less.
            none = op.tangent.times == NOTHING
            row[col.TIMES] = 0 if none else starts[op.tangent.times] - starts[op.src]
            numbers[col.OWN] = op.tangent.own - (1.0 if none else 0.0)
        if op.src == PIXELS:
            row[col.BOX], row[col.CHANNELS] = col.PRODUCT, program.channels
            _point_to_tables(row, op, 0, program.shape)
        elif op.src == NOTHING:
            row[col.BOX] = col.FILL
        else:
            scratch = max(scratch, geometry.encode(row, op))
        match op:
            case Total():
                row[[col.BOX, col.SLOT]] = col.SUM, op.slot
            case Pixels():
                row[[col.BOX, col.SHARES]] = col.TO_PIXELS, shares_of_variances(program)
            case Back():
                row[[col.BOX, col.SLOT]] = col.BACK, op.slot
                row[[col.BACK_TIMES, col.WRITES]] = starts[op.times], op.writes
                if op.activation is not None:  # shares are in the order of the activations' locations
                    row[col.OWN_SHARES], row[col.SHARES] = _places(op, op.activation.offset, op.activation.shape)
    used = program.input, program.output, program.theta
    begin, end, theta = (-1 if buffer is None else int(starts[buffer]) for buffer in used)
    width = max((op.shape[2] for op in ops), default=1)
    return CpuPlan(
        ints, floats, np.array(taps or [0], np.int64), scratch + _SKEW, width, program.channels, locations,
        int(starts[-1]) + _SKEW, begin, end, theta, max(table, 1),
    )  # fmt: skip


def shares_of_variances(program: Program) -> int:
    """Number of shares in which an image collects gradients by its variances; those by its pixels follow."""
    return max(1, program.elements)


def _places(op: Op, begin: int, shape: Shape) -> tuple[int, int]:
    """Offsets of a map's first location in both images, in a list of all locations of the given full shape."""
    first, second = (begin + (a * shape[1] + b) * shape[2] + c for a, b, c in (op.first, op.second))
    return first, second


def _point_to_tables(row: Ints, op: Op, table: int, shape: Shape) -> None:
    """Set the offsets of a map's first location in both images' tables, in entries of the given full shape."""
    plane, pitch = shape[1] * shape[2], shape[2]
    row[[col.OWN_TABLE, col.TABLE]] = _places(op, table, shape)
    row[[col.TABLE_ROW, col.TABLE_PLANE, col.TABLE_SIZE]] = pitch, plane, shape[0] * plane


class _Geometry:
    """Encodes box sums. Operations on sheets share most of their geometry, so each list is written once."""

    def __init__(self, taps: list[int], program: Program) -> None:
        self.taps = taps
        self.sheets = program.input is None
        # A pool sums windows of many sizes, for which compiling would take seconds each, so they use the general code.
        # Beside Θ the same sizes are compiled as for K alone, so that the order of sums, and the bits of K, are equal.
        alone = program if program.theta is None else lower(program.network, (program.channels, *program.spatial))
        self.compiled = {(k, k) for k in COMMON_WINDOWS} | {
            size
            for op in alone.ops
            if op.sums is not None and op.keep != 1.0 and (size := self.window_size(op.sums)) is not None
        }
        self.csr = cache(self._csr)
        self.rows = cache(self._rows)

    def encode(self, row: NDArray[np.int64], op: Op) -> int:
        """Fill the geometry columns and return the number of scratch elements needed."""
        a0, b0, c0 = op.shape
        if op.sums is None:
            row[col.BOX], row[col.RING] = col.POINTWISE, 1
            return c0
        planes, rows, columns = op.sums
        row[col.BOX] = col.ROWS if planes.is_identity else col.PLANES
        row[col.PLANE_TAPS] = self.csr(planes)
        row[col.COL_TAPS] = self.csr(columns)
        left = right = 0
        if (w := self.regular(columns)) is not None:
            left, right = w.padding or (0, 0)
            low, high = (w.low, w.high) if w.padding is None else (0, columns.out_size)
            row[[col.COL_LOW, col.COL_HIGH, col.COL_START, col.COL_STRIDE, col.COL_DILATION, col.COL_K]] = (
                low, high, w.start, w.stride, w.dilation, w.k,
            )  # fmt: skip
            row[[col.PAD_LEFT, col.PAD_RIGHT]] = left, right
        row[[col.ROW_K, col.ROW_TAPS, col.ROW_NEED, col.RING]] = self.rows(rows)
        height = int(row[col.ROW_K])
        size = self.window_size(op.sums)
        if row[col.BOX] == col.ROWS and size in self.compiled and (w := self.neighbours(rows)) is not None:
            row[col.BOX] = col.WINDOW
            row[col.ROW_BEFORE] = -w.start
            # On sheets, which are small, a first pair at row 0 leaves fewer pairs half outside. Other maps, and their
            # totals below, keep the order of their sums and so their bits.
            row[col.FIRST_ROW] = 0 if self.sheets else -((height - 1 + w.start) % 2)
        elif self.sheets and (row[col.BOX], a0, row[col.ACT]) == (col.ROWS, 1, col.RELU) and _is_total(rows, columns):
            row[col.BOX] = col.TOTAL
        # The variance recursion uses the general code, so there is scratch for both.
        planes_at_once = a0 * b0 * c0 + b0 * c0 if row[col.BOX] == col.PLANES else int(row[col.RING]) * c0
        kept = (sum(col.kept_rows(height)) + 2) * c0 + row[col.C1] if row[col.BOX] == col.WINDOW else 0
        if op.tangent is not None:
            kept *= 2  # the operation may run together with the next one
        return max(planes_at_once + c0 + left + right, int(kept))

    def window_size(self, sums: tuple[AxisSum, AxisSum, AxisSum]) -> tuple[int, int] | None:
        """Height and width of the windows if the sums are over windows of neighbours, else None."""
        rows, columns = map(self.neighbours, sums[1:])
        return None if rows is None or columns is None else (rows.k, columns.k)

    def neighbours(self, axis: AxisSum) -> SlidingWindow | None:
        """Window of an axis if `operations/window.py` can sum it: 2 … LARGEST_WINDOW neighbours, moving by one.

        The map must be padded with zeros only, and the first output must read at least one location.
        """
        window = self.regular(axis)
        if window is None or window.padding is None or window.stride != 1 or window.dilation != 1:
            return None
        return window if 2 <= window.k <= LARGEST_WINDOW and window.start > -window.k else None

    def regular(self, axis: AxisSum) -> SlidingWindow | None:
        """Window of an axis if it deserves a loop of its own: it is inside the axis for two outputs or more.

        One is enough on sheets, most of which are small. Other maps keep the order of their sums and so their bits.
        """
        window, fewest = axis.window, 1 if self.sheets and axis.out_size > 1 else 2
        return window if window is not None and window.high - window.low >= fewest else None

    def _csr(self, axis: AxisSum) -> int:
        at = len(self.taps)
        offsets = np.concatenate([[0], np.cumsum([len(s) for s in axis.sources])])
        self.taps.extend(int(o) for o in offsets)
        self.taps.extend(nu for s in axis.sources for nu in s)
        return at

    def _rows(self, rows: AxisSum) -> tuple[int, int, int, int]:
        """Return col.ROW_K, col.ROW_TAPS, col.ROW_NEED and col.RING for the sums of rows."""
        # A zero-padded window has one position per tap, so that neighbouring output rows align even at the border.
        table = _row_table(rows)
        at = len(self.taps)
        self.taps.extend(b for entry in table for b in entry)
        need = np.maximum.accumulate([max(entry, default=-1) + 1 for entry in table])
        need_at = len(self.taps)
        self.taps.extend(int(n) for n in need)
        first = [min((b for b in entry if b >= 0), default=int(n)) for n, entry in zip(need, table, strict=True)]
        return len(table[0]), at, need_at, min(rows.size, max(1, int(np.max(need - first))))


def _is_total(*axes: AxisSum) -> bool:
    return all(axis.sources == (tuple(range(axis.size)),) for axis in axes)


def _row_table(rows: AxisSum) -> list[list[int]]:
    """For each output row the rows it sums, with −1 for zero padding and up to a common length."""
    k = max(map(len, rows.sources), default=1) or 1
    table = []
    for sources in rows.sources:
        missing = k - len(sources)
        at_start = bool(sources) and sources[0] == 0 and missing > 0
        table.append([-1] * missing + list(sources) if at_start else list(sources) + [-1] * missing)
    return table


# ---- the functions that operations call -----------------------------------------------------------------------------


def pair_calls(ints: Ints, dtype: str) -> Ints:
    """Return the plan's operations with the addresses of their functions for pairs."""
    operations = [_operation(op, True) for op in ints]
    for i in _done_together(ints):
        slope, value = ints[i], ints[i + 1]
        together = _function("box.relu_total", True) if value[col.BOX] == col.TOTAL else _function("box.relu_maps")
        if slope[col.BOX] == col.WINDOW:
            together = _function("window.windows", slope[col.ROW_K], slope[col.COL_K])
        operations[i : i + 2] = together, _function("box.done")
    rows = [None if op[col.ACT] == col.RELU else _row(op, False) for op in ints]  # the ReLU is part of operations
    return _with_addresses(ints, dtype, operations, rows)


def variance_calls(ints: Ints) -> Ints:
    """Return the plan's operations with the functions for images with themselves, in float64 and by the general code.

    Operations at equal locations give the variances and write them into the tables, where the others read them.
    """
    gradient = bool((ints[:, col.BOX] >= col.BACK).any())
    rows = []
    for op in ints:
        code = op[col.ACT] % col.SLOPE
        if op[col.OWN_TABLE] != op[col.TABLE]:
            rows.append(_row(op, True))
        elif op[col.ACT] < col.SLOPE:
            rows.append(Function("row", "rows.forms.variance_row", (int(code), gradient)))
        else:
            rows.append(Function("row", "rows.forms.variance_slope_row", (int(code),)))
    return _with_addresses(ints, "float64", [_operation(op, False) for op in ints], rows)


def _function(name: str, *numbers: int) -> Function:
    return Function("operation", f"operations.{name}", tuple(map(int, numbers)))


def _row(op: Ints, both: bool) -> Function:
    name = "value_row" if op[col.ACT] < col.SLOPE else "slope_row"
    return Function("row", f"rows.forms.{name}", (int(op[col.ACT]) % col.SLOPE, both))


def _operation(op: Ints, pairs: bool) -> Function:
    act, is_relu = int(op[col.ACT]), pairs and op[col.ACT] == col.RELU
    match int(op[col.BOX]):
        case col.FILL:
            return _function("box.fill")
        case col.PRODUCT:
            return _function("box.product", not pairs)
        case col.POINTWISE:
            return _function("box.relu_map" if is_relu else "box.pointwise")
        case col.TOTAL if pairs:
            return _function("box.relu_total", False)
        case col.WINDOW if pairs:
            return _function("window.window", op[col.ROW_K], op[col.COL_K])
        case col.SUM:
            return _function("backward.total")
        case col.TO_PIXELS:
            return _function("backward.pixels", not pairs)
        case col.BACK if act == col.NO_ACT:
            return _function("backward.dot")
        case col.BACK if pairs or op[col.OWN_TABLE] != op[col.TABLE]:
            return _function("backward.back", act, not pairs)
        case col.BACK:
            return _function("backward.still", act)
        case _:
            return _function("box.boxes", is_relu)


# Columns in which two operations must agree to run as one.
_SAME = [
    *(col.SRC, col.A0, col.B0, col.C0, col.A1, col.B1, col.C1, col.OWN_TABLE, col.TABLE),
    *(col.ROW_K, col.ROW_BEFORE, col.ROW_TAPS, col.COL_K, col.COL_START, col.COL_TAPS),
]
# Kinds of sums of a slope and of a value that can run as one. A slope alone has no special code for a total.
_TOGETHER = [(col.POINTWISE, col.POINTWISE), (col.WINDOW, col.WINDOW), (col.ROWS, col.TOTAL)]


def _done_together(ints: Ints) -> Iterator[int]:
    """Yield the operations with the slope of a ReLU that can run as one with the next, which has its value."""
    for i in range(len(ints) - 1):
        slope, value = ints[i], ints[i + 1]
        if slope[col.ACT] != col.SLOPE + col.RELU or value[col.ACT] != col.RELU or (slope[_SAME] != value[_SAME]).any():
            continue
        read = slope[col.SRC], slope[col.SRC] + slope[col.TIMES]
        apart = slope[col.DST] != value[col.DST] and slope[col.DST] not in read and value[col.DST] not in read
        if (slope[col.BOX], value[col.BOX]) in _TOGETHER and (apart or slope[col.BOX] == col.POINTWISE):
            yield i


def _with_addresses(ints: Ints, dtype: str, operations: list[Function], rows: Sequence[Function | None]) -> Ints:
    """Return a copy of the plan's operations with the addresses of their functions."""
    ints = ints.copy()
    for op, function, row in zip(ints, operations, rows, strict=True):
        op[col.OP_CALL] = address(function, dtype)
        if row is not None and op[col.ACT] != col.NO_ACT and op[col.BOX] < col.BACK:
            op[col.ROW_CALL] = address(row, dtype)
    return ints
