"""The series of an Elementwise at one location, Σ_j A_j(s) A_j(s') ρ^k with s = √K₁ and ρ = K/(ss').

    ∂V/∂K = (1/ss') ∂V/∂ρ,     ∂V/∂K₁ = (Σ_j s A_j'(s) A_j(s') ρ^k − ρ ∂V/∂ρ)/2K₁

Tables hold r = 1/√K₁ for ρ = K r r', then the A_j, those of even powers first, and for gradients the s A_j'(s). Both
parities are summed by Horner's rule in ρ². Rows may skip powers: the first vectors of the workspace, its head, hold
ρ^(2·2^b), and their second half the derivatives by ρ².
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cnngp.kernel.formulas.family import inverse_root
from cnngp.kernel.series import packed as head

from .. import columns as col
from ..compiling import inlined
from ..simd import absolute, constant, copysign, exponent_of, fma, lanes, load, shifted, store, where_less
from ..work import entry_product

# The derivatives by ρ² in the head.
_SLOPES = col.POWERS // 2


@inlined
def store_powers(m: Any, x: Any, top: int, slopes: bool) -> None:
    """Store x^(2^b) for b ≤ top, and with `slopes` their derivatives 2^b x^(2^b − 1), in the head."""
    L = lanes(m)
    power, slope = x, constant(m, 1.0)
    for b in range(top + 1):
        store(m, b * L, power)
        if slopes:
            store(m, (_SLOPES + b) * L, slope)
            slope = slope * power * constant(m, 2.0)
        power = power * power


@inlined
def last_power(shifts: Any, first: int, count: int) -> int:
    """Return n of the last of `count` rows of one parity, k = 2n or 2n + 1; the first has n = 0."""
    n = 0
    for j in range(first + 1, first + count):
        n += 1 << shifts[j]
    return n


def form(both: bool) -> tuple[Any, ...]:
    """Return the functions of a `Form`."""

    @inlined
    def begin(w: Any) -> Any:
        even, shifts = w.op[col.EVEN_TERMS], shifted(w.taps, w.op[col.SHIFTS])
        count, top = even + w.op[col.ODD_TERMS], 0  # the highest power that rows need
        for j in range(count):
            top = max(top, shifts[j])
        last_even, last_odd = last_power(shifts, 0, even), last_power(shifts, even, count - even)
        return even, count, w.op[col.TABLE_SIZE], shifts, top, last_even, last_odd

    @inlined
    def correlation(w: Any, K: Any, r: Any) -> Any:
        """ρ, clipped to ±1, which rounding may exceed."""
        rho, one = K * r, constant(w.m, 1.0)
        wide = absolute(rho)
        return copysign(where_less(wide, one, wide, one), rho)

    @inlined
    def term(w: Any, own_at: int, at: int, j: int, size: int) -> Any:
        shift = (j + 1) * size
        return entry_product(w, own_at + shift, at + shift, both)

    @inlined
    def horner(w: Any, own_at: int, at: int, low: int, high: int, size: int, shifts: Any) -> Any:
        """Σ_j a_j b_j x^(n_j − n_low) for the rows low … high − 1, and its derivative by x."""
        m, L = w.m, lanes(w.m)
        total = slope = constant(m, 0.0)
        if high > low:
            total = term(w, own_at, at, high - 1, size)
        for j in range(high - 2, low - 1, -1):
            step = shifts[j + 1]
            power = load(m, step * L)
            slope = fma(slope, power, total * load(m, (_SLOPES + step) * L))
            total = fma(total, power, term(w, own_at, at, j, size))
        return total, slope

    @inlined
    def weighted(w: Any, own_at: int, at: int, low: int, high: int, size: int, shifts: Any, last: int) -> Any:
        """`horner` with each row multiplied by the exponent k of its ρ^k, of which `last` is that of the last row."""
        m, L, k = w.m, lanes(w.m), last
        total = constant(m, 0.0)
        if high > low:
            total = term(w, own_at, at, high - 1, size) * constant(m, float(k))
        for j in range(high - 2, low - 1, -1):
            k -= 2 << shifts[j + 1]
            total = fma(total, load(m, shifts[j + 1] * L), term(w, own_at, at, j, size) * constant(m, float(k)))
        return total

    @inlined
    def value(w: Any, K: Any, own_at: int, at: int, c: Any) -> Any:
        even, count, size, shifts, top, _, _ = c
        rho = correlation(w, K, entry_product(w, own_at, at, both))
        store_powers(w.m, rho * rho, top, False)
        odds, _ = horner(w, own_at, at, even, count, size, shifts)
        evens, _ = horner(w, own_at, at, 0, even, size, shifts)
        return fma(odds, rho, evens)

    @inlined
    def slope(w: Any, K: Any, own_at: int, at: int, c: Any) -> Any:
        """rr' Σ_j k A_j A'_j ρ^(k−1): odd k by Horner's rule in ρ², even k from k = 2 on, times ρ."""
        even, count, size, shifts, top, last_even, last_odd = c
        r = entry_product(w, own_at, at, both)
        rho = correlation(w, K, r)
        store_powers(w.m, rho * rho, top, False)
        odds = weighted(w, own_at, at, even, count, size, shifts, 2 * last_odd + 1)
        evens = weighted(w, own_at, at, 1, even, size, shifts, 2 * last_even)
        return r * fma(evens, rho, odds)

    @inlined
    def parts(w: Any, K: Any, own_at: int, at: int, c: Any) -> Any:
        even, count, size, shifts, top, _, _ = c
        behind = count * size
        inverse = entry_product(w, own_at, at, both)
        rho = correlation(w, K, inverse)
        store_powers(w.m, rho * rho, top, True)
        evens, even_slope = horner(w, own_at, at, 0, even, size, shifts)
        odds, odd_slope = horner(w, own_at, at, even, count, size, shifts)
        by_rho = fma(constant(w.m, 2.0) * rho, fma(odd_slope, rho, even_slope), odds)
        first_even, _ = horner(w, own_at + behind, at, 0, even, size, shifts)
        first_odd, _ = horner(w, own_at + behind, at, even, count, size, shifts)
        second_even, _ = horner(w, own_at, at + behind, 0, even, size, shifts)
        second_odd, _ = horner(w, own_at, at + behind, even, count, size, shifts)
        turned = rho * by_rho
        first, second = fma(first_odd, rho, first_even) - turned, fma(second_odd, rho, second_even) - turned
        return inverse * by_rho, first, second, fma(odds, rho, evens), constant(w.m, 0.0)

    @inlined
    def still(w: Any, K: float, at: int, h: float, share: float) -> Any:
        inverse, s, packed = w.table[at], math.sqrt(w.numbers[col.UNIT] * K), shifted(w.panels, w.op[col.SERIES_AT])
        value, slope = second_moment(s, panel_of(s, packed), packed)
        half = 0.5 * inverse * inverse  # ∂ log s/∂K₁, and 0 for a variance of 0
        return half * (w.numbers[col.SCALE] * h * slope + share), value, 0.0

    return begin, value, slope, parts, still


