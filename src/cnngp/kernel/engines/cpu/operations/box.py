"""Operations that work on any shape: box sums with every stride, dilation and padding, and operations without sums.

dst ← keep · dst + scale · box(f(src)) + bias. What `window.py` does faster goes there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..compiling import inlined
from ..plan import (
    A0,
    A1,
    ACT,
    B0,
    B1,
    BASE,
    BIAS,
    BOX,
    C0,
    C1,
    CHANNELS,
    COL_DILATION,
    COL_HIGH,
    COL_K,
    COL_LOW,
    COL_START,
    COL_STRIDE,
    COL_TAPS,
    DST,
    IMAGES,
    KEEP,
    MAP_STEP,
    NO_ACT,
    OWN_AT,
    OWN_STEP,
    OWN_TABLE,
    PAD_LEFT,
    PAD_RIGHT,
    PLANE_TAPS,
    PLANES,
    POWERS,
    RING,
    ROW_CALL,
    ROW_K,
    ROW_LIST,
    ROW_NEED,
    ROW_TAPS,
    SCALE,
    SCRATCH,
    SRC,
    STORE,
    TABLE,
    TABLE_PLANE,
    TABLE_ROW,
    TABLE_SIZE,
    WRITE,
)
from ..rows.elementary import relu_value
from ..simd import constant, fma, lanes, load, splat, store
from ..work import call_row, entry_of_row, entry_product, own_entry, write
from .sliding import relu_entries, relu_row


def boxes(relu: bool) -> Callable[..., None]:
    """The operation for box sums: of planes where there are several, then rows, then columns.

    Rows are activated into a ring as needed, by a call unless it is the ReLU.
    """

    @inlined
    def activate(w: Any, src: int, dst: int, own_at: int, at: int) -> None:
        if relu:
            relu_row(w, src, dst, own_at, at)
        else:
            call_row(w.op[ROW_CALL], w, src, dst, w.op[C0], own_at, at)

    def run(w: Any) -> None:
        m, op, numbers, taps, frame, L = w.m, w.op, w.numbers, w.taps, w.frame, lanes(w.m)
        zero = constant(m, 0.0)
        keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
        act, how, ring, k = op[ACT], op[WRITE], op[RING], op[ROW_K]
        n, low, high = op[C1], op[COL_LOW], op[COL_HIGH]
        row_size, plane_size = op[C0] * L, op[B0] * op[C0] * L
        left, right = op[PAD_LEFT] * L, op[PAD_RIGHT] * L
        start, stride, step = op[COL_START] * L, op[COL_STRIDE] * L, op[COL_DILATION] * L
        sum_planes = op[BOX] == PLANES
        by_row = act != NO_ACT and not sum_planes
        for image in range(frame[IMAGES]):
            src = frame[BASE] + image * frame[MAP_STEP] + op[SRC] * L
            to = frame[BASE] + image * frame[MAP_STEP] + op[DST] * L
            own_at = frame[OWN_AT] + image * frame[OWN_STEP] + op[OWN_TABLE]
            scratch = frame[SCRATCH]
            if sum_planes and act != NO_ACT:
                for r in range(op[A0] * op[B0]):
                    entry = entry_of_row(op, r)
                    row, into = src + r * row_size, scratch + r * row_size
                    activate(w, row, into, own_at + entry, op[TABLE] + entry)
                src = scratch
                scratch += op[A0] * plane_size
            line = scratch + left + (plane_size if sum_planes else ring * row_size if by_row else 0)
            for x in range(0, left, L):
                store(m, line - left + x, zero)
            for x in range(0, right, L):
                store(m, line + row_size + x, zero)
            for a in range(op[A1]):
                plane = src + a * plane_size
                if sum_planes:
                    first = op[PLANE_TAPS]
                    for x in range(0, plane_size, L):
                        s = zero
                        for t in range(taps[first + a], taps[first + a + 1]):
                            s = s + load(m, src + taps[first + op[A1] + 1 + t] * plane_size + x)
                        store(m, scratch + x, s)
                    plane = scratch
                ready = 0
                for row in range(op[B1]):
                    if by_row:
                        while ready < taps[op[ROW_NEED] + row]:
                            at = a * op[TABLE_PLANE] + ready * op[TABLE_ROW]
                            fresh, into = plane + ready * row_size, scratch + (ready % ring) * row_size
                            activate(w, fresh, into, own_at + at, op[TABLE] + at)
                            ready += 1
                    count = 0
                    for t in range(k):
                        tap = taps[op[ROW_TAPS] + row * k + t]
                        if tap >= 0:
                            frame[ROW_LIST + count] = (
                                scratch + (tap % ring) * row_size if by_row else plane + tap * row_size
                            )
                            count += 1
                    summed = frame[ROW_LIST] if count > 0 else POWERS * L
                    if count != 1 or left + right > 0:
                        for x in range(0, row_size, L):
                            s = load(m, summed + x)
                            for t in range(1, count):
                                s = s + load(m, frame[ROW_LIST + t] + x)
                            store(m, line + x, s)
                        summed = line
                    for c in range(n):
                        if low <= c < high:
                            at = summed + start + c * stride
                            s = load(m, at)
                            for t in range(1, op[COL_K]):
                                s = s + load(m, at + t * step)
                        else:
                            s = zero
                            for t in range(taps[op[COL_TAPS] + c], taps[op[COL_TAPS] + c + 1]):
                                s = s + load(m, summed + taps[op[COL_TAPS] + n + 1 + t] * L)
                        write(m, to, s, how, keep, scale, bias)
                        to += L

    return run


def pointwise(w: Any) -> None:
    """An operation without sums."""
    m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    row_size = op[C0] * L
    for image in range(frame[IMAGES]):
        maps = frame[BASE] + image * frame[MAP_STEP]
        own_at = frame[OWN_AT] + image * frame[OWN_STEP] + op[OWN_TABLE]
        for r in range(op[A0] * op[B0]):
            row, to = maps + op[SRC] * L + r * row_size, maps + op[DST] * L + r * row_size
            if op[ACT] != NO_ACT:
                into = to if op[WRITE] == STORE else frame[SCRATCH]
                entry = entry_of_row(op, r)
                call_row(op[ROW_CALL], w, row, into, op[C0], own_at + entry, op[TABLE] + entry)
                row = into
            if row != to or op[WRITE] != STORE:
                for x in range(0, row_size, L):
                    write(m, to + x, load(m, row + x), op[WRITE], keep, scale, bias)


def relu_map(w: Any) -> None:
    """`pointwise` for the ReLU, two row images at a time, so that the column images' tables are read once for both."""
    m, own, table, op, numbers, frame, L = w.m, w.own, w.table, w.op, w.numbers, w.frame, lanes(w.m)
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    how, size = op[WRITE], op[TABLE_SIZE]
    rows, n = op[A0] * op[B0], op[C0]
    if rows * n == size:  # the map is all of the table: one row
        rows, n = 1, size
    for image in range(0, frame[IMAGES], 2):
        two = image + 1 < frame[IMAGES]  # the last of an odd number goes with itself
        far, own_far = (frame[MAP_STEP], frame[OWN_STEP]) if two else (0, 0)
        maps = frame[BASE] + image * frame[MAP_STEP]
        for row in range(rows):
            entry = entry_of_row(op, row)
            src, dst = maps + (op[SRC] + row * n) * L, maps + (op[DST] + row * n) * L
            mine = frame[OWN_AT] + image * frame[OWN_STEP] + op[OWN_TABLE] + entry
            at = op[TABLE] + entry
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


