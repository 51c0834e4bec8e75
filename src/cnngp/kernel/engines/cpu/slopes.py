"""Slopes over one row of a map, f'(K) · (T + own · K): the counterpart of rows.py for operations with a tangent.

f' = ∂f/∂K in the units of the maps: the formulas are in program/formulas.py, tables and arguments are those of rows.py.
T lies as far behind K as the plan says. In the variance recursion, at equal places, an image's table is not yet
written: everything comes from K.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .plan import (
    ACT,
    ALPHA,
    BETA,
    COS,
    ERF,
    EVEN_TERMS,
    GELU_ACT,
    ODD_TERMS,
    OWN,
    RBF,
    RELU,
    RELU_FAMILY,
    SERIES,
    SERIES_AT,
    SHIFTS,
    SIN,
    SLOPE,
    TABLE_SIZE,
    TIMES,
    UNIT,
)
from .rows import PI, asin, exp, inlined, own_entry, series_entries
from .simd import (
    absolute,
    constant,
    copysign,
    expm1_y,
    fma,
    lanes,
    load,
    maximum,
    negated_fma,
    positive,
    relu_h,
    shifted,
    sqrt,
    store,
    where_less,
)


@inlined
def relu_slope(K: Any, root: Any, u: Any, one: Any, zero: Any) -> Any:
    """(π − θ)/π with u = 1 − |cos θ| and its root."""
    angle = root * relu_h(u)
    return where_less(K, zero, angle, one - angle)


def relu_slope_row(both: bool) -> Callable[..., None]:
    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        size, times = op[TABLE_SIZE], src + op[TIMES] * L
        one, zero, mine = constant(m, 1.0), constant(m, 0.0), constant(m, numbers[OWN])
        alpha, beta = constant(m, numbers[ALPHA]), constant(m, numbers[BETA])
        for c in range(n):
            K = load(m, src + c * L)
            q = own_entry(own, lane, own_at + size + c, both) * load(lane, (at + size + c) * L)
            u = positive(negated_fma(absolute(K), q, one))
            slope = fma(relu_slope(K, sqrt(u), u, one, zero), alpha, beta)
            store(m, dst + c * L, slope * fma(K, mine, load(m, times + c * L)))

    return run


def erf_slope_row(both: bool) -> Callable[..., None]:
    """tt'/√(1 − x²), x = Ktt'. 1 − x² is at least a + b − ab, a = 1/(1 + 2K₁) = t²/(2 unit), as |K| ≤ √(K₁K₂)."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        times = src + op[TIMES] * L
        one, mine, per_unit = constant(m, 1.0), constant(m, numbers[OWN]), constant(m, (2.0 * numbers[UNIT]) ** -0.5)
        for c in range(n):
            K = load(m, src + c * L)
            t, t2 = own_entry(own, lane, own_at + c, both), load(lane, (at + c) * L)
            tt = t * t2
            size = absolute(K * tt)
            a, b = t * per_unit, t2 * per_unit
            a, b = a * a, b * b
            rest = maximum((one - size) * (one + size), negated_fma(a, b, a + b))
            store(m, dst + c * L, tt / sqrt(rest) * fma(K, mine, load(m, times + c * L)))

    return run


