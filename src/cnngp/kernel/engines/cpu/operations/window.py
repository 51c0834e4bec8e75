"""Convolutions whose windows move by one column and one row: ReLU and box sum in one loop, two rows at a time.

How they are summed is in sliding.py. A window's size is a constant to the compiler, and each size is compiled when a
network first uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..plan import (
    A1,
    ACT,
    B0,
    B1,
    BASE,
    BIAS,
    C0,
    C1,
    COL_K,
    COL_START,
    DST,
    FIRST_ROW,
    IMAGES,
    KEEP,
    MAP_STEP,
    OWN_AT,
    OWN_STEP,
    OWN_TABLE,
    POWERS,
    RELU,
    ROW_BEFORE,
    SCALE,
    SCRATCH,
    SRC,
    TABLE,
    TABLE_PLANE,
    TABLE_ROW,
    TABLE_SIZE,
    WRITE,
    kept_rows,
)
from ..rows.elementary import relu_value
from ..simd import constant, lanes, load, store
from ..work import write
from .sliding import empty_window, ready_row, relu_entries, slide, sums_of_rows


def window(height: int, width: int) -> Callable[..., None]:
    """The operation for windows of height × width, both at least 2."""
    sums, singles = kept_rows(height)
    kept_in, column = sums_of_rows(height)

    def run(w: Any) -> None:
        m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
        zero = constant(m, 0.0)
        keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
        rows, n, how, act = op[B0], op[C0], op[WRITE], op[ACT]
        row_size, out_size = n * L, op[C1] * L
        size, pitch = op[TABLE_SIZE], op[TABLE_ROW]
        after = height - 1 - op[ROW_BEFORE]
        first_output = op[FIRST_ROW] - after
        sum_rows = frame[SCRATCH]
        single_rows = sum_rows + sums * row_size
        fresh = single_rows + singles * row_size
        unused = fresh + 2 * row_size
        ready = op[COL_K] + op[COL_START]  # one more than the columns before the first output: sums run one behind
        for image in range(frame[IMAGES]):
            own_at = frame[OWN_AT] + image * frame[OWN_STEP] + op[OWN_TABLE] - op[TABLE]
            for plane in range(op[A1]):
                src = frame[BASE] + image * frame[MAP_STEP] + op[SRC] * L + plane * rows * row_size
                dst = frame[BASE] + image * frame[MAP_STEP] + op[DST] * L + plane * op[B1] * out_size
                entry = op[TABLE] + plane * op[TABLE_PLANE]
                for x in range(0, (sums + singles) * row_size, L):
                    store(m, sum_rows + x, zero)
                for j in range((op[B1] - first_output + 1) // 2):
                    output = first_output + 2 * j
                    r = output + after
                    together = act == RELU and r >= 0 and r + 1 < rows
                    first = second = POWERS * L  # the row of zeros
                    if not together:
                        if 0 <= r < rows:
                            first = ready_row(w, r, src, fresh, own_at, entry)
                        if 0 <= r + 1 < rows:
                            second = ready_row(w, r + 1, src, fresh + row_size, own_at, entry)
                    to_a = dst + output * out_size if output >= 0 else unused
                    to_b = dst + (output + 1) * out_size if output + 1 < op[B1] else unused
                    columns, begin = op[C1] + ready, ready
                    if output + 1 < 0:
                        columns, begin = n + 1, n + 1
                    kept = kept_in(j, sum_rows, single_rows, row_size)
                    map_a, map_b = src + r * row_size, src + (r + 1) * row_size
                    at = entry + r * pitch
                    own_a = own_at + at
                    state_a = empty_window(m, width)
                    state_b = empty_window(m, width)
                    Va = Vb = zero
                    for x in range(columns):
                        Sa = Sb = zero
                        if 0 < x <= n:
                            Sa, Sb = column(m, Va, Vb, kept, (x - 1) * L)
                        wa, state_a = slide(state_a, Sa)
                        wb, state_b = slide(state_b, Sb)
                        if x >= begin:
                            write(m, to_a + (x - ready) * L, wa, how, keep, scale, bias)
                            write(m, to_b + (x - ready) * L, wb, how, keep, scale, bias)
                        if x < n:
                            o = x * L
                            if together:
                                p, q = relu_entries(w, own_a + x, at + x, size)
                                Va = relu_value(load(m, map_a + o), p, q)
                                p, q = relu_entries(w, own_a + pitch + x, at + pitch + x, size)
                                Vb = relu_value(load(m, map_b + o), p, q)
                            else:
                                Va, Vb = load(m, first + o), load(m, second + o)

    return run
