"""Kernel matrices that do not tell an image from its mirror image: averages over left and right.

k'(x, z) = ¼ Σ k(gx, hz) over g, h ∈ {as it is, mirrored} is the kernel of functions averaged over both. Of a network
that is mirror-symmetric k(gx, gz) = k(x, z), so that ½(k(x, z) + k(x, mirrored z)) is the same at half the cost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, to_numpy
from cnngp.kernel.kernel import Kernel

from .gram import gram
from .store.places import child

# A symmetric matrix is computed in stripes of rows from its diagonal on, at most so many, each of so many rows at
# least: with ten of them a twentieth of the matrix is computed twice.
_STRIPES, _ROWS = 10, 256
# How far apart, of the largest entry, two roundings of the same kernel may be.
_SAME = 1e-5


def flip_averaged(kernel: Kernel, X: Any, Z: Any = None, *, store: Any = None) -> NDArray[Any]:
    """½(K(X, Z) + K(X, mirrored Z)), with Z = X where it is left out, and then exactly symmetric.

    It takes as many pairs as two matrices. With a `store`, a folder, their tiles are kept in it, and an interrupted run
    can continue. The network must be mirror-symmetric, as those of odd filters and whole pools are; others are refused.
    For them use `augmentation.flipped`, which doubles the images.

    >>> import numpy as np
    >>> from cnngp import Conv, Dense, Kernel, ReLU, Sequential
    >>> kernel = Kernel(Sequential(Conv(3), ReLU(), Dense()), device="cpu")
    >>> X = np.random.default_rng(0).random((4, 1, 6, 6))
    >>> K = flip_averaged(kernel, X)
    >>> bool(np.allclose(K, flip_averaged(kernel, X, X[..., ::-1]))) and bool((K == K.T).all())
    True
    """
    _check_symmetric(kernel, X)

    def part(name: str, A: Any, B: Any = None) -> NDArray[Any]:
        path = None if store is None else child(store, name)
        return to_numpy(gram(kernel, A, B, store=path)[:])

    if Z is not None:
        K = part("plain", X, Z)
        K += part("mirrored", X, _mirrored(Z))
    else:
        K = part("plain", X)
        for i, (first, end) in enumerate(_stripes(len(X))):
            block = part(f"mirrored-{i}", X[first:end], _mirrored(X[first:]))
            # The block at the diagonal is symmetric but for its last bits.
            square = np.triu(block[:, : end - first])
            K[first:end, first:end] += square + np.triu(square, 1).T
            K[first:end, end:] += block[:, end - first :]
            K[end:, first:end] += block[:, end - first :].T
    K *= 0.5
    return K


def flip_pairs(n: int) -> int:
    """How many pairs of images `flip_averaged` computes for a symmetric matrix, beside those of the matrix without."""
    return sum((end - first) * (n - first) for first, end in _stripes(n))


def _stripes(n: int) -> list[tuple[int, int]]:
    edges = np.linspace(0, n, min(_STRIPES, max(n // _ROWS, 1)) + 1).round().astype(int)
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _mirrored(X: Any) -> NDArray[Any]:
    return np.ascontiguousarray(np.asarray(X)[..., ::-1])


def _check_symmetric(kernel: Kernel, X: Any) -> None:
    """Refuse a network that reaches further to one side than to the other, by what it does to three random images:
    those of the set may be blank where it does.
    """
    images = np.asarray(X)
    size = float(np.abs(images[:100].astype(np.float64)).max(initial=0.0))
    few = np.random.default_rng(0).random((3, *images.shape[1:])) * (size if 0.0 < size < np.inf else 1.0)
    K, mirrored = (to_numpy(kernel(A, progress=False)) for A in (few, _mirrored(few)))
    off = float(np.abs(K - mirrored).max()) / float(np.abs(K).max() or 1.0)
    if off > _SAME:
        raise DataError(
            f"this network is not mirror-symmetric (kernels of mirrored images differ by {off:.0e} of the largest): a "
            "stride, an even filter or a pool reaches further to one side; use augmentation.flipped, which adds copies"
        )
