"""Full conformal prediction in closed form: sets of classes and intervals with a given coverage.

To test whether x may have the target y, add (x, y) to the training points and measure how well each of the N + 1 points
is predicted by all others. If the points are exchangeable, x is as likely as any other to be predicted worst, so its
rank among them is a p-value. Nothing is refitted: with b = K⁻¹k(x), s = k(x, x) + noise − k(x)ᵀb and u = y − m(x),
where K includes the noise,

    [K⁻¹]_gg ← [K⁻¹]_gg + b_g b_gᵀ/s,    α_g ← α_g − b_g u/s

for every group g of points that are left out together. With S = [K⁻¹]_gg⁻¹, c = S b_g and t = b_gᵀc the deviations are

    d = S α_g − c (cᵀα_g + u)/(s + t),    variances S_ii − c_i²/(s + t)

and those of x itself u and s. In regression the score of a point is |d|/√variance: the targets y for which x is
predicted no worse than a given number of points form an interval. The points of a group share one vote, and x is a
group of its own.

All this is exact if the kernel and the noise were not selected with the targets; if they were, trials reached the
requested coverage within their sampling error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.common.errors import is_number

from .exact import ExactGP
from .leave_one_out import covariance_by_factor, in_pieces, sets_left_out
from .linalg import Array, blocks, namespace

Floats = NDArray[np.float64]

_ENTRIES = 1 << 19  # largest size of an array (N, test points, outputs)
_ROUNDING = 1e-9  # tolerance for rounding in 1 − coverage and between equal scores


def allowed(p: Floats, coverage: float) -> NDArray[np.bool_]:
    """Mask of the targets in the prediction set of this coverage, from p-values; an unusual point has an empty set."""
    return np.asarray(p > 1.0 - check_coverage(coverage) + _ROUNDING)


def p_values(gp: ExactGP, K_test: Array, diagonal: Array, labels: NDArray[np.intp], by_class: bool = False) -> Floats:
    """Share of the N + 1 points that are predicted no better than x, for each class that x may have: (M, classes).

    Targets are ±1 for each class, `labels` (N,) the class numbers, `K_test` is K(test, training), `diagonal` k(x, x)
    (M,). The score of a point is the mean of the best other class minus that of its own class. `by_class` compares only
    with points of the same class, which gives each class the coverage.

    >>> points, new = np.arange(20.0), np.array([3.0, 40.0])
    >>> K, K_new = (np.exp(-0.1 * (x[:, None] - points) ** 2) for x in (points, new))
    >>> labels = (points > 9).astype(int)
    >>> gp = ExactGP(K, 2.0 * np.eye(2)[labels] - 1.0, noise=0.1)
    >>> allowed(p_values(gp, K_new, np.ones(2), labels), coverage=0.8)
    array([[ True, False],
           [False, False]])
    """
    labels, points, classes = np.asarray(labels), np.arange(gp.points), int(gp.Y.shape[1])
    votes = np.stack([_votes(gp, labels == c if by_class else None) for c in range(classes)])
    p = np.empty((len(K_test), classes))
    for moved in _moved(gp, K_test, diagonal):
        of_new = _best_of_others(moved.mean.T) - moved.mean.T  # (classes, m)
        # y_c = 2e_c − 1: the classes differ by one column of u, and so of the other points' means.
        means = to_numpy(gp.Y).T[:, :, None] - moved.deviations(-1.0 - moved.mean)
        own = means[labels, points]
        means[labels, points] = -np.inf  # leaves the means of the other classes
        for c, (of_class, best) in enumerate(zip(means, _best_of_others(means), strict=True)):
            rising = np.maximum(best, of_class + 2.0 * moved.pull) - own
            margins = np.where((labels == c)[:, None], best - (own + 2.0 * moved.pull), rising)
            p[moved.rows, c] = (1.0 + votes[c] @ _no_better(margins, of_new[c])) / (1.0 + votes[c].sum())
    return p


def p_values_of_each(gp: ExactGP, K_test: Array, diagonal: Array) -> Floats:
    """P-values of multilabel targets ±1, for each output that x has −1 and that it has +1: (M, outputs, 2)."""
    Y, votes = to_numpy(gp.Y).T[:, :, None], _votes(gp)
    p = np.empty((len(K_test), len(Y), 2))
    for moved in _moved(gp, K_test, diagonal):
        for k, y in enumerate((-1.0, 1.0)):
            # Score: how far the mean is on the wrong side of 0.
            worse = _no_better(-Y * (Y - moved.deviations(y - moved.mean)), -y * moved.mean.T[:, None])
            p[moved.rows, :, k] = (1.0 + votes @ worse).T / (1.0 + votes.sum())
    return p


def intervals(gp: ExactGP, K_test: Array, diagonal: Array, coverage: float) -> Floats:
    """Prediction intervals of the targets of M points: (M, outputs, 2), infinite if N is too small for the coverage.

    Each of several outputs has this coverage by itself.
    """
    check_coverage(coverage)
    votes = _votes(gp)
    # Votes of points predicted no better than x that a target needs: with fewer, p is at most 1 − coverage.
    needed = (1.0 - coverage + _ROUNDING) * (1.0 + votes.sum()) - 1.0
    found = np.empty((len(K_test), int(gp.Y.shape[1]), 2))
    for moved in _moved(gp, K_test, diagonal):
        root = np.sqrt(moved.variances)
        P, Q = moved.still / root, -moved.pull / root  # the score is |P + Qu|, that of x |u|/√s
        R = 1.0 / np.sqrt(moved.s)
        ends = np.stack([P / (R - Q), -P / (R + Q)])  # |Q| < R, so x is predicted better between these
        found[moved.rows, :, 0] = -_reached(-ends.min(0), votes, needed).T
        found[moved.rows, :, 1] = _reached(ends.max(0), votes, needed).T
        found[moved.rows] += moved.mean[:, :, None]
    return found


def check_coverage(coverage: float) -> float:
    if not is_number(coverage, least=0.0) or not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage={coverage!r}: expected a share between 0 and 1, such as 0.9")
    return float(coverage)


class _Moved(NamedTuple):
    """Leave-one-out residuals of the N points as functions of u = y − m(x), for m new points x."""

    rows: slice
    s: Floats  # (m,)
    mean: Floats  # m(x), (m, outputs)
    still: Floats  # residuals for u = 0, (outputs, N, m)
    pull: Floats  # decrease of the residuals per unit of u, (N, m)
    variances: Floats  # (N, m)

    def deviations(self, u: Floats) -> Floats:
        """Residuals for u (m, outputs), as (outputs, N, m)."""
        return self.still - self.pull * u.T[:, None]


def _moved(gp: ExactGP, K_test: Array, diagonal: Array) -> Iterator[_Moved]:
    xp, alpha, outputs, n = namespace(gp.alpha), to_numpy(gp.alpha), int(gp.Y.shape[1]), gp.points
    own, covariance_of = 1.0 / to_numpy(gp.inverse_diagonal), covariance_by_factor(gp.factor)
    sets = []  # points that are left out together, mask of those that each set predicts, and S
    for at, chosen in in_pieces(sets_left_out(np.arange(n) if gp.left_out is None else gp.left_out)):
        alone = at.shape[1] == 1
        S = own[at][:, :, None] if alone else to_numpy(covariance_of(xp.asarray(at)))
        sets.append((at, chosen, S))
    for rows in blocks(len(K_test), max(1, _ENTRIES // (n * outputs))):
        K = gp.checked_test(K_test[rows])
        b = gp.factor.solve(K.T)
        s = to_numpy(diagonal, "the diagonal")[rows] + gp.factor.shift - to_numpy((K.T * b).sum(0))
        b, m = to_numpy(b), len(s)
        # For a training image without noise s is only rounding; the floor keeps it from becoming a huge weight 1/s.
        s = np.maximum(s, np.finfo(np.float32).eps * gp.largest_variance)
        still, pull, variances = np.empty((outputs, n, m)), np.empty((n, m)), np.empty((n, m))
        for at, chosen, S in sets:
            c = S @ b[at]  # (sets, size, m)
            t = s + (b[at] * c).sum(1, keepdims=True)
            a = alpha[at]  # (sets, size, outputs)
            of = at[chosen]
            pull[of] = (c / t)[chosen]
            moved = (c / t) * np.einsum("gim,gio->ogm", c, a)[:, :, None]
            still[:, of] = (np.einsum("gij,gjo->ogi", S, a)[..., None] - moved)[:, chosen]
            variances[of] = (S.diagonal(axis1=1, axis2=2)[:, :, None] - c * c / t)[chosen]
        yield _Moved(rows, s, to_numpy(gp.mean(K)), still, pull, variances)


def _votes(gp: ExactGP, among: NDArray[np.bool_] | None = None) -> Floats:
    """Share of each point in the vote of its group, (N,); 0 for points outside the mask `among`."""
    counted = np.ones(gp.points) if among is None else among.astype(np.float64)
    if gp.groups is None:
        return counted
    return np.asarray(counted / np.maximum(np.bincount(gp.groups, counted), 1.0)[gp.groups])


def _no_better(scores: Floats, of_new: Floats) -> NDArray[np.bool_]:
    """Mask of the scores that are no smaller than that of x; scores of copies of x are equal up to rounding."""
    return np.asarray(scores >= of_new - _ROUNDING * (1.0 + np.abs(of_new)))


def _best_of_others(means: Floats) -> Floats:
    """For each class of means (classes, …), the largest mean among the other classes."""
    best = second = np.full_like(means[0], -np.inf)
    for of_class in means:
        second, best = np.maximum(second, np.minimum(best, of_class)), np.maximum(best, of_class)
    return np.asarray(np.where(means == best, second, best))


def _reached(ends: Floats, votes: Floats, needed: float) -> Floats:
    """Furthest value that is reached by `ends` (outputs, N, m) with more than `needed` votes in all."""
    outputs, n, m = ends.shape
    if needed < 0.0:
        return np.full((outputs, m), np.inf)
    order = np.argsort(-ends, axis=1)
    enough = np.cumsum(votes[order], axis=1) > needed
    first = np.where(enough.any(1), enough.argmax(1), n - 1)[:, None]
    return np.asarray(np.take_along_axis(np.take_along_axis(ends, order, axis=1), first, axis=1)[:, 0])
