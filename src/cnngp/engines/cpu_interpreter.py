"""The compiled interpreter: runs a plan's operations on maps whose elements are vectors, one lane per pair.

One compiled function serves every network, shape and layer, because the inner loops run over lanes, whose number is
fixed, and not over columns, whose number is not. A map of a group of pairs lives in L2; a row of it, and the ring of
activated rows that a convolution sums, in L1.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import overload

from .cpu_plan import (
    A0,
    A1,
    ACT,
    ADD,
    AFFINE,
    B0,
    B1,
    BIAS,
    BOX,
    BOX3,
    C0,
    C1,
    COL_DILATION,
    COL_HIGH,
    COL_K,
    COL_LOW,
    COL_START,
    COL_STRIDE,
    COL_TAPS,
    COLUMNS,
    DST,
    FLOATS,
    KEEP,
    NO_ACT,
    PLANE_TAPS,
    PLANES,
    POINTWISE,
    RING,
    ROW_K,
    ROW_NEED,
    ROW_SHARED,
    ROW_TAPS,
    SCALE,
    SERIES_AT,
    SITE,
    SRC,
    STORE,
    TABLE,
    TERMS,
    WRITE,
)
from .cpu_rows import activate_pairs, activate_variances, jit
from .simd import LANES, constant, fma, load, pointer, shifted, splat, store


def lanes(p: Any) -> int:
    """How many numbers of the type p points to make a vector; a constant to the compiler."""
    raise TypeError("for compiled code only")


@overload(lanes, strict=False)  # type: ignore[untyped-decorator]
def _lanes(p: Any) -> Any:
    n = LANES[str(p.dtype)]
    return lambda p: n


@jit
def write(m: Any, at: int, r: Any, how: int, keep: Any, scale: Any, bias: Any) -> None:
    """dst ← keep · dst + scale · r + bias, in its cheapest form; with keep = 0 the old content is not read."""
    if how == STORE:
        store(m, at, r)
    elif how == AFFINE:
        store(m, at, fma(r, scale, bias))
    elif how == ADD:
        store(m, at, fma(r, scale, load(m, at)))
    else:
        store(m, at, fma(load(m, at), keep, fma(r, scale, bias)))


@jit
def box3_rows(m: Any, a: int, b: int, c: int, d: int, two: bool, to: int, n: int, how: int, numbers: Any) -> None:
    """3 × 3 boxes of rows (a, b, c) and, where `two`, of rows (b, c, d) below: sums slide along the columns."""
    L = lanes(m)
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    below = to + n * L
    last0 = constant(m, 0.0)
    last1 = last0
    shared = load(m, b) + load(m, c)
    here0, here1 = load(m, a) + shared, shared + load(m, d)
    for x in range(1, n):
        o = x * L
        shared = load(m, b + o) + load(m, c + o)
        next0, next1 = load(m, a + o) + shared, shared + load(m, d + o)
        write(m, to + o - L, last0 + here0 + next0, how, keep, scale, bias)
        if two:
            write(m, below + o - L, last1 + here1 + next1, how, keep, scale, bias)
        last0, last1, here0, here1 = here0, here1, next0, next1
    o = (n - 1) * L
    write(m, to + o, last0 + here0, how, keep, scale, bias)
    if two:
        write(m, below + o, last1 + here1, how, keep, scale, bias)


@jit
def sum_rows(m: Any, rows: Any, first: int, count: int, to: int, n: int) -> None:
    """to ← Σ of `count` rows whose addresses are rows[first …], four columns at a time."""
    L = lanes(m)
    x = 0
    while x + 4 <= n:
        at = rows[first] + x * L
        s0, s1, s2, s3 = load(m, at), load(m, at + L), load(m, at + 2 * L), load(m, at + 3 * L)
        for t in range(1, count):
            at = rows[first + t] + x * L
            s0 = s0 + load(m, at)
            s1 = s1 + load(m, at + L)
            s2 = s2 + load(m, at + 2 * L)
            s3 = s3 + load(m, at + 3 * L)
        at = to + x * L
        store(m, at, s0)
        store(m, at + L, s1)
        store(m, at + 2 * L, s2)
        store(m, at + 3 * L, s3)
        x += 4
    while x < n:
        s0 = load(m, rows[first] + x * L)
        for t in range(1, count):
            s0 = s0 + load(m, rows[first + t] + x * L)
        store(m, to + x * L, s0)
        x += 1


@jit
def sum_two_rows(m: Any, rows: Any, k: int, to0: int, to1: int, n: int) -> None:
    """to0 ← rows 0 … k−1 and to1 ← rows 1 … k, whose middle is summed once; two columns at a time."""
    L = lanes(m)
    x = 0
    while x < n:
        both = x + 1 < n
        o = x * L
        o1 = o + L if both else o
        s0, s1 = load(m, rows[1] + o), load(m, rows[1] + o1)
        for t in range(2, k):
            s0 = s0 + load(m, rows[t] + o)
            s1 = s1 + load(m, rows[t] + o1)
        store(m, to0 + o, load(m, rows[0] + o) + s0)
        store(m, to1 + o, s0 + load(m, rows[k] + o))
        if both:
            store(m, to0 + o1, load(m, rows[0] + o1) + s1)
            store(m, to1 + o1, s1 + load(m, rows[k] + o1))
        x += 2


@jit
def sum_columns(m: Any, row: int, to: int, op: Any, numbers: Any, taps: Any) -> None:
    """Sum windows along one row and write the output row."""
    L = lanes(m)
    how = op[WRITE]
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    n, low, high, k = op[C1], op[COL_LOW], op[COL_HIGH], op[COL_K]
    start, stride, step = row + op[COL_START] * L, op[COL_STRIDE] * L, op[COL_DILATION] * L
    c = low
    if stride == L and step == L and k > 1:
        while c + 1 < high:
            at = start + c * L
            s = load(m, at + L)
            for t in range(2, k):
                s = s + load(m, at + t * L)
            write(m, to + c * L, load(m, at) + s, how, keep, scale, bias)
            write(m, to + (c + 1) * L, s + load(m, at + k * L), how, keep, scale, bias)
            c += 2
    while c < high:
        at = start + c * stride
        s = load(m, at)
        for t in range(1, k):
            s = s + load(m, at + t * step)
        write(m, to + c * L, s, how, keep, scale, bias)
        c += 1
    offsets = op[COL_TAPS]
    entries = offsets + n + 1
    for c in range(n):
        if low <= c < high:
            continue
        s = constant(m, 0.0)
        for t in range(taps[offsets + c], taps[offsets + c + 1]):
            s = s + load(m, row + taps[entries + t] * L)
        write(m, to + c * L, s, how, keep, scale, bias)


def activate(
    m: Any, src: int, dst: int, n: int, entry: int, op: Any, numbers: Any, own: Any, own_at: int, table: Any,
    panels: Any, peaks: Any, smallest: float,
) -> None:  # fmt: skip
    """f on n columns from map element `entry` of the activation; the variance recursion where `own` is None."""


@overload(activate, strict=False)  # type: ignore[untyped-decorator]
def _activate(
    m: Any, src: Any, dst: Any, n: Any, entry: Any, op: Any, numbers: Any, own: Any, own_at: Any, table: Any,
    panels: Any, peaks: Any, smallest: Any,
) -> Any:  # fmt: skip
    def variances(m, src, dst, n, entry, op, numbers, own, own_at, table, panels, peaks, smallest):  # type: ignore[no-untyped-def]
        L = lanes(m)
        activate_variances(
            op[ACT], m, src, dst, n, table, op[TABLE] + entry, op[A0] * op[B0] * op[C0], op[TERMS], panels,
            op[SERIES_AT], numbers, peaks, op[SITE] * L, smallest, L,
        )  # fmt: skip

    def pairs(m, src, dst, n, entry, op, numbers, own, own_at, table, panels, peaks, smallest):  # type: ignore[no-untyped-def]
        at = op[TABLE] + entry
        size = op[A0] * op[B0] * op[C0]
        activate_pairs(op[ACT], m, src, dst, n, own, own_at + at, table, at, size, op[TERMS], numbers, lanes(m))

    return variances if isinstance(own, types.NoneType) else pairs


@jit
def box_plane(
    m: Any, src: int, dst: int, plane: int, active: bool, scratch: int, rows: Any, op: Any, numbers: Any, taps: Any,
    own: Any, own_at: int, table: Any, panels: Any, peaks: Any, smallest: float,
) -> None:  # fmt: skip
    """One plane: activate rows as they are needed, sum them down and along. Output rows come in twos where they can."""
    L = lanes(m)
    width = op[C0] * L
    out_width = op[C1] * L
    k, ring = op[ROW_K], op[RING]
    ready = 0
    base = scratch if active else src
    sum0 = scratch + ring * width if active else scratch
    sum1 = sum0 + width
    zeros = 0  # the workspace begins with a row of zeros
    r = 0
    while r < op[B1]:
        two = op[ROW_SHARED] == 1 and r + 1 < op[B1]
        if active:
            need = taps[op[ROW_NEED] + (r + 1 if two else r)]
            while ready < need:
                activate(
                    m, src + ready * width, scratch + (ready % ring) * width, op[C0], (plane * op[B0] + ready) * op[C0],
                    op, numbers, own, own_at, table, panels, peaks, smallest,
                )  # fmt: skip
                ready += 1
        first = op[ROW_TAPS] + r * k
        for t in range(k + 1 if two else k):
            b = taps[first + t] if t < k else taps[first + k + k - 1]
            rows[t] = zeros if b < 0 else base + ((b % ring) if active else b) * width
        to = dst + r * out_width
        if op[BOX] == BOX3:
            box3_rows(m, rows[0], rows[1], rows[2], rows[3] if two else zeros, two, to, op[C0], op[WRITE], numbers)
        elif two:
            sum_two_rows(m, rows, k, sum0, sum1, op[C0])
            sum_columns(m, sum0, to, op, numbers, taps)
            sum_columns(m, sum1, to + out_width, op, numbers, taps)
        elif k == 1:
            sum_columns(m, rows[0], to, op, numbers, taps)
        else:
            sum_rows(m, rows, 0, k, sum0, op[C0])
            sum_columns(m, sum0, to, op, numbers, taps)
        r += 2 if two else 1


@jit
def run_op(
    m: Any, base: int, scratch: int, rows: Any, op: Any, numbers: Any, taps: Any, own: Any, own_at: int, table: Any,
    panels: Any, peaks: Any, smallest: float,
) -> None:  # fmt: skip
    """dst ← keep · dst + scale · box(f(src)) + bias for one group of lanes, whose maps start at `base`."""
    L = lanes(m)
    src, dst = base + op[SRC] * L, base + op[DST] * L
    active = op[ACT] != NO_ACT
    width = op[C0] * L
    plane_in, plane_out = op[B0] * width, op[B1] * op[C1] * L
    if op[BOX] == POINTWISE:
        keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
        for r in range(op[A0] * op[B0]):
            row, to = src + r * width, dst + r * width
            if active:
                into = to if op[WRITE] == STORE else scratch
                activate(m, row, into, op[C0], r * op[C0], op, numbers, own, own_at, table, panels, peaks, smallest)
                row = into
            if row != to or op[WRITE] != STORE:
                for c in range(op[C0]):
                    write(m, to + c * L, load(m, row + c * L), op[WRITE], keep, scale, bias)
    elif op[BOX] == PLANES:
        activated = src
        if active:
            activated = scratch
            for r in range(op[A0] * op[B0]):
                activate(
                    m, src + r * width, scratch + r * width, op[C0], r * op[C0],
                    op, numbers, own, own_at, table, panels, peaks, smallest,
                )  # fmt: skip
            scratch += op[A0] * plane_in
        summed = scratch
        scratch += plane_in
        offsets = op[PLANE_TAPS]
        entries = offsets + op[A1] + 1
        for a in range(op[A1]):
            for x in range(0, plane_in, L):
                s = constant(m, 0.0)
                for t in range(taps[offsets + a], taps[offsets + a + 1]):
                    s = s + load(m, activated + taps[entries + t] * plane_in + x)
                store(m, summed + x, s)
            box_plane(
                m, summed, dst + a * plane_out, a, False, scratch, rows, op, numbers, taps, own, own_at, table,
                panels, peaks, smallest,
            )  # fmt: skip
    else:
        for a in range(op[A1]):
            box_plane(
                m, src + a * plane_in, dst + a * plane_out, a, active, scratch, rows, op, numbers, taps, own, own_at,
                table, panels, peaks, smallest,
            )  # fmt: skip


@jit
def multiply_images(m: Any, to: int, own: Any, own_at: int, lane: Any, channels: int, locations: int) -> None:
    """Σ_c x_c x'_c at each location; channels in blocks of 64, so that rounding does not grow with their number."""
    L = lanes(m)
    for e in range(locations):
        total = constant(m, 0.0)
        for first in range(0, channels, 64):
            part = constant(m, 0.0)
            for c in range(first, min(first + 64, channels)):
                at = c * locations + e
                part = fma(splat(own, own_at + at), load(lane, at * L), part)
            total = total + part
        store(m, to + e * L, total)


