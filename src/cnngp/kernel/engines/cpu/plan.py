"""A program as the integer and float tables that the compiled interpreter walks.

Nothing here depends on data. Offsets into maps and tables are in map elements; the interpreter multiplies by the number
of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel import formulas
from cnngp.kernel.program import NOTHING, PIXELS, Activation, Op, Program, Shape, lower
from cnngp.kernel.series.packed import Rows
from cnngp.network.geometry import AxisSum, SlidingWindow

# What f is (column ACT): nothing, or a family by its number.
NO_ACT = 0
CODES = {family: number for number, family in enumerate(formulas.FAMILIES, start=1)}
RELU, SERIES = CODES[formulas.RELU], CODES[formulas.SERIES]
# Added to these where an operation has a tangent: f'(K) · (times + own · K) in place of f(K).
SLOPE = 32
# How the box is summed (column BOX): not at all, by rows, by planes first, as a window of neighbours along both axes;
# the ReLU of a whole map; where no map is read, the product of two images, or nothing.
POINTWISE, ROWS, PLANES, WINDOW, PRODUCT, FILL, TOTAL = range(7)
# The largest window that is compiled for its size, and those that are compiled before they are needed.
LARGEST_WINDOW = 9
COMMON_WINDOWS = (3, 5, 7)
# How the result r is written (column WRITE): r; scale · r + bias; dst + scale · r; keep · dst + scale · r + bias.
STORE, AFFINE, ADD, GENERAL = range(4)

(
    ACT,
    BOX,
    WRITE,
    SRC,
    DST,
    A0,
    B0,
    C0,
    A1,
    B1,
    C1,
    OWN_TABLE,  # where the activation's entries for the map's first place are, in the table of the row image
    TABLE,  # and in that of the column image; under a pool these are different places
    TABLE_ROW,  # how far apart the entries of neighbouring rows, planes and channels are
    TABLE_PLANE,
    TABLE_SIZE,
    CHANNELS,  # of the images, for PRODUCT
    FIRST_ROW,  # of a WINDOW: the first of the pairs of rows that it takes at a time, 0 or −1
    SITE,  # the activation's number
    TIMES,  # how far behind the map that is read the one lies that its slope is multiplied with
    EVEN_TERMS,  # of an Elementwise: rows of its series with even powers of the correlation, and with odd ones
    ODD_TERMS,
    SHIFTS,  # where the steps of Horner's rule for these rows start in `taps`
    SERIES_AT,  # where the series starts in `panels`
    PLANE_TAPS,  # CSR: A1 + 1 offsets, then the planes that are summed
    ROW_TAPS,  # B1 × ROW_K rows that are summed, −1 for none
    ROW_K,
    ROW_NEED,  # B1 counts: how many rows must be ready for output row m
    ROW_BEFORE,  # for WINDOW: output row m sums rows m − ROW_BEFORE …
    RING,  # how many rows are alive at a time
    COL_TAPS,  # CSR: C1 + 1 offsets, then the columns that are summed
    COL_LOW,  # c in COL_LOW … COL_HIGH sums columns COL_START + c·COL_STRIDE + t·COL_DILATION, t < COL_K
    COL_HIGH,
    COL_START,
    COL_STRIDE,
    COL_DILATION,
    COL_K,
    PAD_LEFT,  # columns of zeros on either side of a summed row, so that every window is whole
    PAD_RIGHT,
    OP_CALL,  # addresses of the compiled functions: of the operation, and of its nonlinearity on a row
    ROW_CALL,
    COLUMNS,
) = range(42)

KEEP, SCALE, BIAS, ALPHA, BETA, UNIT, SMALLEST, OWN, FLOATS = range(9)

# Columns that operations without sums leave free, for the backward steps of gradients: where the map `times` is, the
# shares of the first image and of the second, the first of the sums, whether there is a map to write to, and where the
# frame has the addresses of sums and of the first image's shares and the place of the second images' shares.
BACK_TIMES, OWN_SHARES, SHARES, SLOT, WRITES, ADDRESSES = PLANE_TAPS, ROW_TAPS, ROW_NEED, COL_TAPS, COL_LOW, COL_HIGH

# What an operation is told beside its row of the plan: where the row images' maps start, scratch memory, where their
# tables start; how many row images, how far apart their maps and tables are; then room for the addresses of rows.
BASE, SCRATCH, OWN_AT, IMAGES, MAP_STEP, OWN_STEP, ROW_LIST = range(7)

# What the interpreter is told of a program: the addresses of the plan's tables, with those of functions in them, how
# many operations there are, and sizes in map elements. K is in buffer OUTPUT in the end, Θ in THETA; a reversed program
# begins in OUTPUT, with ∂L/∂K. UNITS is the address of what both are multiplied with.
OPS, OP_COUNT, NUMBERS, TAPS, PANELS, PIXEL_CHANNELS, LOCATIONS, WIDTH, BUFFERS, INPUT, OUTPUT, THETA, UNITS = range(13)

# Numbers in a vector; the first vectors of a workspace, for powers in the rows of a series, behind which a row of zeros
# stands.
LANES = {"float32": 16, "float64": 8}
POWERS = 32

# Two images are worked on at once, each with its own maps and scratch. Without a few elements between them their rows
# would fall into the same sets of the cache (a 7 × 7 box: 36 cycles a vector instead of 30).
_SKEW = 8


@dataclass(frozen=True)
class CpuPlan:
    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    taps: NDArray[np.int64]
    scratch: int
    """Map elements of scratch: activated planes or the ring of activated rows, and two summed rows."""
    width: int
    """The longest row: the length of the row of zeros that stands for padding."""
    channels: int
    locations: int
    buffers: int
    input: int
    """Where the product of the two images goes before the operations; −1 where products are operations."""
    output: int
    theta: int
    """Where Θ is in the end; −1 where there is none."""
    table: int
    """Entries of an image's table. Where products are operations, the pixels stand before all others."""


