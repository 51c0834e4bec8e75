"""The neural tangent kernel in float64 NumPy, beside the recursion of reference/ and just as plain.

In the NTK's parameterisation a layer is z = √(weight_var · s) ω * x + √bias_var β with ω and β standard normal, and
Θ(x, x') = Σ ∂f(x)/∂θ · ∂f(x')/∂θ over all of them. Its recursion runs beside that of K:

    input          Θ = 0
    Conv, Dense    Θ ← K + weight_var · s · Σ Θ, with K what comes out of the layer: its own weights, then all before
    nonlinearity   Θ ← V̇ · Θ with V̇ = E[φ'(u) φ'(v)], which is ∂V/∂K
    Sum, pools     as for K
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, assert_never

import numpy as np
from numpy.typing import ArrayLike

from .composition import check_network
from .functions import as_callable, breakpoints
from .layers import (
    GELU,
    Abs,
    AvgPool,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Elementwise,
    Erf,
    GlobalAvgPool,
    Identity,
    Layer,
    LeakyReLU,
    Network,
    NetworkError,
    Nonlinearity,
    Rbf,
    ReLU,
    Sequential,
    Sin,
    Step,
    Sum,
    as_layer,
)
from .reference import Array, Covariances, begin, propagate
from .reference.covariances import equal_locations
from .reference.formulas import correlation, cos, expectation, rbf, sin


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


# ---- V̇(K, K₁, K₂) = E[φ'(u) φ'(v)] -----------------------------------------------------------------------------------


def derivative(layer: Nonlinearity, K: Array, K1: Array, K2: Array) -> Array:
    match layer:
        case ReLU():
            return layer.gain**2 * step(K, K1, K2)
        case LeakyReLU():
            return (1.0 - layer.slope) ** 2 * step(K, K1, K2) + layer.slope
        case Abs():
            return 4.0 * step(K, K1, K2) - 1.0
        case Erf():
            rest = 1.0 + 2.0 * K1 + 2.0 * K2 + 4.0 * np.maximum(K1 * K2 - K * K, 0.0)  # (1 + 2K₁)(1 + 2K₂) − 4K²
            return np.asarray(4.0 / math.pi / np.sqrt(rest))
        case Step():
            raise NetworkError(
                "Step() has no tangent kernel: its slope is zero almost everywhere and infinite at 0, so E[φ'φ'] does "
                "not exist; use Erf() or another smooth function"
            )
        case Sin():
            return cos(K, K1, K2)
        case Cos():
            return sin(K, K1, K2)
        case Rbf():
            return 2.0 * layer.gamma * rbf(layer.gamma, K, K1, K2)
        case GELU():
            return gelu(K, K1, K2)
        case Elementwise():
            slope = numeric_derivative(as_callable(layer.fn))
            return expectation(slope, 40.0 if breakpoints(layer.fn) else 4.0, K, K1, K2)
        case _:
            raise NotImplementedError(f"the reference has no derivative for {layer!r}")


def derivative_diagonal(layer: Nonlinearity, K: Array) -> Array:
    """The same at X = X', where the correlation is exactly one; the slope of a ReLU at 0 is 0."""
    match layer:
        case ReLU():
            return np.where(K > 0, layer.gain**2 / 2.0, 0.0)
        case LeakyReLU():
            return np.where(K > 0, (1.0 + layer.slope**2) / 2.0, layer.slope)
        case Abs():
            return np.where(K > 0, 1.0, -1.0)
        case _:
            return derivative(layer, K, K, K)


def step(K: Array, K1: Array, K2: Array) -> Array:
    """E[1(u > 0) 1(v > 0)] = (π − θ)/2π: ∂A/∂K of the ReLU. Where a variance is 0 so is Θ, and 0 is put here."""
    theta = np.arccos(correlation(K, K1, K2))
    return np.where(K1 * K2 > 0, (np.pi - theta) / (2.0 * np.pi), 0.0)


def gelu(K: Array, K1: Array, K2: Array) -> Array:
    """1/4 + (asin r + (r/q)·((3 + K₁ + K₂) + r²/q²)/P)/2π with P = (1 + K₁)(1 + K₂), r = K/√P, q = √(1 − r²).

    ∂/∂K of the formula in reference/formulas.py; the terms of order K₁K₂, which cancel, are taken out by hand.
    """
    P = (1.0 + K1) * (1.0 + K2)
    r = K / np.sqrt(P)
    q: Array = np.sqrt((1.0 + K1 + K2 + np.maximum(K1 * K2 - K * K, 0.0)) / P)
    inner = np.arctan2(r, q) + r / q * ((3.0 + K1 + K2) + r * r / (q * q)) / P
    return 0.25 + inner / (2.0 * np.pi)


def numeric_derivative(fn: Any) -> Any:
    """fn' by central differences of order eight: about 1e-12 for functions of order one that are smooth over 0.1."""
    h = 0.02
    weights = (4.0 / 5.0, -1.0 / 5.0, 4.0 / 105.0, -1.0 / 280.0)

    def slope(x: Array) -> Any:
        return sum(w * (fn(x + k * h) - fn(x - k * h)) for k, w in enumerate(weights, start=1)) / h

    return slope
