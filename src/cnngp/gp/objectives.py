"""Marginal likelihood and leave-one-out objectives, which select the noise and train hyperparameters by gradients.

C outputs share a Gaussian whose scale, the amplitude a, may be free:

    −2 log N(Y; 0, aΣ) = Σ_c y_cᵀΣ⁻¹y_c/a + C (n log a + log|Σ|) + C n log 2π,   greatest at a = Σ_c y_cᵀΣ⁻¹y_c/(n C)

Let A = K + noise·I, α = A⁻¹Y and κ_i = [A⁻¹]_ii. Both losses are in nats per target, for N·C targets. Unless the
amplitude is given as a number, it is set to its optimum, so that the losses do not change when K and the noise are
multiplied by the same factor.

    likelihood      −log p(Y)          ½ Σ_c y_cᵀα_c/a + ½ C log|aA| + …       a = Σ_c y_cᵀα_c/(N·C)
    leave-one-out   −Σ log p(y_i | others)   ½ Σ_ic α_ic²/(a κ_i) + ½ C Σ_i log(a/κ_i) + …  a = Σ_ic α_ic²/κ_i/(N·C)

`noise="loo"` minimises the second, or a given loss of the leave-one-out means y_i − α_i/κ_i instead. With P = ∂L/∂α and
q = ∂L/∂κ, from dα = −A⁻¹dA α and dκ_i = −[A⁻¹dA A⁻¹]_ii:

    ∂L/∂A = −½(A⁻¹Pαᵀ + αPᵀA⁻¹) − A⁻¹ diag(q) A⁻¹

Choosing the noise takes one eigendecomposition, then a line search. With K = QΛQᵀ and s = λ + noise, each value tried
costs at most O(N²):

    log p(y)     = −½ Σ_ic (qᵢᵀy_c)²/(a sᵢ) − ½ C Σᵢ log(a sᵢ) + const
    α            = Q (QᵀY / s),    [K⁻¹]_ij = Σ_k Q_ik Q_jk/s_k

The search uses the larger of the two measures of deviations in `leave_one_out.py`: contradictions inside groups are
noise, but copies that agree say nothing about the prediction of a new image.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from cnngp.common.arrays import to_numpy

from .leave_one_out import Codes, leave_out, sets_left_out, thinned
from .linalg import Array, factorised, namespace, one_thread_if_small, set_diagonal

LOG_2PI = math.log(2.0 * math.pi)
Rule = Literal["likelihood", "loo"]
RULES: tuple[Rule, ...] = ("likelihood", "loo")

# Loss of leave-one-out means (N, C), given the targets, and its gradient by the means.
MeansLoss = Callable[[Array, Array], tuple[float, Array]]

Loss = Callable[[Any, Any], float]
"""Loss of leave-one-out means and targets, both (N, outputs); smaller is better."""

# Nats that all targets together may lose to a smaller noise: a tenth of a nat is no evidence.
_NATS = 0.1
_ROUNDING = 1e-9  # nats per target that count as rounding
_LEAST, _MOST = -10.0, 6.0  # search range of the noise: log₁₀, in units of the mean eigenvalue
_AMPLITUDES = (-6.0, 6.0)  # search range of the amplitude with known errors: log₁₀, in units of mean Y²/mean k(x, x)
# Leave-one-out selects the noise on at most this many points, evenly spaced: it does not depend on their number.
_MOST_POINTS = 6000


def amplitude_of(fit: float, targets: int, rule: Any) -> float:
    """Return the amplitude given as a number, or the optimal one for Σ yᵀΣ⁻¹y = `fit` of that many `targets`."""
    if not isinstance(rule, str):
        return float(rule)
    return fit / targets if fit > 0.0 else 1.0  # targets that are all zero do not determine a scale


def twice_negative_log(fit: float, log_determinant: float, n: int, outputs: int, rule: Any) -> float:
    """Return −2 log N without its constant, C n log 2π, at the amplitude of `amplitude_of`."""
    a = amplitude_of(fit, n * outputs, rule)
    return fit / a + outputs * (n * math.log(a) + log_determinant)


class Judged(NamedTuple):
    """A loss, of which smaller is better, and its derivatives by the matrix and the noise."""

    loss: float
    by_matrix: Array
    """∂L/∂K_ij, symmetric, with every entry independent: dL = Σ_ij by_matrix_ij dK_ij."""
    by_noise: float


def judged(
    rule: Rule, K: Array, Y: Array, noise: float, amplitude: Any = "ml", means_loss: MeansLoss | None = None
) -> Judged:
    """Compute the loss of `rule` for targets Y (N, C) with kernel matrix K (N, N), both float64, and its gradient.

    `amplitude` is a number, or a string for its optimum. If K + noise·I is not positive definite in float64, the
    smallest jitter that makes it so is added, as in a fit.

    >>> import numpy as np
    >>> found = judged("likelihood", np.eye(2), np.array([[1.0], [-1.0]]), 0.0)
    >>> round(found.loss, 4)  # ½ log 2πe
    1.4189
    >>> found.by_matrix.round(4)  # a smaller correlation would fit better
    array([[0.  , 0.25],
           [0.25, 0.  ]])
    """
    xp, (n, outputs) = namespace(K), Y.shape
    factor, _ = factorised(K.copy(), noise)
    inverse = factor.solve(xp.eye(n))
    alpha = inverse @ Y

    def per_target(twice: float) -> float:
        """Nats per target, from −2 log N without its constant."""
        return 0.5 * (twice / float(n * outputs) + LOG_2PI)

    if rule == "likelihood":
        fit = float((Y * alpha).sum())
        a = amplitude_of(fit, n * outputs, amplitude)
        loss = per_target(twice_negative_log(fit, factor.log_determinant(), n, outputs, a))
        # ∂(y_cᵀA⁻¹y_c) = −α_cα_cᵀ, ∂log|A| = A⁻¹; at its optimum, a change of a has no first-order effect.
        by_matrix = 0.5 * (inverse / n - alpha @ alpha.T / (a * n * outputs))
    else:
        kappa = inverse.diagonal().copy()
        left = leave_out(alpha, kappa)
        if means_loss is None:
            a = amplitude_of(left.one_by_one, n * outputs, amplitude)
            loss = per_target(twice_negative_log(left.one_by_one, left.log_determinant, n, outputs, a))
            by_alpha = left.deviations / (a * n * outputs)
            by_kappa = -0.5 * ((left.deviations**2).sum(1) * kappa / a + outputs) / kappa / (n * outputs)
        else:  # y − α/κ
            loss, by_mean = means_loss(Y - left.deviations, Y)
            by_alpha = -by_mean / kappa[:, None]
            by_kappa = (by_mean * alpha).sum(1) / kappa**2
        by_matrix = -(inverse @ by_alpha) @ alpha.T - (inverse * by_kappa) @ inverse
    by_matrix = 0.5 * (by_matrix + by_matrix.T)
    return Judged(loss, by_matrix, float(by_matrix.trace()))


# ---- minimisation on a line ------------------------------------------------------------------------------------------


class Found(NamedTuple):
    at: float
    loss: float
    at_end: bool
    """True if the best point of the grid is its last one."""


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
    """Minimise `loss` between `low` and `high`, usually logarithms, to within `tolerance`.

    A grid of `points` precedes a local search; without `points` there is none, for a costly loss with one minimum. The
    search starts at the first point of the grid that is within `as_good` of the best. If that is the first or the last,
    `inside` keeps the result between `low` and `high`.

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


