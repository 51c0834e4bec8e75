"""Operations that work on any shape: box sums with every stride, dilation and padding, and operations without sums.

dst ← keep · dst + scale · box(f(src)) + bias. What `relu.py` and `window.py` do faster goes there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import columns as col
from ..compiling import inlined
from ..simd import constant, fma, lanes, load, store
from ..work import call_row, entry_of_row, entry_product, factors, image_at, own_entry, write
from .relu import relu_row


def boxes(relu: bool) -> Callable[..., None]:
    """The operation for box sums: of planes where there are several, then rows, then columns.

    Rows are activated into a ring as needed, by a call unless it is the ReLU.
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
    """An operation without sums."""
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
    """Σ_c x_c x'_c for the places of a sheet, from the pixels at the head of the tables.

    `both`: of images with themselves, where the tables of the column images are those of the row images too.
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
    """dst ← keep · dst + bias: a sheet whose two locations share no weight."""
    m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
    zero = constant(m, 0.0)
    keep, scale, bias = factors(w)
    for image in range(frame[col.IMAGES]):
        to = image_at(w, image)[0] + op[col.DST] * L
        for x in range(0, op[col.A1] * op[col.B1] * op[col.C1] * L, L):
            write(m, to + x, zero, op[col.WRITE], keep, scale, bias)