def sin_cos_slope_row(both: bool) -> Callable[..., None]:
    """unit · ½(e^{K−h−h'} ± e^{−K−h−h'}): the slope of the one is the formula of the other."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        times = src + op[TIMES] * L
        unit, half, two, one = constant(m, numbers[UNIT]), constant(m, 0.5), constant(m, 2.0), constant(m, 1.0)
        mine = constant(m, numbers[OWN])
        for c in range(n):
            raw = load(m, src + c * L)
            K = raw * unit
            size = absolute(K)
            h = own_entry(own, lane, own_at + c, both) + load(lane, (at + c) * L)
            rise = half * exp(m, size - h)
            y = size * two
            fall = exp(m, constant(m, 0.0) - y)
            if op[ACT] == SLOPE + COS:
                below = where_less(y, constant(m, 0.7), y * expm1_y(y), one - fall)
                slope = copysign(rise * below, K)
            else:
                slope = fma(rise, fall, rise)
            store(m, dst + c * L, unit * slope * fma(raw, mine, load(m, times + c * L)))

    return run


def rbf_slope_row(both: bool) -> Callable[..., None]:
    """unit · e^{K−h−h'}; the unit holds 2γ."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        times = src + op[TIMES] * L
        unit, zero, mine = constant(m, numbers[UNIT]), constant(m, 0.0), constant(m, numbers[OWN])
        for c in range(n):
            K = load(m, src + c * L)
            h = own_entry(own, lane, own_at + c, both) + load(lane, (at + c) * L)
            x = positive(negated_fma(K, unit, h))
            store(m, dst + c * L, unit * exp(m, zero - x) * fma(K, mine, load(m, times + c * L)))

    return run


def gelu_slope_row(both: bool) -> Callable[..., None]:
    """unit · (¼ + (asin x + (x/q)(a + b + ab + ab x²/q²))/2π), a = 1/(1 + K₁) = t², q² = 1 − x² ≥ a + b − ab."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        times = src + op[TIMES] * L
        unit, per_unit = constant(m, numbers[UNIT]), constant(m, numbers[UNIT] ** -0.5)
        one, quarter, scale = constant(m, 1.0), constant(m, 0.25), constant(m, 0.5 / PI)
        mine = constant(m, numbers[OWN])
        for c in range(n):
            K = load(m, src + c * L)
            t, t2 = own_entry(own, lane, own_at + c, both), load(lane, (at + c) * L)
            x = K * (t * t2)
            wide = absolute(x)
            a, b = t * per_unit, t2 * per_unit
            a, b = a * a, b * b
            ab = a * b
            square = maximum((one - wide) * (one + wide), a + b - ab)
            ratio = x / sqrt(square)
            inner = fma(ratio, fma(ab, ratio * ratio, a + b + ab), asin(m, x))
            slope = unit * fma(inner, scale, quarter)
            store(m, dst + c * L, slope * fma(K, mine, load(m, times + c * L)))

    return run


@inlined
def last_power(shifts: Any, first: int, count: int) -> int:
    """n of the last of `count` rows of one parity, k = 2n or 2n + 1; the first has n = 0."""
    n = 0
    for j in range(first + 1, first + count):
        n += 1 << shifts[j]
    return n


def series_slope_row(both: bool) -> Callable[..., None]:
    """rr' Σ_j k A_j A'_j ρ^(k−1): odd k by Horner's rule in ρ² as in `series_row`, even k from k = 2 on, times ρ."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        size, times = op[TABLE_SIZE], src + op[TIMES] * L
        even, odd, shifts = op[EVEN_TERMS], op[ODD_TERMS], shifted(taps, op[SHIFTS])
        one, mine = constant(m, 1.0), constant(m, numbers[OWN])
        top = 0
        for j in range(even + odd):
            top = max(top, shifts[j])
        last_even, last_odd = last_power(shifts, 0, even), last_power(shifts, even, odd)
        for c in range(n):
            K = load(m, src + c * L)
            r = own_entry(own, lane, own_at + c, both) * load(lane, (at + c) * L)
            rho = K * r
            wide = absolute(rho)
            rho = copysign(where_less(wide, one, wide, one), rho)
            power = rho * rho
            for b in range(top + 1):
                store(m, b * L, power)
                power = power * power
            total = constant(m, 0.0)
            k = 2 * last_odd + 1
            for j in range(even + odd - 1, even - 1, -1):
                shift = (j + 1) * size + c
                step = shifts[j + 1] if j + 1 < even + odd else 0
                term = own_entry(own, lane, own_at + shift, both) * load(lane, (at + shift) * L)
                total = fma(total, load(m, step * L), term * constant(m, float(k)))
                k -= 2 << shifts[j]
            rest = constant(m, 0.0)
            k = 2 * last_even
            for j in range(even - 1, 0, -1):
                shift = (j + 1) * size + c
                step = shifts[j + 1] if j + 1 < even else 0
                term = own_entry(own, lane, own_at + shift, both) * load(lane, (at + shift) * L)
                rest = fma(rest, load(m, step * L), term * constant(m, float(k)))
                k -= 2 << shifts[j]
            store(m, dst + c * L, r * fma(rest, rho, total) * fma(K, mine, load(m, times + c * L)))

    return run


def slope_variances(
    m: Any, src: int, dst: int, n: int, peaks: Any, unused: int, table: Any, at: int, op: Any, numbers: Any, taps: Any,
    panels: Any,
) -> None:  # fmt: skip
    """f' at correlation one, from K alone; where a variance is 0 so is Θ."""
    L = lanes(m)
    act, times, unit, mine = op[ACT] - SLOPE, src + op[TIMES] * L, numbers[UNIT], numbers[OWN]
    even, odd, packed = op[EVEN_TERMS], op[ODD_TERMS], shifted(panels, op[SERIES_AT])
    shifts, far = shifted(taps, op[SHIFTS]), op[TABLE_SIZE] * L
    for e in range(n * L):
        K = m[src + e]
        true = unit * K
        slope = numbers[ALPHA] + numbers[BETA]
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


def slope_rows(both: bool) -> dict[int, Callable[..., None]]:
    return {
        SLOPE + RELU: relu_slope_row(both),
        SLOPE + RELU_FAMILY: relu_slope_row(both),
        SLOPE + ERF: erf_slope_row(both),
        SLOPE + SIN: sin_cos_slope_row(both),
        SLOPE + COS: sin_cos_slope_row(both),
        SLOPE + RBF: rbf_slope_row(both),
        SLOPE + GELU_ACT: gelu_slope_row(both),
        SLOPE + SERIES: series_slope_row(both),
    }


# As in rows.py: for pairs, for images with themselves at two different places, and at the same place.
PAIR_SLOPES = slope_rows(both=False)
SELF_SLOPES = slope_rows(both=True)
VARIANCE_SLOPES: dict[int, Callable[..., None]] = dict.fromkeys(PAIR_SLOPES, slope_variances)
