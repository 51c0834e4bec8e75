"""What to label next, several points at a time, from kernels alone: no label has to be there yet.

Points are chosen one after the other so that those of the whole pool become as well known as possible: by the greatest
fall of the mean variance, in units of each point's own k(x, x). With C the posterior covariance in these units, a label
of j turns it into C − C_·j C_j·/(C_jj + noise), a step of Cholesky's factorisation with pivot j, which takes

    Σ_i C_ij²/(C_jj + noise)

off the sum of variances. The largest variance C_jj would be cheaper to look for, and finds what is unlike all else: of
600 digits it left 32 % of new ones wrong with 20 labels, random ones 34 %, this rule 16 %.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy

from .checks import MatrixError, float64_buffer
from .exact import ExactGP
from .linalg import Array

# Noise of a label that is not known yet, in units of k(x, x), where there is no model that says it.
_NOISE = 1e-3


class Chosen(NamedTuple):
    rows: NDArray[np.intp]
    """Points of the pool, in the order in which they are worth a label."""
    left: NDArray[np.float64]
    """The share of the pool's variance that is left once each of them has a label, and all before it."""


def chosen(n: int, K_pool: Array, gp: ExactGP | None = None, K_cross: Array | None = None) -> Chosen:
    """`n` points of a pool with kernel matrix `K_pool` (M, M), beside the training points of `gp`, from which `K_cross`
    is K(pool, training) (M, N); without a model, beside none.

    >>> points = np.array([0.0, 0.1, 0.2, 5.0])
    >>> chosen(2, np.exp(-((points[:, None] - points) ** 2))).rows
    array([1, 3])
    """
    C = float64_buffer(K_pool) if gp is None else gp.covariance(K_cross, K_pool) / gp.amplitude
    prior, C = to_numpy(K_pool.diagonal()).astype(np.float64), to_numpy(C)
    if not 0 <= n <= len(C):
        raise MatrixError(f"{n} points of a pool of {len(C)} were asked for")
    scale = 1.0 / np.sqrt(np.where(prior > 0.0, prior, np.inf))  # a point without variance is known already
    C = C * scale[:, None] * scale
    noise = _NOISE if gp is None or gp.noise == 0.0 or not prior.any() else gp.noise / float(prior.mean())
    total, rows, left = float(np.count_nonzero(scale)), np.empty(n, np.intp), np.empty(n)
    free = np.ones(len(C), bool)
    for k in range(n):
        gains = (C * C).sum(0) / (np.maximum(C.diagonal(), 0.0) + noise)
        j = rows[k] = int(np.where(free, gains, -1.0).argmax())
        column = C[:, j] / np.sqrt(max(C[j, j], 0.0) + noise)
        C -= np.outer(column, column)
        free[j], left[k] = False, float(np.maximum(C.diagonal(), 0.0).sum()) / max(total, 1.0)
    return Chosen(rows, left)
