"""Sign: f = π/2 − θ = asin(x) with x = cos θ = K·r·r', r = 1/√K₁ in the table, and 0 where a variance is 0."""

from __future__ import annotations

import math
from typing import Any

from cnngp.network.layers import Sign

from .erf import arcsine
from .family import Family, Formula
from .primitives import PI, where_less
from .step import peak, table


def value(K: Any, a: Any, b: Any, c: Any) -> Any:
    return arcsine(K * (a[0] * b[0]))


def diagonal(K: Any, x: Any) -> Any:
    return where_less(0.0, K, PI / 2.0, 0.0)


SIGN = Family("sign", 1, value, table, diagonal, peak=peak)


LAYERS = (Sign,)


def formula(layer: Sign) -> Formula:
    return Formula(
        SIGN,
        factor=lambda unit: 2.0 / PI,
        level=lambda level: 0.0,
        sign="of K",
        slope_level=lambda level: math.inf,
        no_slope="Sign() has no tangent kernel: its slope is zero almost everywhere and infinite at 0, so "
        "E[φ'φ'] does not exist; use Erf() or another smooth function, or kind='nngp'",
        no_gradient="Sign() has no gradient: its kernel has an infinite slope where two patches are alike; use "
        "Erf() or another smooth function",
        any_scale=True,
    )