@jit
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
def image_tables(
    ints: Any, floats: Any, taps: Any, panels: Any, shape: Any, X: Any, first: int, count: int, m: Any, rows: Any,
    pixels: Any, table: Any, peaks: Any, smallest: float,
) -> None:  # fmt: skip
    """The variance recursion of up to `lanes` images in float64; spare lanes repeat the last image.

    Afterwards `table` holds their entries lane by lane, `peaks` the largest variance at each site, and the output
    buffer K(x, x) in its unit. `shape` is (channels, locations, width, buffers, input).
    """
    m, rows, pixels, table, peaks = pointer(m), pointer(rows), pointer(pixels), pointer(table), pointer(peaks)
    L = lanes(m)
    channels, locations, width, buffers, start = shape
    for e in range(channels * locations):
        for lane in range(L):
            pixels[e * L + lane] = X[first + min(lane, count - 1), e]
    base = width * L
    square_images(m, base + start * L, pixels, channels, locations)
    for o in range(len(ints)):
        op, numbers = shifted(pointer(ints), o * COLUMNS), shifted(pointer(floats), o * FLOATS)
        run_op(
            m, base, base + buffers * L, rows, op, numbers, pointer(taps), None, 0, table, pointer(panels), peaks,
            smallest,
        )  # fmt: skip


