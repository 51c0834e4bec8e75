"""ReLU and box sum in one loop, for two row images at a time: the pair loop of most networks.

The arithmetic of the ReLU and the loads and additions of the sums use different parts of a core, so they overlap; and
the column images' tables, the largest stream of memory, are read once for both row images.
"""

from __future__ import annotations

from typing import Any

from .cpu_plan import (
    A0,
    ACT,
    B0,
    B1,
    BIAS,
    C0,
    C1,
    COL_K,
    KEEP,
    NO_ACT,
    PAD_LEFT,
    PAD_RIGHT,
    ROW_BEFORE,
    ROW_K,
    SCALE,
    TABLE,
    WRITE,
)
from .cpu_rows import STORED, jit, merged, relu_two_rows, relu_value, write
from .cpu_sums import box3_rows
from .simd import constant, lanes, load, splat, store

# How many columns the sums run behind the activation: additions that waited for a square root would fill the core's
# queue of instructions.
LAG = 2


@jit
def fused3_row(
    m: Any, src: int, new: int, a: int, b: int, to: int, n: int, own: Any, own_at: int, lane: Any, at: int, size: int,
    how: int, keep: Any, scale: Any, bias: Any, map_step: int, scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    """Activate a new row of two images and, in the same loop, sum its 3 × 3 boxes with rows a and b above it."""
    L = lanes(m)
    one = constant(m, 1.0)
    last0 = last1 = here0 = here1 = constant(m, 0.0)
    for x in range(n):
        o = x * L
        s, r = load(lane, (at + x) * L), load(lane, (at + size + x) * L)
        K0, K1 = load(m, src + o), load(m, src + map_step + o)
        p0, q0 = splat(own, own_at + x) * s, splat(own, own_at + size + x) * r
        p1, q1 = splat(own, own_at + own_step + x) * s, splat(own, own_at + own_step + size + x) * r
        V0, V1 = relu_value(K0, p0, q0, one), relu_value(K1, p1, q1, one)
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
    m: Any, active: bool, src: int, new: int, new_step: int, old: int, old_step: int, new_pair: int, rows: Any,
    height: int, k: int, sums: int, ready: int, to: int, n: int, width: int, own: Any, own_at: int, lane: Any, at: int,
    size: int, how: int, keep: Any, scale: Any, bias: Any, map_step: int, scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    """As `fused3_row` for windows of height × k, through sums of two neighbours, which halve the number of terms.

    Where not `active` there is no ReLU, and `new` is the row of the map itself, or of zeros.

    Down: with A_r = V_r + V_{r−1}, seven rows are V_r + A_{r−1} + A_{r−3} + A_{r−5} and four are A_r + A_{r−2}; `new`
    and `old` are V_r and V_{r−1}, `new_pair` is A_r, and `rows` holds the addresses of the other A. Along: the same,
    with the pair sums of a row in `sums`. An output is written once its window is whole, `ready` columns after it.
    """
    L = lanes(m)
    one = constant(m, 1.0)
    last0 = last1 = constant(m, 0.0)
    for x in range(n + LAG):
        if active and x < n:
            o = x * L
            s, r = load(lane, (at + x) * L), load(lane, (at + size + x) * L)
            p0, q0 = splat(own, own_at + x) * s, splat(own, own_at + size + x) * r
            p1, q1 = splat(own, own_at + own_step + x) * s, splat(own, own_at + own_step + size + x) * r
            store(m, new + o, relu_value(load(m, src + o), p0, q0, one))
            store(m, new + new_step + o, relu_value(load(m, src + map_step + o), p1, q1, one))
        y = x - LAG
        if y < 0:
            continue
        o = y * L
        V0, V1 = load(m, new + o), load(m, new + new_step + o)
        A0, A1 = V0 + load(m, old + o), V1 + load(m, old + old_step + o)
        store(m, new_pair + o, A0)
        store(m, new_pair + scratch_step + o, A1)
        if height % 2 == 0:
            V0, V1 = A0, A1
        for t in range((height - 1) // 2):
            V0 = V0 + load(m, rows[t] + o)
            V1 = V1 + load(m, rows[t] + scratch_step + o)
        A0, A1 = V0 + last0, V1 + last1
        last0, last1 = V0, V1
        store(m, sums + o, A0)
        store(m, sums + scratch_step + o, A1)
        if y >= ready:
            if k % 2 == 0:
                V0, V1 = A0, A1
            for t in range((k - 1) // 2):
                back = o - (2 * t + 1 + (k + 1) % 2) * L
                V0 = V0 + load(m, sums + back)
                V1 = V1 + load(m, sums + scratch_step + back)
            write(m, to + o - ready * L, V0, how, keep, scale, bias)
            write(m, to + map_step + o - ready * L, V1, how, keep, scale, bias)
    for b in range(2):
        last_columns(
            m, last1 if b else last0, k, sums + b * scratch_step, ready, to + b * map_step, n, width, how, keep, scale,
            bias,
        )  # fmt: skip


@jit
def last_columns(
    m: Any, last: Any, k: int, sums: int, ready: int, to: int, n: int, width: int, how: int, keep: Any, scale: Any,
    bias: Any,
) -> None:  # fmt: skip
    """The outputs whose windows reach into the padding on the right."""
    L = lanes(m)
    zero = constant(m, 0.0)
    for x in range(n, width + ready):
        store(m, sums + x * L, last)
        V = last if k % 2 == 0 else zero
        last = zero
        if x >= ready:
            for t in range((k - 1) // 2):
                V = V + load(m, sums + (x - (2 * t + 1 + (k + 1) % 2)) * L)
            write(m, to + (x - ready) * L, V, how, keep, scale, bias)


@merged
def fused_any(
    m: Any, active: bool, src: int, new: int, new_step: int, old: int, old_step: int, new_pair: int, rows: Any,
    height: int, k: int, sums: int, ready: int, to: int, n: int, width: int, own: Any, own_at: int, lane: Any, at: int,
    size: int, how: int, keep: Any, scale: Any, bias: Any, map_step: int, scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    # Literal sizes are constants to the compiler, which unrolls; the usual square windows get their own copy.
    if height == 4 and k == 4:
        fused_row(
            m, active, src, new, new_step, old, old_step, new_pair, rows, 4, 4, sums, ready, to, n, width, own, own_at,
            lane, at, size, how, keep, scale, bias, map_step, scratch_step, own_step,
        )  # fmt: skip
    elif height == 5 and k == 5:
        fused_row(
            m, active, src, new, new_step, old, old_step, new_pair, rows, 5, 5, sums, ready, to, n, width, own, own_at,
            lane, at, size, how, keep, scale, bias, map_step, scratch_step, own_step,
        )  # fmt: skip
    elif height == 7 and k == 7:
        fused_row(
            m, active, src, new, new_step, old, old_step, new_pair, rows, 7, 7, sums, ready, to, n, width, own, own_at,
            lane, at, size, how, keep, scale, bias, map_step, scratch_step, own_step,
        )  # fmt: skip
    else:
        fused_row(
            m, active, src, new, new_step, old, old_step, new_pair, rows, height, k, sums, ready, to, n, width, own,
            own_at, lane, at, size, how, keep, scale, bias, map_step, scratch_step, own_step,
        )  # fmt: skip


@merged
def fused_plane(
    m: Any, src: int, dst: int, plane: int, scratch: int, rows: Any, op: Any, numbers: Any, own: Any, own_at: int,
    table: Any, map_step: int, scratch_step: int, own_step: int,
) -> None:  # fmt: skip
    """One plane of a FUSED operation.

    Scratch, for each of the two images: a row of zeros, the ring of k rows (activated rows where k = 3, pair sums
    else), two activated rows, a row of sums with the padding on its left and right.
    """
    L = lanes(m)
    n, height, k, before = op[C0], op[B0], op[ROW_K], op[ROW_BEFORE]
    width = n * L
    ring = scratch + width
    newest = ring + k * width  # the two newest activated rows, where the ring holds pair sums
    sums = newest + 2 * width + op[PAD_LEFT] * L
    size = op[A0] * height * n
    entry = op[TABLE] + plane * height * n
    ready = op[COL_K] - 1 - op[PAD_LEFT]
    active = op[ACT] != NO_ACT
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    zero = constant(m, 0.0)
    for b in range(2):
        for x in range(0, width, L):
            store(m, scratch + b * scratch_step + x, zero)
        for x in range(op[PAD_LEFT]):
            store(m, sums + b * scratch_step - (x + 1) * L, zero)
    three = active and k == 3 and op[COL_K] == 3 and op[PAD_LEFT] == 1 and op[PAD_RIGHT] == 1
    after = k - 1 - before
    step = scratch_step if active else map_step  # from an activated row of one image to that of the other
    for row in range(min(after, height)):  # what the first output needs beside its newest row
        to = ring + (row % k) * width if three else newest + (row % 2) * width
        if active:
            relu_two_rows(
                m, src + row * width, to, n, own, own_at + entry + row * n, table, entry + row * n, size, L, map_step,
                scratch_step, own_step, STORED, keep, scale, bias,
            )  # fmt: skip
        if not three:
            to = to if active else src + row * width
            old, old_step = scratch, 0
            if row > 0:
                old, old_step = newest + ((row - 1) % 2) * width if active else src + (row - 1) * width, step
            for b in range(2):
                pair = ring + b * scratch_step + (row % k) * width
                for x in range(0, width, L):
                    store(m, pair + x, load(m, to + b * step + x) + load(m, old + b * old_step + x))
    for row in range(op[B1]):
        new = row + after
        to = dst + row * op[C1] * L
        at = entry + new * n
        if three and new < height:
            a, b = row - 1, row
            fused3_row(
                m, src + new * width, ring + (new % k) * width, ring + (a % k) * width if a >= 0 else scratch,
                ring + (b % k) * width, to, n, own, own_at + at, table, at, size, op[WRITE], keep, scale, bias,
                map_step, scratch_step, own_step,
            )  # fmt: skip
        elif three:
            a, b = ring + ((row - 1) % k) * width, ring + (row % k) * width
            for image in range(2):
                shift = image * scratch_step
                box3_rows(
                    m, a + shift, b + shift, scratch, scratch, False, to + image * map_step, n, op[WRITE], numbers
                )
        else:
            for t in range((k - 1) // 2):
                b = new - 2 * t - 1 - (k + 1) % 2
                rows[t] = ring + (b % k) * width if b >= 0 else scratch
            old, old_step = scratch, 0
            if 0 < new <= height:
                old, old_step = newest + ((new - 1) % 2) * width if active else src + (new - 1) * width, step
            fresh, fresh_step = scratch, 0
            if new < height:
                fresh, fresh_step = newest + (new % 2) * width if active else src + new * width, step
            fused_any(
                m, active and new < height, src + new * width, fresh, fresh_step, old, old_step,
                ring + (new % k) * width, rows, k, op[COL_K], sums, ready, to, n, op[C1], own, own_at + at, table, at,
                size, op[WRITE], keep, scale, bias, map_step, scratch_step, own_step,
            )  # fmt: skip
