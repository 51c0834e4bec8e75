"""Reference kernel: the paper's recursion in float64 NumPy, one function per equation.

Every engine is tested against it, so it is plain and slow and shares no code with them. Locations are the last axes:
K(X, X') has shape (N, M, *locations), the variances K(X, X) and K(X', X') (N, 1, *locations) and (1, M, *locations), so
each formula below is written once and broadcasts.

Pooling needs the covariances between different locations, so a network with pools is computed with all of them:
K(X, X') has shape (N, M, *locations, *locations), the locations of the first image and then those of the second. A
layer then acts on both sets of axes alike.

In the NTK's parameterisation a layer is z = √(weight_var · s) ω * x + √bias_var β with ω and β standard normal. The
recursion of the tangent kernel Θ runs beside that of K:

    input          Θ = 0
    Conv, Dense    Θ ← K + weight_var · s · Σ Θ, with K the layer's output: its own weights, then all before
    nonlinearity   Θ ← V̇ · Θ with V̇ = E[φ'(u) φ'(v)], which is ∂V/∂K
    Sum, pools     as for K

`covariances.py` defines the arrays that are propagated, `linear.py` and `formulas.py` the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, assert_never

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
    LayerNorm,
    Network,
    Nonlinearity,
    Sequential,
    Sum,
    as_layer,
)
from .covariances import Array, Covariances, Maps, has_pools, inputs, pairwise
from .formulas import derivative, derivative_diagonal, layer_norm_over_all, nonlinearity, nonlinearity_diagonal
from .linear import average_pool, convolution, dense

__all__ = [
    "Array", "Covariances", "Maps", "begin", "diagonal", "has_pools", "inputs", "kernel", "nonlinearity",
    "nonlinearity_diagonal", "propagate",
]  # fmt: skip


def kernel(net: Network, X: ArrayLike, Z: ArrayLike | None = None, kind: Literal["nngp", "ntk"] = "nngp") -> Array:
    """Kernel matrix of two sets of images (N, C, …) and (M, C, …), or of one set with its exact diagonal.

    `kind="ntk"` gives the tangent kernel Θ(x, x') = Σ ∂f(x)/∂θ · ∂f(x')/∂θ.

    >>> import numpy as np
    >>> from cnngp import Dense, ReLU, Sequential
    >>> kernel(Dense(weight_var=2.0, bias_var=1.0), np.eye(2))
    array([[2., 1.],
           [1., 2.]])
    >>> kernel(Sequential(Dense(), ReLU(), Dense()), np.eye(2), kind="ntk").round(4)
    array([[0.5   , 0.0796],
           [0.0796, 0.5   ]])
    """
    x = to_numpy(X, "X").astype(np.float64)
    z = x if Z is None else to_numpy(Z, "Z").astype(np.float64)
    layer = as_layer(net)
    check_network(layer)
    end = propagate(layer, begin(layer, x, z, kind))
    wanted = end.K if end.theta is None else end.theta
    matrix = wanted.xz.reshape(len(x), len(z))
    if Z is None:
        np.fill_diagonal(matrix, wanted.xx.ravel())
    return matrix


def diagonal(net: Network, X: ArrayLike) -> Array:
    """Return K(x, x) for each image, from the variance recursion alone."""
    x = to_numpy(X, "X").astype(np.float64)
    layer = as_layer(net)
    return propagate(layer, begin(layer, x, x[:1])).K.xx.ravel()


def begin(net: Layer, x: Array, z: Array, kind: Literal["nngp", "ntk"] = "nngp") -> Maps:
    """Return the input of the first layer of a network."""
    K = inputs(x, z, has_pools(net))
    return Maps(K, K.map(np.zeros_like) if kind == "ntk" else None)


def propagate(net: Layer, x: Maps, after: Callable[[Maps], Maps] = lambda maps: maps) -> Maps:
    """Propagate `x` through a network. `after` transforms each layer's output, to study how rounding propagates."""
    match net:
        case Sequential():
            for layer in net.layers:
                x = propagate(layer, x, after)
            return x
        case Sum():
            total = propagate(net.branches[0], x, after)
            for branch in net.branches[1:]:
                total = total + propagate(branch, x, after)
            return total
        case Conv() | ConvTranspose() | Dense():
            K = _linear(net, x.K)
            # Θ is the sum of K, from the layer's own weights, and the term from all weights before it.
            return after(Maps(K, None if x.theta is None else K + _linear(replace(net, bias_var=0.0), x.theta)))
        case AvgPool() | GlobalAvgPool():
            return after(x.map(partial(_linear, net)))
        case LayerNorm() if net.over == "all":
            return after(layer_norm_over_all(net, x))
        case Nonlinearity():
            V = pairwise(partial(nonlinearity, net), partial(nonlinearity_diagonal, net), x.K)
            if x.theta is None:
                return after(Maps(V))
            slope = pairwise(partial(derivative, net), partial(derivative_diagonal, net), x.K)
            T = x.theta
            return after(Maps(V, Covariances(slope.xz * T.xz, slope.xx * T.xx, slope.zz * T.zz, T.full)))
        case Identity():
            return after(x)
        case _:
            assert_never(net)


def _linear(net: Conv | ConvTranspose | Dense | AvgPool | GlobalAvgPool, V: Covariances) -> Covariances:
    def applied(v: Array) -> Array:
        match net:
            case Conv() | ConvTranspose():
                return convolution(net, v, V.axes)
            case Dense():
                return dense(net, v, V.axes)
            case AvgPool():
                return average_pool(net, v, V.axes)
            case GlobalAvgPool():
                return np.asarray(v.mean(axis=tuple(range(2, v.ndim))))
            case _:
                assert_never(net)

    return V.map(applied)