@jit
def pair_block(
    ints: Any, floats: Any, taps: Any, panels: Any, peaks: Any, shape: Any, output: int, unit: Any, m: Any, rows: Any,
    block: int, X: Any, own: Any, first: int, last: int, pixels: Any, table: Any, out: Any, row0: int, column0: int,
    count: int, symmetric: bool,
) -> None:  # fmt: skip
    """K of row images first … last−1 with one group of column images, `block` rows at a time.

    Row image i is entry i of X and `own`; its kernel values go to out[row0 + i, column0 : column0 + count]. Where
    symmetric, only those right of the diagonal are written, and mirrored.
    """
    m, rows, pixels, table = pointer(m), pointer(rows), pointer(pixels), pointer(table)
    L = lanes(m)
    channels, locations, width, buffers, start = shape
    entries = own.shape[1]
    flat, images = pointer(own), pointer(X)
    base = width * L
    scratch = base + block * buffers * L
    for i0 in range(first, last, block):
        n = min(block, last - i0)
        for b in range(n):
            at = base + (b * buffers + start) * L
            multiply_images(m, at, images, (i0 + b) * channels * locations, pixels, channels, locations)
        for o in range(len(ints)):
            op, numbers = shifted(pointer(ints), o * COLUMNS), shifted(pointer(floats), o * FLOATS)
            for b in range(n):
                run_op(
                    m, base + b * buffers * L, scratch, rows, op, numbers, pointer(taps), flat, (i0 + b) * entries,
                    table, pointer(panels), pointer(peaks), 0.0,
                )  # fmt: skip
        for b in range(n):
            i = row0 + i0 + b
            at = base + (b * buffers + output) * L
            for lane in range(count):
                j = column0 + lane
                if not symmetric:
                    out[i, j] = m[at + lane] * unit
                elif j > i:
                    value = m[at + lane] * unit
                    out[i, j] = value
                    out[j, i] = value


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