# ---- an image with itself ------------------------------------------------------------------------------------------


@inlined
def panel_of(s: float, packed: Any) -> Any:
    """Return the panel of s, its position t there in −1 … 1, dt/d log s, and the power of s."""
    p = 0
    if s >= packed[head.HEAD + 1]:
        p = min(exponent_of(s) - int(packed[head.EXPONENT]), int(packed[head.PANELS]) - 1)
    low, high = packed[head.HEAD + p], packed[head.HEAD + p + 1]
    power = 1.0 if p == 0 and packed[head.POWER] == 1.0 else 0.0
    return p, (2.0 * s - low - high) / (high - low), 2.0 * s / (high - low), power


@inlined
def chebyshev(c: Any, at: int, n: int, t: float) -> Any:
    """Return Σ_i c[at + i] T_i(t) by Clenshaw's rule, and its derivative."""
    b1 = b2 = d1 = d2 = 0.0
    for i in range(n - 1, 0, -1):
        d1, d2 = 2.0 * b1 + 2.0 * t * d1 - d2, d1
        b1, b2 = c[at + i] + 2.0 * t * b1 - b2, b1
    return c[at] + t * b1 - b2, b1 + t * d1 - d2


@inlined
def second_moment(s: float, panel: Any, packed: Any) -> Any:
    """Return E[fn(sz)²], and s times its derivative."""
    p, t, per_s, power = panel
    panels, rows, width = int(packed[head.PANELS]), int(packed[head.ROWS]), int(packed[head.SECOND_WIDTH])
    start = head.HEAD + panels + 1 + panels * rows * int(packed[head.WIDTH]) + p * width
    value, slope = chebyshev(packed, start, width, t)
    factor = s * s if power == 1.0 else 1.0
    return factor * value, factor * (2.0 * power * value + slope * per_s)


