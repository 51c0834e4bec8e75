"""Sin and Cos: f = ½(e^{K−m} ∓ e^{−K−m}) with m = (K₁ + K₂)/2, for which tables hold h = K₁/2.

The slope of each is unit times the formula of the other; at correlation one ½ unit (1 ± e^{−2K₁}). The derivative of
both by K₁ is −½ unit · f.
"""

from __future__ import annotations

from typing import Any

from cnngp.network.layers import Cos, Sin

from .family import Family, Formula, formula
from .primitives import absolute, copysign, exp, exp_negative, expm1, fma, one_minus_exp, positive


def rise(K: Any, h: Any) -> Any:
    """½e^{|K|−h}. |K| ≤ h but for rounding, which is not small if the variance is large: the exponent is kept ≤ 0."""
    return 0.5 * exp_negative(0.0 - positive(h - absolute(K)))


def sine(K: Any, h: Any) -> Any:
    """½(e^{K−h} − e^{−K−h}), computed from 1 − e^{−2|K|}."""
    return copysign(rise(K, h) * one_minus_exp(absolute(K) * 2.0), K)


def cosine(K: Any, h: Any) -> Any:
    up = rise(K, h)
    return fma(up, exp_negative(0.0 - absolute(K) * 2.0), up)


def sin_value(K: Any, a: Any, b: Any, c: Any) -> Any:
    return sine(K * c[0], a[0] + b[0])


def cos_value(K: Any, a: Any, b: Any, c: Any) -> Any:
    return cosine(K * c[0], a[0] + b[0])


def sin_slope(K: Any, a: Any, b: Any, c: Any) -> Any:
    return c[0] * cos_value(K, a, b, c)


def cos_slope(K: Any, a: Any, b: Any, c: Any) -> Any:
    return c[0] * sin_value(K, a, b, c)


def sin_parts(K: Any, a: Any, b: Any, c: Any) -> Any:
    f = sin_value(K, a, b, c)
    return sin_slope(K, a, b, c), f, f, f, 0.0


def cos_parts(K: Any, a: Any, b: Any, c: Any) -> Any:
    f = cos_value(K, a, b, c)
    return cos_slope(K, a, b, c), f, f, f, 0.0


def table(K: Any, x: Any) -> Any:
    h = 0.5 * (x[0] * K)
    return h, h


def sin_diagonal(K: Any, x: Any) -> Any:
    return -0.5 * expm1(-2.0 * (x[0] * K))


def cos_diagonal(K: Any, x: Any) -> Any:
    return 0.5 + 0.5 * exp(-2.0 * (x[0] * K))


def sin_slope_diagonal(K: Any, x: Any) -> Any:
    return x[0] * cos_diagonal(K, x)


def cos_slope_diagonal(K: Any, x: Any) -> Any:
    return -0.5 * x[0] * expm1(-2.0 * (x[0] * K))


def sin_still(K: Any, x: Any) -> Any:
    return x[0] * exp(-2.0 * (x[0] * K)), -0.5 * x[0], sin_diagonal(K, x), 0.0


def cos_still(K: Any, x: Any) -> Any:
    return -x[0] * exp(-2.0 * (x[0] * K)), -0.5 * x[0], cos_diagonal(K, x), 0.0


SIN = Family("sin", 1, sin_value, table, sin_diagonal, sin_slope, sin_slope_diagonal, sin_parts, sin_still)
COS = Family("cos", 1, cos_value, table, cos_diagonal, cos_slope, cos_slope_diagonal, cos_parts, cos_still)


@formula.register
def _(layer: Sin) -> Formula:
    return Formula(SIN, lambda level: min(level, -1.0), lambda level: -1.0, "of K", exponential=True)


@formula.register
def _(layer: Cos) -> Formula:
    return Formula(COS, lambda level: -1.0, lambda level: min(level, -1.0), "nonnegative", exponential=True)
