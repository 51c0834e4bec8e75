"""The neural tangent kernel in float64 NumPy, beside the recursion of reference/ and just as plain.

In the NTK's parameterisation a layer is z = √(weight_var · s) ω * x + √bias_var β with ω and β standard normal, and
Θ(x, x') = Σ ∂f(x)/∂θ · ∂f(x')/∂θ over all of them. Its recursion runs beside that of K:

    input          Θ = 0
    Conv, Dense    Θ ← K + weight_var · s · Σ Θ, with K what comes out of the layer: its own weights, then all before
    nonlinearity   Θ ← V̇ · Θ with V̇ = E[φ'(u) φ'(v)], which is ∂V/∂K
    Sum, pools     as for K
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, assert_never

import numpy as np
from numpy.typing import ArrayLike

from .composition import check_network
from .layers import (
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
from .reference import Array, Covariances, begin, propagate
from .reference.covariances import equal_locations
from .reference.formulas import derivative, derivative_diagonal


def kernel(net: Network, X: ArrayLike, Z: ArrayLike | None = None) -> Array:
    """The tangent kernel Θ of two sets of images (N, C, …) and (M, C, …); of one set, with its exact diagonal.

    >>> import numpy as np
    >>> from cnngp import Dense, ReLU, Sequential
    >>> kernel(Sequential(Dense(), ReLU(), Dense()), np.eye(2)).round(4)
    array([[0.5   , 0.0796],
           [0.0796, 0.5   ]])
    """
    x = np.asarray(X, dtype=np.float64)
    z = x if Z is None else np.asarray(Z, dtype=np.float64)
    layer = as_layer(net)
    check_network(layer)
    start = begin(layer, x, z)
    _, T = propagate_both(layer, start, start.map(np.zeros_like))
    matrix = T.xz.reshape(len(x), len(z))
    if Z is None:
        np.fill_diagonal(matrix, T.xx.ravel())
    return matrix


def propagate_both(net: Layer, K: Covariances, T: Covariances) -> tuple[Covariances, Covariances]:
    """The covariances of a layer's outputs, and their tangent kernels."""
    match net:
        case Conv() | ConvTranspose() | Dense():
            after = propagate(net, K)
            return after, after + propagate(replace(net, bias_var=0.0), T)
        case AvgPool() | GlobalAvgPool():
            return propagate(net, K), propagate(net, T)
        case Nonlinearity():
            slope = slopes(net, K)
            product = Covariances(slope.xz * T.xz, slope.xx * T.xx, slope.zz * T.zz, T.full)
            return propagate(net, K), product
        case Identity():
            return K, T
        case Sequential():
            for layer in net.layers:
                K, T = propagate_both(layer, K, T)
            return K, T
        case Sum():
            total = propagate_both(net.branches[0], K, T)
            for branch in net.branches[1:]:
                more = propagate_both(branch, K, T)
                total = total[0] + more[0], total[1] + more[1]
            return total
        case _:
            assert_never(net)


def slopes(layer: Nonlinearity, K: Covariances) -> Covariances:
    """V̇ for all pairs, with the exact diagonal of an image with itself."""
    if not K.full:
        return Covariances(
            derivative(layer, K.xz, K.xx, K.zz),
            derivative_diagonal(layer, K.xx),
            derivative_diagonal(layer, K.zz),
            False,
        )
    n = K.axes
    Kx, Kz = equal_locations(K.xx, n), equal_locations(K.zz, n)

    def first(v: Array) -> Array:
        return v.reshape(*v.shape, *(1,) * n)

    def second(v: Array) -> Array:
        return v.reshape(*v.shape[:2], *(1,) * n, *v.shape[2:])

    def of_one(k: Array, v: Array) -> Array:
        out = derivative(layer, k, first(v), second(v))
        locations = np.ogrid[tuple(slice(size) for size in v.shape[2:])]
        equal: Any = (slice(None), slice(None), *locations, *locations)
        out[equal] = derivative_diagonal(layer, v)
        return out

    return Covariances(derivative(layer, K.xz, first(Kx), second(Kz)), of_one(K.xx, Kx), of_one(K.zz, Kz), True)
