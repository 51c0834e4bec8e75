"""GELU: f = K/4 + (K asin x + x²tt'/q + kk'q)/2π with t = 1/√(1 + K₁), k = K₁t, x = Ktt', q = √(1 − x²).

    f' = unit · (¼ + (asin x + (x/q)(d + d' + dd' + dd' x²/q²))/2π)       d = t² = 1/(1 + K₁), q² ≥ d + d' − dd'
    ∂f/∂K₁ = q k'(k + 2t) − (x²/q)((4 + x²/q²)tt' + kt' + k't)            · unit · d/4π

Tables hold √unit · t and k. 1 − |x| ≥ tt' holds exactly, but rounding violates it for large variances. In f, asin x and
q must use the same 1 − |x|, because the effects of its error on the two cancel.
"""

from __future__ import annotations

from typing import Any

from cnngp.network.layers import GELU as Layer

from .erf import arcsine
from .family import Family, Formula, formula
from .primitives import PI, absolute, asin, atan2, fma, maximum, negated_fma, power, sqrt


def constants(unit: Any, alpha: Any, beta: Any) -> Any:
    return unit, 1.0 / unit, power(unit, -0.5)


def value(K: Any, a: Any, b: Any, c: Any) -> Any:
    tt, kk = a[0] * b[0], a[1] * b[1]
    x, K = K * tt, K * c[0]
    tt = tt * c[1]
    wide = absolute(x)
    v = maximum(1.0 - wide, tt)
    q = sqrt(v * (1.0 + wide))
    inner = fma(K, asin(x, v), fma(kk, q, (x * x) * tt / q))
    return fma(inner, 0.5 / PI, K * 0.25)


def slope(K: Any, a: Any, b: Any, c: Any) -> Any:
    x = K * (a[0] * b[0])
    wide = absolute(x)
    d1, d2 = a[0] * c[2], b[0] * c[2]
    d1, d2 = d1 * d1, d2 * d2
    both = d1 * d2
    square = maximum((1.0 - wide) * (1.0 + wide), d1 + d2 - both)
    ratio = x / sqrt(square)
    inner = fma(ratio, fma(both, ratio * ratio, d1 + d2 + both), arcsine(x))
    return c[0] * fma(inner, 0.5 / PI, 0.25)


def parts(K: Any, a: Any, b: Any, c: Any) -> Any:
    x, true = K * (a[0] * b[0]), K * c[0]
    t1, t2, k1, k2 = a[0] * c[2], b[0] * c[2], a[1], b[1]
    d1, d2 = t1 * t1, t2 * t2
    size = absolute(x)
    q = sqrt(maximum((1.0 - size) * (1.0 + size), negated_fma(d1, d2, d1 + d2)))
    tt, angle, ratio = t1 * t2, arcsine(x), x / q
    square = ratio * ratio
    slope = fma(fma(ratio, fma(d1 * d2, 1.0 + square, d1 + d2), angle), 0.5 / PI, 0.25)
    common = x * ratio * fma(tt, 4.0 + square, fma(k1, t2, k2 * t1))
    first = fma(q * k2, fma(2.0, t1, k1), 0.0 - common)
    second = fma(q * k1, fma(2.0, t2, k2), 0.0 - common)
    value = fma(fma(true, angle, fma(k1 * k2, q, x * ratio * tt)), 0.5 / PI, true * 0.25)
    return c[0] * slope, first, second, value, 0.0


def table(K: Any, x: Any) -> Any:
    true = x[0] * K
    t2 = 1.0 / (1.0 + true)
    return sqrt(x[0] * t2), true * sqrt(t2)


def diagonal(K: Any, x: Any) -> Any:
    true = x[0] * K
    t2 = 1.0 / (1.0 + true)
    r, q = true * t2, sqrt(1.0 + 2.0 * true) * t2
    angle = atan2(true, sqrt(1.0 + 2.0 * true))  # asin r, accurate for large K
    return 0.25 * true + (true * angle + r * r * t2 / q + true * r * q) / (2.0 * PI)


def slope_diagonal(K: Any, x: Any) -> Any:
    true = x[0] * K
    root = sqrt(1.0 + 2.0 * true)
    t2, ratio = 1.0 / (1.0 + true), true / root
    inner = atan2(true, root) + ratio * (2.0 * t2 + t2 * t2 * (1.0 + ratio * ratio))
    return x[0] * (0.25 + inner / (2.0 * PI))


def still(K: Any, x: Any) -> Any:
    true = x[0] * K
    t2 = 1.0 / (1.0 + true)
    r, q = true * t2, sqrt(1.0 + 2.0 * true) * t2
    angle, ratio = atan2(true, sqrt(1.0 + 2.0 * true)), r / q
    by_covariance = 0.25 + (angle + ratio * t2 * (2.0 + t2 + t2 * ratio * ratio)) / (2.0 * PI)
    inner = q * r * (2.0 + true) - ratio * r * t2 * (4.0 + 2.0 * true + ratio * ratio)
    return x[0] * (by_covariance + inner * t2 / (2.0 * PI)), x[0] * t2 / (4.0 * PI), diagonal(K, x), 0.0


GELU = Family("gelu", 2, value, table, diagonal, slope, slope_diagonal, parts, still, constants)


@formula.register
def _(layer: Layer) -> Formula:
    return Formula(GELU, level=lambda level: level - 1.0, sign="of K", slope_level=lambda level: -1.0)
