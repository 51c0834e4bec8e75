"""The ReLU without a call for each row, and its value and slope in one pass.

The pass is for an operation with a tangent right before the one without that reads the same map and the same tables:
1 − |cos θ| and its root, which both take, are most of the work. The row of the plan is that of the operation with the
tangent; that of the other is the next.
"""

from __future__ import annotations

from typing import Any

from .. import columns as col
from ..compiling import inlined
from ..rows.elementary import relu_both, relu_value
from ..simd import constant, lanes, load, shifted, splat, store
from ..work import Work, entry_of_row, entry_product, factors, image_at, write


@inlined
def relu_entries(w: Any, own_at: int, at: int, size: int) -> Any:
    """p = ss' and q = 1/p at a location."""
    return entry_product(w, own_at, at, False), entry_product(w, own_at + size, at + size, False)


@inlined
def relu_row(w: Any, src: int, dst: int, own_at: int, at: int) -> None:
    """The ReLU of a row of a map, without a call, which on sheets is often longer than the row."""
    m, L, size = w.m, lanes(w.m), w.op[col.TABLE_SIZE]
    for c in range(w.op[col.C0]):
        p, q = relu_entries(w, own_at + c, at + c, size)
        store(m, dst + c * L, relu_value(load(m, src + c * L), p, q))


@inlined
def relu_rows(w: Any, src: int, far: int, V: int, W: int, own_at: int, at: int) -> None:
    """The ReLU's value and slope of a row of a map."""
    m, L, size = w.m, lanes(w.m), w.op[col.TABLE_SIZE]
    mine = constant(m, w.numbers[col.OWN])
    for c in range(w.op[col.C0]):
        o = c * L
        p, q = relu_entries(w, own_at + c, at + c, size)
        value, slope = relu_both(load(m, src + o), load(m, src + far + o), p, q, mine)
        store(m, V + o, value)
        store(m, W + o, slope)


@inlined
def next_operation(w: Any) -> Any:
    """What the next operation is given."""
    op, numbers = shifted(w.op, col.COLUMNS), shifted(w.numbers, col.FLOATS)
    return Work(w.m, w.own, w.table, op, numbers, w.taps, w.panels, w.frame)


def done(w: Any) -> None:
    """The operation that the one before has done too."""


def relu_map(w: Any) -> None:
    """`pointwise` for the ReLU, two row images at a time, so that the column images' tables are read once for both."""
    m, own, table, op, frame, L = w.m, w.own, w.table, w.op, w.frame, lanes(w.m)
    keep, scale, bias = factors(w)
    how, size = op[col.WRITE], op[col.TABLE_SIZE]
    rows, n = op[col.A0] * op[col.B0], op[col.C0]
    if rows * n == size:  # the map is all of the table: one row
        rows, n = 1, size
    for image in range(0, frame[col.IMAGES], 2):
        two = image + 1 < frame[col.IMAGES]  # the last of an odd number goes with itself
        far, own_far = (frame[col.MAP_STEP], frame[col.OWN_STEP]) if two else (0, 0)
        maps, own_at = image_at(w, image)
        for row in range(rows):
            entry = entry_of_row(op, row)
            src, dst = maps + (op[col.SRC] + row * n) * L, maps + (op[col.DST] + row * n) * L
            mine, at = own_at + entry, op[col.TABLE] + entry
            for e in range(n):
                o = e * L
                s, r = load(table, (at + e) * L), load(table, (at + size + e) * L)
                K0, K1 = load(m, src + o), load(m, src + far + o)
                p0, q0 = splat(own, mine + e) * s, splat(own, mine + size + e) * r
                p1, q1 = splat(own, mine + own_far + e) * s, splat(own, mine + own_far + size + e) * r
                V0, V1 = relu_value(K0, p0, q0), relu_value(K1, p1, q1)
                write(m, dst + o, V0, how, keep, scale, bias)
                if two:
                    write(m, dst + far + o, V1, how, keep, scale, bias)


def relu_maps(w: Any) -> None:
    """Value and slope of operations without sums."""
    m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
    mine, value = constant(m, w.numbers[col.OWN]), next_operation(w)
    keep, scale, bias = factors(w)
    keep_V, scale_V, bias_V = factors(value)
    size, n, how, how_V, far = op[col.TABLE_SIZE], op[col.C0], op[col.WRITE], value.op[col.WRITE], op[col.TIMES] * L
    for image in range(frame[col.IMAGES]):
        maps, own_at = image_at(w, image)
        for row in range(op[col.A0] * op[col.B0]):
            entry = entry_of_row(op, row)
            src = maps + (op[col.SRC] + row * n) * L
            dst, dst_V = maps + (op[col.DST] + row * n) * L, maps + (value.op[col.DST] + row * n) * L
            own_row, at = own_at + entry, op[col.TABLE] + entry
            for e in range(n):
                o = e * L
                p, q = relu_entries(w, own_row + e, at + e, size)
                V, W = relu_both(load(m, src + o), load(m, src + far + o), p, q, mine)
                write(m, dst + o, W, how, keep, scale, bias)
                write(m, dst_V + o, V, how_V, keep_V, scale_V, bias_V)


def relu_total(tangent: bool) -> Any:
    """The operation that sums a whole map of one plane: what a pool to one location takes of a sheet.

    Rows are summed apart: rounding does not grow with the number of rows times that of columns.
    """

    def run(w: Any) -> None:
        m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
        zero, mine, far = constant(m, 0.0), constant(m, w.numbers[col.OWN]), op[col.TIMES] * L
        size, n, value = op[col.TABLE_SIZE], op[col.C0], next_operation(w) if tangent else w
        keep, scale, bias = factors(w)
        keep_V, scale_V, bias_V = factors(value)
        for image in range(frame[col.IMAGES]):
            maps, own_at = image_at(w, image)
            src, at = maps + op[col.SRC] * L, op[col.TABLE]
            total_V = total_W = zero
            for _ in range(op[col.B0]):
                part_V = part_W = zero
                for c in range(n):
                    p, q = relu_entries(w, own_at + c, at + c, size)
                    if tangent:
                        V, W = relu_both(load(m, src), load(m, src + far), p, q, mine)
                        part_V, part_W = part_V + V, part_W + W
                    else:
                        part_V = part_V + relu_value(load(m, src), p, q)
                    src += L
                total_V, total_W = total_V + part_V, total_W + part_W
                own_at, at = own_at + op[col.TABLE_ROW], at + op[col.TABLE_ROW]
            write(m, maps + value.op[col.DST] * L, total_V, value.op[col.WRITE], keep_V, scale_V, bias_V)
            if tangent:
                write(m, maps + op[col.DST] * L, total_W, op[col.WRITE], keep, scale, bias)

    return run
