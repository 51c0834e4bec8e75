"""The variance recursion along a row: f and f' at correlation one, and the entries of the images' tables, in float64.

A lane is an image. Formulas that need functions of the C library are computed a number at a time: an image has one row
where a pair has thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cnngp.kernel.formulas import Family
from cnngp.kernel.formulas.family import inverse_root

from ..plan import ALPHA, EVEN_TERMS, ODD_TERMS, OWN, SERIES_AT, SHIFTS, SITE, SMALLEST, TABLE_SIZE, TIMES, UNIT
from ..simd import constants, lanes, load, maximum, shifted, store
from .series import series_entries


def variance_row(family: Family) -> Callable[..., None]:
    """f at correlation one; the image's numbers go to its table, the largest variance to the peaks."""
    table, diagonal, peak, two = family.table, family.diagonal, family.peak, family.entries == 2

    def in_vectors(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
        m, peaks, L = w.m, w.own, lanes(w.m)
        size, peak_at = w.op[TABLE_SIZE], w.op[SITE] * L
        x = constants(m, (w.numbers[UNIT], w.numbers[ALPHA], w.numbers[SMALLEST]))
        top = load(peaks, peak_at)
        for e in range(n):
            K = load(m, src + e * L)
            top = maximum(top, peak(K, x))
            first, second = table(K, x)  # type: ignore[misc]
            store(w.table, (at + e) * L, first)
            if two:
                store(w.table, (at + size + e) * L, second)
            store(m, dst + e * L, diagonal(K, x))
        store(peaks, peak_at, top)

    def by_numbers(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
        m, peaks, L = w.m, w.own, lanes(w.m)
        peak_at, far = w.op[SITE] * L, w.op[TABLE_SIZE] * L
        x = w.numbers[UNIT], w.numbers[ALPHA], w.numbers[SMALLEST]
        for e in range(n * L):
            K = m[src + e]
            peaks[peak_at + e % L] = max(peaks[peak_at + e % L], peak(K, x))
            first, second = table(K, x)  # type: ignore[misc]
            w.table[at * L + e] = first
            if two:
                w.table[at * L + far + e] = second
            m[dst + e] = diagonal(K, x)

    return in_vectors if family.vectors else by_numbers


def variance_slope_row(family: Family) -> Callable[..., None]:
    """f' at correlation one. The image's table is not yet written, so all comes from K; where that is 0 so is Θ."""
    slope_diagonal = family.slope_diagonal

    def run(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
        m, L, own = w.m, lanes(w.m), w.numbers[OWN]
        times = src + w.op[TIMES] * L
        x = w.numbers[UNIT], w.numbers[ALPHA], w.numbers[SMALLEST]
        for e in range(n * L):
            K = m[src + e]
            m[dst + e] = slope_diagonal(K, x) * (m[times + e] + own * K)  # type: ignore[misc]

    return run


def series_variances(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
    """`variance_row` of an Elementwise."""
    m, peaks, table, op, L = w.m, w.own, w.table, w.op, lanes(w.m)
    peak_at, far = op[SITE] * L, op[TABLE_SIZE] * L
    packed = shifted(w.panels, op[SERIES_AT])
    for e in range(n * L):
        K, entry = m[src + e], at * L + e
        peaks[peak_at + e % L] = max(peaks[peak_at + e % L], K)
        table[entry] = inverse_root(K, w.numbers[SMALLEST])
        s = math.sqrt(w.numbers[UNIT] * K)
        m[dst + e] = series_entries(s, table, entry + far, far, op[EVEN_TERMS], op[ODD_TERMS], packed)


def series_variance_slopes(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
    """`variance_slope_row` of an Elementwise."""
    m, table, op, L = w.m, w.table, w.op, lanes(w.m)
    times, mine, far = src + op[TIMES] * L, w.numbers[OWN], op[TABLE_SIZE] * L
    even, odd, packed = op[EVEN_TERMS], op[ODD_TERMS], shifted(w.panels, op[SERIES_AT])
    shifts = shifted(w.taps, op[SHIFTS])
    for e in range(n * L):
        K, slope = m[src + e], 0.0
        if K > 0.0:
            entry = at * L + e + far
            series_entries(math.sqrt(w.numbers[UNIT] * K), table, entry, far, even, odd, packed)
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
