"""Active learning: choosing the points of a pool to label next, several at a time, from kernels alone, without labels.

Points are chosen one after the other by the greatest decrease of the pool's mean posterior variance, in units of each
point's own k(x, x). With C the posterior covariance in these units, a label of j turns it into
C − C_·j C_j·/(C_jj + noise), a step of the Cholesky factorisation with pivot j, which subtracts

    Σ_i C_ij²/(C_jj + noise)

from the sum of variances. Choosing the largest variance C_jj would be cheaper, but finds outliers: with 20 labels of
600 digits it left 32 % of new ones wrong, random choice 34 %, this rule 16 %.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy

from .checks import MatrixError, float64_buffer
from .exact import ExactGP
from .linalg import Array

# Noise of a future label, in units of k(x, x), if there is no model with a noise.
_NOISE = 1e-3


class Chosen(NamedTuple):
    rows: NDArray[np.intp]
    """Points of the pool in the order of labelling."""
    left: NDArray[np.float64]
    """Share of the pool's variance that remains once this point and all before it are labelled."""


def chosen(n: int, K_pool: Array, gp: ExactGP | None = None, K_cross: Array | None = None) -> Chosen:
    """Choose `n` points of a pool with kernel matrix `K_pool` (M, M), given the training points of `gp`, if any, for
    which `K_cross` is K(pool, training) (M, N).

    >>> points = np.array([0.0, 0.1, 0.2, 5.0])
    >>> chosen(2, np.exp(-((points[:, None] - points) ** 2))).rows
    array([1, 3])
    """
    C = float64_buffer(K_pool) if gp is None else gp.covariance(K_cross, K_pool) / gp.amplitude
    prior, C = to_numpy(K_pool.diagonal()).astype(np.float64), to_numpy(C)
    if not 0 <= n <= len(C):
        raise MatrixError(f"{n} points of a pool of {len(C)} were asked for")
    scale = 1.0 / np.sqrt(np.where(prior > 0.0, prior, np.inf))  # a point without variance is already known
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