# ---- amplitude with known errors -------------------------------------------------------------------------------------


def amplitude_beside(A: Array, Y: Array, noise: float, errors: Array) -> float:
    """Maximum-likelihood amplitude a of N(0, a(K + noise·I) + diag(errors)), for errors in the units of the targets.

    Factorises in the buffer `A`, which holds K again afterwards.
    """
    n, outputs = Y.shape
    variances = A.diagonal().copy()
    scale = float((Y * Y).mean()) / float(variances.mean())
    if not 0.0 < scale < math.inf:
        return 1.0

    def loss(log_amplitude: float) -> float:
        a = scale * 10.0**log_amplitude
        set_diagonal(A, variances + errors / a)
        factor, _ = factorised(A, noise)
        fit = float((Y * factor.solve(Y)).sum())
        value = twice_negative_log(fit, factor.log_determinant(), n, outputs, a)
        factor.restore()
        return value

    found = minimised(loss, *_AMPLITUDES, points=13, tolerance=1e-3)
    set_diagonal(A, variances)
    return float(scale * 10.0**found.at)


# ---- noise -----------------------------------------------------------------------------------------------------------


def searched_points(noise: Any, n: int) -> int:
    """Number of points in the eigendecomposition that selects the noise."""
    return {"ml": n, "loo": -(-n // _step(n))}.get(noise, 0) if isinstance(noise, str) else 0


def _step(n: int) -> int:
    return -(-n // _MOST_POINTS)


def chosen_noise(
    K: Array,
    Y: Array,
    noise: Any,
    amplitude: Any,
    rounding: float = 0.0,
    groups: Codes | None = None,
    loss: Loss | None = None,
    weights: Array | None = None,
) -> float:
    """Resolve `noise` to a number: "ml" by marginal likelihood, "loo" by leave-one-out, else the number itself.

    Leave-one-out minimises `loss`, or without one maximises the density of the targets. Points of one of the `groups`
    are left out together.

    `rounding` is the relative error of K's entries. The noise "loo" is at least the effect of these errors on the
    eigenvalues, about √N · rounding · k(x, x): with less, leave-one-out predictions of nearly equal images would be
    rounding errors.

    The noise of a point is divided by its weight w: K + noise·W⁻¹ = W^(−½) (W^½ K W^½ + noise·I) W^(−½), which is the
    unweighted problem with the matrix and the targets scaled by √w.
    """
    if not isinstance(noise, str):
        return float(noise)
    if weights is not None:
        root = namespace(K).sqrt(weights)[:, None]
        K, Y, loss = root * K * root.T, root * Y, None if loss is None else _unscaled(loss)
    if not float(K.diagonal().max()) > 0.0:
        return 0.0  # a zero matrix; factorising it raises an error that says so
    least = math.sqrt(len(Y)) * rounding * float(K.diagonal().mean()) if noise == "loo" else 0.0
    if noise == "loo" and (step := _step(len(Y))) > 1:
        if groups is None:
            K, Y = K[::step, ::step], Y[::step]
        else:
            rows = thinned(groups, _MOST_POINTS)
            at = namespace(K).asarray(rows)
            K, Y, groups = K[at[:, None], at[None, :]], Y[at], groups[rows]
    with one_thread_if_small(K):
        return max(least, _searched(K, Y, noise, amplitude, groups, loss))


def _unscaled(loss: Loss) -> Loss:
    """Adapt a loss of targets ±1 and their means to arguments that are both scaled by √w."""

    def of(mean: Any, targets: Any) -> float:
        root = np.abs(targets[:, :1])
        return loss(mean / root, targets / root)

    return of


def _searched(K: Array, Y: Array, rule: str, amplitude: Any, groups: Codes | None, judge: Loss | None) -> float:
    """Noise that minimises −2 log p of the targets, by likelihood or leave-one-out, or the loss `judge`."""
    xp, (n, outputs) = namespace(K), Y.shape
    values, Q = xp.linalg.eigh(K)
    lam, rotated = xp.maximum(values, 0.0), Q.T @ Y
    scale = float(lam.mean())
    # The smallest of equally good noises is chosen, also if the targets do not determine it, as with unrelated points.
    points, as_good = 65, _ROUNDING * n * outputs
    if rule == "ml":
        lam, weight = to_numpy(lam), to_numpy((rotated**2).sum(1))
        del Q

        def loss(s: Array) -> float:
            return twice_negative_log(float((weight / s).sum()), float(np.log(s).sum()), n, outputs, amplitude)
    else:
        squares, sets = Q**2, [] if groups is None else list(sets_left_out(groups))
        # A classification loss is flat where the noise is large.
        points, as_good = 33, as_good if judge is None else _NATS / n

        def loss(s: Array) -> float:
            def covariance_of(at: Array) -> Array:
                rows = Q[at]  # (sets, size, N)
                return xp.linalg.inv((rows / s) @ rows.transpose(0, 2, 1))

            left = leave_out(Q @ (rotated / s[:, None]), squares @ (1.0 / s), sets, covariance_of)
            if judge is not None:
                return judge(to_numpy(Y - left.deviations), to_numpy(Y))
            return twice_negative_log(max(left.one_by_one, left.jointly), left.log_determinant, n, outputs, amplitude)

    def of_log(log_noise: float) -> float:
        return loss(lam + scale * 10.0**log_noise)

    found = minimised(of_log, _LEAST, _MOST, points=points, tolerance=1e-6, as_good=as_good)
    if found.at_end:
        warnings.warn(
            f"noise={rule!r} chose the most noise that is tried: to this network the labels or targets look like pure "
            "noise; check them, try another network, or give the noise as a number",
            UserWarning,
            stacklevel=8,
        )
    return float(scale * 10.0**found.at)
