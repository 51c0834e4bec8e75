"""The ReLU's value and slope in one pass, where an operation with a tangent stands right before the one without.

Both read the same map and the same tables, and share 1 − |cos θ| and its root, which are most of the work. Windows of
neighbours are summed as in sliding.py, for both results at once. The row of the plan is that of the operation with the
tangent; that of the other is the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..plan import (
    A0,
    A1,
    B0,
    B1,
    BASE,
    BIAS,
    C0,
    C1,
    COL_K,
    COL_START,
    COLUMNS,
    DST,
    FIRST_ROW,
    FLOATS,
    IMAGES,
    KEEP,
    MAP_STEP,
    OWN,
    OWN_AT,
    OWN_STEP,
    OWN_TABLE,
    ROW_BEFORE,
    SCALE,
    SCRATCH,
    SRC,
    TABLE,
    TABLE_PLANE,
    TABLE_ROW,
    TABLE_SIZE,
    TIMES,
    WRITE,
    kept_rows,
)
from ..rows.elementary import relu_both
from ..simd import constant, lanes, load, shifted, store
from ..work import POWERS, Work, entry_of_row, write
from .sliding import empty_window, ready_row, relu_entries, slide, sums_of_rows


def relu_maps(w: Any) -> None:
    """Operations without sums."""
    m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
    one, zero, mine = constant(m, 1.0), constant(m, 0.0), constant(m, numbers[OWN])
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    value, others = shifted(op, COLUMNS), shifted(numbers, FLOATS)
    keep_V, scale_V, bias_V = constant(m, others[KEEP]), constant(m, others[SCALE]), constant(m, others[BIAS])
    size, n, how, how_V, far = op[TABLE_SIZE], op[C0], op[WRITE], value[WRITE], op[TIMES] * L
    for image in range(frame[IMAGES]):
        maps = frame[BASE] + image * frame[MAP_STEP]
        for row in range(op[A0] * op[B0]):
            entry = entry_of_row(op, row)
            src = maps + (op[SRC] + row * n) * L
            dst, dst_V = maps + (op[DST] + row * n) * L, maps + (value[DST] + row * n) * L
            own_at, at = frame[OWN_AT] + image * frame[OWN_STEP] + op[OWN_TABLE] + entry, op[TABLE] + entry
            for e in range(n):
                o = e * L
                p, q = relu_entries(w, own_at + e, at + e, size)
                V, W = relu_both(load(m, src + o), load(m, src + far + o), p, q, mine, one, zero)
                write(m, dst + o, W, how, keep, scale, bias)
                write(m, dst_V + o, V, how_V, keep_V, scale_V, bias_V)


def done(w: Any) -> None:
    """The operation that the one before has done too."""


def windows(height: int, width: int) -> Callable[..., None]:
    """The operations for windows of height × width, both at least 2."""
    sums, singles = kept_rows(height)
    kept_in, column = sums_of_rows(height)

    def run(w: Any) -> None:
        m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
        one, zero, mine = constant(m, 1.0), constant(m, 0.0), constant(m, numbers[OWN])
        keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
        value, others = shifted(op, COLUMNS), shifted(numbers, FLOATS)
        of_value = Work(m, w.own, w.table, value, others, w.taps, w.panels, frame)
        keep_V, scale_V, bias_V = constant(m, others[KEEP]), constant(m, others[SCALE]), constant(m, others[BIAS])
        rows, n, how, how_V, far = op[B0], op[C0], op[WRITE], value[WRITE], op[TIMES] * L
        row_size, out_size = n * L, op[C1] * L
        size, pitch = op[TABLE_SIZE], op[TABLE_ROW]
        after = height - 1 - op[ROW_BEFORE]
        first_output = op[FIRST_ROW] - after
        sum_rows = frame[SCRATCH]
        single_rows = sum_rows + sums * row_size
        apart = (sums + singles) * row_size  # the rows of W lie so far behind those of V
        fresh = sum_rows + 2 * apart
        unused = fresh + 4 * row_size
        ready = op[COL_K] + op[COL_START]
        for image in range(frame[IMAGES]):
            own_at = frame[OWN_AT] + image * frame[OWN_STEP] + op[OWN_TABLE] - op[TABLE]
            maps = frame[BASE] + image * frame[MAP_STEP]
            for plane in range(op[A1]):
                src = maps + op[SRC] * L + plane * rows * row_size
                dst = maps + op[DST] * L + plane * op[B1] * out_size
                dst_V = maps + value[DST] * L + plane * op[B1] * out_size
                entry = op[TABLE] + plane * op[TABLE_PLANE]
                for x in range(0, 2 * apart, L):
                    store(m, sum_rows + x, zero)
                for j in range((op[B1] - first_output + 1) // 2):
                    output = first_output + 2 * j
                    r = output + after
                    together = r >= 0 and r + 1 < rows
                    first = second = first_V = second_V = POWERS * L  # the row of zeros
                    if not together:
                        if 0 <= r < rows:
                            first = ready_row(w, r, src, fresh, own_at, entry)
                            first_V = ready_row(of_value, r, src, fresh + row_size, own_at, entry)
                        if 0 <= r + 1 < rows:
                            second = ready_row(w, r + 1, src, fresh + 2 * row_size, own_at, entry)
                            second_V = ready_row(of_value, r + 1, src, fresh + 3 * row_size, own_at, entry)
                    to_a, to_V = dst + output * out_size, dst_V + output * out_size
                    to_b, to_Vb = (to_a + out_size, to_V + out_size) if output + 1 < op[B1] else (unused, unused)
                    if output < 0:
                        to_a = to_V = unused
                    columns, begin = op[C1] + ready, ready
                    if output + 1 < 0:
                        columns, begin = n + 1, n + 1
                    kept = kept_in(j, sum_rows, single_rows, row_size)
                    map_a, map_b = src + r * row_size, src + (r + 1) * row_size
                    at = entry + r * pitch
                    own_a = own_at + at
                    state_a, state_b = empty_window(m, width), empty_window(m, width)
                    state_Va, state_Vb = empty_window(m, width), empty_window(m, width)
                    Va = Vb = Wa = Wb = zero
                    for x in range(columns):
                        Sa = Sb = Ua = Ub = zero
                        if 0 < x <= n:
                            o = (x - 1) * L
                            Sa, Sb = column(m, Va, Vb, kept, o)
                            Ua, Ub = column(m, Wa, Wb, kept, o + apart)
                        wa, state_Va = slide(state_Va, Sa)
                        wb, state_Vb = slide(state_Vb, Sb)
                        va, state_a = slide(state_a, Ua)
                        vb, state_b = slide(state_b, Ub)
                        if x >= begin:
                            o = (x - ready) * L
                            write(m, to_V + o, wa, how_V, keep_V, scale_V, bias_V)
                            write(m, to_Vb + o, wb, how_V, keep_V, scale_V, bias_V)
                            write(m, to_a + o, va, how, keep, scale, bias)
                            write(m, to_b + o, vb, how, keep, scale, bias)
                        if x < n:
                            o = x * L
                            if together:
                                p, q = relu_entries(w, own_a + x, at + x, size)
                                Va, Wa = relu_both(load(m, map_a + o), load(m, map_a + far + o), p, q, mine, one, zero)
                                p, q = relu_entries(w, own_a + pitch + x, at + pitch + x, size)
                                Vb, Wb = relu_both(load(m, map_b + o), load(m, map_b + far + o), p, q, mine, one, zero)
                            else:
                                Va, Vb = load(m, first_V + o), load(m, second_V + o)
                                Wa, Wb = load(m, first + o), load(m, second + o)

    return run
