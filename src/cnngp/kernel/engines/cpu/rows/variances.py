"""The variance recursion along a row: f and f' at correlation one, and the entries of the images' tables, in float64.

A lane is an image. The formulas of the ReLU's family are vectors; the others need functions of the C library, and are
rare: an image has one row where a pair has thousands.
"""

from __future__ import annotations

import math
from typing import Any

from ..compiling import inlined
from ..plan import (
    ACT,
    COS,
    ERF,
    EVEN_TERMS,
    GELU_ACT,
    ODD_TERMS,
    OWN,
    RBF,
    SERIES,
    SERIES_AT,
    SHIFTS,
    SIN,
    SITE,
    SLOPE,
    SMALLEST,
    STEP,
    TABLE_SIZE,
    TIMES,
    UNIT,
)
from ..simd import constant, lanes, load, maximum, shifted, sqrt, store, where_less
from .elementary import PI
from .series import series_entries


def relu_variances(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
    """√K and 1/√K into the table, K itself onwards, as α + β = 1.

    Below `SMALLEST` 1/√K is 0: there the correlation counts as 0.
    """
    m, peaks, table, L = w.m, w.own, w.table, lanes(w.m)
    size, peak_at = w.op[TABLE_SIZE], w.op[SITE] * L
    zero, one, least = constant(m, 0.0), constant(m, 1.0), constant(m, w.numbers[SMALLEST])
    peak = load(peaks, peak_at)
    for c in range(n):
        K = load(m, src + c * L)
        s = sqrt(K)
        peak = maximum(peak, K)
        store(table, (at + c) * L, s)
        store(table, (at + size + c) * L, where_less(least, s, one / s, zero))
        store(m, dst + c * L, K)
    store(peaks, peak_at, peak)


@inlined
def inverse_root(K: float, smallest: float) -> float:
    s = math.sqrt(K)
    return 1.0 / s if s > smallest else 0.0


def other_variances(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
    """The nonlinearities that are not of the ReLU's family: f at correlation one, table entries and peaks likewise."""
    m, peaks, table, op, numbers, L = w.m, w.own, w.table, w.op, w.numbers, lanes(w.m)
    act, size, peak_at, smallest = op[ACT], op[TABLE_SIZE], op[SITE] * L, numbers[SMALLEST]
    even, odd, packed = op[EVEN_TERMS], op[ODD_TERMS], shifted(w.panels, op[SERIES_AT])
    unit = numbers[UNIT]
    far = size * L
    for e in range(n * L):
        K = m[src + e]
        extreme = max(K, 1.0 / K) if act == STEP and K > 0.0 else K  # see `check_range`
        peaks[peak_at + e % L] = max(peaks[peak_at + e % L], extreme)
        entry = at * L + e
        true = unit * K
        if act == ERF:
            table[entry] = math.sqrt(2.0 * unit / (1.0 + 2.0 * true))
            m[dst + e] = math.atan2(2.0 * true, math.sqrt(1.0 + 4.0 * true))  # asin(2K/(1 + 2K)), exact for large K
        elif act == STEP:
            table[entry] = inverse_root(K, smallest)
            m[dst + e] = PI if K > 0.0 else 0.0
        elif act == SIN:
            table[entry] = 0.5 * true
            m[dst + e] = -0.5 * math.expm1(-2.0 * true)
        elif act == COS:
            table[entry] = 0.5 * true
            m[dst + e] = 0.5 + 0.5 * math.exp(-2.0 * true)
        elif act == RBF:
            table[entry] = 0.5 * true
            m[dst + e] = 1.0
        elif act == GELU_ACT:
            t2 = 1.0 / (1.0 + true)
            x = true * t2
            q = math.sqrt(1.0 + 2.0 * true) * t2
            angle = math.atan2(true, math.sqrt(1.0 + 2.0 * true))  # asin x, exact for large K
            table[entry] = math.sqrt(unit * t2)
            table[entry + far] = true * math.sqrt(t2)
            m[dst + e] = 0.25 * true + (true * angle + x * x * t2 / q + true * x * q) / (2.0 * PI)
        elif act == SERIES:
            table[entry] = inverse_root(K, smallest)
            m[dst + e] = series_entries(math.sqrt(true), table, entry + far, far, even, odd, packed)


def slope_variances(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
    """f' at correlation one. The image's table is not yet written, so all comes from K; where that is 0 so is Θ."""
    m, table, op, numbers, L = w.m, w.table, w.op, w.numbers, lanes(w.m)
    act, times, unit, mine = op[ACT] - SLOPE, src + op[TIMES] * L, numbers[UNIT], numbers[OWN]
    even, odd, packed = op[EVEN_TERMS], op[ODD_TERMS], shifted(w.panels, op[SERIES_AT])
    shifts, far = shifted(w.taps, op[SHIFTS]), op[TABLE_SIZE] * L
    for e in range(n * L):
        K = m[src + e]
        true = unit * K
        slope = 1.0
        if act == ERF:
            slope = 2.0 * unit / math.sqrt(1.0 + 4.0 * true)
        elif act == SIN:
            slope = unit * (0.5 + 0.5 * math.exp(-2.0 * true))
        elif act == COS:
            slope = -0.5 * unit * math.expm1(-2.0 * true)
        elif act == RBF:
            slope = unit
        elif act == GELU_ACT:
            root = math.sqrt(1.0 + 2.0 * true)
            angle, a = math.atan2(true, root), 1.0 / (1.0 + true)  # asin x, and x/q = K/√(1 + 2K)
            ratio = true / root
            inner = angle + ratio * (2.0 * a + a * a * (1.0 + ratio * ratio))
            slope = unit * (0.25 + inner / (2.0 * PI))
        elif act == SERIES:
            slope = 0.0
            if K > 0.0:
                entry = at * L + e + far
                series_entries(math.sqrt(true), table, entry, far, even, odd, packed)
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
