"""Backward steps over a whole map, for `lanes` pairs. For a nonlinearity g ← g + t · ∂f/∂K with t = scale · times.

f depends on three numbers, K and the two images' variances, so t is propagated to all three. The gradient by a variance
is added to its image's shares, without the factors that depend on that image alone: `still` multiplies by them later,
once per image. If a variance is 0, the two images count as equal (docs/gradients.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cnngp.kernel.formulas import FAMILIES

from .. import columns as col
from ..compiling import inlined
from ..rows.forms import form
from ..simd import add_at, address, address_like, constant, fma, lane_sum, lanes, load, store
from ..work import entry, entry_of_row, own_entry

Operation = Callable[..., None]


@inlined
def maps_at(w: Any, r: int) -> Any:
    """Offsets of row r in the map that is read, in `times` and in the map that is written."""
    at, L = r * w.op[col.C0], lanes(w.m)
    base = w.frame[col.BASE]
    return base + (w.op[col.SRC] + at) * L, base + (w.op[col.BACK_TIMES] + at) * L, base + (w.op[col.DST] + at) * L


@inlined
def add_product(w: Any, share: int, a: Any, b: Any) -> None:
    """Add a · b to a share of the second images."""
    at = w.frame[col.SHARES_AT] + share * lanes(w.m)
    store(w.m, at, fma(a, b, load(w.m, at)))


def back(code: int, both: bool) -> Operation:
    """Backward step of a nonlinearity for pairs; with `both`, for images with themselves at two locations."""
    begin, _, _, parts, _ = form(code, both)
    twice_rounded = code == col.SERIES

    def run(w: Any) -> None:
        m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
        n, c = op[col.C0], begin(w)
        zero, scale = constant(m, 0.0), constant(m, numbers[col.SCALE])
        begun, writes, slot = numbers[col.KEEP] != 0.0, op[col.WRITES], op[col.SLOT]
        sums, own_shares = address(frame[col.SUMS_AT]), address_like(m, frame[col.OWN_SHARES_AT])
        for r in range(op[col.A0] * op[col.B0]):
            entry_at = entry_of_row(op, r)
            src, times, dst = maps_at(w, r)
            mine, at = frame[col.OWN_AT] + op[col.OWN_TABLE] + entry_at, op[col.TABLE] + entry_at
            my_share, share = op[col.OWN_SHARES] + entry_at, op[col.SHARES] + entry_at
            value = extra = zero
            for e in range(n):
                h = load(m, times + e * L)
                slope, first, second, f, f2 = parts(w, load(m, src + e * L), mine + e, at + e, c)
                value, extra = fma(h, f, value), fma(h, f2, extra)
                t = h * scale
                if writes:
                    if not begun:
                        store(m, dst + e * L, t * slope)
                    elif twice_rounded:
                        store(m, dst + e * L, t * slope + load(m, dst + e * L))
                    else:
                        store(m, dst + e * L, fma(t, slope, load(m, dst + e * L)))
                add_product(w, share + e, t, second)
                if both:
                    add_product(w, my_share + e, t, first)
                else:
                    add_at(own_shares, my_share + e, lane_sum(t * first))
            sums[slot] += lane_sum(value)
            sums[slot + 1] += lane_sum(extra)

    return run


def still(code: int) -> Operation:
    """Backward step for images with themselves at one location, where K is the variance: dV/dK, and the shares.

    In float64, one image per lane.
    """
    if FAMILIES[code - 1].whole:
        return whole_still
    formula = form(code, True).still

    def run(w: Any) -> None:
        m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
        slot, begun = op[col.SLOT], w.numbers[col.KEEP] != 0.0
        sums = address(frame[col.SUMS_AT])
        for r in range(op[col.A0] * op[col.B0]):
            entry_at = entry_of_row(op, r)
            src, times, dst = maps_at(w, r)
            at, share = (op[col.TABLE] + entry_at) * L, frame[col.SHARES_AT] + (op[col.SHARES] + entry_at) * L
            for e in range(op[col.C0] * L):
                h = m[times + e]
                total, value, extra = formula(w, m[src + e], at + e, h, m[share + e])
                sums[slot] += h * value
                sums[slot + 1] += h * extra
                if op[col.WRITES]:
                    m[dst + e] = total + m[dst + e] if begun else total

    return run


def whole_still(w: Any) -> None:
    """`still` if t = 1/√(mean of K) (formulas/layer_norm.py), so that each K affects all V: t² h − t⁴ Σ h K/n."""
    m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
    size, share = op[col.A0] * op[col.B0] * op[col.C0], frame[col.SHARES_AT] + op[col.SHARES] * L
    src, times, dst = maps_at(w, 0)
    scale, t = constant(m, w.numbers[col.SCALE]), load(w.table, op[col.TABLE] * L)
    moved = shares = constant(m, 0.0)
    for e in range(0, size * L, L):
        moved = fma(load(m, times + e), load(m, src + e), moved)
        shares = shares + load(m, share + e)
    address(frame[col.SUMS_AT])[op[col.SLOT]] += lane_sum(moved * (t * t))
    by_mean = t * t * fma(constant(m, 0.5), shares, scale * moved * (t * t)) / constant(m, float(size))
    if op[col.WRITES]:
        for e in range(0, size * L, L):
            total = scale * load(m, times + e) * (t * t) - by_mean
            store(m, dst + e, total + load(m, dst + e) if w.numbers[col.KEEP] != 0.0 else total)


def dot(w: Any) -> None:
    """Backward step of an operation without a nonlinearity."""
    m, op, numbers, L = w.m, w.op, w.numbers, lanes(w.m)
    scale = constant(m, numbers[col.SCALE])
    sums = address(w.frame[col.SUMS_AT])
    for r in range(op[col.A0] * op[col.B0]):
        src, times, dst = maps_at(w, r)
        total = constant(m, 0.0)
        for c in range(0, op[col.C0] * L, L):
            h = load(m, times + c)
            total = fma(h, load(m, src + c), total)
            if op[col.WRITES]:
                t = h * scale
                store(m, dst + c, t + load(m, dst + c) if numbers[col.KEEP] != 0.0 else t)
        sums[op[col.SLOT]] += lane_sum(total)


def total(w: Any) -> None:
    """Add the sum over a map to the sums."""
    m, op, L = w.m, w.op, lanes(w.m)
    sums = address(w.frame[col.SUMS_AT])
    for r in range(op[col.A0] * op[col.B0]):
        src = maps_at(w, r)[0]
        row = constant(m, 0.0)
        for c in range(0, op[col.C0] * L, L):
            row = row + load(m, src + c)
        sums[op[col.SLOT]] += lane_sum(row)


def pixels(both: bool) -> Operation:
    """Backward step from the product of two images to their pixels, whose gradients follow the shares of variances."""

    def run(w: Any) -> None:
        m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
        size, shares = op[col.TABLE_SIZE], op[col.SHARES]
        own_shares = address_like(m, frame[col.OWN_SHARES_AT])
        for r in range(op[col.A0] * op[col.B0]):
            entry_at = entry_of_row(op, r)
            g_at = maps_at(w, r)[2]
            for c in range(op[col.C0]):
                g = load(m, g_at + c * L)
                mine, at = op[col.OWN_TABLE] + entry_at + c, op[col.TABLE] + entry_at + c
                for _ in range(op[col.CHANNELS]):
                    first, second = own_entry(w, frame[col.OWN_AT] + mine, both), entry(w, at)
                    add_product(w, shares + at, g, first)
                    if both:
                        add_product(w, shares + mine, g, second)
                    else:
                        add_at(own_shares, shares + mine, lane_sum(g * second))
                    mine += size
                    at += size

    return run
