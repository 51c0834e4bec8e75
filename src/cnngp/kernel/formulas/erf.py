"""Erf: f = asin(x), x = 2K/√((1 + 2K₁)(1 + 2K₂)), which is K·t·t' with the table's t = √(2 unit/(1 + 2K₁)).

f' = t·t'/√(1 − x²)        at correlation one 2 unit/√(1 + 4K₁)
∂f/∂K₁ = x/√(1 − x²)       · −t²/2
"""

from __future__ import annotations

import math
from typing import Any

from cnngp.network.layers import Erf

from .family import Family, Formula, formula, log2
from .primitives import PI, absolute, asin, atan2, maximum, negated_fma, positive, power, sqrt


def constants(unit: Any, alpha: Any, beta: Any) -> Any:
    return unit, power(2.0 * unit, -0.5)


def arcsine(x: Any) -> Any:
    return asin(x, positive(1.0 - absolute(x)))


def root(x: Any, a: Any, b: Any, c: Any) -> Any:
    """Return √(1 − x²); 1 − x² ≥ d + d' − dd', d = 1/(1 + 2K₁) = t²/(2 unit), because |K| ≤ √(K₁K₂)."""
    size = absolute(x)
    d1, d2 = a[0] * c[1], b[0] * c[1]
    d1, d2 = d1 * d1, d2 * d2
    return sqrt(maximum((1.0 - size) * (1.0 + size), negated_fma(d1, d2, d1 + d2)))


def value(K: Any, a: Any, b: Any, c: Any) -> Any:
    return arcsine(K * (a[0] * b[0]))


def slope(K: Any, a: Any, b: Any, c: Any) -> Any:
    tt = a[0] * b[0]
    return tt / root(K * tt, a, b, c)


def parts(K: Any, a: Any, b: Any, c: Any) -> Any:
    tt = a[0] * b[0]
    x = K * tt
    q = root(x, a, b, c)
    return tt / q, x / q, x / q, arcsine(x), 0.0


def table(K: Any, x: Any) -> Any:
    t = sqrt(2.0 * x[0] / (1.0 + 2.0 * (x[0] * K)))
    return t, t


def diagonal(K: Any, x: Any) -> Any:
    """Return asin(2K/(1 + 2K)), accurate for large K."""
    true = x[0] * K
    return atan2(2.0 * true, sqrt(1.0 + 4.0 * true))


def slope_diagonal(K: Any, x: Any) -> Any:
    return 2.0 * x[0] / sqrt(1.0 + 4.0 * (x[0] * K))


def still(K: Any, x: Any) -> Any:
    true, t = x[0] * K, table(K, x)[0]
    by_K = 2.0 * x[0] / ((1.0 + 2.0 * true) * sqrt(1.0 + 4.0 * true))
    return by_K, -0.5 * (t * t), diagonal(K, x), 0.0


ERF = Family("erf", 1, value, table, diagonal, slope, slope_diagonal, parts, still, constants)


@formula.register
def _(layer: Erf) -> Formula:
    return Formula(
        ERF,
        factor=lambda unit: 2.0 / PI,
        level=_level,
        sign="of K",
        slope_level=lambda level: -0.5 * log2(1.0 + 4.0 * 2.0 ** min(level, 1000.0)),
    )


def _level(level: float) -> float:
    K = 2.0 ** min(level, 100.0)
    return log2(2.0 / math.pi * math.asin(2.0 * K / (1.0 + 2.0 * K)))