def table_channels(a: Activation, rows: dict[int, Rows]) -> int:
    """How many numbers per location an image keeps for a nonlinearity."""
    return a.formula.family.entries + (rows[a.site].count if a.site in rows else 0)


def make_plan(program: Program, series: dict[int, Rows], series_entries: int = 1) -> CpuPlan:
    """`series` says, for each site of an Elementwise, which rows of its series are used.

    An image's table has `series_entries` numbers for each of these rows at a location.
    """
    starts = np.concatenate([[0], np.cumsum(program.buffers)])
    taps: list[int] = []
    ints = np.zeros((len(program.ops), COLUMNS), np.int64)
    floats = np.zeros((len(program.ops), FLOATS))
    scratch = 0
    locations = int(np.prod(program.shape))
    table = 0 if program.input is not None else program.channels * locations
    tables, shifts = {}, {}
    for a in program.activations:
        tables[a.site] = table
        table += a.size * table_channels(a, series)
        if a.site in series:
            table += a.size * series[a.site].count * (series_entries - 1)
        if a.site in series:
            shifts[a.site] = len(taps)
            taps.extend(series[a.site].shifts)
    geometry = _Geometry(taps, program)
    for row, numbers, op in zip(ints, floats, program.ops, strict=True):
        row[ACT] = NO_ACT if op.activation is None else CODES[op.activation.formula.family]
        row[SRC], row[DST] = starts[max(op.src, 0)], starts[op.dst]
        row[[A0, B0, C0]], row[[A1, B1, C1]] = op.shape, op.out_shape
        numbers[[KEEP, SCALE, BIAS]] = op.keep, op.scale, op.bias
        if op.keep == 0:
            row[WRITE] = STORE if op.scale == 1 and op.bias == 0 else AFFINE
        else:
            row[WRITE] = ADD if op.keep == 1 and op.bias == 0 else GENERAL
        if op.activation is not None:
            site = op.activation.site
            row[SITE] = site
            _point_to_tables(row, op, tables[site], op.activation.shape)
            if site in series:
                rows = series[site]
                row[[EVEN_TERMS, ODD_TERMS, SHIFTS, SERIES_AT]] = rows.even, rows.odd, shifts[site], rows.at
            numbers[[ALPHA, BETA]] = op.activation.coefficients
            numbers[UNIT] = op.activation.unit
        if op.tangent is not None:
            row[ACT] += SLOPE
            # No map: K itself once, and once less of it.
            none = op.tangent.times == NOTHING
            row[TIMES] = 0 if none else starts[op.tangent.times] - starts[op.src]
            numbers[OWN] = op.tangent.own - (1.0 if none else 0.0)
        if op.src == PIXELS:
            row[BOX], row[CHANNELS] = PRODUCT, program.channels
            _point_to_tables(row, op, 0, program.shape)
        elif op.src == NOTHING:
            row[BOX] = FILL
        else:
            scratch = max(scratch, geometry.encode(row, op))
    return CpuPlan(
        ints,
        floats,
        np.array(taps or [0], np.int64),
        scratch + _SKEW,
        max((op.shape[2] for op in program.ops), default=1),
        program.channels,
        locations,
        int(starts[-1]) + _SKEW,
        -1 if program.input is None else int(starts[program.input]),
        int(starts[program.output]),
        -1 if program.theta is None else int(starts[program.theta]),
        max(table, 1),
    )


def _point_to_tables(row: NDArray[np.int64], op: Op, table: int, shape: Shape) -> None:
    """Where both images' tables are read for the first place of a map, in entries of the given full shape."""
    plane, pitch = shape[1] * shape[2], shape[2]
    for column, (a, b, c) in ((OWN_TABLE, op.first), (TABLE, op.second)):
        row[column] = table + a * plane + b * pitch + c
    row[[TABLE_ROW, TABLE_PLANE, TABLE_SIZE]] = pitch, plane, shape[0] * plane


