"""Step: f = π − θ with cos θ = K·r·r', and 0 where a variance is 0. Tables hold r = 1/√K₁, or 0 for K₁ = 0.

Sign: f = π/2 − θ = asin(cos θ).
"""

from __future__ import annotations

import math
from typing import Any

from cnngp.network.layers import Sign, Step

from .erf import arcsine
from .family import Family, Formula, formula, inverse_root
from .primitives import PI, absolute, maximum, positive, turn, where_less


def value(K: Any, a: Any, b: Any, c: Any) -> Any:
    q = a[0] * b[0]
    x = K * q
    theta = turn(positive(1.0 - absolute(x)))
    return where_less(0.0, q, where_less(x, 0.0, theta, PI - theta), 0.0)


def table(K: Any, x: Any) -> Any:
    r = inverse_root(K, x[2])
    return r, r


def diagonal(K: Any, x: Any) -> Any:
    return where_less(0.0, K, PI, 0.0)


def peak(K: Any, x: Any) -> Any:
    """Return the larger of a variance and its inverse."""
    return where_less(0.0, K, maximum(K, 1.0 / K), K)


def sign_value(K: Any, a: Any, b: Any, c: Any) -> Any:
    return arcsine(K * (a[0] * b[0]))


def sign_diagonal(K: Any, x: Any) -> Any:
    return where_less(0.0, K, PI / 2.0, 0.0)


STEP = Family("step", 1, value, table, diagonal, peak=peak)
SIGN = Family("sign", 1, sign_value, table, sign_diagonal, peak=peak)


@formula.register
def _(layer: Step | Sign) -> Formula:
    step = isinstance(layer, Step)
    return Formula(
        STEP if step else SIGN,
        factor=lambda unit: 1.0 / (2.0 * PI) if step else 2.0 / PI,
        level=lambda level: -1.0 if step else 0.0,
        sign="nonnegative" if step else "of K",
        slope_level=lambda level: math.inf,
        no_slope=f"{layer!r} has no tangent kernel: its slope is zero almost everywhere and infinite at 0, so "
        "E[φ'φ'] does not exist; use Erf() or another smooth function, or kind='nngp'",
        no_gradient=f"{layer!r} has no gradient: its kernel has an infinite slope where two patches are alike; use "
        "Erf() or another smooth function",
        any_scale=True,
    )
