"""How unlike all known points a point is, from kernels alone: 1 − its largest correlation with any of them.

In the kernel's feature space the correlation k(x, z)/√(k(x, x) k(z, z)) is the cosine of the angle between two points.
It does not depend on the scale of the kernel, nor, for a ReLU network without biases, on that of the pixels. A point
without variance, as a blank image may be, has no direction: it is as novel as can be.
"""

from __future__ import annotations

from .linalg import Array, blocks, namespace

_ROWS = 512


def novelty(K: Array, diagonal: Array, variances: Array) -> Array:
    """From K(test, points) (M, N), k(x, x) of the test points (M,) and of the points (N,): (M,) between 0 and 1.

    >>> import numpy as np
    >>> novelty(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([4.0, 0.0]), np.array([1.0, 1.0]))
    array([0., 1.])
    """
    xp = namespace(K)
    return xp.clip(1.0 - (K * _inverse_root(diagonal)[:, None] * _inverse_root(variances)[None]).max(1), 0.0, 1.0)


def novelty_of_points(upper: Array, variances: Array) -> Array:
    """The novelty of each point to all others, (N,), from what stands above the diagonal of their kernel matrix."""
    xp, n = namespace(upper), len(upper)
    scale = _inverse_root(variances)
    largest = xp.zeros(n)
    for k in blocks(n, _ROWS):
        C = xp.triu(upper[k, k.start :] * scale[k, None] * scale[None, k.start :], 1)
        largest[k] = xp.maximum(largest[k], C.max(1))
        largest[k.start :] = xp.maximum(largest[k.start :], C.max(0))
    return xp.clip(1.0 - largest, 0.0, 1.0)


def _inverse_root(variances: Array) -> Array:
    """1/√v; 0 for a point without variance."""
    xp = namespace(variances)
    there = variances > 0.0
    return xp.where(there, 1.0 / xp.sqrt(xp.where(there, variances, 1.0)), 0.0)