class _Geometry:
    """Encodes box sums. Operations on sheets share most of their geometry, so lists are written once."""

    def __init__(self, taps: list[int], program: Program) -> None:
        self.taps = taps
        self.sheets = program.input is None
        # A pool adds up windows of many sizes. They go the general way, because compiling each would take seconds. What
        # is compiled for K beside Θ is what is compiled for K alone, so that the order of sums, and the bits, are too.
        alone = program if program.theta is None else lower(program.network, (program.channels, *program.spatial))
        self.compiled = {(k, k) for k in COMMON_WINDOWS} | {
            size
            for op in alone.ops
            if op.sums is not None and op.keep != 1.0 and (size := self.window_size(op.sums)) is not None
        }
        self.csr = cache(self._csr)
        self.rows = cache(self._rows)

    def encode(self, row: NDArray[np.int64], op: Op) -> int:
        """Fill the geometry columns; the scratch elements needed."""
        a0, b0, c0 = op.shape
        if op.sums is None:
            row[BOX], row[RING] = POINTWISE, 1
            return c0
        planes, rows, columns = op.sums
        row[BOX] = ROWS if planes.is_identity else PLANES
        row[PLANE_TAPS] = self.csr(planes)
        row[COL_TAPS] = self.csr(columns)
        left = right = 0
        if (w := self.regular(columns)) is not None:
            left, right = w.padding or (0, 0)
            low, high = (w.low, w.high) if w.padding is None else (0, columns.out_size)
            row[[COL_LOW, COL_HIGH, COL_START, COL_STRIDE, COL_DILATION, COL_K]] = (
                low, high, w.start, w.stride, w.dilation, w.k,
            )  # fmt: skip
            row[[PAD_LEFT, PAD_RIGHT]] = left, right
        row[[ROW_K, ROW_TAPS, ROW_NEED, RING]] = self.rows(rows)
        height = int(row[ROW_K])
        size = self.window_size(op.sums)
        if row[BOX] == ROWS and size in self.compiled and (w := self.neighbours(rows)) is not None:
            row[BOX] = WINDOW
            row[ROW_BEFORE] = -w.start
            # Sheets are small: with the first pair at row 0, fewer pairs are half outside. Other maps keep the order of
            # their sums, and so their bits; so do their totals below.
            row[FIRST_ROW] = 0 if self.sheets else -((height - 1 + w.start) % 2)
        elif self.sheets and row[BOX] == ROWS and a0 == 1 and row[ACT] == RELU and _is_total(rows, columns):
            row[BOX] = TOTAL
        # The variance recursion takes the general way, so there is scratch for both.
        planes_at_once = a0 * b0 * c0 + b0 * c0 if row[BOX] == PLANES else int(row[RING]) * c0
        kept = (sum(kept_rows(height)) + 2) * c0 + row[C1] if row[BOX] == WINDOW else 0
        if op.tangent is not None:
            kept *= 2  # it may be done together with the next
        return max(planes_at_once + c0 + left + right, int(kept))

    def window_size(self, sums: tuple[AxisSum, AxisSum, AxisSum]) -> tuple[int, int] | None:
        """Height and width of the windows of neighbours that are summed, where they are such."""
        rows, columns = map(self.neighbours, sums[1:])
        return None if rows is None or columns is None else (rows.k, columns.k)

    def neighbours(self, axis: AxisSum) -> SlidingWindow | None:
        """The window of an axis where `operations/window.py` can sum it: 2 … LARGEST_WINDOW neighbours, moving by one.

        Zeros are all that is outside, and the first output reads something.
        """
        window = self.regular(axis)
        if window is None or window.padding is None or window.stride != 1 or window.dilation != 1:
            return None
        return window if 2 <= window.k <= LARGEST_WINDOW and window.start > -window.k else None

    def regular(self, axis: AxisSum) -> SlidingWindow | None:
        """The window of an axis where it is worth a loop of its own: it lies inside the axis for two outputs or more.

        One is enough on sheets, most of which are small. Other maps keep the order of their sums, and so their bits.
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
        """ROW_K, ROW_TAPS, ROW_NEED and RING of the sums of rows."""
        # A zero-padded window has one place per tap, so that neighbouring output rows line up even at the border.
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


def kept_rows(height: int) -> tuple[int, int]:
    """How many rows a window of that height keeps: sums of two rows, and odd rows."""
    return max(1, (height - 1) // 2), height // 2


def _row_table(rows: AxisSum) -> list[list[int]]:
    """For each output row the rows it sums, padded with −1 to one length, zero padding in its true place."""
    k = max(map(len, rows.sources), default=1) or 1
    table = []
    for sources in rows.sources:
        missing = k - len(sources)
        at_start = bool(sources) and sources[0] == 0 and missing > 0
        table.append([-1] * missing + list(sources) if at_start else list(sources) + [-1] * missing)
    return table
