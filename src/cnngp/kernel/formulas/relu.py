"""ReLU, LeakyReLU and Abs: f = α·R + β·K with R = 2A and α + β = 1, where A is the arc-cosine kernel.

    R  = max(K, 0) + (p − |K|)·√u·g(u)     p = √(K₁K₂), u = 1 − |K|/p, g a polynomial
    R' = (π − θ)/π,  cos θ = K/p           1 at correlation one
    ∂R/∂K₁ = sin θ · s'  · (1/s)/2π        s = √K₁

If a variance is 0, R' may be any finite number, because Θ is 0 there too; for gradients the two images count as equal.
Near correlation one R' behaves like a square root: θ ≈ √(2(1 − cos θ)), so that rounding cos θ by δ changes R' by
√(2δ)/π (docs/mathematics.md). Tables hold s and 1/s. The CUDA text of R and R' is written by hand (formula_text/).
"""

from __future__ import annotations

from typing import Any

from cnngp.network.layers import Abs, LeakyReLU, ReLU

from .family import Family, Formula, formula, inverse_root, log2, one
from .primitives import PI, absolute, fma, negated_fma, positive, relu_g, relu_h, sqrt, turn, where_less


def relu_value(K: Any, p: Any, q: Any) -> Any:
    """Return R, with p = ss' and q = 1/p."""
    size = absolute(K)
    u = positive(negated_fma(size, q, 1.0))
    return fma((p - size) * sqrt(u), relu_g(u), positive(K))


def relu_excess(K: Any, p: Any, q: Any) -> Any:
    """R − K = max(−K, 0) + (p − |K|)·√u·g(u), without cancellation between two nearly equal numbers."""
    size = absolute(K)
    u = positive(negated_fma(size, q, 1.0))
    return fma((p - size) * sqrt(u), relu_g(u), size - positive(K))


def relu_slope(K: Any, root: Any, u: Any) -> Any:
    """R' = (π − θ)/π, from u = 1 − |cos θ| and its root."""
    angle = root * relu_h(u)
    return where_less(K, 0.0, angle, 1.0 - angle)


def relu_both(K: Any, T: Any, p: Any, q: Any, own: Any) -> Any:
    """Return R and R' · (T + own · K)."""
    size = absolute(K)
    u = positive(negated_fma(size, q, 1.0))
    root = sqrt(u)
    V = fma((p - size) * root, relu_g(u), positive(K))
    return V, relu_slope(K, root, u) * fma(K, own, T)


def value(K: Any, a: Any, b: Any, c: Any) -> Any:
    return relu_value(K, a[0] * b[0], a[1] * b[1])


def value_like(K: Any, a: Any, b: Any, c: Any) -> Any:
    """f = K + α(R − K), exactly K at correlation one, where R = K."""
    return fma(relu_excess(K, a[0] * b[0], a[1] * b[1]), c[0], K)


def slope(K: Any, a: Any, b: Any, c: Any) -> Any:
    u = positive(negated_fma(absolute(K), a[1] * b[1], 1.0))
    return fma(relu_slope(K, sqrt(u), u), c[0], c[1])


def parts(K: Any, a: Any, b: Any, c: Any) -> Any:
    q = a[1] * b[1]
    u = where_less(0.0, q, positive(negated_fma(absolute(K), q, 1.0)), 0.0)
    angle = turn(u) * (1.0 / PI)
    slope = where_less(K, 0.0, angle, 1.0 - angle)
    sine = sqrt(u) * sqrt(2.0 - u)
    return slope, sine * b[0], sine * a[0], fma(slope, K, sine * (a[0] * b[0]) * (1.0 / PI)), 0.0


def parts_like(K: Any, a: Any, b: Any, c: Any) -> Any:
    slope, first, second, R, _ = parts(K, a, b, c)
    return fma(slope, c[0], c[1]), first * c[0], second * c[0], R, K


def table(K: Any, x: Any) -> Any:
    return sqrt(K), inverse_root(K, x[2])


def still(K: Any, x: Any) -> Any:
    return 1.0, inverse_root(K, x[2]) / (2.0 * PI), K, K


def coefficients(unit: Any, alpha: Any, beta: Any) -> Any:
    return alpha, beta


RELU = Family(
    "relu", 2, value, table, slope=slope, slope_diagonal=one, parts=parts, still=still, constants=coefficients,
    vectors=True,
)  # fmt: skip
RELU_LIKE = Family(
    "relu_like", 2, value_like, table, slope=slope, slope_diagonal=one, parts=parts_like, still=still,
    constants=coefficients, vectors=True,
)  # fmt: skip


@formula.register
def _(layer: ReLU) -> Formula:
    square = layer.gain * layer.gain  # infinite beyond the range, where ** would raise
    return Formula(
        RELU,
        level=lambda level: level + log2(square / 2.0),
        slope_level=lambda level: log2(square / 2.0),
        sign="nonnegative",
        factor=lambda unit: square * unit / 2.0,
        homogeneous=True,
    )


@formula.register
def _(layer: LeakyReLU) -> Formula:
    # α + β = 1: their float32 rounding cancels at correlation one, where it would accumulate over layers.
    a, own = layer.slope, (1.0 + layer.slope * layer.slope) / 2.0
    return Formula(
        RELU_LIKE,
        level=lambda level: level + log2(own),
        slope_level=lambda level: log2(own),
        sign="of K" if a >= 0.0 else "any",
        factor=lambda unit: unit * own,
        alpha=(1.0 - a) * ((1.0 - a) / (2.0 * own)),
        beta=a / own,
        homogeneous=True,
    )


@formula.register
def _(layer: Abs) -> Formula:
    return Formula(
        RELU_LIKE, lambda level: level, lambda level: 0.0, "nonnegative", lambda unit: unit, alpha=2.0, beta=-1.0,
        homogeneous=True,
    )  # fmt: skip
