"""The ReLU's value and slope in one pass, where an operation with a tangent stands right before the one without.

Both read the same map and the same tables, and share 1 − |cos θ| and its root, which are most of the work. Windows of
neighbours are summed as in window.py, for both results at once. The row of the plan is that of the operation with the
tangent; that of the other is the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .box import entry_of_row
from .plan import (
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
    ROW_CALL,
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
from .rows import POWERS, inlined, write
from .simd import (
    absolute,
    call_row,
    constant,
    empty_window,
    fma,
    lanes,
    load,
    negated_fma,
    positive,
    relu_g,
    shifted,
    slide,
    splat,
    sqrt,
    store,
)
from .slopes import relu_slope


@inlined
def relu_both(K: Any, T: Any, p: Any, q: Any, mine: Any, one: Any, zero: Any) -> Any:
    """R, and its slope times T + own · K."""
    size = absolute(K)
    u = positive(negated_fma(size, q, one))
    root = sqrt(u)
    V = fma((p - size) * root, relu_g(u), positive(K))
    return V, relu_slope(K, root, u, one, zero) * fma(K, mine, T)


def relu_maps(m: Any, own: Any, table: Any, op: Any, numbers: Any, taps: Any, panels: Any, frame: Any) -> None:
    """Operations without sums."""
    L = lanes(m)
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
                p = splat(own, own_at + e) * load(table, (at + e) * L)
                q = splat(own, own_at + size + e) * load(table, (at + size + e) * L)
                V, W = relu_both(load(m, src + o), load(m, src + far + o), p, q, mine, one, zero)
                write(m, dst + o, W, how, keep, scale, bias)
                write(m, dst_V + o, V, how_V, keep_V, scale_V, bias_V)


def done(m: Any, own: Any, table: Any, op: Any, numbers: Any, taps: Any, panels: Any, frame: Any) -> None:
    """The operation that the one before has done too."""


def windows(height: int, width: int) -> Callable[..., None]:
    """The operations for windows of height × width, both at least 2."""
    sums, singles = kept_rows(height)
    middle = (height - 2) // 2
    odd = height % 2 == 1

    @inlined
    def column(
        m: Any, Va: Any, Vb: Any, sum_at: int, single_at: int, back1: int, back2: int, back3: int, o: int
    ) -> Any:
        """A column's sums of rows that end at the first and at the second row; see window.py."""
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
        return Sa, Sb

    def run(m: Any, own: Any, table: Any, op: Any, numbers: Any, taps: Any, panels: Any, frame: Any) -> None:
        L = lanes(m)
        one, zero, mine = constant(m, 1.0), constant(m, 0.0), constant(m, numbers[OWN])
        keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
        value, others = shifted(op, COLUMNS), shifted(numbers, FLOATS)
        keep_V, scale_V, bias_V = constant(m, others[KEEP]), constant(m, others[SCALE]), constant(m, others[BIAS])
        rows, n, how, how_V, far = op[B0], op[C0], op[WRITE], value[WRITE], op[TIMES] * L
        row_size, out_size = n * L, op[C1] * L
        size, pitch = op[TABLE_SIZE], op[TABLE_ROW]
        after = height - 1 - op[ROW_BEFORE]
        first_output = op[FIRST_ROW] - after
        sum_rows = frame[SCRATCH]
        single_rows = sum_rows + sums * row_size
        kept = (sums + singles) * row_size  # the rows of W lie so far behind those of V
        fresh = sum_rows + 2 * kept
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
                for x in range(0, 2 * kept, L):
                    store(m, sum_rows + x, zero)
                for j in range((op[B1] - first_output + 1) // 2):
                    output = first_output + 2 * j
                    r = output + after
                    together = r >= 0 and r + 1 < rows
                    first = second = first_V = second_V = POWERS * L
                    if not together:
                        if 0 <= r < rows:
                            first, first_V = fresh, fresh + row_size
                            at = entry + r * pitch
                            call_row(
                                op[ROW_CALL], m, src + r * row_size, first, n, own, own_at + at, table, at, op, numbers,
                                taps, panels,
                            )  # fmt: skip
                            call_row(
                                value[ROW_CALL], m, src + r * row_size, first_V, n, own, own_at + at, table, at, value,
                                others, taps, panels,
                            )  # fmt: skip
                        if 0 <= r + 1 < rows:
                            second, second_V = fresh + 2 * row_size, fresh + 3 * row_size
                            at = entry + (r + 1) * pitch
                            call_row(
                                op[ROW_CALL], m, src + (r + 1) * row_size, second, n, own, own_at + at, table, at, op,
                                numbers, taps, panels,
                            )  # fmt: skip
                            call_row(
                                value[ROW_CALL], m, src + (r + 1) * row_size, second_V, n, own, own_at + at, table, at,
                                value, others, taps, panels,
                            )  # fmt: skip
                    to_a, to_V = dst + output * out_size, dst_V + output * out_size
                    to_b, to_Vb = (to_a + out_size, to_V + out_size) if output + 1 < op[B1] else (unused, unused)
                    if output < 0:
                        to_a = to_V = unused
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
                    state_a, state_b = empty_window(m, width), empty_window(m, width)
                    state_Va, state_Vb = empty_window(m, width), empty_window(m, width)
                    Va = Vb = Wa = Wb = zero
                    for x in range(columns):
                        Sa = Sb = Ua = Ub = zero
                        if 0 < x <= n:
                            o = (x - 1) * L
                            Sa, Sb = column(m, Va, Vb, sum_at, single_at, back1, back2, back3, o)
                            Ua, Ub = column(m, Wa, Wb, sum_at, single_at, back1, back2, back3, o + kept)
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
                                p = splat(own, own_a + x) * load(table, (at + x) * L)
                                q = splat(own, own_a + size + x) * load(table, (at + size + x) * L)
                                Va, Wa = relu_both(load(m, map_a + o), load(m, map_a + far + o), p, q, mine, one, zero)
                                p = splat(own, own_a + pitch + x) * load(table, (at + pitch + x) * L)
                                q = splat(own, own_a + pitch + size + x) * load(table, (at + pitch + size + x) * L)
                                Vb, Wb = relu_both(load(m, map_b + o), load(m, map_b + far + o), p, q, mine, one, zero)
                            else:
                                Va, Vb = load(m, first_V + o), load(m, second_V + o)
                                Wa, Wb = load(m, first + o), load(m, second + o)

    return run
