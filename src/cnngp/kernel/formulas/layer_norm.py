"""LayerNorm: f = K·t·t' with t = √(unit/(unit·K₁ + ε)) in the tables, and 0 where both K₁ and ε are 0.

f' = t·t'
∂f/∂K₁ = f        · −t²/2

With `over="all"` the formula is the same, with t made from the mean of K₁ over all locations.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from cnngp.network.layers import LayerNorm

from .family import Family, Formula, formula, log2
from .primitives import sqrt, where_less
from .step import peak as inverse_too


def value(K: Any, a: Any, b: Any, c: Any) -> Any:
    return K * (a[0] * b[0])


def slope(K: Any, a: Any, b: Any, c: Any) -> Any:
    return a[0] * b[0]


def parts(K: Any, a: Any, b: Any, c: Any) -> Any:
    tt = a[0] * b[0]
    f = K * tt
    return tt, f, f, f, 0.0


def table(K: Any, x: Any) -> Any:
    t = sqrt(x[0] / (x[0] * K + x[1]))
    t = where_less(0.0, x[1], t, where_less(x[2], sqrt(K), t, 0.0))
    return t, t


def diagonal(K: Any, x: Any) -> Any:
    t = table(K, x)[0]
    return where_less(0.0, x[1], K * (t * t), where_less(0.0, t, 1.0, 0.0))


def slope_diagonal(K: Any, x: Any) -> Any:
    t = table(K, x)[0]
    return t * t


def still(K: Any, x: Any) -> Any:
    t = table(K, x)[0]
    by_K = where_less(0.0, x[1], t * t * (x[1] / (x[0] * K + x[1])), 0.0)
    return by_K, -0.5 * (t * t), diagonal(K, x), 0.0


def peak(K: Any, x: Any) -> Any:
    return where_less(0.0, x[1], K, inverse_too(K, x))


LAYER_NORM = Family(
    "layer_norm", 1, value, table, diagonal, slope, slope_diagonal, parts, still, peak=peak
)  # fmt: skip
LAYER_NORM_OVER_ALL = replace(LAYER_NORM, name="layer_norm_over_all", whole=True)


@formula.register
def _(layer: LayerNorm) -> Formula:
    def total(level: float) -> float:
        return log2(2.0 ** min(level, 1000.0) + layer.eps)

    return Formula(
        LAYER_NORM_OVER_ALL if layer.over == "all" else LAYER_NORM,
        level=lambda level: level - total(level) if math.isfinite(level) else level,
        sign="of K",
        slope_level=lambda level: -total(level),
        alpha=layer.eps,
        any_scale=layer.eps == 0.0,
    )
