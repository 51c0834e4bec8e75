"""The compiled interpreter: runs a plan's operations on maps whose elements are vectors, one lane per pair.

It serves every network, shape and layer, because the inner loops run over lanes, whose number is fixed, and not over
columns, whose number is not. A map of a group of pairs lives in L2; the rows that a convolution sums, in L1. An
operation is called through its address (`calls.py`), so each is compiled once, and only when a network needs it.

A workspace is: POWERS vectors for the rows of a series, a row of zeros that stands for padding, the maps of the images
that are worked on together, and scratch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .compiling import inlined, jit
from .plan import BASE, COLUMNS, FLOATS, IMAGES, MAP_STEP, OP_CALL, OWN_AT, OWN_STEP, SCRATCH
from .simd import constant, fma, lanes, load, pointer, shifted, splat, store
from .work import POWERS, Work, call_op


class Code(NamedTuple):
    """What is run: a plan's tables with the addresses of its functions, and its sizes in map elements.

    K is in buffer `output` in the end; a reversed program begins there, with ∂L/∂K.
    """

    ints: Any
    floats: Any
    taps: Any
    panels: Any
    channels: int
    locations: int
    width: int
    buffers: int
    input: int
    output: int
    theta: int


class Space(NamedTuple):
    """A thread's memory: maps and scratch, what operations are told, and a group of images' pixels and tables."""

    maps: Any
    frame: Any
    pixels: Any
    table: Any


class Rows(NamedTuple):
    """Images first … last − 1 of X with their tables, `block` of them worked on at a time."""

    X: Any
    own: Any
    first: int
    last: int
    block: int


class Target(NamedTuple):
    """Where kernel values go: out[row0 + i, column0 : column0 + columns] in true units; `symmetric`: mirrored.

    `out` is for K and `theta` for Θ; the one that is not wanted has no rows.
    """

    out: Any
    theta: Any
    row0: int
    column0: int
    columns: int
    symmetric: bool
    unit: Any
    theta_unit: Any


@inlined
def run_ops(code: Any, m: Any, own: Any, table: Any, frame: Any) -> None:
    ints, floats, taps, panels = pointer(code.ints), pointer(code.floats), pointer(code.taps), pointer(code.panels)
    for o in range(len(code.ints)):
        op, numbers = shifted(ints, o * COLUMNS), shifted(floats, o * FLOATS)
        call_op(op[OP_CALL], Work(m, own, table, op, numbers, taps, panels, frame))


@inlined
def multiply_images(m: Any, to: int, own: Any, own_at: int, lane: Any, channels: int, locations: int) -> None:
    """Σ_c x_c x'_c at each location; 64 channels, 64 times those and the rest are summed apart, so that rounding does
    not grow with their number.
    """
    L = lanes(m)
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
def square_images(m: Any, to: int, lane: Any, channels: int, locations: int) -> None:
    """Σ_c x_c² at each location of `lanes` images."""
    L = lanes(m)
    for e in range(locations):
        total = constant(m, 0.0)
        for c in range(channels):
            x = load(lane, (c * locations + e) * L)
            total = fma(x, x, total)
        store(m, to + e * L, total)


@jit
def image_tables(code: Code, space: Space, peaks: Any, X: Any, first: int, count: int) -> None:
    """The variance recursion of up to `lanes` images in float64; spare lanes repeat the last image.

    Afterwards the table holds their entries lane by lane, `peaks` the largest variance at each site, and the output
    buffer K(x, x) in its unit.
    """
    m, lane_pixels, entries, f = pointer(space.maps), pointer(space.pixels), pointer(space.table), pointer(space.frame)
    L = lanes(m)
    pixels = code.channels * code.locations
    for e in range(pixels):
        for lane in range(L):
            lane_pixels[e * L + lane] = X[first + min(lane, count - 1), e]
    base = (POWERS + code.width) * L
    if code.input >= 0:
        square_images(m, base + code.input * L, lane_pixels, code.channels, code.locations)
    else:  # products are operations, which find the pixels at the head of the table
        for e in range(0, pixels * L, L):
            store(entries, e, load(lane_pixels, e))
    f[BASE], f[SCRATCH], f[OWN_AT], f[IMAGES], f[MAP_STEP], f[OWN_STEP] = base, base + code.buffers * L, 0, 1, 0, 0
    run_ops(code, m, pointer(peaks), entries, f)


@inlined
def put(m: Any, at: int, unit: Any, out: Any, i: int, column0: int, columns: int, symmetric: bool) -> None:
    """A row of kernel values; where symmetric, those right of the diagonal, mirrored."""
    for lane in range(columns):
        j = column0 + lane
        if not symmetric:
            out[i, j] = m[at + lane] * unit
        elif j > i:
            value = m[at + lane] * unit
            out[i, j] = value
            out[j, i] = value


@jit
def pair_block(code: Code, space: Space, rows: Rows, target: Target) -> None:
    """K, Θ or both of row images with the group of column images in `space`.

    Where symmetric, only those right of the diagonal are written, and mirrored.
    """
    m, lane_pixels, f = pointer(space.maps), pointer(space.pixels), pointer(space.frame)
    images, own, table = pointer(rows.X), pointer(rows.own), pointer(space.table)
    L = lanes(m)
    pixels, buffers, entries = code.channels * code.locations, code.buffers, rows.own.shape[1]
    K, theta, column0, columns, symmetric = target.out, target.theta, target.column0, target.columns, target.symmetric
    base = (POWERS + code.width) * L
    f[BASE], f[SCRATCH], f[MAP_STEP], f[OWN_STEP] = base, base + rows.block * buffers * L, buffers * L, entries
    for i0 in range(rows.first, rows.last, rows.block):
        n = min(rows.block, rows.last - i0)
        for b in range(n if code.input >= 0 else 0):
            at = base + (b * buffers + code.input) * L
            multiply_images(m, at, images, (i0 + b) * pixels, lane_pixels, code.channels, code.locations)
        f[OWN_AT], f[IMAGES] = i0 * entries, n
        run_ops(code, m, own, table, f)
        for b in range(n):
            i, at = target.row0 + i0 + b, base + b * buffers * L
            if len(K) > 0:
                put(m, at + code.output * L, target.unit, K, i, column0, columns, symmetric)
            if len(theta) > 0:
                put(m, at + code.theta * L, target.theta_unit, theta, i, column0, columns, symmetric)


@jit
def spread_rows(table: Any, count: int, own: Any, first: int) -> None:
    """Tables lane by lane (float64) → a row per image in the working precision."""
    p = pointer(table)
    L = lanes(p)
    for lane in range(count):
        for e in range(own.shape[1]):
            own[first + lane, e] = p[e * L + lane]


@jit
def spread_lanes(source: Any, target: Any, first: int) -> None:
    """Vectors of few lanes (float64) → lanes first … of vectors of the working precision."""
    p, q = pointer(source), pointer(target)
    L0, L1 = lanes(p), lanes(q)
    for e in range(len(source) // L0):
        for lane in range(L0):
            q[e * L1 + first + lane] = p[e * L0 + lane]