@inlined
def write_entries(w: Any, s: float, entry: int, panel: Any, packed: Any, slopes: bool) -> None:
    """Write A_j(s) into the table and, with `slopes`, s A_j'(s) after them."""
    p, t, per_s, power = panel
    even, far = w.op[col.EVEN_TERMS], w.op[col.TABLE_SIZE] * lanes(w.m)
    count = even + w.op[col.ODD_TERMS]
    factor = s if power == 1.0 else 1.0
    width = int(packed[head.WIDTH])
    start = head.HEAD + int(packed[head.PANELS]) + 1 + p * int(packed[head.ROWS]) * width
    skipped = int(packed[head.EVEN]) - even
    for j in range(count):
        row = j if j < even else j + skipped
        value, slope = chebyshev(packed, start + row * width, width, t)
        w.table[entry + j * far] = factor * value
        if slopes:
            w.table[entry + (count + j) * far] = factor * (power * value + slope * per_s)


def variance_row(slopes: bool) -> Callable[..., None]:
    """`variance_row` of forms.py."""

    def run(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
        m, peaks, table, op, L = w.m, w.own, w.table, w.op, lanes(w.m)
        peak_at, packed = op[col.SITE] * L, shifted(w.panels, op[col.SERIES_AT])
        for e in range(n * L):
            K, entry = m[src + e], at * L + e
            peaks[peak_at + e % L] = max(peaks[peak_at + e % L], K)
            table[entry] = inverse_root(K, w.numbers[col.SMALLEST])
            s = math.sqrt(w.numbers[col.UNIT] * K)
            panel = panel_of(s, packed)
            write_entries(w, s, entry + op[col.TABLE_SIZE] * L, panel, packed, slopes)
            m[dst + e], _ = second_moment(s, panel, packed)

    return run


def variance_slope_row(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
    """`variance_slope_row` of forms.py."""
    m, table, op, L = w.m, w.table, w.op, lanes(w.m)
    times, mine, far = src + op[col.TIMES] * L, w.numbers[col.OWN], op[col.TABLE_SIZE] * L
    even, odd, packed = op[col.EVEN_TERMS], op[col.ODD_TERMS], shifted(w.panels, op[col.SERIES_AT])
    shifts = shifted(w.taps, op[col.SHIFTS])
    for e in range(n * L):
        K, slope = m[src + e], 0.0
        if K > 0.0:
            entry = at * L + e + far
            s = math.sqrt(w.numbers[col.UNIT] * K)
            write_entries(w, s, entry, panel_of(s, packed), packed, False)
            for parity in range(2):
                first, count = (even, odd) if parity == 1 else (0, even)
                k = parity
                for j in range(first, first + count):
                    if j > first:
                        k += 2 << shifts[j]
                    A = table[entry + j * far]
                    slope += k * A * A
            slope /= K
        m[dst + e] = slope * (m[times + e] + mine * K)
