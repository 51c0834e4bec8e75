"""The ReLU's value and slope in one pass, where an operation with a tangent stands right before the one without.

Both read the same map and the same tables, and share 1 − |cos θ| and its root, which are most of the work. Windows of
neighbours are summed as in sliding.py, for both results at once. The row of the plan is that of the operation with the
tangent; that of the other is the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..compiling import inlined
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
    POWERS,
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
from ..work import Work, entry_of_row, write
from .sliding import empty_window, relu_entries, slide, sums_of_rows


def relu_maps(w: Any) -> None:
    """Operations without sums."""
    m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
    mine = constant(m, numbers[OWN])
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
                V, W = relu_both(load(m, src + o), load(m, src + far + o), p, q, mine)
                write(m, dst + o, W, how, keep, scale, bias)
                write(m, dst_V + o, V, how_V, keep_V, scale_V, bias_V)


def relu_totals(w: Any) -> None:
    """Operations that sum a whole map of one plane: what a pool to one location takes of a sheet."""
    m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
    zero, mine = constant(m, 0.0), constant(m, numbers[OWN])
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    value, others = shifted(op, COLUMNS), shifted(numbers, FLOATS)
    keep_V, scale_V, bias_V = constant(m, others[KEEP]), constant(m, others[SCALE]), constant(m, others[BIAS])
    size, n, far = op[TABLE_SIZE], op[C0], op[TIMES] * L
    for image in range(frame[IMAGES]):
        maps = frame[BASE] + image * frame[MAP_STEP]
        src = maps + op[SRC] * L
        own_at, at = frame[OWN_AT] + image * frame[OWN_STEP] + op[OWN_TABLE], op[TABLE]
        total_V = total_W = zero
        for _ in range(op[B0]):
            part_V = part_W = zero  # of a row, as in `relu_total`
            for c in range(n):
                p, q = relu_entries(w, own_at + c, at + c, size)
                V, W = relu_both(load(m, src), load(m, src + far), p, q, mine)
                part_V, part_W = part_V + V, part_W + W
                src += L
            total_V, total_W = total_V + part_V, total_W + part_W
            own_at, at = own_at + op[TABLE_ROW], at + op[TABLE_ROW]
        write(m, maps + value[DST] * L, total_V, value[WRITE], keep_V, scale_V, bias_V)
        write(m, maps + op[DST] * L, total_W, op[WRITE], keep, scale, bias)


def done(w: Any) -> None:
    """The operation that the one before has done too."""


@inlined
def relu_rows(w: Any, src: int, far: int, V: int, W: int, own_at: int, at: int) -> None:
    """The ReLU's value and slope of a row of a map."""
    m, L, size = w.m, lanes(w.m), w.op[TABLE_SIZE]
    mine = constant(m, w.numbers[OWN])
    for c in range(w.op[C0]):
        o = c * L
        p, q = relu_entries(w, own_at + c, at + c, size)
        value, slope = relu_both(load(m, src + o), load(m, src + far + o), p, q, mine)
        store(m, V + o, value)
        store(m, W + o, slope)


def windows(height: int, width: int) -> Callable[..., None]:
    """The operations for windows of height × width, both at least 2.

    Two rows are activated first and then summed, V and W one after the other: the windows of both at once would not fit
    a core's registers.
    """
    sums, singles = kept_rows(height)
    kept_in, column = sums_of_rows(height)

    @inlined
    def sum_windows(w: Any, a: int, b: int, kept: Any, to_a: int, to_b: int, columns: int, begin: int) -> None:
        """Add two activated rows to those that are kept, and write the two rows of windows that they complete."""
        m, op, numbers, L = w.m, w.op, w.numbers, lanes(w.m)
        keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
        how, n, ready = op[WRITE], op[C0], op[COL_K] + op[COL_START] - 1
        zero = constant(m, 0.0)
        state_a, state_b = empty_window(m, width), empty_window(m, width)
        for x in range(columns):
            Sa = Sb = zero
            if x < n:
                o = x * L
                Sa, Sb = column(m, load(m, a + o), load(m, b + o), kept, o)
            va, state_a = slide(state_a, Sa)
            vb, state_b = slide(state_b, Sb)
            if x >= begin:
                o = (x - ready) * L
                write(m, to_a + o, va, how, keep, scale, bias)
                write(m, to_b + o, vb, how, keep, scale, bias)

    def run(w: Any) -> None:
        m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
        value = shifted(op, COLUMNS)
        of_value = Work(m, w.own, w.table, value, shifted(w.numbers, FLOATS), w.taps, w.panels, frame)
        rows, n, far = op[B0], op[C0], op[TIMES] * L
        row_size, out_size, pitch = n * L, op[C1] * L, op[TABLE_ROW]
        after = height - 1 - op[ROW_BEFORE]
        first_output = op[FIRST_ROW] - after
        sum_rows = frame[SCRATCH]
        single_rows = sum_rows + sums * row_size
        apart = (sums + singles) * row_size  # the rows of W lie so far behind those of V
        fresh = sum_rows + 2 * apart
        unused = fresh + 4 * row_size
        nothing = POWERS * L  # the row of zeros
        ready = op[COL_K] + op[COL_START] - 1
        for image in range(frame[IMAGES]):
            own_at = frame[OWN_AT] + image * frame[OWN_STEP] + op[OWN_TABLE] - op[TABLE]
            maps = frame[BASE] + image * frame[MAP_STEP]
            for plane in range(op[A1]):
                src = maps + op[SRC] * L + plane * rows * row_size
                dst = maps + op[DST] * L + plane * op[B1] * out_size
                dst_V = maps + value[DST] * L + plane * op[B1] * out_size
                entry = op[TABLE] + plane * op[TABLE_PLANE]
                for x in range(0, 2 * apart, L):
                    store(m, sum_rows + x, constant(m, 0.0))
                for j in range((op[B1] - first_output + 1) // 2):
                    output = first_output + 2 * j
                    r = output + after
                    Va = Vb = Wa = Wb = nothing
                    if 0 <= r < rows:
                        Va, Wa = fresh, fresh + row_size
                        at = entry + r * pitch
                        relu_rows(w, src + r * row_size, far, Va, Wa, own_at + at, at)
                    if 0 <= r + 1 < rows:
                        Vb, Wb = fresh + 2 * row_size, fresh + 3 * row_size
                        at = entry + (r + 1) * pitch
                        relu_rows(w, src + (r + 1) * row_size, far, Vb, Wb, own_at + at, at)
                    to_a, to_V = dst + output * out_size, dst_V + output * out_size
                    to_b, to_Vb = (to_a + out_size, to_V + out_size) if output + 1 < op[B1] else (unused, unused)
                    if output < 0:
                        to_a = to_V = unused
                    columns, begin = op[C1] + ready, ready
                    if output + 1 < 0:
                        columns, begin = n, n
                    kept_V = kept_in(j, sum_rows, single_rows, row_size)
                    kept_W = kept_in(j, sum_rows + apart, single_rows + apart, row_size)
                    sum_windows(of_value, Va, Vb, kept_V, to_V, to_Vb, columns, begin)
                    sum_windows(w, Wa, Wb, kept_W, to_a, to_b, columns, begin)

    return run