def relu_total(w: Any) -> None:
    """The ReLU of a map of one plane, summed over all of it: what a pool to one location takes of a sheet."""
    m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
    zero = constant(m, 0.0)
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    size, n = op[TABLE_SIZE], op[C0]
    for image in range(frame[IMAGES]):
        maps = frame[BASE] + image * frame[MAP_STEP]
        src = maps + op[SRC] * L
        own_at = frame[OWN_AT] + image * frame[OWN_STEP] + op[OWN_TABLE]
        total = zero
        for r in range(op[B0]):
            mine, at = own_at + r * op[TABLE_ROW], op[TABLE] + r * op[TABLE_ROW]
            part = zero  # of a row: rounding does not grow with the number of rows times that of columns
            for c in range(n):
                p, q = relu_entries(w, mine + c, at + c, size)
                part = part + relu_value(load(m, src), p, q)
                src += L
            total = total + part
        write(m, maps + op[DST] * L, total, op[WRITE], keep, scale, bias)


def product(both: bool) -> Callable[..., None]:
    """Σ_c x_c x'_c for the places of a sheet, from the pixels at the head of the tables.

    `both`: of images with themselves, where the tables of the column images are those of the row images too.
    """

    def run(w: Any) -> None:
        m, table, op, frame, L = w.m, w.table, w.op, w.frame, lanes(w.m)
        size, channels, n = op[TABLE_SIZE], op[CHANNELS], op[C0]
        for image in range(frame[IMAGES]):
            to = frame[BASE] + image * frame[MAP_STEP] + op[DST] * L
            own_at = frame[OWN_AT] + image * frame[OWN_STEP] + op[OWN_TABLE]
            for r in range(op[A0] * op[B0]):
                entry = entry_of_row(op, r)
                for x in range(n):
                    mine, at = own_at + entry + x, op[TABLE] + entry + x
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
    """dst ← keep · dst + bias: a sheet whose two locations share no weight."""
    m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
    zero = constant(m, 0.0)
    keep, scale, bias = constant(m, numbers[KEEP]), constant(m, numbers[SCALE]), constant(m, numbers[BIAS])
    for image in range(frame[IMAGES]):
        to = frame[BASE] + image * frame[MAP_STEP] + op[DST] * L
        for x in range(0, op[A1] * op[B1] * op[C1] * L, L):
            write(m, to + x, zero, op[WRITE], keep, scale, bias)
