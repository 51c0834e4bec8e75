"""Names of the numbers that compiled code reads: a row of the plan, the frame, and a program.

Offsets into maps and tables are in map elements; compiled code multiplies them by the number of lanes.
"""

from __future__ import annotations

from cnngp.kernel import formulas

LANES = {"float32": 16, "float64": 8}
"""Numbers in a vector."""
POWERS = 32
"""The first vectors of a workspace, for powers in the rows of a series; a row of zeros stands behind them."""

# What f is (column ACT): nothing, or a family by its number, to which SLOPE is added where an operation has a tangent:
# f'(K) · (times + own · K) in place of f(K).
NO_ACT, SLOPE = 0, 32
CODES = {family: number for number, family in enumerate(formulas.FAMILIES, start=1)}
RELU, SERIES = CODES[formulas.RELU], CODES[formulas.SERIES]
# How the box is summed (column BOX): not at all, by rows, by planes first, as a window of neighbours along both axes;
# where no map is read, the product of two images, or nothing; the ReLU of a whole map. The last are steps of gradients.
POINTWISE, ROWS, PLANES, WINDOW, PRODUCT, FILL, TOTAL, BACK, SUM, TO_PIXELS = range(10)
# How the result r is written (column WRITE): r; scale · r + bias; dst + scale · r; keep · dst + scale · r + bias.
STORE, AFFINE, ADD, GENERAL = range(4)

# fmt: off
(
    ACT, BOX, WRITE, SRC, DST,
    A0, B0, C0, A1, B1, C1,  # the shapes of the map that is read and of the one that is written
    # Where the activation's entries for the map's first place are, in the table of the row image and in that of the
    # column image (under a pool these are different places), and how far neighbouring rows, planes and channels are
    # apart. SITE is the activation's number, CHANNELS that of the images, for PRODUCT.
    OWN_TABLE, TABLE, TABLE_ROW, TABLE_PLANE, TABLE_SIZE, CHANNELS, SITE,
    TIMES,  # how far behind the map that is read the one lies that its slope is multiplied with
    # An Elementwise: rows of its series with even powers of the correlation, and with odd ones; where the steps of
    # Horner's rule for these rows start in `taps`, and the series in `panels`.
    EVEN_TERMS, ODD_TERMS, SHIFTS, SERIES_AT,
    PLANE_TAPS,  # in `taps`: A1 + 1 offsets, then the planes that are summed
    # B1 × ROW_K rows that are summed, −1 for none; B1 counts of the rows that must be ready for an output row; how many
    # are alive at a time.
    ROW_TAPS, ROW_K, ROW_NEED, RING,
    # Of a WINDOW: output row m sums rows m − ROW_BEFORE …; the first of the pairs of rows that it takes, 0 or −1.
    ROW_BEFORE, FIRST_ROW,
    COL_TAPS,  # C1 + 1 offsets, then the columns that are summed
    # c in COL_LOW … COL_HIGH sums columns COL_START + c·COL_STRIDE + t·COL_DILATION, t < COL_K. On either side of a
    # summed row are so many columns of zeros that every window is whole.
    COL_LOW, COL_HIGH, COL_START, COL_STRIDE, COL_DILATION, COL_K, PAD_LEFT, PAD_RIGHT,
    OP_CALL, ROW_CALL,  # addresses of the compiled functions: of the operation, and of its nonlinearity on a row
    # Backward steps of gradients: where the map `times` is, the shares of the first image and of the second, the first
    # of the sums, and whether there is a map to write to.
    BACK_TIMES, OWN_SHARES, SHARES, SLOT, WRITES,
    COLUMNS,
) = range(47)

KEEP, SCALE, BIAS, ALPHA, BETA, UNIT, SMALLEST, OWN, FLOATS = range(9)

# The frame, what an operation is told beside its row of the plan: where the row images' maps start, scratch memory,
# where their tables start; how many row images, how far apart their maps and tables are; for gradients the addresses of
# the sums and of the first image's shares, and where the second images' shares are; then room for addresses of rows.
BASE, SCRATCH, OWN_AT, IMAGES, MAP_STEP, OWN_STEP, SUMS_AT, OWN_SHARES_AT, SHARES_AT, ROW_LIST = range(10)

# A program: the addresses of the plan's tables, with those of functions in them, how many operations there are, and
# sizes in map elements. K is in buffer OUTPUT in the end, Θ in THETA; a reversed program begins in OUTPUT, with ∂L/∂K.
# UNITS is the address of what both are multiplied with.
OPS, OP_COUNT, NUMBERS, TAPS, PANELS, PIXEL_CHANNELS, LOCATIONS, WIDTH, BUFFERS, INPUT, OUTPUT, THETA, UNITS = range(13)
# fmt: on


def kept_rows(height: int) -> tuple[int, int]:
    """How many rows a window of that height keeps: sums of two rows, and odd rows."""
    return max(1, (height - 1) // 2), height // 2
