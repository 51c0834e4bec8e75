"""NormalizedExp: f = p·e^{−γu} with p = √(K₁K₂) and u = 1 − cos θ = 1 − K/p.

    f' = γ e^{−γu}                             at correlation one γ
    ∂f/∂K₁ = (1 − γ cos θ) e^{−γu} · s'        · (1/s)/2, s = √K₁
    ∂f/∂γ = −u f

Tables hold s and 1/s. If a variance is 0, f is 0; for gradients the two images count as equal there.
"""

from __future__ import annotations

from typing import Any

from cnngp.network.layers import NormalizedExp

from .family import Family, Formula, formula, inverse_root, log2
from .primitives import exp_negative, fma, negated_fma, positive, where_less
from .relu import table


def constants(unit: Any, alpha: Any, beta: Any) -> Any:
    return alpha, 1.0 - alpha


def value(K: Any, a: Any, b: Any, c: Any) -> Any:
    u = positive(negated_fma(K, a[1] * b[1], 1.0))
    return (a[0] * b[0]) * exp_negative(0.0 - c[0] * u)


def slope(K: Any, a: Any, b: Any, c: Any) -> Any:
    u = positive(negated_fma(K, a[1] * b[1], 1.0))
    return c[0] * exp_negative(0.0 - c[0] * u)


def parts(K: Any, a: Any, b: Any, c: Any) -> Any:
    q = a[1] * b[1]
    u = where_less(0.0, q, positive(negated_fma(K, q, 1.0)), 0.0)
    e = exp_negative(0.0 - c[0] * u)
    f, share = (a[0] * b[0]) * e, fma(c[0], u, c[1]) * e
    return where_less(0.0, q, c[0] * e, 1.0), share * b[0], share * a[0], f, 0.0 - f * u


def slope_diagonal(K: Any, x: Any) -> Any:
    return x[1]


def still(K: Any, x: Any) -> Any:
    return 1.0, 0.5 * inverse_root(K, x[2]), K, 0.0


NORMALIZED_EXP = Family(
    "normalized_exp", 2, value, table, slope=slope, slope_diagonal=slope_diagonal, parts=parts, still=still,
    constants=constants, vectors=True,
)  # fmt: skip


@formula.register
def _(layer: NormalizedExp) -> Formula:
    return Formula(
        NORMALIZED_EXP,
        factor=lambda unit: unit,
        level=lambda level: level,
        sign="nonnegative",
        slope_level=lambda level: log2(layer.gamma),
        alpha=layer.gamma,
        homogeneous=True,
    )
