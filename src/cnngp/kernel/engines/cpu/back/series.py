"""The backward step of an Elementwise, whose V is a series Σ_j A_j(s) A_j(s') ρ^k with s = √K₁ and ρ = K/(ss').

    ∂V/∂K = (1/ss') ∂V/∂ρ,     ∂V/∂K₁ = (Σ_j s A_j'(s) A_j(s') ρ^k − ρ ∂V/∂ρ)/2K₁

The tables hold s A_j'(s) behind the A_j(s) of rows/series.py; both come from the same Chebyshev coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cnngp.kernel.formulas.family import inverse_root
from cnngp.kernel.series.packed import SECOND_WIDTH

from ..compiling import inlined
from ..plan import (
    A0,
    ADDRESSES,
    B0,
    BACK_TIMES,
    BASE,
    C0,
    DST,
    EVEN_TERMS,
    KEEP,
    ODD_TERMS,
    OWN_AT,
    OWN_SHARES,
    OWN_TABLE,
    POWERS,
    SCALE,
    SERIES_AT,
    SHARES,
    SHIFTS,
    SITE,
    SLOT,
    SMALLEST,
    SRC,
    TABLE,
    TABLE_SIZE,
    UNIT,
    WRITES,
)
from ..rows.series import clamped, largest, panel_of, panel_rows, second_coefficients
from ..simd import (
    add_at,
    address,
    address_like,
    constant,
    fma,
    lane_sum,
    lanes,
    load,
    shifted,
    store,
)
from ..work import entry_of_row, entry_product


@inlined
def horner(w: Any, mine: int, at: int, size: int, both: bool, low: int, high: int, shifts: Any) -> Any:
    """Σ_j a_j b_j x^(n_j − n_low) and its derivative by x, for the rows low … high − 1, with the powers at the head.

    The first half of the head holds x^(2^b), the second half their derivatives.
    """
    m, L = w.m, lanes(w.m)
    total = constant(m, 0.0)
    slope = constant(m, 0.0)
    for j in range(high - 1, low - 1, -1):
        step = shifts[j + 1] if j + 1 < high else 0
        power, its_slope = load(m, step * L), load(m, (POWERS // 2 + step) * L)
        slope = fma(slope, power, total * its_slope)
        shift = (j + 1) * size
        total = fma(total, power, entry_product(w, mine + shift, at + shift, both))
    return total, slope


@inlined
def powers(m: Any, x: Any, top: int) -> None:
    """x^(2^b) for b ≤ top into the head of the workspace, and their derivatives 2^b x^(2^b − 1)."""
    L = lanes(m)
    power, slope = x, constant(m, 1.0)
    for b in range(top + 1):
        store(m, b * L, power)
        store(m, (POWERS // 2 + b) * L, slope)
        slope = slope * power * constant(m, 2.0)
        power = power * power


def series_back(both: bool) -> Callable[..., None]:
    """`back` of maps.py for a series."""

    def run(w: Any) -> None:
        m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
        n, size = op[C0], op[TABLE_SIZE]
        even, count = op[EVEN_TERMS], op[EVEN_TERMS] + op[ODD_TERMS]
        shifts = shifted(w.taps, op[SHIFTS])
        known, slot = op[ADDRESSES], op[SLOT]
        sums, own_shares = address(frame[known]), address_like(m, frame[known + 1])
        zero, one, two, scale = constant(m, 0.0), constant(m, 1.0), constant(m, 2.0), constant(m, numbers[SCALE])
        behind = count * size
        top = largest(shifts, count)
        for r in range(op[A0] * op[B0]):
            entry = entry_of_row(op, r)
            src = frame[BASE] + (op[SRC] + r * n) * L
            times = frame[BASE] + (op[BACK_TIMES] + r * n) * L
            dst = frame[BASE] + (op[DST] + r * n) * L
            value = zero
            for c in range(n):
                mine, at = frame[OWN_AT] + op[OWN_TABLE] + entry + c, op[TABLE] + entry + c
                inverse = entry_product(w, mine, at, both)
                rho = clamped(load(m, src + c * L) * inverse, one)
                powers(m, rho * rho, top)
                evens, their_slope = horner(w, mine, at, size, both, 0, even, shifts)
                odds, odd_slope = horner(w, mine, at, size, both, even, count, shifts)
                f = fma(odds, rho, evens)
                by_rho = fma(two * rho, fma(odd_slope, rho, their_slope), odds)
                first_even, _ = horner(w, mine + behind, at, size, both, 0, even, shifts)
                first_odd, _ = horner(w, mine + behind, at, size, both, even, count, shifts)
                second_even, _ = horner(w, mine, at + behind, size, both, 0, even, shifts)
                second_odd, _ = horner(w, mine, at + behind, size, both, even, count, shifts)
                turned = rho * by_rho
                first = fma(first_odd, rho, first_even) - turned
                second = fma(second_odd, rho, second_even) - turned
                h = load(m, times + c * L)
                value = fma(h, f, value)
                t = h * scale
                if op[WRITES]:
                    g = t * (inverse * by_rho)
                    store(m, dst + c * L, g + load(m, dst + c * L) if numbers[KEEP] != 0.0 else g)
                o = frame[known + 2] + (op[SHARES] + entry + c) * L
                store(m, o, fma(t, second, load(m, o)))
                if both:
                    o = frame[known + 2] + (op[OWN_SHARES] + entry + c) * L
                    store(m, o, fma(t, first, load(m, o)))
                else:
                    add_at(own_shares, op[OWN_SHARES] + entry + c, lane_sum(t * first))
            sums[slot] += lane_sum(value)

    return run


@inlined
def chebyshev(c: Any, at: int, n: int, t: float) -> Any:
    """Σ_i c[at + i] T_i(t) by Clenshaw's rule, and its derivative."""
    b1 = b2 = d1 = d2 = 0.0
    for i in range(n - 1, 0, -1):
        d1, d2 = 2.0 * b1 + 2.0 * t * d1 - d2, d1
        b1, b2 = c[at + i] + 2.0 * t * b1 - b2, b1
    return c[at] + t * b1 - b2, b1 + t * d1 - d2


