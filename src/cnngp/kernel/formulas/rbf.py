"""Rbf: f = e^{K − (K₁ + K₂)/2}, where K includes a factor 2γ that the unit absorbs. Tables hold h = K₁/2.

f' = unit · f        at correlation one the unit
∂f/∂K₁ = f           · −unit/2
log f is a multiple of γ, so the gradient by γ needs the sum of f · log f.
"""

from __future__ import annotations

from typing import Any

from cnngp.network.layers import Rbf

from .family import Family, Formula, formula, log2
from .primitives import exp_negative, negated_fma, positive


def exponent(K: Any, a: Any, b: Any, c: Any) -> Any:
    """Return K − (h + h') with one rounding, and never above 0."""
    return 0.0 - positive(negated_fma(K, c[0], a[0] + b[0]))


def value(K: Any, a: Any, b: Any, c: Any) -> Any:
    return exp_negative(exponent(K, a, b, c))


def slope(K: Any, a: Any, b: Any, c: Any) -> Any:
    return c[0] * value(K, a, b, c)


def parts(K: Any, a: Any, b: Any, c: Any) -> Any:
    x = exponent(K, a, b, c)
    f = exp_negative(x)
    return c[0] * f, f, f, f, f * x


def table(K: Any, x: Any) -> Any:
    h = 0.5 * (x[0] * K)
    return h, h


def diagonal(K: Any, x: Any) -> Any:
    return 1.0


def slope_diagonal(K: Any, x: Any) -> Any:
    return x[0]


def still(K: Any, x: Any) -> Any:
    return 0.0, -0.5 * x[0], 1.0, 0.0


RBF = Family("rbf", 1, value, table, diagonal, slope, slope_diagonal, parts, still)


@formula.register
def _(layer: Rbf) -> Formula:
    twice = 2.0 * layer.gamma
    return Formula(
        RBF,
        level=lambda level: 0.0,
        sign="nonnegative",
        slope_level=lambda level: log2(twice),
        argument=twice,
        exponential=True,
        blank_is_one=True,
    )
