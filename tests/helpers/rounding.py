"""What rounding may do to each entry of a kernel: the reference run again with every covariance moved a little.

A single number for a whole matrix is as weak as its worst entry. Here each entry has its own, so that one pair of equal
images, whose angle is the square root of a rounding, excuses no other pair.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from cnngp.kernel.check import _rounded
from cnngp.network import Network, reference
from cnngp.network.layers import as_layer

Kind = Literal["nngp", "ntk"]
# An engine rounds K, an entry of the table of either image and their product.
ROUNDINGS = 4


def moved_by_rounding(net: Network, X: np.ndarray, Z: np.ndarray, dtype: str, kind: Kind) -> np.ndarray:
    """How far each entry moves at most: with all covariances smaller, larger, and each in a random direction."""
    size = ROUNDINGS * max(float(np.finfo(dtype).eps), float(np.finfo(np.float64).eps))
    true = _kernel(net, X, Z, kind, lambda shape: np.ones(shape))
    rng = np.random.default_rng(0)
    most = np.zeros_like(true)
    for draw in (
        lambda shape: np.full(shape, 1.0 - size),
        lambda shape: np.full(shape, 1.0 + size),
        *[lambda shape: 1.0 + size * rng.uniform(-1.0, 1.0, shape)] * 4,
    ):
        most = np.maximum(most, np.abs(_kernel(net, X, Z, kind, draw) - true))
    return most


def _kernel(net: Network, X: np.ndarray, Z: np.ndarray, kind: Kind, factors: Any) -> np.ndarray:
    layer = as_layer(net)
    with np.errstate(all="ignore"):
        end = reference.propagate(
            layer,
            reference.begin(layer, X, Z, kind),
            lambda maps: maps.map(lambda V: _rounded(V, lambda K: K * factors(K.shape))),
        )
    return (end.K if end.theta is None else end.theta).xz.reshape(len(X), len(Z))
