"""The noise of an exact GP, chosen from the matrix and the targets: one eigendecomposition, then a search on a line.

With K = QΛQᵀ and s = λ + noise, everything below costs O(N²) at most for a noise that is tried:

    log p(y)     = −½ Σ_ic (qᵢᵀy_c)²/(a sᵢ) − ½ C Σᵢ log(a sᵢ) + const
    α            = Q (QᵀY / s),    [K⁻¹]_ii = Σ_j Q_ij²/s_j
    leave-one-out: y_i has mean y_i − α_i/[K⁻¹]_ii and variance a/[K⁻¹]_ii

Points of a group are left out together. Their deviations d from what the others predict are then measured twice, one by
one, Σ d_i²/v_i, and jointly, Σ_g d_gᵀ S_g⁻¹ d_g with S_g = [K⁻¹]_gg⁻¹: the second alone knows that two measurements at
one image contradict each other. The larger of the two counts: contradictions are noise, but copies that agree say
nothing of how a new image is predicted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy

from .blas import one_thread_if_small
from .groups import left_out, sets_left_out, thinned
from .linalg import Array, namespace

# What all targets together may lose by a smaller noise: a tenth of a nat says nothing.
_NATS = 0.1
_LEAST, _MOST = -10.0, 6.0  # log₁₀ of the noise that is tried, in units of the mean eigenvalue
# Leave-one-out is asked of at most this many points, evenly spread: the right noise does not depend on their number.
_MOST_POINTS = 6000


def searched_points(noise: Any, n: int) -> int:
    """Of n points, those whose matrix is decomposed to choose the noise."""
    return {"ml": n, "loo": -(-n // _step(n))}.get(noise, 0) if isinstance(noise, str) else 0


def _step(n: int) -> int:
    return -(-n // _MOST_POINTS)


Loss = Callable[[Any, Any], float]
"""Of leave-one-out means and targets, both (N, outputs): less is better."""


def chosen_noise(
    K: Array,
    Y: Array,
    noise: Any,
    amplitude: Any,
    rounding: float = 0.0,
    groups: NDArray[np.intp] | None = None,
    loss: Loss | None = None,
) -> float:
    """The noise that is meant: "ml" by marginal likelihood, "loo" by leave-one-out, else the number itself.

    Leave-one-out is judged by `loss`, and without one by the density of the targets.

    `rounding` is the relative error of K's entries. By leave-one-out, noise is no less than what such errors do to the
    eigenvalues, about √N · rounding · k(x, x): with less, the predictions of images that are nearly alike are made of
    rounding errors, and what leave-one-out says of them is chance. Points of one of the `groups` are left out together.
    """
    if not isinstance(noise, str):
        return float(noise)
    if not float(K.diagonal().max()) > 0.0:
        return 0.0  # nothing to search in: whoever factorises such a matrix says what it is
    with one_thread_if_small(K):
        if noise == "ml":
            return _most_likely(K, Y, amplitude)
        return _by_leave_one_out(K, Y, amplitude, rounding, groups, loss)


def _by_leave_one_out(
    K: Array, Y: Array, amplitude: Any, rounding: float, groups: NDArray[np.intp] | None, loss: Loss | None
) -> float:
    least = math.sqrt(len(Y)) * rounding * float(K.diagonal().mean())
    if (step := _step(len(Y))) > 1 and groups is None:
        K, Y = K[::step, ::step], Y[::step]
    elif step > 1 and groups is not None:
        rows = thinned(groups, _MOST_POINTS)
        at = namespace(K).asarray(rows)
        K, Y, groups = K[at[:, None], at[None, :]], Y[at], groups[rows]
    return max(least, _best_left_out(K, Y, amplitude, groups, loss))


def _most_likely(K: Array, Y: Array, amplitude: Any) -> float:
    xp = namespace(K)
    values, Q = xp.linalg.eigh(K)
    lam, weight = to_numpy(xp.maximum(values, 0.0)), to_numpy(((Q.T @ Y) ** 2).sum(1))
    del Q
    n, outputs = Y.shape
    scale = float(lam.mean())

    def loss(log_noise: float) -> float:
        s = lam + scale * 10.0**log_noise
        fit = float((weight / s).sum())
        a = fit / (n * outputs) if isinstance(amplitude, str) else float(amplitude)
        return fit / a + outputs * (n * math.log(a) + float(np.log(s).sum())) if a > 0 else math.inf

    return float(scale * 10.0 ** _searched(loss, "ml", points=65, stacklevel=7))


def _best_left_out(K: Array, Y: Array, amplitude: Any, groups: NDArray[np.intp] | None, judge: Loss | None) -> float:
    """The least loss of the targets, each given all others, by default −2 Σ_ic log N(y_ic; mean, variance)."""
    xp = namespace(K)
    values, Q = xp.linalg.eigh(K)
    lam = xp.maximum(values, 0.0)
    rotated = Q.T @ Y
    n, outputs = Y.shape
    sets = list(sets_left_out(np.arange(n) if groups is None else groups))
    alone = [xp.asarray(at[:, 0]) for at, _ in sets if at.shape[1] == 1]
    squares = [Q[at] ** 2 for at in alone]
    together = [(xp.asarray(at), xp.asarray(predicted)) for at, predicted in sets if at.shape[1] > 1]
    scale = float(lam.mean())

    def left_out_at(s: Array) -> tuple[Array, Array, float]:
        """Deviations y − mean (N, outputs), variances (N,) for the amplitude 1, and Σ dᵀS⁻¹d of what is left out."""
        alpha, variances, jointly = Q @ (rotated / s[:, None]), xp.empty(n), 0.0
        deviations = alpha.copy()
        for at, square in zip(alone, squares, strict=True):
            variances[at] = 1.0 / (square @ (1.0 / s))
            deviations[at] *= variances[at][:, None]
            jointly += float((alpha[at] * deviations[at]).sum())
        for at, predicted in together:
            rows = Q[at]  # (sets, size, N)
            of_all, spread = left_out((rows / s) @ rows.transpose(0, 2, 1), alpha[at])
            deviations[at[predicted]], variances[at[predicted]] = of_all[predicted], spread[predicted]
            # S⁻¹d = α; of a set that predicts some of its points, as large a share as these are of it.
            jointly += float(((alpha[at] * of_all).sum((1, 2)) * predicted.mean(1)).sum())
        return deviations, variances, jointly

    def loss(log_noise: float) -> float:
        deviations, variances, jointly = left_out_at(lam + scale * 10.0**log_noise)
        if judge is not None:
            return judge(to_numpy(Y - deviations), to_numpy(Y))
        fit, logs = float((deviations**2 / variances[:, None]).sum()), float(xp.log(variances).sum())
        if together:
            fit = max(fit, jointly)
        a = fit / (n * outputs) if isinstance(amplitude, str) else float(amplitude)
        return fit / a + outputs * (n * math.log(a) + logs) if a > 0 else math.inf

    # A loss of classes no longer changes where noise is large: of what is as good, the least is taken.
    as_good = 0.0 if judge is None else _NATS / n
    return float(scale * 10.0 ** _searched(loss, "loo", points=33, stacklevel=8, as_good=as_good))


def _searched(loss: Callable[[float], float], rule: str, points: int, stacklevel: int, as_good: float = 0.0) -> float:
    """Where the loss is least, or first is hardly more than that, by a grid and then between the point's neighbours."""
    from scipy.optimize import minimize_scalar

    grid = np.linspace(_LEAST, _MOST, points)
    losses = np.array([loss(g) for g in grid])
    best = grid[int(np.argmax(losses <= losses.min() + as_good))]
    step = float(grid[1] - grid[0])
    if best == grid[-1]:
        warnings.warn(
            f"noise={rule!r} chose the most noise that is tried: to this network the labels or targets look like pure "
            "noise; check them, try another network, or give the noise as a number",
            UserWarning,
            stacklevel=stacklevel,
        )
    found = minimize_scalar(loss, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-6})
    return float(found.x)
