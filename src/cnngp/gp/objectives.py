"""The density of targets, and what hyperparameters are learned by: losses of the kernel matrix, and their gradients.

C outputs share a Gaussian whose scale, the amplitude a, may be free:

    −2 log N(Y; 0, aΣ) = Σ_c y_cᵀΣ⁻¹y_c/a + C (n log a + log|Σ|) + C n log 2π,   greatest at a = Σ_c y_cᵀΣ⁻¹y_c/(n C)

Let A = K + noise·I, α = A⁻¹Y and κ_i = [A⁻¹]_ii. Both losses are in nats for each of the N·C targets, and of both the
amplitude has been taken out where it is not given as a number: at its best, so that they do not change when K and the
noise are multiplied by one factor.

    likelihood      −log p(Y)          ½ Σ_c y_cᵀα_c/a + ½ C log|aA| + …       a = Σ_c y_cᵀα_c/(N·C)
    leave-one-out   −Σ log p(y_i | others)   ½ Σ_ic α_ic²/(a κ_i) + ½ C Σ_i log(a/κ_i) + …  a = Σ_ic α_ic²/κ_i/(N·C)

The second is what `noise="loo"` looks for. In place of it a loss of the leave-one-out means y_i − α_i/κ_i can be given.
With P = ∂L/∂α and q = ∂L/∂κ, from dα = −A⁻¹dA α and dκ_i = −[A⁻¹dA A⁻¹]_ii:

    ∂L/∂A = −½(A⁻¹Pαᵀ + αPᵀA⁻¹) − A⁻¹ diag(q) A⁻¹
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from .leave_one_out import leave_out
from .linalg import Array, factorised, namespace

LOG_2PI = math.log(2.0 * math.pi)
Rule = Literal["likelihood", "loo"]
RULES: tuple[Rule, ...] = ("likelihood", "loo")

# A loss of leave-one-out means (N, C), given the targets, and its gradient with respect to the means.
MeansLoss = Callable[[Array, Array], tuple[float, Array]]


def amplitude_of(fit: float, targets: int, rule: Any) -> float:
    """The amplitude that is given as a number, or the best one for Σ yᵀΣ⁻¹y = `fit` of so many `targets`."""
    if not isinstance(rule, str):
        return float(rule)
    return fit / targets if fit > 0.0 else 1.0  # targets that are all zero say nothing of scale


def twice_negative_log(fit: float, log_determinant: float, n: int, outputs: int, rule: Any) -> float:
    """−2 log N without its constant, C n log 2π, at the amplitude of `amplitude_of`."""
    a = amplitude_of(fit, n * outputs, rule)
    return fit / a + outputs * (n * math.log(a) + log_determinant)


class Judged(NamedTuple):
    """A loss, where less is better, and how it changes with the matrix and the noise."""

    loss: float
    by_matrix: Array
    """∂L/∂K_ij, symmetric, every entry on its own: dL = Σ_ij by_matrix_ij dK_ij."""
    by_noise: float


def judged(
    rule: Rule, K: Array, Y: Array, noise: float, amplitude: Any = "ml", means_loss: MeansLoss | None = None
) -> Judged:
    """The loss of `rule` for targets Y (N, C) with kernel matrix K (N, N), both float64, and its gradient.

    `amplitude` is a number, or a word for its best value. Where K + noise·I is not positive definite in float64, the
    least multiple of I that makes it so is added, as in a fit.

    >>> import numpy as np
    >>> found = judged("likelihood", np.eye(2), np.array([[1.0], [-1.0]]), 0.0)
    >>> round(found.loss, 4)  # ½ log 2πe
    1.4189
    >>> found.by_matrix.round(4)  # less correlated than they are here would be better
    array([[0.  , 0.25],
           [0.25, 0.  ]])
    """
    xp = namespace(K)
    factor, _ = factorised(K.copy(), noise)
    inverse = factor.solve(xp.eye(len(K)))
    alpha = inverse @ Y
    if rule == "likelihood":
        loss, by_matrix = _likelihood(factor.log_determinant(), inverse, alpha, Y, amplitude)
    else:
        kappa = inverse.diagonal().copy()
        if means_loss is None:
            loss, by_alpha, by_kappa = _left_out_density(alpha, kappa, amplitude)
        else:  # y − α/κ
            loss, by_mean = means_loss(Y - leave_out(alpha, kappa).deviations, Y)
            by_alpha = -by_mean / kappa[:, None]
            by_kappa = (by_mean * alpha).sum(1) / kappa**2
        by_matrix = -(inverse @ by_alpha) @ alpha.T - (inverse * by_kappa) @ inverse
    by_matrix = 0.5 * (by_matrix + by_matrix.T)
    return Judged(loss, by_matrix, float(by_matrix.trace()))


def _likelihood(log_determinant: float, inverse: Array, alpha: Array, Y: Array, amplitude: Any) -> tuple[float, Array]:
    n, outputs = Y.shape
    fit = float((Y * alpha).sum())
    a = amplitude_of(fit, n * outputs, amplitude)
    loss = twice_negative_log(fit, log_determinant, n, outputs, a)
    # ∂(y_cᵀA⁻¹y_c) = −α_cα_cᵀ, ∂log|A| = A⁻¹; at its best value, a's own change counts for nothing.
    return _per_target(loss, n * outputs), 0.5 * (inverse / n - alpha @ alpha.T / (a * n * outputs))


def _left_out_density(alpha: Array, kappa: Array, amplitude: Any) -> tuple[float, Array, Array]:
    n, outputs = alpha.shape
    left = leave_out(alpha, kappa)
    a = amplitude_of(left.one_by_one, n * outputs, amplitude)
    loss = twice_negative_log(left.one_by_one, left.log_determinant, n, outputs, a)
    by_alpha = left.deviations / (a * n * outputs)
    by_kappa = -0.5 * ((left.deviations**2).sum(1) * kappa / a + outputs) / kappa / (n * outputs)
    return _per_target(loss, n * outputs), by_alpha, by_kappa


def _per_target(loss: float, targets: int) -> float:
    """−log N in nats for each target, from −2 log N without its constant."""
    return 0.5 * (loss / targets + LOG_2PI)


# ---- the search of the least -----------------------------------------------------------------------------------------


class Found(NamedTuple):
    at: float
    loss: float
    at_end: bool
    """Whether the best point of the grid was its last."""


def minimised(
    loss: Callable[[float], float],
    low: float,
    high: float,
    *,
    points: int = 0,
    tolerance: float,
    as_good: float = 0.0,
    inside: bool = False,
) -> Found:
    """Where `loss` is least between `low` and `high`, to within `tolerance`; as a rule these are logarithms.

    Without `points` there is no grid, for a loss that is costly and has one valley. Of several points of the grid that
    are `as_good` as the best the first is refined. `inside` keeps what is found between `low` and `high` where the best
    point is the first or the last.

    >>> round(minimised(lambda x: (x - 0.3) ** 2, -2.0, 2.0, points=9, tolerance=1e-6).at, 3)
    0.3
    """
    from scipy.optimize import minimize_scalar

    bounds, at_end = (low, high), False
    if points:
        grid = np.linspace(low, high, points)
        losses = np.array([loss(float(g)) for g in grid])
        best, step = int(np.argmax(losses <= losses.min() + as_good)), float(grid[1] - grid[0])
        at_end = best == points - 1
        bounds = (float(grid[best]) - step, float(grid[best]) + step)
        if inside:
            bounds = (max(bounds[0], low), min(bounds[1], high))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": tolerance})
    return Found(float(found.x), float(found.fun), at_end)
