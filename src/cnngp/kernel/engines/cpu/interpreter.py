"""The compiled interpreter: runs a plan's operations on maps whose elements are vectors, one lane per pair.

It serves every network, shape and layer, because the inner loops run over lanes, whose number is fixed, and not over
columns, whose number varies. A map of a group of pairs fits into L2, the rows that a convolution sums into L1. An
operation is called through its address (`plan.py`), so each is compiled once, and only when a network needs it.

A workspace consists of POWERS vectors for the rows of a series, a row of zeros used as padding, the maps of the images
that are processed together, scratch, and for gradients the shares of the images' variances.

Python calls the functions that are not decorated, with integers: `Reals`, `Ints` and `Doubles` are addresses of numbers
in the working precision, of int64 and of float64. `code` is a row of the columns OPS … UNITS of columns.py.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from . import columns as col
from .compiling import inlined
from .simd import address, address_like, constant, fma, lanes, load, shifted, splat, store
from .work import Work, call_op

Reals: TypeAlias = Any
Ints: TypeAlias = Any
Doubles: TypeAlias = Any


@inlined
def run_ops(code: Ints, m: Reals, own: Reals, table: Reals, frame: Ints) -> None:
    ints, floats = address_like(code, code[col.OPS]), address(code[col.NUMBERS])
    taps, panels = address_like(code, code[col.TAPS]), address(code[col.PANELS])
    for o in range(code[col.OP_COUNT]):
        op, numbers = shifted(ints, o * col.COLUMNS), shifted(floats, o * col.FLOATS)
        call_op(op[col.OP_CALL], Work(m, own, table, op, numbers, taps, panels, frame))


@inlined
def first_map(code: Ints, L: int) -> int:
    """Offset of the maps in a workspace."""
    return (col.POWERS + code[col.WIDTH]) * L  # type: ignore[no-any-return]


@inlined
def multiply_images(code: Ints, m: Reals, to: int, own: Reals, own_at: int, lane: Reals) -> None:
    """Σ_c x_c x'_c at each location, summed in groups of 64 channels and of 64 such groups, so that rounding does not
    grow with their number.
    """
    L, channels, locations = lanes(m), code[col.PIXEL_CHANNELS], code[col.LOCATIONS]
    for e in range(locations):
        total = constant(m, 0.0)
        for far in range(0, channels, 4096):
            middle = constant(m, 0.0)
            for first in range(far, min(far + 4096, channels), 64):
                part = constant(m, 0.0)
                for c in range(first, min(first + 64, channels)):
                    at = c * locations + e
                    part = fma(splat(own, own_at + at), load(lane, at * L), part)
                middle = middle + part
            total = total + middle
        store(m, to + e * L, total)


@inlined
def square_images(code: Ints, m: Reals, to: int, lane: Reals) -> None:
    """Σ_c x_c² at each location of `lanes` images."""
    L, channels, locations = lanes(m), code[col.PIXEL_CHANNELS], code[col.LOCATIONS]
    for e in range(locations):
        total = constant(m, 0.0)
        for c in range(channels):
            x = load(lane, (c * locations + e) * L)
            total = fma(x, x, total)
        store(m, to + e * L, total)


def image_tables(
    code: Ints, m: Doubles, frame: Ints, pixels: Doubles, table: Doubles, peaks: Doubles, X: Reals, first: int,
    count: int,
) -> None:  # fmt: skip
    """Run the variance recursion of up to `lanes` images in float64; spare lanes repeat the last image.

    Afterwards the table holds their entries, one image per lane, `peaks` the largest variance at each site, and the
    output buffer K(x, x) in its unit.
    """
    L, size = lanes(m), code[col.PIXEL_CHANNELS] * code[col.LOCATIONS]
    for e in range(size):
        for lane in range(L):
            pixels[e * L + lane] = X[(first + min(lane, count - 1)) * size + e]
    base = first_map(code, L)
    if code[col.INPUT] >= 0:
        square_images(code, m, base + code[col.INPUT] * L, pixels)
    else:  # products are operations, which read the pixels at the start of the table
        for e in range(0, size * L, L):
            store(table, e, load(pixels, e))
    frame[col.BASE], frame[col.SCRATCH], frame[col.OWN_AT], frame[col.IMAGES] = base, base + code[col.BUFFERS] * L, 0, 1
    frame[col.MAP_STEP], frame[col.OWN_STEP] = 0, 0
    run_ops(code, m, peaks, table, frame)


@inlined
def put(
    m: Reals, at: int, unit: Any, out: Reals, i: int, stride: int, column0: int, columns: int, symmetric: int
) -> None:
    """Write a row of kernel values; if symmetric, those right of the diagonal and their mirror images."""
    for lane in range(columns):
        j = column0 + lane
        if symmetric == 0:
            out[i * stride + j] = m[at + lane] * unit
        elif j > i:
            value = m[at + lane] * unit
            out[i * stride + j] = value
            out[j * stride + i] = value


def pair_block(
    code: Ints, m: Reals, frame: Ints, pixels: Reals, table: Reals, X: Reals, own: Reals, entries: int, first: int,
    last: int, block: int, K: int, theta: int, stride: int, row0: int, column0: int, columns: int, symmetric: int,
) -> None:  # fmt: skip
    """Compute K, Θ or both for images first … last − 1 of X and the group of column images in `pixels` and `table`.

    `block` images are processed at a time; `own` holds their tables, `entries` numbers each. Values go to row row0 + i
    and columns from column0 on of matrices of `stride` columns at the addresses `K` and `theta`, 0 for one that is not
    needed. If symmetric, only values right of the diagonal are written, with their mirror images.
    """
    L, size, buffers = lanes(m), code[col.PIXEL_CHANNELS] * code[col.LOCATIONS], code[col.BUFFERS]
    base, units = first_map(code, L), address_like(m, code[col.UNITS])
    frame[col.BASE], frame[col.SCRATCH] = base, base + block * buffers * L
    frame[col.MAP_STEP], frame[col.OWN_STEP] = buffers * L, entries
    for i0 in range(first, last, block):
        n = min(block, last - i0)
        for b in range(n if code[col.INPUT] >= 0 else 0):
            multiply_images(code, m, base + (b * buffers + code[col.INPUT]) * L, X, (i0 + b) * size, pixels)
        frame[col.OWN_AT], frame[col.IMAGES] = i0 * entries, n
        run_ops(code, m, own, table, frame)
        for b in range(n):
            i, at = row0 + i0 + b, base + b * buffers * L
            if K != 0:
                out = address_like(m, K)
                put(m, at + code[col.OUTPUT] * L, units[0], out, i, stride, column0, columns, symmetric)
            if theta != 0:
                out = address_like(m, theta)
                put(m, at + code[col.THETA] * L, units[1], out, i, stride, column0, columns, symmetric)


def pair_gradients(
    code: Ints, m: Reals, frame: Ints, pixels: Reals, table: Reals, X: Reals, own: Reals, entries: int, rows: int,
    weights: Reals, sums: int, shares: int, shares_step: int,
) -> None:  # fmt: skip
    """Run the reversed program for all row images and the group of column images; rows without weights are skipped.

    Row i adds to the sums at the address `sums` and to the shares at shares + i · shares_step, in bytes.
    """
    L, size = lanes(m), code[col.PIXEL_CHANNELS] * code[col.LOCATIONS]
    base = first_map(code, L)
    frame[col.BASE], frame[col.SCRATCH], frame[col.IMAGES] = base, base + code[col.BUFFERS] * L, 1
    frame[col.MAP_STEP], frame[col.OWN_STEP], frame[col.SUMS_AT] = 0, 0, sums
    for i in range(rows):
        empty = True
        for lane in range(L):
            m[base + code[col.OUTPUT] * L + lane] = weights[i * L + lane]
            empty = empty and weights[i * L + lane] == 0.0
        if empty:
            continue
        if code[col.INPUT] >= 0:
            multiply_images(code, m, base + code[col.INPUT] * L, X, i * size, pixels)
        frame[col.OWN_AT] = i * entries
        frame[col.OWN_SHARES_AT] = shares + i * shares_step
        run_ops(code, m, own, table, frame)


def spread_rows(table: Doubles, own: Reals, entries: int, first: int, count: int) -> None:
    """Convert tables with one image per lane (float64) to one row per image in the working precision."""
    L = lanes(table)
    for lane in range(count):
        for e in range(entries):
            own[(first + lane) * entries + e] = table[e * L + lane]


def spread_lanes(source: Doubles, target: Reals, entries: int, first: int) -> None:
    """Copy float64 vectors to the lanes from `first` on of vectors of the working precision, which have more lanes."""
    L0, L1 = lanes(source), lanes(target)
    for e in range(entries):
        for lane in range(L0):
            target[e * L1 + first + lane] = source[e * L0 + lane]
