"""The noise of an exact GP, chosen from the matrix and the targets: one eigendecomposition, then a search on a line.

With K = QΛQᵀ and s = λ + noise, everything below costs O(N²) at most for a noise that is tried:

    log p(y)     = −½ Σ_ic (qᵢᵀy_c)²/(a sᵢ) − ½ C Σᵢ log(a sᵢ) + const
    α            = Q (QᵀY / s),    [K⁻¹]_ii = Σ_j Q_ij²/s_j

Leave-one-out is that of `leave_one_out.py`. Of the two measures of deviations the larger counts: contradictions inside
of groups are noise, but copies that agree say nothing of how a new image is predicted.
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
from .groups import sets_left_out, thinned
from .leave_one_out import blocks_of_eigenbasis, leave_out
from .likelihood import twice_negative_log
from .linalg import Array, namespace
from .line_search import minimised

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
        return twice_negative_log(float((weight / s).sum()), float(np.log(s).sum()), n, outputs, amplitude)

    return _searched(loss, scale, "ml", points=65, stacklevel=9)


def _best_left_out(K: Array, Y: Array, amplitude: Any, groups: NDArray[np.intp] | None, judge: Loss | None) -> float:
    """The least loss of the targets, each given all others, by default −2 Σ_ic log N(y_ic; mean, variance)."""
    xp = namespace(K)
    values, Q = xp.linalg.eigh(K)
    lam = xp.maximum(values, 0.0)
    rotated, squares = Q.T @ Y, Q**2
    n, outputs = Y.shape
    sets = [] if groups is None else list(sets_left_out(groups))
    scale = float(lam.mean())

    def loss(log_noise: float) -> float:
        s = lam + scale * 10.0**log_noise
        left = leave_out(Q @ (rotated / s[:, None]), squares @ (1.0 / s), sets, blocks_of_eigenbasis(Q, s))
        if judge is not None:
            return judge(to_numpy(Y - left.deviations), to_numpy(Y))
        return twice_negative_log(max(left.one_by_one, left.jointly), left.log_determinant, n, outputs, amplitude)

    # A loss of classes no longer changes where noise is large: of what is as good, the least is taken.
    return _searched(loss, scale, "loo", points=33, stacklevel=10, as_good=0.0 if judge is None else _NATS / n)


def _searched(
    loss: Callable[[float], float], scale: float, rule: str, points: int, stacklevel: int, as_good: float = 0.0
) -> float:
    """The noise whose logarithm, in units of `scale`, has the least `loss`."""
    found = minimised(loss, _LEAST, _MOST, points=points, tolerance=1e-6, as_good=as_good)
    if found.at_end:
        warnings.warn(
            f"noise={rule!r} chose the most noise that is tried: to this network the labels or targets look like pure "
            "noise; check them, try another network, or give the noise as a number",
            UserWarning,
            stacklevel=stacklevel,
        )
    return float(scale * 10.0**found.at)