@inlined
def second_moment(s: float, packed: Any) -> Any:
    """E[fn(sz)²], and s times its derivative."""
    p, t, per_s, power = panel_of(s, packed)
    value, slope = chebyshev(packed, second_coefficients(packed, p), int(packed[SECOND_WIDTH]), t)
    factor = s * s if power == 1.0 else 1.0
    return factor * value, factor * (2.0 * power * value + slope * per_s)


def series_variances(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
    """1/√K₁, A_j(s) and s A_j'(s) into the table, E[fn(sz)²] onwards."""
    m, peaks, table, op, numbers, L = w.m, w.own, w.table, w.op, w.numbers, lanes(w.m)
    far, peak_at = op[TABLE_SIZE] * L, op[SITE] * L
    even, count, packed = op[EVEN_TERMS], op[EVEN_TERMS] + op[ODD_TERMS], shifted(w.panels, op[SERIES_AT])
    for e in range(n * L):
        K = m[src + e]
        peaks[peak_at + e % L] = max(peaks[peak_at + e % L], K)
        entry = at * L + e
        table[entry] = inverse_root(K, numbers[SMALLEST])
        s = math.sqrt(numbers[UNIT] * K)
        p, t, per_s, power = panel_of(s, packed)
        factor = s if power == 1.0 else 1.0
        start, width, skipped = panel_rows(packed, p, even)
        for j in range(count):
            row = j if j < even else j + skipped
            value, slope = chebyshev(packed, start + row * width, width, t)
            table[entry + (1 + j) * far] = factor * value
            table[entry + (1 + count + j) * far] = factor * (power * value + slope * per_s)
        m[dst + e], _ = second_moment(s, packed)


def series_still(w: Any) -> None:
    """`still` of maps.py for a series."""
    m, table, op, numbers, frame, L = w.m, w.table, w.op, w.numbers, w.frame, lanes(w.m)
    n, packed, known, slot = op[C0], shifted(w.panels, op[SERIES_AT]), op[ADDRESSES], op[SLOT]
    sums = address(frame[known])
    for r in range(op[A0] * op[B0]):
        entry = entry_of_row(op, r)
        src = frame[BASE] + (op[SRC] + r * n) * L
        times = frame[BASE] + (op[BACK_TIMES] + r * n) * L
        dst = frame[BASE] + (op[DST] + r * n) * L
        at, share = (op[TABLE] + entry) * L, frame[known + 2] + (op[SHARES] + entry) * L
        for e in range(n * L):
            K, h, inverse = m[src + e], m[times + e], table[at + e]
            value, slope = second_moment(math.sqrt(numbers[UNIT] * K), packed)
            sums[slot] += h * value
            if op[WRITES]:
                half = 0.5 * inverse * inverse  # ∂ log s/∂K₁, and 0 where there is no variance
                total = half * (numbers[SCALE] * h * slope + m[share + e])
                m[dst + e] = total + m[dst + e] if numbers[KEEP] != 0.0 else total
