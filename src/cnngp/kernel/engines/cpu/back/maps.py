"""The backward step of a nonlinearity, over a whole map: g ← g + t · ∂f/∂K with t = scale · times, for `lanes` pairs.

f reads three numbers, K and the two images' variances, so t goes three ways. What goes to a variance is added to its
image's shares, without the factors that depend on that image alone: `still` multiplies by them later, once an image.
The formulas are those of kernel/formulas (`Family.parts` and `Family.still`). Where a variance is 0 the two images
count as equal (docs/gradients.md). Maps, tables and arguments are those of the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cnngp.kernel.formulas import FAMILIES, Family

from ..plan import (
    A0,
    ADDRESSES,
    ALPHA,
    B0,
    BACK_TIMES,
    BASE,
    BETA,
    C0,
    CHANNELS,
    CODES,
    DST,
    KEEP,
    OWN_AT,
    OWN_SHARES,
    OWN_TABLE,
    SCALE,
    SHARES,
    SLOT,
    SMALLEST,
    SRC,
    TABLE,
    TABLE_SIZE,
    UNIT,
    WRITES,
)
from ..simd import add_at, address, address_like, constant, constants, fma, lane_sum, lanes, load, store
from ..work import entry as entry_at
from ..work import entry_of_row, own_entry


def back(family: Family, both: bool) -> Callable[..., None]:
    """The operation for pairs; where `both`, for images with themselves at two places."""
    parts, constants_of, last = family.parts, family.constants, family.entries - 1

    def run(w: Any) -> None:
        m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
        n, far = op[C0], op[TABLE_SIZE] * last
        c = constants(m, constants_of(numbers[UNIT], numbers[ALPHA], numbers[BETA]))
        zero, scale = constant(m, 0.0), constant(m, numbers[SCALE])
        begun, writes, slot = numbers[KEEP] != 0.0, op[WRITES], op[SLOT]
        known = op[ADDRESSES]
        sums, own_shares = address(frame[known]), address_like(m, frame[known + 1])
        for r in range(op[A0] * op[B0]):
            entry = entry_of_row(op, r)
            src = frame[BASE] + (op[SRC] + r * n) * L
            times = frame[BASE] + (op[BACK_TIMES] + r * n) * L
            dst = frame[BASE] + (op[DST] + r * n) * L
            mine, at = frame[OWN_AT] + op[OWN_TABLE] + entry, op[TABLE] + entry
            my_share, share = op[OWN_SHARES] + entry, frame[known + 2] + (op[SHARES] + entry) * L
            value = extra = zero
            for e in range(n):
                K, h = load(m, src + e * L), load(m, times + e * L)
                a = own_entry(w, mine + e, both), own_entry(w, mine + far + e, both)
                b = entry_at(w, at + e), entry_at(w, at + far + e)
                slope, first, second, f, f2 = parts(K, a, b, c)  # type: ignore[misc]
                value, extra = fma(h, f, value), fma(h, f2, extra)
                t = h * scale
                if writes:
                    if begun:
                        store(m, dst + e * L, fma(t, slope, load(m, dst + e * L)))
                    else:
                        store(m, dst + e * L, t * slope)
                o = share + e * L
                store(m, o, fma(t, second, load(m, o)))
                if both:
                    o = frame[known + 2] + (my_share + e) * L
                    store(m, o, fma(t, first, load(m, o)))
                else:
                    add_at(own_shares, my_share + e, lane_sum(t * first))
            sums[slot] += lane_sum(value)
            sums[slot + 1] += lane_sum(extra)

    return run


def still(family: Family) -> Callable[..., None]:
    """The same for an image with itself at one place, where K is the variance: dV/dK, and what its shares have become.

    In float64, an image a lane.
    """
    formulas = family.still

    def run(w: Any) -> None:
        m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
        n, scale, keep = op[C0], numbers[SCALE], numbers[KEEP]
        x = numbers[UNIT], numbers[ALPHA], numbers[SMALLEST]
        known, slot = op[ADDRESSES], op[SLOT]
        sums = address(frame[known])
        for r in range(op[A0] * op[B0]):
            src = frame[BASE] + (op[SRC] + r * n) * L
            times = frame[BASE] + (op[BACK_TIMES] + r * n) * L
            dst = frame[BASE] + (op[DST] + r * n) * L
            share = frame[known + 2] + (op[SHARES] + entry_of_row(op, r)) * L
            for e in range(n * L):
                h = m[times + e]
                slope, factor, value, extra = formulas(m[src + e], x)  # type: ignore[misc]
                sums[slot] += h * value
                sums[slot + 1] += h * extra
                if op[WRITES]:
                    total = scale * h * slope + factor * m[share + e]
                    m[dst + e] = total + m[dst + e] if keep != 0.0 else total

    return run


def dot(w: Any) -> None:
    """The backward step of an operation without a nonlinearity."""
    m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
    scale, total = constant(m, numbers[SCALE]), constant(m, 0.0)
    n = op[C0]
    sums = address(frame[op[ADDRESSES]])
    for r in range(op[A0] * op[B0]):
        src = frame[BASE] + (op[SRC] + r * n) * L
        times = frame[BASE] + (op[BACK_TIMES] + r * n) * L
        dst = frame[BASE] + (op[DST] + r * n) * L
        total = constant(m, 0.0)
        for c in range(0, n * L, L):
            h = load(m, times + c)
            total = fma(h, load(m, src + c), total)
            if op[WRITES]:
                t = h * scale
                store(m, dst + c, t + load(m, dst + c) if numbers[KEEP] != 0.0 else t)
        sums[op[SLOT]] += lane_sum(total)


def total(w: Any) -> None:
    """The sum over a map."""
    m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
    n = op[C0]
    sums = address(frame[op[ADDRESSES]])
    for r in range(op[A0] * op[B0]):
        src = frame[BASE] + (op[SRC] + r * n) * L
        row = constant(m, 0.0)
        for c in range(0, n * L, L):
            row = row + load(m, src + c)
        sums[op[SLOT]] += lane_sum(row)


def pixels(both: bool) -> Callable[..., None]:
    """From the product of two images to their pixels, whose gradients stand behind the shares of their variances."""

    def run(w: Any) -> None:
        m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
        n, size = op[C0], op[TABLE_SIZE]
        known = op[ADDRESSES]
        own_shares = address_like(m, frame[known + 1])
        for r in range(op[A0] * op[B0]):
            entry = entry_of_row(op, r)
            g_at = frame[BASE] + (op[DST] + r * n) * L
            for c in range(n):
                g = load(m, g_at + c * L)
                mine, at = op[OWN_TABLE] + entry + c, op[TABLE] + entry + c
                for _ in range(op[CHANNELS]):
                    first, second = own_entry(w, frame[OWN_AT] + mine, both), entry_at(w, at)
                    o = frame[known + 2] + (op[SHARES] + at) * L
                    store(m, o, fma(g, first, load(m, o)))
                    if both:
                        o = frame[known + 2] + (op[SHARES] + mine) * L
                        store(m, o, fma(g, second, load(m, o)))
                    else:
                        add_at(own_shares, op[SHARES] + mine, lane_sum(g * second))
                    mine += size
                    at += size

    return run


PAIR_BACKS = {CODES[f]: back(f, both=False) for f in FAMILIES if f.parts}
SELF_BACKS = {CODES[f]: back(f, both=True) for f in FAMILIES if f.parts}
STILL_BACKS = {CODES[f]: still(f) for f in FAMILIES if f.still}
pair_pixels, self_pixels = pixels(both=False), pixels(both=True)
