"""The paper's recursion in float64 NumPy, one function an equation: what every engine is tested against.

It is slow and plain on purpose and shares no code with the engines. Maps carry their locations in the last axes:
K(X, X') has shape (N, M, *locations), the variances K(X, X) and K(X', X') (N, 1, *locations) and (1, M, *locations), so
each formula below is written once and broadcasts.

Pooling needs the covariances of different locations. A network with pools is computed with all of them: the locations
of the first image and then those of the second, K(X, X') of shape (N, M, *locations, *locations). A layer then does to
both what it does to one.

    covariances.py   what is carried along a network
    linear.py        convolutions, dense layers and averages
    formulas.py      nonlinearities
"""

from __future__ import annotations

from typing import Any, assert_never

import numpy as np
from numpy.typing import ArrayLike

from cnngp.common.arrays import to_numpy

from ..composition import check_network
from ..layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Identity,
    Layer,
    Network,
    Nonlinearity,
    Sequential,
    Sum,
    as_layer,
)
from .covariances import Array, Covariances, begin, equal_locations, has_pools, inputs
from .formulas import nonlinearity, nonlinearity_diagonal, relu
from .linear import average_pool, convolution, dense, transposed_convolution

__all__ = [
    "Array", "Covariances", "begin", "convolution", "diagonal", "has_pools", "inputs", "kernel", "nonlinearity",
    "nonlinearity_diagonal", "propagate", "relu", "transposed_convolution",
]  # fmt: skip


def kernel(net: Network, X: ArrayLike, Z: ArrayLike | None = None) -> Array:
    """The kernel matrix of two sets of images (N, C, …) and (M, C, …); of one set, with its exact diagonal.

    >>> import numpy as np
    >>> from cnngp import Dense
    >>> kernel(Dense(weight_var=2.0, bias_var=1.0), np.eye(2))
    array([[2., 1.],
           [1., 2.]])
    """
    x = _images(X, "X")
    z = x if Z is None else _images(Z, "Z")
    layer = as_layer(net)
    check_network(layer)
    K = propagate(layer, begin(layer, x, z))
    matrix = K.xz.reshape(len(x), len(z))
    if Z is None:
        np.fill_diagonal(matrix, K.xx.ravel())
    return matrix


def diagonal(net: Network, X: ArrayLike) -> Array:
    """K(x, x) for each image, from the variance recursion alone."""
    x = _images(X, "X")
    layer = as_layer(net)
    return propagate(layer, begin(layer, x, x[:1])).xx.ravel()


def _images(X: ArrayLike, name: str) -> Array:
    return to_numpy(X, name).astype(np.float64)


def propagate(net: Layer, V: Covariances) -> Covariances:
    match net:
        case Conv():
            return V.map(lambda v: convolution(net, v, V.axes))
        case ConvTranspose():
            return V.map(lambda v: transposed_convolution(net, v, V.axes))
        case Dense():
            return V.map(lambda v: dense(net, v, V.axes))
        case AvgPool():
            return V.map(lambda v: average_pool(net, v, V.axes))
        case GlobalAvgPool():
            return V.map(lambda v: np.asarray(v.mean(axis=tuple(range(2, v.ndim)))))
        case Nonlinearity():
            return (
                full_nonlinearity(net, V)
                if V.full
                else Covariances(
                    nonlinearity(net, V.xz, V.xx, V.zz),
                    nonlinearity_diagonal(net, V.xx),
                    nonlinearity_diagonal(net, V.zz),
                    False,
                )
            )
        case Identity():
            return V
        case Sequential():
            for layer in net.layers:
                V = propagate(layer, V)
            return V
        case Sum():
            total = propagate(net.branches[0], V)
            for branch in net.branches[1:]:
                total = total + propagate(branch, V)
            return total
        case _:
            assert_never(net)


def full_nonlinearity(layer: Nonlinearity, V: Covariances) -> Covariances:
    """V(p, q) from K(p, q), the variance of the first image at p and that of the second at q."""
    n = V.axes
    Kx, Kz = equal_locations(V.xx, n), equal_locations(V.zz, n)  # (N, 1, *p) and (1, M, *p)

    def first(K: Array) -> Array:
        return K.reshape(*K.shape, *(1,) * n)

    def second(K: Array) -> Array:
        return K.reshape(*K.shape[:2], *(1,) * n, *K.shape[2:])

    def of_one(K: Array, variances: Array) -> Array:
        """The same of one image with itself, where p = q is known exactly."""
        out = nonlinearity(layer, K, first(variances), second(variances))
        locations = np.ogrid[tuple(slice(size) for size in variances.shape[2:])]
        equal: Any = (slice(None), slice(None), *locations, *locations)
        out[equal] = nonlinearity_diagonal(layer, variances)
        return out

    return Covariances(nonlinearity(layer, V.xz, first(Kx), second(Kz)), of_one(V.xx, Kx), of_one(V.zz, Kz), True)
