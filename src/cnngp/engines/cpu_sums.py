"""Box sums over rows of vectors: down the rows and along the columns.

Sums that overlap share their common part: two output rows, or two output columns, at a time.
"""

from __future__ import annotations

from typing import Any

from .cpu_plan import (
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
    KEEP,
    PAD_LEFT,
    PAD_RIGHT,
    SCALE,
    WRITE,
)
from .cpu_rows import POWERS, jit, merged, write
from .simd import constant, lanes, load, store


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


@merged
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
