"""The compiled interpreter: runs a plan's operations on maps whose elements are vectors, one lane per pair.

One compiled function serves every network, shape and layer, because the inner loops run over lanes, whose number is
fixed, and not over columns, whose number is not. A map of a group of pairs lives in L2; a row of it, and the ring of
activated rows that a convolution sums, in L1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
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
    EVEN_TERMS,
    FLOATS,
    FUSED,
    KEEP,
    NO_ACT,
    ODD_TERMS,
    PAD_LEFT,
    PAD_RIGHT,
    PLANE_TAPS,
    PLANES,
    POINTWISE,
    RELU,
    RING,
    ROW_BEFORE,
    ROW_K,
    ROW_NEED,
    ROW_SHARED,
    ROW_TAPS,
    SCALE,
    SERIES_AT,
    SHIFTS,
    SITE,
    SRC,
    STORE,
    TABLE,
    WRITE,
)
from .cpu_rows import activate_pairs, activate_variances, jit, relu_two_rows
from .simd import (
    LANES,
    absolute,
    constant,
    fma,
    load,
    negated_fma,
    pointer,
    positive,
    relu_g,
    shifted,
    splat,
    sqrt,
    store,
)


POWERS = 32
# Numba compiles a function anew for every literal argument; these are plain numbers to it.
ZERO, ONE, TWO, NOT = np.int64(0), np.int64(1), np.int64(2), np.bool_(False)


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
    """to0 ← rows 0 … k−1 and to1 ← rows 1 … k, whose middle is summed once; four columns at a time."""
    L = lanes(m)
    x = 0
    while x + 4 <= n:
        o = x * L
        at = rows[1] + o
        s0, s1, s2, s3 = load(m, at), load(m, at + L), load(m, at + 2 * L), load(m, at + 3 * L)
        for t in range(2, k):
            at = rows[t] + o
            s0 = s0 + load(m, at)
            s1 = s1 + load(m, at + L)
            s2 = s2 + load(m, at + 2 * L)
            s3 = s3 + load(m, at + 3 * L)
        at, to = rows[0] + o, to0 + o
        store(m, to, load(m, at) + s0)
        store(m, to + L, load(m, at + L) + s1)
        store(m, to + 2 * L, load(m, at + 2 * L) + s2)
        store(m, to + 3 * L, load(m, at + 3 * L) + s3)
        at, to = rows[k] + o, to1 + o
        store(m, to, s0 + load(m, at))
        store(m, to + L, s1 + load(m, at + L))
        store(m, to + 2 * L, s2 + load(m, at + 2 * L))
        store(m, to + 3 * L, s3 + load(m, at + 3 * L))
        x += 4
    while x < n:
        o = x * L
        s0 = load(m, rows[1] + o)
        for t in range(2, k):
            s0 = s0 + load(m, rows[t] + o)
        store(m, to0 + o, load(m, rows[0] + o) + s0)
        store(m, to1 + o, s0 + load(m, rows[k] + o))
        x += 1


@jit
def slide(m: Any, at: int, to: int, n: int, k: int, how: int, keep: Any, scale: Any, bias: Any) -> int:
    """Windows of k neighbours, two outputs at a time with their middle summed once; how many outputs were written."""
    L = lanes(m)
    c = 0
    while c + 1 < n:
        s = load(m, at + L)
        for t in range(2, k):
            s = s + load(m, at + t * L)
        write(m, to, load(m, at) + s, how, keep, scale, bias)
        write(m, to + L, s + load(m, at + k * L), how, keep, scale, bias)
        at += 2 * L
        to += 2 * L
        c += 2
    return c


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
        c += slide(m, start + c * L, to + c * L, high - low, k, how, keep, scale, bias)
    while c < high:
        at = start + c * stride
        s = load(m, at)
        for t in range(1, k):
            s = s + load(m, at + t * step)
        write(m, to + c * L, s, how, keep, scale, bias)
        c += 1
    offsets = op[COL_TAPS]
    entries = offsets + n + 1
    for rest in range(n - (high - low)):
        c = rest if rest < low else rest + high - low
        s = constant(m, 0.0)
        for t in range(taps[offsets + c], taps[offsets + c + 1]):
            s = s + load(m, row + taps[entries + t] * L)
        write(m, to + c * L, s, how, keep, scale, bias)


@jit
def fused3_row(
    m: Any, src: int, new: int, a: int, b: int, to: int, n: int, own: Any, own_at: int, lane: Any, at: int, size: int,
    how: int, keep: Any, scale: Any, bias: Any, map_step: int, scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    """Activate a new row of two images and, in the same loop, sum its 3 × 3 boxes with rows a and b above it.

    The arithmetic of the ReLU and the loads and additions of the sums use different parts of the core.
    """
    L = lanes(m)
    one = constant(m, 1.0)
    last0 = last1 = here0 = here1 = constant(m, 0.0)
    for x in range(n):
        o = x * L
        s, r = load(lane, (at + x) * L), load(lane, (at + size + x) * L)
        K0, K1 = load(m, src + o), load(m, src + map_step + o)
        p0, q0 = splat(own, own_at + x) * s, splat(own, own_at + size + x) * r
        p1, q1 = splat(own, own_at + own_step + x) * s, splat(own, own_at + own_step + size + x) * r
        a0, a1 = absolute(K0), absolute(K1)
        u0, u1 = positive(negated_fma(a0, q0, one)), positive(negated_fma(a1, q1, one))
        V0 = fma((p0 - a0) * sqrt(u0), relu_g(u0), positive(K0))
        V1 = fma((p1 - a1) * sqrt(u1), relu_g(u1), positive(K1))
        store(m, new + o, V0)
        store(m, new + scratch_step + o, V1)
        V0 = load(m, a + o) + load(m, b + o) + V0
        V1 = load(m, a + scratch_step + o) + load(m, b + scratch_step + o) + V1
        if x > 0:
            write(m, to + o - L, last0 + here0 + V0, how, keep, scale, bias)
            write(m, to + map_step + o - L, last1 + here1 + V1, how, keep, scale, bias)
        last0, last1, here0, here1 = here0, here1, V0, V1
    o = (n - 1) * L
    write(m, to + o, last0 + here0, how, keep, scale, bias)
    write(m, to + map_step + o, last1 + here1, how, keep, scale, bias)


@jit
def fused_row(
    m: Any, src: int, new: int, rows: Any, height: int, k: int, sums: int, ready: int, to: int, n: int, width: int,
    own: Any, own_at: int, lane: Any, at: int, size: int, how: int, keep: Any, scale: Any, bias: Any, map_step: int,
    scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    """As `fused3_row` for windows of height × k: rows[0 … height−2] are above the new row.

    `sums` is a row padded with zeros. An output is written as soon as its window is whole, `ready` columns after it.
    """
    L = lanes(m)
    one = constant(m, 1.0)
    for x in range(n):
        o = x * L
        s, r = load(lane, (at + x) * L), load(lane, (at + size + x) * L)
        K0, K1 = load(m, src + o), load(m, src + map_step + o)
        p0, q0 = splat(own, own_at + x) * s, splat(own, own_at + size + x) * r
        p1, q1 = splat(own, own_at + own_step + x) * s, splat(own, own_at + own_step + size + x) * r
        a0, a1 = absolute(K0), absolute(K1)
        u0, u1 = positive(negated_fma(a0, q0, one)), positive(negated_fma(a1, q1, one))
        V0 = fma((p0 - a0) * sqrt(u0), relu_g(u0), positive(K0))
        V1 = fma((p1 - a1) * sqrt(u1), relu_g(u1), positive(K1))
        store(m, new + o, V0)
        store(m, new + scratch_step + o, V1)
        for t in range(height - 1):
            above = rows[t] + o
            V0 = V0 + load(m, above)
            V1 = V1 + load(m, above + scratch_step)
        store(m, sums + o, V0)
        store(m, sums + scratch_step + o, V1)
        if x >= ready:
            for t in range(1, k):
                V0 = V0 + load(m, sums + o - t * L)
                V1 = V1 + load(m, sums + scratch_step + o - t * L)
            write(m, to + o - ready * L, V0, how, keep, scale, bias)
            write(m, to + map_step + o - ready * L, V1, how, keep, scale, bias)
    for x in range(n, width + ready):
        o = x * L
        V0, V1 = load(m, sums + o), load(m, sums + scratch_step + o)
        for t in range(1, k):
            V0 = V0 + load(m, sums + o - t * L)
            V1 = V1 + load(m, sums + scratch_step + o - t * L)
        write(m, to + o - ready * L, V0, how, keep, scale, bias)
        write(m, to + map_step + o - ready * L, V1, how, keep, scale, bias)


@jit
def last_row(
    m: Any, rows: Any, height: int, k: int, sums: int, ready: int, to: int, n: int, width: int, how: int, keep: Any,
    scale: Any, bias: Any, map_step: int, scratch_step: int,
) -> None:  # fmt: skip
    """As `fused_row` where the new row is padding."""
    L = lanes(m)
    for b in range(2):
        shift = b * scratch_step
        for x in range(n):
            V = constant(m, 0.0)
            for t in range(height - 1):
                V = V + load(m, rows[t] + shift + x * L)
            store(m, sums + shift + x * L, V)
        for x in range(ready, width + ready):
            V = load(m, sums + shift + x * L)
            for t in range(1, k):
                V = V + load(m, sums + shift + (x - t) * L)
            write(m, to + b * map_step + (x - ready) * L, V, how, keep, scale, bias)


@jit
def fused_any(
    m: Any, src: int, new: int, rows: Any, height: int, k: int, sums: int, ready: int, to: int, n: int, width: int,
    own: Any, own_at: int, lane: Any, at: int, size: int, how: int, keep: Any, scale: Any, bias: Any, map_step: int,
    scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    # Constant sizes let the compiler unroll; the usual square windows get their own copy.
    if height == 4 and k == 4:
        fused_row(
            m, src, new, rows, 4, 4, sums, ready, to, n, width, own, own_at, lane, at, size, how, keep, scale, bias,
            map_step, scratch_step, own_step,
        )  # fmt: skip
    elif height == 5 and k == 5:
        fused_row(
            m, src, new, rows, 5, 5, sums, ready, to, n, width, own, own_at, lane, at, size, how, keep, scale, bias,
            map_step, scratch_step, own_step,
        )  # fmt: skip
    elif height == 7 and k == 7:
        fused_row(
            m, src, new, rows, 7, 7, sums, ready, to, n, width, own, own_at, lane, at, size, how, keep, scale, bias,
            map_step, scratch_step, own_step,
        )  # fmt: skip
    else:
        fused_row(
            m, src, new, rows, height, k, sums, ready, to, n, width, own, own_at, lane, at, size, how, keep, scale,
            bias, map_step, scratch_step, own_step,
        )  # fmt: skip


@jit
def fused_plane(
    m: Any, src: int, dst: int, plane: int, scratch: int, rows: Any, op: Any, numbers: Any, own: Any, own_at: int,
    table: Any, map_step: int, scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    """One plane of a FUSED operation. Scratch: a row of zeros, the ring of k rows, a padded row of sums."""
    L = lanes(m)
    n, height, k, before = op[C0], op[B0], op[ROW_K], op[ROW_BEFORE]
    width = n * L
    ring = scratch + width
    left, right = op[PAD_LEFT] * L, op[PAD_RIGHT] * L
    sums = ring + k * width + left
    size = op[A0] * height * n
    entry = op[TABLE] + plane * height * n
    ready = op[COL_K] - 1 - op[PAD_LEFT]
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    zero = constant(m, 0.0)
    for b in range(2):
        for x in range(0, width, L):
            store(m, scratch + b * scratch_step + x, zero)
        for x in range(0, left, L):
            store(m, sums + b * scratch_step - left + x, zero)
        for x in range(0, right, L):
            store(m, sums + b * scratch_step + width + x, zero)
    after = k - 1 - before
    for row in range(min(after, height)):
        relu_two_rows(
            m, src + row * width, ring + (row % k) * width, n, own, own_at + entry + row * n, table, entry + row * n,
            size, L, map_step, scratch_step, own_step,
        )  # fmt: skip
    three = k == 3 and op[COL_K] == 3 and left == L and right == L
    for row in range(op[B1]):
        new = row + after
        for t in range(k - 1):
            b = row - before + t
            rows[t] = ring + (b % k) * width if 0 <= b < height else scratch
        to = dst + row * op[C1] * L
        at = entry + new * n
        if new >= height:
            last_row(
                m, rows, k, op[COL_K], sums, ready, to, n, op[C1], op[WRITE], keep, scale, bias, map_step, scratch_step
            )
        elif three:
            fused3_row(
                m, src + new * width, ring + (new % k) * width, rows[0], rows[1], to, n, own, own_at + at, table, at,
                size, op[WRITE], keep, scale, bias, map_step, scratch_step, own_step,
            )  # fmt: skip
        else:
            fused_any(
                m, src + new * width, ring + (new % k) * width, rows, k, op[COL_K], sums, ready, to, n, op[C1], own,
                own_at + at, table, at, size, op[WRITE], keep, scale, bias, map_step, scratch_step, own_step,
            )  # fmt: skip


def activate(
    m: Any, src: int, dst: int, n: int, entry: int, op: Any, numbers: Any, taps: Any, own: Any, own_at: int,
    table: Any, panels: Any, peaks: Any, smallest: float, images: int, src_step: int, dst_step: int, own_step: int,
) -> None:  # fmt: skip
    """f on n columns from map element `entry` of the activation, for one or two row images that lie `step`s apart.

    Where `own` is None it is the variance recursion.
    """


@overload(activate, strict=False)
def _activate(
    m: Any, src: Any, dst: Any, n: Any, entry: Any, op: Any, numbers: Any, taps: Any, own: Any, own_at: Any,
    table: Any, panels: Any, peaks: Any, smallest: Any, images: Any, src_step: Any, dst_step: Any, own_step: Any,
) -> Any:  # fmt: skip
    def variances(  # type: ignore[no-untyped-def]
        m, src, dst, n, entry, op, numbers, taps, own, own_at, table, panels, peaks, smallest, images, src_step,
        dst_step, own_step,
    ):  # fmt: skip
        L = lanes(m)
        activate_variances(
            op[ACT], m, src, dst, n, table, op[TABLE] + entry, op[A0] * op[B0] * op[C0], numbers, peaks, op[SITE] * L,
            smallest, L, op[EVEN_TERMS], op[ODD_TERMS], shifted(panels, op[SERIES_AT]),
        )  # fmt: skip

    def pairs(  # type: ignore[no-untyped-def]
        m, src, dst, n, entry, op, numbers, taps, own, own_at, table, panels, peaks, smallest, images, src_step,
        dst_step, own_step,
    ):  # fmt: skip
        at = op[TABLE] + entry
        size = op[A0] * op[B0] * op[C0]
        L = lanes(m)
        if op[ACT] == RELU and images == 2:
            relu_two_rows(m, src, dst, n, own, own_at + at, table, at, size, L, src_step, dst_step, own_step)
        else:
            for b in range(images):
                activate_pairs(
                    op[ACT], m, src + b * src_step, dst + b * dst_step, n, own, own_at + b * own_step + at, table, at,
                    size, numbers, L, op[EVEN_TERMS], op[ODD_TERMS], shifted(taps, op[SHIFTS]),
                )  # fmt: skip

    return variances if isinstance(own, types.NoneType) else pairs


@jit
def sum_plane_row(
    m: Any, rows: Any, k: int, two: bool, to: int, sums: int, op: Any, numbers: Any, taps: Any
) -> None:  # fmt: skip
    """One output row, or two that share most of their input rows."""
    L = lanes(m)
    if op[BOX] == BOX3:
        box3_rows(m, rows[0], rows[1], rows[2], rows[3] if two else POWERS * L, two, to, op[C0], op[WRITE], numbers)
        return
    left, width, right = op[PAD_LEFT] * L, op[C0] * L, op[PAD_RIGHT] * L
    first, second = sums + left, sums + left + width + right + left
    if left + right > 0:
        zero = constant(m, 0.0)
        for row in (first, second):
            for x in range(0, left, L):
                store(m, row - left + x, zero)
            for x in range(0, right, L):
                store(m, row + width + x, zero)
    if two:
        sum_two_rows(m, rows, k, first, second, op[C0])
        sum_columns(m, first, to, op, numbers, taps)
        sum_columns(m, second, to + op[C1] * L, op, numbers, taps)
    elif k == 1 and left + right == 0:
        sum_columns(m, rows[0], to, op, numbers, taps)
    else:
        sum_rows(m, rows, 0, k, first, op[C0])
        sum_columns(m, first, to, op, numbers, taps)


@jit
def box_plane(
    m: Any, src: int, dst: int, plane: int, active: bool, scratch: int, rows: Any, op: Any, numbers: Any, taps: Any,
    own: Any, own_at: int, table: Any, panels: Any, peaks: Any, smallest: float, images: int, map_step: int,
    scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    """One plane: activate rows as they are needed, sum them down and along. Output rows come in twos where they can.

    The workspace begins with POWERS vectors for `series_row` and a row of zeros, which stands for the padding.
    """
    L = lanes(m)
    width = op[C0] * L
    k, ring = op[ROW_K], op[RING]
    ready = 0
    row = 0
    while row < op[B1]:
        two = op[ROW_SHARED] == 1 and row + 1 < op[B1]
        if active:
            need = taps[op[ROW_NEED] + (row + 1 if two else row)]
            while ready < need:
                activate(
                    m, src + ready * width, scratch + (ready % ring) * width, op[C0], (plane * op[B0] + ready) * op[C0],
                    op, numbers, taps, own, own_at, table, panels, peaks, smallest, images, map_step, scratch_step,
                    own_step,
                )  # fmt: skip
                ready += 1
        first = op[ROW_TAPS] + row * k
        for b in range(images):
            base = scratch + b * scratch_step if active else src + b * map_step
            for t in range(k + 1 if two else k):
                tap = taps[first + t] if t < k else taps[first + k + k - 1]
                rows[t] = POWERS * L if tap < 0 else base + ((tap % ring) if active else tap) * width
            sums = scratch + b * scratch_step + (ring * width if active else 0)
            sum_plane_row(m, rows, k, two, dst + b * map_step + row * op[C1] * L, sums, op, numbers, taps)
        row += 2 if two else 1


def rows_of_plane(
    m: Any, src: int, dst: int, plane: int, active: bool, scratch: int, rows: Any, op: Any, numbers: Any, taps: Any,
    own: Any, own_at: int, table: Any, panels: Any, peaks: Any, smallest: float, images: int, map_step: int,
    scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    """`fused_plane` where it serves, else `box_plane`; always the latter in the variance recursion."""


@overload(rows_of_plane, strict=False)
def _rows_of_plane(
    m: Any, src: Any, dst: Any, plane: Any, active: Any, scratch: Any, rows: Any, op: Any, numbers: Any, taps: Any,
    own: Any, own_at: Any, table: Any, panels: Any, peaks: Any, smallest: Any, images: Any, map_step: Any,
    scratch_step: Any, own_step: Any,
) -> Any:  # fmt: skip
    def variances(  # type: ignore[no-untyped-def]
        m, src, dst, plane, active, scratch, rows, op, numbers, taps, own, own_at, table, panels, peaks, smallest,
        images, map_step, scratch_step, own_step,
    ):  # fmt: skip
        box_plane(
            m, src, dst, plane, active, scratch, rows, op, numbers, taps, own, own_at, table, panels, peaks, smallest,
            images, map_step, scratch_step, own_step,
        )  # fmt: skip

    def pairs(  # type: ignore[no-untyped-def]
        m, src, dst, plane, active, scratch, rows, op, numbers, taps, own, own_at, table, panels, peaks, smallest,
        images, map_step, scratch_step, own_step,
    ):  # fmt: skip
        if op[BOX] == FUSED:
            fused_plane(
                m, src, dst, plane, scratch, rows, op, numbers, own, own_at, table, map_step, scratch_step, own_step
            )
        else:
            box_plane(
                m, src, dst, plane, active, scratch, rows, op, numbers, taps, own, own_at, table, panels, peaks,
                smallest, images, map_step, scratch_step, own_step,
            )  # fmt: skip

    return variances if isinstance(own, types.NoneType) else pairs


@jit
def run_op(
    m: Any, base: int, scratch: int, rows: Any, op: Any, numbers: Any, taps: Any, own: Any, own_at: int, table: Any,
    panels: Any, peaks: Any, smallest: float, images: int, map_step: int, scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    """dst ← keep · dst + scale · box(f(src)) + bias for a group of lanes and one or two row images.

    Their maps start at `base`; the second image's maps, scratch and table entries lie a step further on.
    """
    L = lanes(m)
    src, dst = base + op[SRC] * L, base + op[DST] * L
    active = op[ACT] != NO_ACT
    width = op[C0] * L
    plane_in, plane_out = op[B0] * width, op[B1] * op[C1] * L
    if op[BOX] == POINTWISE:
        keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
        plain = op[WRITE] == STORE
        for r in range(op[A0] * op[B0]):
            row, to = src + r * width, dst + r * width
            into, into_step = (to, map_step) if plain else (scratch, scratch_step)
            if active:
                activate(
                    m, row, into, op[C0], r * op[C0], op, numbers, taps, own, own_at, table, panels, peaks, smallest,
                    images, map_step, into_step, own_step,
                )  # fmt: skip
                if plain:
                    continue
            for b in range(images):
                result = into + b * into_step if active else row + b * map_step
                for c in range(op[C0]):
                    write(m, to + b * map_step + c * L, load(m, result + c * L), op[WRITE], keep, scale, bias)
    elif op[BOX] == PLANES:
        for b in range(images):
            activated, sums = src + b * map_step, scratch
            if active:
                activated = scratch
                for r in range(op[A0] * op[B0]):
                    activate(
                        m, src + b * map_step + r * width, scratch + r * width, op[C0], r * op[C0], op, numbers, taps, own,
                        own_at + b * own_step, table, panels, peaks, smallest, ONE, ZERO, ZERO, ZERO,
                    )  # fmt: skip
                sums += op[A0] * plane_in
            offsets = op[PLANE_TAPS]
            entries = offsets + op[A1] + 1
            for a in range(op[A1]):
                for x in range(0, plane_in, L):
                    s = constant(m, 0.0)
                    for t in range(taps[offsets + a], taps[offsets + a + 1]):
                        s = s + load(m, activated + taps[entries + t] * plane_in + x)
                    store(m, sums + x, s)
                box_plane(
                    m, sums, dst + b * map_step + a * plane_out, a, NOT, sums + plane_in, rows, op, numbers, taps,
                    own, own_at, table, panels, peaks, smallest, ONE, ZERO, ZERO, ZERO,
                )  # fmt: skip
    else:
        for a in range(op[A1]):
            rows_of_plane(
                m, src + a * plane_in, dst + a * plane_out, a, active, scratch, rows, op, numbers, taps, own, own_at,
                table, panels, peaks, smallest, images, map_step, scratch_step, own_step,
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
    buffer K(x, x) in its unit. `shape` is (channels, locations, width, buffers, input, scratch).
    """
    m, rows, pixels, table, peaks = pointer(m), pointer(rows), pointer(pixels), pointer(table), pointer(peaks)
    L = lanes(m)
    channels, locations, width, buffers, start, _ = shape
    for e in range(channels * locations):
        for lane in range(L):
            pixels[e * L + lane] = X[first + min(lane, count - 1), e]
    base = (POWERS + width) * L
    square_images(m, base + start * L, pixels, channels, locations)
    for o in range(len(ints)):
        op, numbers = shifted(pointer(ints), o * COLUMNS), shifted(pointer(floats), o * FLOATS)
        run_op(
            m, base, base + buffers * L, rows, op, numbers, pointer(taps), None, ZERO, table, pointer(panels), peaks,
            smallest, ONE, ZERO, ZERO, ZERO,
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
    channels, locations, width, buffers, start, scratch_size = shape
    entries = own.shape[1]
    flat, images = pointer(own), pointer(X)
    base = (POWERS + width) * L
    scratch = base + block * buffers * L
    for i0 in range(first, last, block):
        n = min(block, last - i0)
        for b in range(n + n % 2):  # images go in twos, an odd one with itself, so that all are computed alike
            at = base + (b * buffers + start) * L
            image = min(i0 + b, last - 1)
            multiply_images(m, at, images, image * channels * locations, pixels, channels, locations)
        for o in range(len(ints)):
            op, numbers = shifted(pointer(ints), o * COLUMNS), shifted(pointer(floats), o * FLOATS)
            for b in range(0, n, 2):
                run_op(
                    m, base + b * buffers * L, scratch, rows, op, numbers, pointer(taps), flat, (i0 + b) * entries,
                    table, pointer(panels), pointer(peaks), 0.0, TWO, buffers * L, scratch_size * L,
                    entries if b + 1 < n else 0,
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
