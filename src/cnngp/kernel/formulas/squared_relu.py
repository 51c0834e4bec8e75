"""SquaredReLU: f = K₁K₂ J(θ)/π with J = 3 sin θ cos θ + (π − θ)(1 + 2 cos² θ), the arc-cosine kernel of order 2.

    f' = 4R                                          R as for the ReLU; at correlation one 4K
    ∂f/∂K₁ = K₂ (sin θ cos θ + π − θ)/π

Tables hold s = √K₁ and 1/s. V = unit²/2 · f has degree two in the variances.
"""

from __future__ import annotations

from typing import Any

from cnngp.network.layers import SquaredReLU

from .family import Family, Formula, formula, log2
from .primitives import PI, absolute, fma, positive, sqrt, turn, where_less
from .relu import relu_value, table


def angles(K: Any, a: Any, b: Any) -> Any:
    """Return cos θ, sin θ and acos |cos θ|."""
    x = K * (a[1] * b[1])
    u = positive(1.0 - absolute(x))
    return x, sqrt(u * (2.0 - u)), turn(u)


def value(K: Any, a: Any, b: Any, c: Any) -> Any:
    x, sine, acute = angles(K, a, b)
    p, twice = a[0] * b[0], fma(2.0 * x, x, 1.0)
    small = fma(acute, twice, -3.0 * sine * absolute(x))
    return p * p * (where_less(x, 0.0, small, PI * twice - small) * (1.0 / PI))


def slope(K: Any, a: Any, b: Any, c: Any) -> Any:
    return 4.0 * relu_value(K, a[0] * b[0], a[1] * b[1])


def parts(K: Any, a: Any, b: Any, c: Any) -> Any:
    x, sine, acute = angles(K, a, b)
    share = fma(sine, x, where_less(x, 0.0, acute, PI - acute)) * (1.0 / PI)
    return slope(K, a, b, c), b[0] * b[0] * share, a[0] * a[0] * share, value(K, a, b, c), 0.0


def diagonal(K: Any, x: Any) -> Any:
    return 3.0 * (K * K)


def slope_diagonal(K: Any, x: Any) -> Any:
    return 4.0 * K


def still(K: Any, x: Any) -> Any:
    return 6.0 * K, 1.0, diagonal(K, x), 0.0


SQUARED_RELU = Family(
    "squared_relu", 2, value, table, diagonal, slope, slope_diagonal, parts, still, vectors=True
)  # fmt: skip


@formula.register
def _(layer: SquaredReLU) -> Formula:
    return Formula(
        SQUARED_RELU,
        factor=lambda unit: unit * unit / 2.0,
        level=lambda level: 2.0 * level + log2(1.5),
        sign="nonnegative",
        slope_level=lambda level: level + 1.0,
        homogeneous=True,
        degree=2,
    )
