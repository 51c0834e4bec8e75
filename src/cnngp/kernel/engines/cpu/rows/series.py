"""An Elementwise's series along a row, Σ_j A_j A'_j ρ^k: its value, its slope, and the table entries A_j of an image.

Tables hold r = 1/√K₁ for ρ = K r r', then the A_j, those of even powers first. Both parities are summed by Horner's
rule in ρ². Rows may step over powers: the first POWERS vectors of the workspace hold ρ^(2·2^b).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cnngp.kernel.series.packed import EVEN, EXPONENT, HEAD, PANELS, POWER, ROWS, SECOND_WIDTH, WIDTH

from ..compiling import inlined
from ..plan import EVEN_TERMS, ODD_TERMS, OWN, SHIFTS, TABLE_SIZE, TIMES
from ..simd import absolute, constant, copysign, exponent_of, fma, lanes, load, shifted, store, where_less
from ..work import entry_product


@inlined
def largest(shifts: Any, count: int) -> int:
    """The largest of the first `count` shifts: the highest power that rows ask for."""
    top = 0
    for j in range(count):
        top = max(top, shifts[j])
    return top


@inlined
def clamped(rho: Any, one: Any) -> Any:
    """A correlation, which rounding may have put beyond ±1."""
    wide = absolute(rho)
    return copysign(where_less(wide, one, wide, one), rho)


@inlined
def store_powers(m: Any, power: Any, top: int) -> None:
    """x^(2^b) for b ≤ top into the head of the workspace."""
    for b in range(top + 1):
        store(m, b * lanes(m), power)
        power = power * power


def series_row(both: bool) -> Callable[..., None]:
    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, size = w.m, lanes(w.m), w.op[TABLE_SIZE]
        even, odd, shifts = w.op[EVEN_TERMS], w.op[ODD_TERMS], shifted(w.taps, w.op[SHIFTS])
        one, top = constant(m, 1.0), largest(shifts, even + odd)
        for c in range(n):
            rho = clamped(load(m, src + c * L) * entry_product(w, own_at + c, at + c, both), one)
            store_powers(m, rho * rho, top)
            sums = constant(m, 0.0)
            for j in range(even + odd - 1, even - 1, -1):
                shift = (j + 1) * size + c
                step = shifts[j + 1] if j + 1 < even + odd else 0
                sums = fma(sums, load(m, step * L), entry_product(w, own_at + shift, at + shift, both))
            total = constant(m, 0.0)
            for j in range(even - 1, -1, -1):
                shift = (j + 1) * size + c
                step = shifts[j + 1] if j + 1 < even else 0
                total = fma(total, load(m, step * L), entry_product(w, own_at + shift, at + shift, both))
            store(m, dst + c * L, fma(sums, rho, total))

    return run


@inlined
def last_power(shifts: Any, first: int, count: int) -> int:
    """n of the last of `count` rows of one parity, k = 2n or 2n + 1; the first has n = 0."""
    n = 0
    for j in range(first + 1, first + count):
        n += 1 << shifts[j]
    return n


def series_slope_row(both: bool) -> Callable[..., None]:
    """rr' Σ_j k A_j A'_j ρ^(k−1): odd k by Horner's rule in ρ², even k from k = 2 on, times ρ."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, size = w.m, lanes(w.m), w.op[TABLE_SIZE]
        times = src + w.op[TIMES] * L
        even, odd, shifts = w.op[EVEN_TERMS], w.op[ODD_TERMS], shifted(w.taps, w.op[SHIFTS])
        one, mine, top = constant(m, 1.0), constant(m, w.numbers[OWN]), largest(shifts, even + odd)
        last_even, last_odd = last_power(shifts, 0, even), last_power(shifts, even, odd)
        for c in range(n):
            K = load(m, src + c * L)
            r = entry_product(w, own_at + c, at + c, both)
            rho = clamped(K * r, one)
            store_powers(m, rho * rho, top)
            total = constant(m, 0.0)
            k = 2 * last_odd + 1
            for j in range(even + odd - 1, even - 1, -1):
                shift = (j + 1) * size + c
                step = shifts[j + 1] if j + 1 < even + odd else 0
                term = entry_product(w, own_at + shift, at + shift, both)
                total = fma(total, load(m, step * L), term * constant(m, float(k)))
                k -= 2 << shifts[j]
            rest = constant(m, 0.0)
            k = 2 * last_even
            for j in range(even - 1, 0, -1):
                shift = (j + 1) * size + c
                step = shifts[j + 1] if j + 1 < even else 0
                term = entry_product(w, own_at + shift, at + shift, both)
                rest = fma(rest, load(m, step * L), term * constant(m, float(k)))
                k -= 2 << shifts[j]
            store(m, dst + c * L, r * fma(rest, rho, total) * fma(K, mine, load(m, times + c * L)))

    return run


@inlined
def panel_of(s: float, packed: Any) -> Any:
    """Which panel s lies on, its place there in −1 … 1, what that changes by with log s, and the power of s."""
    p = 0
    if s >= packed[HEAD + 1]:
        p = min(exponent_of(s) - int(packed[EXPONENT]), int(packed[PANELS]) - 1)
    low, high = packed[HEAD + p], packed[HEAD + p + 1]
    power = 1.0 if p == 0 and packed[POWER] == 1.0 else 0.0
    return p, (2.0 * s - low - high) / (high - low), 2.0 * s / (high - low), power


@inlined
def panel_rows(packed: Any, p: int, even: int) -> Any:
    """Of panel p: where the Chebyshev coefficients of its rows start, how many a row has, and how many rows to step
    over from the first `even` ones to the odd ones.
    """
    width = int(packed[WIDTH])
    return HEAD + int(packed[PANELS]) + 1 + p * int(packed[ROWS]) * width, width, int(packed[EVEN]) - even


@inlined
def second_coefficients(packed: Any, p: int) -> int:
    """Where those of E[fn(sz)²] start."""
    panels, rows, width = int(packed[PANELS]), int(packed[ROWS]), int(packed[WIDTH])
    return HEAD + panels + 1 + panels * rows * width + p * int(packed[SECOND_WIDTH])


@inlined
def _chebyshev(c: Any, at: int, n: int, t: float) -> float:
    """Σ_i c[at + i] T_i(t) by Clenshaw's rule."""
    b1 = b2 = 0.0
    for i in range(n - 1, 0, -1):
        b1, b2 = c[at + i] + 2.0 * t * b1 - b2, b1
    return c[at] + t * b1 - b2  # type: ignore[no-any-return]


@inlined
def series_entries(s: float, table: Any, entry: int, far: int, even: int, odd: int, packed: Any) -> float:
    """A_j(s) into the table for the first `even` and `odd` rows; E[fn(sz)²] is returned. See `hermite.evaluate`."""
    p, t, _, odd_function = panel_of(s, packed)
    power = s if odd_function == 1.0 else 1.0
    start, width, skipped = panel_rows(packed, p, even)
    second, width2 = second_coefficients(packed, p), int(packed[SECOND_WIDTH])
    for j in range(even + odd):
        row = j if j < even else j + skipped
        table[entry + j * far] = power * _chebyshev(packed, start + row * width, width, t)
    return power * power * _chebyshev(packed, second, width2, t)  # type: ignore[no-any-return]
