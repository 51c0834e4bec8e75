"""Convolutions whose windows move by one column and one row: ReLU and box sum in one loop, two rows at a time.

The arithmetic of the ReLU and the loads and additions of the sums use different parts of a core, so they overlap. With
B_j = V_2j + V_2j+1, seven rows that end at 2j are V_2j + B_j−1 + B_j−2 + B_j−3, and seven that end at 2j + 1 are
B_j + B_j−1 + B_j−2 + V_2j−5: two loads for each output, and only the B and the odd rows are kept, so they stay in L1.
Along a row the sums never leave the registers (`simd.slide`). A window's size is a constant to the compiler, and each
size is compiled when a network first uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .plan import (
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
    NO_ACT,
    OWN_AT,
    OWN_STEP,
    OWN_TABLE,
    RELU,
    ROW_BEFORE,
    ROW_CALL,
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
from .rows import POWERS, relu_value, write
from .simd import call_row, constant, empty_window, lanes, load, slide, splat, store


def window(height: int, width: int) -> Callable[..., None]:
    """The operation for windows of height × width, both at least 2."""
    sums, singles = kept_rows(height)
    middle = (height - 2) // 2  # how many B are common to both rows of output
    odd = height % 2 == 1

    def run(m: Any, own: Any, table: Any, op: Any, numbers: Any, taps: Any, panels: Any, frame: Any) -> None:
        L = lanes(m)
        one, zero = constant(m, 1.0), constant(m, 0.0)
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
                    first = second = POWERS * L
                    if not together:
                        if 0 <= r < rows:
                            first = src + r * row_size
                            if act != NO_ACT:
                                at = entry + r * pitch
                                call_row(
                                    op[ROW_CALL], m, first, fresh, n, own, own_at + at, table, at, op, numbers, taps,
                                    panels,
                                )  # fmt: skip
                                first = fresh
                        if 0 <= r + 1 < rows:
                            second = src + (r + 1) * row_size
                            if act != NO_ACT:
                                at = entry + (r + 1) * pitch
                                call_row(
                                    op[ROW_CALL], m, second, fresh + row_size, n, own, own_at + at, table, at, op,
                                    numbers, taps, panels,
                                )  # fmt: skip
                                second = fresh + row_size
                    to_a = dst + output * out_size if output >= 0 else unused
                    to_b = dst + (output + 1) * out_size if output + 1 < op[B1] else unused
                    columns, begin = op[C1] + ready, ready
                    if output + 1 < 0:
                        columns, begin = n + 1, n + 1
                    sum_at, single_at = sum_rows + (j % sums) * row_size, single_rows + (j % singles) * row_size
                    back1 = sum_rows + ((j - 1) % sums) * row_size
                    back2 = sum_rows + ((j - 2) % sums) * row_size
                    back3 = sum_rows + ((j - 3) % sums) * row_size
                    map_a, map_b = src + r * row_size, src + (r + 1) * row_size
                    at = entry + r * pitch
                    own_a = own_at + at
                    state_a = empty_window(m, width)
                    state_b = empty_window(m, width)
                    Va = Vb = zero
                    for x in range(columns):
                        Sa = Sb = zero
                        if 0 < x <= n:
                            o = (x - 1) * L
                            B = Va + Vb
                            Sb = B
                            if odd:
                                Sa = load(m, sum_at + o)
                                Sb = Sb + load(m, single_at + o)
                            else:
                                Sa = load(m, single_at + o)
                            if middle > 0:
                                common = load(m, back1 + o)
                                if middle > 1:
                                    common = common + load(m, back2 + o)
                                if middle > 2:
                                    common = common + load(m, back3 + o)
                                Sa, Sb = common + Sa, common + Sb
                            Sa = Sa + Va
                            store(m, sum_at + o, B)
                            store(m, single_at + o, Vb)
                        wa, state_a = slide(state_a, Sa)
                        wb, state_b = slide(state_b, Sb)
                        if x >= begin:
                            write(m, to_a + (x - ready) * L, wa, how, keep, scale, bias)
                            write(m, to_b + (x - ready) * L, wb, how, keep, scale, bias)
                        if x < n:
                            o = x * L
                            if together:
                                p = splat(own, own_a + x) * load(table, (at + x) * L)
                                q = splat(own, own_a + size + x) * load(table, (at + size + x) * L)
                                Va = relu_value(load(m, map_a + o), p, q, one)
                                p = splat(own, own_a + pitch + x) * load(table, (at + pitch + x) * L)
                                q = splat(own, own_a + pitch + size + x) * load(table, (at + pitch + size + x) * L)
                                Vb = relu_value(load(m, map_b + o), p, q, one)
                            else:
                                Va, Vb = load(m, first + o), load(m, second + o)

    return run
