"""Names of the integers that compiled code reads: columns of the plan, of the frame, and of a program.

Offsets into maps and tables are in map elements; compiled code multiplies them by the number of lanes.
"""

from __future__ import annotations

from cnngp.kernel import formulas

LANES = {"float32": 16, "float64": 8}
"""Lanes of a vector."""
POWERS = 32
"""Number of vectors at the start of a workspace for powers in the rows of a series; a row of zeros follows."""

# The function f (column ACT): none, or the number of a family, plus SLOPE if the operation has a tangent, which
# replaces f(K) by f'(K) · (times + own · K).
NO_ACT, SLOPE = 0, 32
CODES = {family: number for number, family in enumerate(formulas.FAMILIES, start=1)}
RELU, SERIES = CODES[formulas.RELU], CODES[formulas.SERIES]
# Kind of operation (column BOX): no sums, sums of rows, planes first, a window of neighbours along both axes; no map
# read but the product of two images, or nothing; the sum over a ReLU's whole map. The last three are gradient steps.
POINTWISE, ROWS, PLANES, WINDOW, PRODUCT, FILL, TOTAL, BACK, SUM, TO_PIXELS = range(10)
# Form in which the result r is written (column WRITE): r; scale · r + bias; dst + scale · r; or keep · dst + scale · r
# + bias.
STORE, AFFINE, ADD, GENERAL = range(4)

# fmt: off
(
    ACT, BOX, WRITE, SRC, DST,
    A0, B0, C0, A1, B1, C1,  # the shapes of the map that is read and of the one that is written
    # Offsets of the activation's entries for the map's first location in the tables of the row image and of the column
    # image (with pools these are different locations), and distances of neighbouring rows, planes and channels. SITE
    # is the activation's number, CHANNELS the number of the images' channels, for PRODUCT.
    OWN_TABLE, TABLE, TABLE_ROW, TABLE_PLANE, TABLE_SIZE, CHANNELS, SITE,
    TIMES,  # distance from the map that is read to the one by which its slope is multiplied
    # For an Elementwise: rows of its series with even powers of the correlation, and with odd ones; start of the steps
    # of Horner's rule for these rows in `taps`, and start of the series in `panels`.
    EVEN_TERMS, ODD_TERMS, SHIFTS, SERIES_AT,
    PLANE_TAPS,  # in `taps`: A1 + 1 offsets, then the planes that are summed
    # B1 × ROW_K rows that are summed, −1 for none; B1 numbers of rows that must be ready for an output row; the number
    # of rows alive at a time.
    ROW_TAPS, ROW_K, ROW_NEED, RING,
    # For a WINDOW: output row m sums rows from m − ROW_BEFORE on; start of the first pair of rows it takes, 0 or −1.
    ROW_BEFORE, FIRST_ROW,
    COL_TAPS,  # C1 + 1 offsets, then the columns that are summed
    # c in COL_LOW … COL_HIGH sums columns COL_START + c·COL_STRIDE + t·COL_DILATION, t < COL_K. A summed row is padded
    # with enough columns of zeros on either side that every window is whole.
    COL_LOW, COL_HIGH, COL_START, COL_STRIDE, COL_DILATION, COL_K, PAD_LEFT, PAD_RIGHT,
    OP_CALL, ROW_CALL,  # addresses of the compiled functions: of the operation, and of its nonlinearity on a row
    # For backward steps of gradients: offset of the map `times`, shares of the first image and of the second, index of
    # the first sum, and whether there is a map to write to.
    BACK_TIMES, OWN_SHARES, SHARES, SLOT, WRITES,
    COLUMNS,
) = range(47)

KEEP, SCALE, BIAS, ALPHA, BETA, UNIT, SMALLEST, OWN, FLOATS = range(9)

# The frame, the arguments of an operation besides its row of the plan: offsets of the row images' maps, of scratch
# memory and of their tables; number of row images, distances of their maps and tables; for gradients the addresses of
# the sums and of the first image's shares, and the offset of the second images' shares; then room for a list of rows.
BASE, SCRATCH, OWN_AT, IMAGES, MAP_STEP, OWN_STEP, SUMS_AT, OWN_SHARES_AT, SHARES_AT, ROW_LIST = range(10)

# A program: the addresses of the plan's tables, which contain those of functions, the number of operations, and sizes
# in map elements. K ends in buffer OUTPUT and Θ in THETA; a reversed program begins in OUTPUT, with ∂L/∂K. UNITS is the
# address of the factors of both.
OPS, OP_COUNT, NUMBERS, TAPS, PANELS, PIXEL_CHANNELS, LOCATIONS, WIDTH, BUFFERS, INPUT, OUTPUT, THETA, UNITS = range(13)
# fmt: on


def kept_rows(height: int) -> tuple[int, int]:
    """Number of rows that a window of this height keeps: (sums of two rows, odd rows)."""
    return max(1, (height - 1) // 2), height // 2
