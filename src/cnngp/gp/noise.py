"""The noise of an exact GP, chosen from the matrix and the targets: one eigendecomposition, then a search on a line.

With K = QΛQᵀ and s = λ + noise, everything below costs O(N²) at most for a noise that is tried:

    log p(y)     = −½ Σ_ic (qᵢᵀy_c)²/(a sᵢ) − ½ C Σᵢ log(a sᵢ) + const
    α            = Q (QᵀY / s),    [K⁻¹]_ij = Σ_k Q_ik Q_jk/s_k

Leave-one-out is that of `leave_one_out.py`. Of the two measures of deviations the larger counts: contradictions inside
of groups are noise, but copies that agree say nothing of how a new image is predicted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from cnngp.common.arrays import to_numpy

from .leave_one_out import Codes, leave_out, sets_left_out, thinned
from .linalg import Array, namespace, one_thread_if_small
from .objectives import minimised, twice_negative_log

# What all targets together may lose by a smaller noise: a tenth of a nat says nothing.
_NATS = 0.1
_ROUNDING = 1e-9  # nats for each target: less than that is rounding
_LEAST, _MOST = -10.0, 6.0  # log₁₀ of the noise that is tried, in units of the mean eigenvalue
# Leave-one-out is asked of at most this many points, evenly spread: the right noise does not depend on their number.
_MOST_POINTS = 6000

Loss = Callable[[Any, Any], float]
"""Of leave-one-out means and targets, both (N, outputs): less is better."""


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

    Leave-one-out is judged by `loss`, and without one by the density of the targets. Points of one of the `groups` are
    left out together.

    `rounding` is the relative error of K's entries. By leave-one-out, noise is no less than what such errors do to the
    eigenvalues, about √N · rounding · k(x, x): with less, the predictions of images that are nearly alike are made of
    rounding errors, and what leave-one-out says of them is chance.

    The noise of a point is divided by its weight w: K + noise·W⁻¹ = W^(−½) (W^½ K W^½ + noise·I) W^(−½), so all is as
    for the matrix and the targets times √w.
    """
    if not isinstance(noise, str):
        return float(noise)
    if weights is not None:
        root = namespace(K).sqrt(weights)[:, None]
        K, Y, loss = root * K * root.T, root * Y, None if loss is None else _unscaled(loss)
    if not float(K.diagonal().max()) > 0.0:
        return 0.0  # nothing to search in: whoever factorises such a matrix says what it is
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
    """A loss of targets ±1 and their means, both times √w."""

    def of(mean: Any, targets: Any) -> float:
        root = np.abs(targets[:, :1])
        return loss(mean / root, targets / root)

    return of


def _searched(K: Array, Y: Array, rule: str, amplitude: Any, groups: Codes | None, judge: Loss | None) -> float:
    """The noise of the least −2 log p of the targets, or of the targets each given all others, or of that `judge`."""
    xp, (n, outputs) = namespace(K), Y.shape
    values, Q = xp.linalg.eigh(K)
    lam, rotated = xp.maximum(values, 0.0), Q.T @ Y
    scale = float(lam.mean())
    # Of what is as good, the least is taken; so it is where targets say nothing of noise, as those of unlike points do.
    points, as_good = 65, _ROUNDING * n * outputs
    if rule == "ml":
        lam, weight = to_numpy(lam), to_numpy((rotated**2).sum(1))
        del Q

        def loss(s: Array) -> float:
            return twice_negative_log(float((weight / s).sum()), float(np.log(s).sum()), n, outputs, amplitude)
    else:
        squares, sets = Q**2, [] if groups is None else list(sets_left_out(groups))
        # A loss of classes no longer changes where noise is large.
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
