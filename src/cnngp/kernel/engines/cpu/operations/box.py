"""Operations for any shape: box sums with every stride, dilation and padding, and operations without sums.

dst ← keep · dst + scale · box(f(src)) + bias. `window.py` has faster code for common windows. The ReLU needs no call
per row, and its value and slope take one pass: an operation with a tangent comes right before the one without it that
reads the same map and tables, and 1 − |cos θ| and its root, which both need, are most of the work. The plan's row is
then that of the operation with the tangent, and the next row is that of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import columns as col
from ..compiling import inlined
from ..rows.forms import relu_both, relu_value
from ..simd import constant, fma, lanes, load, shifted, splat, store
from ..work import Work, call_row, entry_of_row, entry_product, factors, image_at, own_entry, write


def boxes(relu: bool) -> Callable[..., None]:
    """Operation for box sums: over planes if there are several, then over rows, then over columns.

    Rows are activated into a ring buffer as needed, inline for the ReLU and by a call otherwise.
    """

    @inlined
    def activate(w: Any, src: int, dst: int, own_at: int, at: int) -> None:
        if relu:
            relu_row(w, src, dst, own_at, at)
        else:
            call_row(w.op[col.ROW_CALL], w, src, dst, w.op[col.C0], own_at, at)

    def run(w: Any) -> None:
        m, op, taps, frame, L = w.m, w.op, w.taps, w.frame, lanes(w.m)
        zero = constant(m, 0.0)
        keep, scale, bias = factors(w)
        act, how, ring, k = op[col.ACT], op[col.WRITE], op[col.RING], op[col.ROW_K]
        n, low, high = op[col.C1], op[col.COL_LOW], op[col.COL_HIGH]
        row_size, plane_size = op[col.C0] * L, op[col.B0] * op[col.C0] * L
        left, right = op[col.PAD_LEFT] * L, op[col.PAD_RIGHT] * L
        start, stride, step = op[col.COL_START] * L, op[col.COL_STRIDE] * L, op[col.COL_DILATION] * L
        sum_planes = op[col.BOX] == col.PLANES
        by_row = act != col.NO_ACT and not sum_planes
        for image in range(frame[col.IMAGES]):
            maps, own_at = image_at(w, image)
            src, to = maps + op[col.SRC] * L, maps + op[col.DST] * L
            scratch = frame[col.SCRATCH]
            if sum_planes and act != col.NO_ACT:
                for r in range(op[col.A0] * op[col.B0]):
                    entry = entry_of_row(op, r)
                    row, into = src + r * row_size, scratch + r * row_size
                    activate(w, row, into, own_at + entry, op[col.TABLE] + entry)
                src = scratch
                scratch += op[col.A0] * plane_size
            line = scratch + left + (plane_size if sum_planes else ring * row_size if by_row else 0)
            for x in range(0, left, L):
                store(m, line - left + x, zero)
            for x in range(0, right, L):
                store(m, line + row_size + x, zero)
            for a in range(op[col.A1]):
                plane = src + a * plane_size
                if sum_planes:
                    first = op[col.PLANE_TAPS]
                    for x in range(0, plane_size, L):
                        s = zero
                        for t in range(taps[first + a], taps[first + a + 1]):
                            s = s + load(m, src + taps[first + op[col.A1] + 1 + t] * plane_size + x)
                        store(m, scratch + x, s)
                    plane = scratch
                ready = 0
                for row in range(op[col.B1]):
                    if by_row:
                        while ready < taps[op[col.ROW_NEED] + row]:
                            at = a * op[col.TABLE_PLANE] + ready * op[col.TABLE_ROW]
                            fresh, into = plane + ready * row_size, scratch + (ready % ring) * row_size
                            activate(w, fresh, into, own_at + at, op[col.TABLE] + at)
                            ready += 1
                    count = 0
                    for t in range(k):
                        tap = taps[op[col.ROW_TAPS] + row * k + t]
                        if tap >= 0:
                            frame[col.ROW_LIST + count] = (
                                scratch + (tap % ring) * row_size if by_row else plane + tap * row_size
                            )
                            count += 1
                    summed = frame[col.ROW_LIST] if count > 0 else col.POWERS * L
                    if count != 1 or left + right > 0:
                        for x in range(0, row_size, L):
                            s = load(m, summed + x)
                            for t in range(1, count):
                                s = s + load(m, frame[col.ROW_LIST + t] + x)
                            store(m, line + x, s)
                        summed = line
                    for c in range(n):
                        if low <= c < high:
                            at = summed + start + c * stride
                            s = load(m, at)
                            for t in range(1, op[col.COL_K]):
                                s = s + load(m, at + t * step)
                        else:
                            s = zero
                            for t in range(taps[op[col.COL_TAPS] + c], taps[op[col.COL_TAPS] + c + 1]):
                                s = s + load(m, summed + taps[op[col.COL_TAPS] + n + 1 + t] * L)
                        write(m, to, s, how, keep, scale, bias)
                        to += L

    return run


def pointwise(w: Any) -> None:
    """Operation without sums."""
    m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
    keep, scale, bias = factors(w)
    row_size = op[col.C0] * L
    for image in range(frame[col.IMAGES]):
        maps, own_at = image_at(w, image)
        for r in range(op[col.A0] * op[col.B0]):
            row, to = maps + op[col.SRC] * L + r * row_size, maps + op[col.DST] * L + r * row_size
            if op[col.ACT] != col.NO_ACT:
                into = to if op[col.WRITE] == col.STORE else frame[col.SCRATCH]
                entry = entry_of_row(op, r)
                call_row(op[col.ROW_CALL], w, row, into, op[col.C0], own_at + entry, op[col.TABLE] + entry)
                row = into
            if row != to or op[col.WRITE] != col.STORE:
                for x in range(0, row_size, L):
                    write(m, to + x, load(m, row + x), op[col.WRITE], keep, scale, bias)


def product(both: bool) -> Callable[..., None]:
    """Operation Σ_c x_c x'_c for the locations of a sheet, from the pixels at the start of the tables.

    `both`: for images with themselves, where the tables of the column images serve as those of the row images too.
    """

    def run(w: Any) -> None:
        m, table, op, frame, L = w.m, w.table, w.op, w.frame, lanes(w.m)
        size, channels, n = op[col.TABLE_SIZE], op[col.CHANNELS], op[col.C0]
        for image in range(frame[col.IMAGES]):
            maps, own_at = image_at(w, image)
            to = maps + op[col.DST] * L
            for r in range(op[col.A0] * op[col.B0]):
                entry = entry_of_row(op, r)
                for x in range(n):
                    mine, at = own_at + entry + x, op[col.TABLE] + entry + x
                    if channels == 1:
                        store(m, to, entry_product(w, mine, at, both))
                        to += L
                        continue
                    total = constant(m, 0.0)
                    for first in range(0, channels, 64):
                        part = constant(m, 0.0)
                        for c in range(first * size, min(first + 64, channels) * size, size):
                            pixel = own_entry(w, mine + c, both)
                            part = fma(pixel, load(table, (at + c) * L), part)
                        total = total + part
                    store(m, to, total)
                    to += L

    return run


def fill(w: Any) -> None:
    """Operation dst ← keep · dst + bias, for a sheet whose two locations share no weight."""
    m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
    zero = constant(m, 0.0)
    keep, scale, bias = factors(w)
    for image in range(frame[col.IMAGES]):
        to = image_at(w, image)[0] + op[col.DST] * L
        for x in range(0, op[col.A1] * op[col.B1] * op[col.C1] * L, L):
            write(m, to + x, zero, op[col.WRITE], keep, scale, bias)


# ---- the ReLU -------------------------------------------------------------------------------------------------------


@inlined
def relu_entries(w: Any, own_at: int, at: int, size: int) -> Any:
    """Return p = ss' and q = 1/p at a location."""
    return entry_product(w, own_at, at, False), entry_product(w, own_at + size, at + size, False)


