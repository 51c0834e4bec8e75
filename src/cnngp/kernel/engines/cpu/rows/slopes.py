"""Slopes over one row of a map, f'(K) · (T + own · K): the counterpart of values.py for operations with a tangent.

f' = ∂f/∂K in the units of the maps: the formulas are in program/formulas.py, tables and arguments are those of
values.py. T lies as far behind K as the plan says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..plan import ACT, ALPHA, BETA, COS, OWN, SLOPE, TABLE_SIZE, TIMES, UNIT
from ..simd import absolute, constant, fma, lanes, load, maximum, negated_fma, positive, sqrt, store
from ..work import entry, entry_product, own_entry
from .elementary import PI, asin, cosine, erf_root, exp, relu_slope, rise_and_fall, sine


def relu_slope_row(both: bool) -> Callable[..., None]:
    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, size = w.m, lanes(w.m), w.op[TABLE_SIZE]
        times = src + w.op[TIMES] * L
        one, zero, mine = constant(m, 1.0), constant(m, 0.0), constant(m, w.numbers[OWN])
        alpha, beta = constant(m, w.numbers[ALPHA]), constant(m, w.numbers[BETA])
        for c in range(n):
            K = load(m, src + c * L)
            u = positive(negated_fma(absolute(K), entry_product(w, own_at + size + c, at + size + c, both), one))
            slope = fma(relu_slope(K, sqrt(u), u, one, zero), alpha, beta)
            store(m, dst + c * L, slope * fma(K, mine, load(m, times + c * L)))

    return run


def erf_slope_row(both: bool) -> Callable[..., None]:
    """tt'/√(1 − x²), x = Ktt'."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L = w.m, lanes(w.m)
        times = src + w.op[TIMES] * L
        mine, per_unit = constant(m, w.numbers[OWN]), constant(m, (2.0 * w.numbers[UNIT]) ** -0.5)
        for c in range(n):
            K = load(m, src + c * L)
            t, t2 = own_entry(w, own_at + c, both), entry(w, at + c)
            tt = t * t2
            slope = tt / erf_root(m, K * tt, t, t2, per_unit)
            store(m, dst + c * L, slope * fma(K, mine, load(m, times + c * L)))

    return run


def sin_cos_slope_row(both: bool) -> Callable[..., None]:
    """unit · ½(e^{K−h−h'} ± e^{−K−h−h'}): the slope of the one is the formula of the other."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L = w.m, lanes(w.m)
        times = src + w.op[TIMES] * L
        unit, mine = constant(m, w.numbers[UNIT]), constant(m, w.numbers[OWN])
        for c in range(n):
            K = load(m, src + c * L)
            true = K * unit
            rise, y, fall = rise_and_fall(m, true, own_entry(w, own_at + c, both) + entry(w, at + c))
            if w.op[ACT] == SLOPE + COS:
                slope = sine(m, true, rise, y, fall)
            else:
                slope = cosine(rise, fall)
            store(m, dst + c * L, unit * slope * fma(K, mine, load(m, times + c * L)))

    return run


def rbf_slope_row(both: bool) -> Callable[..., None]:
    """unit · e^{K−h−h'}; the unit holds 2γ."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L = w.m, lanes(w.m)
        times = src + w.op[TIMES] * L
        unit, zero, mine = constant(m, w.numbers[UNIT]), constant(m, 0.0), constant(m, w.numbers[OWN])
        for c in range(n):
            K = load(m, src + c * L)
            x = positive(negated_fma(K, unit, own_entry(w, own_at + c, both) + entry(w, at + c)))
            store(m, dst + c * L, unit * exp(m, zero - x) * fma(K, mine, load(m, times + c * L)))

    return run


def gelu_slope_row(both: bool) -> Callable[..., None]:
    """unit · (¼ + (asin x + (x/q)(a + b + ab + ab x²/q²))/2π), a = 1/(1 + K₁) = t², q² = 1 − x² ≥ a + b − ab."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L = w.m, lanes(w.m)
        times = src + w.op[TIMES] * L
        unit, per_unit = constant(m, w.numbers[UNIT]), constant(m, w.numbers[UNIT] ** -0.5)
        one, quarter, scale = constant(m, 1.0), constant(m, 0.25), constant(m, 0.5 / PI)
        mine = constant(m, w.numbers[OWN])
        for c in range(n):
            K = load(m, src + c * L)
            t, t2 = own_entry(w, own_at + c, both), entry(w, at + c)
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