@inlined
def relu_row(w: Any, src: int, dst: int, own_at: int, at: int) -> None:
    """ReLU of a row of a map, inline: on sheets a call often takes longer than the row."""
    m, L, size = w.m, lanes(w.m), w.op[col.TABLE_SIZE]
    for c in range(w.op[col.C0]):
        p, q = relu_entries(w, own_at + c, at + c, size)
        store(m, dst + c * L, relu_value(load(m, src + c * L), p, q))


@inlined
def relu_rows(w: Any, src: int, far: int, V: int, W: int, own_at: int, at: int) -> None:
    """Value and slope of the ReLU for a row of a map."""
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
    """Return the `Work` of the next operation."""
    op, numbers = shifted(w.op, col.COLUMNS), shifted(w.numbers, col.FLOATS)
    return Work(w.m, w.own, w.table, op, numbers, w.taps, w.panels, w.frame)


def done(w: Any) -> None:
    """Placeholder for an operation that ran together with the one before it."""


def relu_map(w: Any) -> None:
    """`pointwise` for the ReLU, two row images at a time, so that the column images' tables are read once for both."""
    m, own, table, op, frame, L = w.m, w.own, w.table, w.op, w.frame, lanes(w.m)
    keep, scale, bias = factors(w)
    how, size = op[col.WRITE], op[col.TABLE_SIZE]
    rows, n = op[col.A0] * op[col.B0], op[col.C0]
    if rows * n == size:  # the map is all of the table: one row
        rows, n = 1, size
    for image in range(0, frame[col.IMAGES], 2):
        two = image + 1 < frame[col.IMAGES]  # the last of an odd number is paired with itself
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
    """Value and slope of the ReLU for two operations without sums."""
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
    """Operation that sums the ReLU over a whole map of one plane, as a pool to one location does with a sheet.

    Rows are summed separately, so that rounding does not grow with the number of rows times that of columns.
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
