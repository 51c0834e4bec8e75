"""Derivatives in float64 NumPy, as plain as the reference: of nonlinearities by variances, of kernels by parameters.

`gradient` is what the engines' gradients are tested against: the recursion of reference/ with the derivative by every
parameter carried along. `by_differences` tests it in turn.

Where a variance is exactly zero, the derivatives of a ReLU depend on the direction. There the two images count as
equal: ∂V/∂K = 1/2 and ∂V/∂K₁ = 0. That is right for all weights, which cannot change such a variance, and for biases
where both images are blank; where only one is, a bias_var of 0 has an infinite derivative, of which this is a finite
part.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from cnngp import GELU, Abs, Conv, ConvTranspose, Cos, Dense, Elementwise, Erf, LayerNorm, Sequential, Sum
from cnngp.network import Network, reference
from cnngp.network.composition import check_network
from cnngp.network.functions import as_callable
from cnngp.network.layers import Layer, LeakyReLU, Nonlinearity, NormalizedExp, Rbf, ReLU, Sin, SquaredReLU, as_layer
from cnngp.network.reference import Array, Covariances, Maps, nonlinearity, nonlinearity_diagonal, propagate
from cnngp.network.reference.covariances import pairwise
from cnngp.network.reference.formulas import derivative, expectation, numeric_derivative
from cnngp.network.walk import inside, name_of

# Steps and weights of differences of order four.
CENTRAL = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
FORWARD = {0: -25 / 12, 1: 4.0, 2: -3.0, 3: 4 / 3, 4: -1 / 4}
Slopes: TypeAlias = dict[str, Covariances]
"""The derivatives of all covariances at one point of a network, by each parameter before it."""


def gradient(net: Network, X: ArrayLike, Z: ArrayLike | None, G: ArrayLike) -> dict[str, float]:
    """Σ_ij G_ij ∂K(x_i, z_j)/∂θ for each of `net.parameters()`; without Z, of the matrix of X with its exact diagonal.

    >>> import numpy as np
    >>> from cnngp import Dense
    >>> gradient(Dense(weight_var=2.0, bias_var=1.0), np.eye(2), None, np.ones((2, 2)))
    {'weight_var': 1.0, 'bias_var': 4.0}
    """
    x = np.asarray(X, dtype=np.float64)
    z = x if Z is None else np.asarray(Z, dtype=np.float64)
    layer = as_layer(net)
    check_network(layer)
    slopes = _carried(layer, reference.begin(layer, x, z).K, {}, "")[1]
    found = {}
    for name in layer.parameters():
        matrix = slopes[name].xz.reshape(len(x), len(z))
        if Z is None:
            np.fill_diagonal(matrix, slopes[name].xx.ravel())
        found[name] = float(np.sum(np.asarray(G) * matrix))
    return found


def _carried(net: Layer, V: Covariances, slopes: Slopes, place: str) -> tuple[Covariances, Slopes]:
    match net:
        case Sequential():
            for where, layer in inside(net, place):
                V, slopes = _carried(layer, V, slopes, where)
            return V, slopes
        case Sum():
            branches = [_carried(branch, V, slopes, where) for where, branch in inside(net, place)]
            total, added = branches[0]
            for K, more in branches[1:]:
                total = total + K
                added = added | {name: added[name] + d if name in added else d for name, d in more.items()}
            return total, added
        case Conv() | ConvTranspose() | Dense():
            K, linear = _after(net, V), replace(net, bias_var=0.0)
            moved = {name: _after(linear, d) for name, d in slopes.items()}
            moved[name_of(place, "weight_var")] = _after(replace(net, weight_var=1.0, bias_var=0.0), V)
            moved[name_of(place, "bias_var")] = K.map(np.ones_like)
            return K, moved
        case Nonlinearity():
            return _nonlinearity(net, V, slopes, place)
        case _:  # linear, without parameters
            return _after(net, V), {name: _after(net, d) for name, d in slopes.items()}


def _after(net: Layer, V: Covariances) -> Covariances:
    return propagate(net, Maps(V)).K


def _nonlinearity(net: Nonlinearity, V: Covariances, slopes: Slopes, place: str) -> tuple[Covariances, Slopes]:
    """dV = ∂V/∂K dK + ∂V/∂K₁ dK₁ + ∂V/∂K₂ dK₂, and of an image with itself, where the three are one, dV/dK dK."""
    by_both = pairwise(partial(by_covariance, net), partial(by_own_variance, net), V)
    by_first = pairwise(partial(by_variance, net), np.zeros_like, V)
    by_second = pairwise(lambda K, K1, K2: by_variance(net, K, K2, K1), np.zeros_like, V)

    def moved(d: Covariances) -> Covariances:
        first = pairwise(lambda K, K1, K2: K1 + 0.0 * K, np.zeros_like, d)
        second = pairwise(lambda K, K1, K2: K2 + 0.0 * K, np.zeros_like, d)
        return _product(by_both, d) + _product(by_first, first) + _product(by_second, second)

    carried = {name: moved(d) for name, d in slopes.items()}
    return _after(net, V), carried | {name_of(place, name): own for name, own in _of_own_parameter(net, V).items()}


def _product(a: Covariances, b: Covariances) -> Covariances:
    return Covariances(a.xz * b.xz, a.xx * b.xx, a.zz * b.zz, a.full)


def _of_own_parameter(net: Nonlinearity, V: Covariances) -> Slopes:
    """By differences of order four, which have no error where V is a square of the parameter, as of a ReLU's gain."""
    found = {}
    for name, value in net.parameters().items():
        h = 2e-3 * (abs(value) or 0.1)
        parts = []
        for step, weight in CENTRAL.items():
            there = _after(net.with_parameters({name: value + step * h}), V)
            parts.append(there.map(lambda K, w=weight / h: w * K))
        found[name] = sum(parts[1:], parts[0])
    return found


def by_differences(
    net: Network, X: np.ndarray, Z: np.ndarray | None, G: np.ndarray, names: Iterable[str] | None = None
) -> dict[str, float]:
    """The same of the reference by central differences of order four; one-sided where a variance is 0, the least."""
    values = net.parameters()
    found = {}
    for name in values if names is None else names:
        h = 2e-3 * (abs(values[name]) or 0.1)
        found[name] = 0.0
        for step, weight in (CENTRAL if values[name] else FORWARD).items():
            moved = net.with_parameters({name: values[name] + step * h})
            found[name] += weight / h * float(np.sum(G * reference.kernel(moved, X, Z)))
    return found


# ---- nonlinearities ------------------------------------------------------------------------------------------------


def by_own_variance(net: Nonlinearity, K: Array) -> Array:
    """dV/dK of an image with itself, where all three covariances are the same number."""
    match net:
        case ReLU() | LeakyReLU() | Abs() | NormalizedExp():
            return nonlinearity_diagonal(net, np.ones_like(K))  # V is a multiple of K
        case SquaredReLU():
            return 3.0 * K
        case _:
            return derivative(net, K, K, K) + 2.0 * by_variance(net, K, K, K)


def by_covariance(net: Nonlinearity, K: Array, K1: Array, K2: Array) -> Array:
    """∂V/∂K, with images that are blank here taken for equal."""
    slope = derivative(net, K, K1, K2)
    if isinstance(net, ReLU | LeakyReLU | Abs | NormalizedExp):
        return np.where((K1 > 0) & (K2 > 0), slope, by_own_variance(net, np.ones_like(slope)))
    return slope


def by_variance(net: Nonlinearity, K: Array, K1: Array, K2: Array) -> Array:
    """∂V/∂K₁, which is ½E[φ''(u) φ(v)]; with K₁ and K₂ exchanged it is ∂V/∂K₂."""
    match net:
        case ReLU() | LeakyReLU() | Abs() | NormalizedExp():
            return _homogeneous_by_variance(net, 1.0, K, K1, K2)
        case SquaredReLU():
            return _homogeneous_by_variance(net, 2.0, K, K1, K2)
        case Erf():
            rest = 1.0 + 2.0 * K1 + 2.0 * K2 + 4.0 * np.maximum(K1 * K2 - K * K, 0.0)
            return np.asarray(-4.0 / math.pi * K / (np.sqrt(rest) * (1.0 + 2.0 * K1)))
        case Sin() | Cos():
            return -0.5 * nonlinearity(net, K, K1, K2)
        case Rbf():
            return -net.gamma * nonlinearity(net, K, K1, K2)
        case LayerNorm():
            return -0.5 * nonlinearity(net, K, K1, K2) * derivative(net, K, K1, K1)
        case GELU():
            return _gelu_by_variance(K, K1, K2)
        case Elementwise():
            return _elementwise_by_variance(net, K, K1, K2)
        case _:
            raise NotImplementedError(f"the reference has no derivative for {net!r}")


def _homogeneous_by_variance(net: Nonlinearity, degree: float, K: Array, K1: Array, K2: Array) -> Array:
    """(degree · V − K · ∂V/∂K)/2K₁ by Euler's identity, as V is a power of √(K₁K₂) times a function of the angle; 0
    where a variance is 0.
    """
    positive = (K1 > 0) & (K2 > 0)
    rest = degree * nonlinearity(net, K, K1, K2) - K * derivative(net, K, K1, K2)
    return np.asarray(np.where(positive, rest / (2.0 * np.where(positive, K1, 1.0)), 0.0))


def _gelu_by_variance(K: Array, K1: Array, K2: Array) -> Array:
    """(q K₂(2 + K₁) − (r²/q)(4 + K₁ + K₂ + r²/q²))/(4π(1 + K₁)√P): ∂/∂K₁ of the closed form."""
    P = (1.0 + K1) * (1.0 + K2)
    r = K / np.sqrt(P)
    q: Array = np.sqrt((1.0 + K1 + K2 + np.maximum(K1 * K2 - K * K, 0.0)) / P)
    inner = q * K2 * (2.0 + K1) - r * r / q * (4.0 + K1 + K2 + r * r / (q * q))
    return np.asarray(inner / (4.0 * np.pi * (1.0 + K1) * np.sqrt(P)))


def _elementwise_by_variance(net: Elementwise, K: Array, K1: Array, K2: Array) -> Array:
    """½E[fn''(u) fn(v)] = (E[u fn'(u) fn(v)] − K E[fn'(u) fn'(v)])/2K₁, by parts; 0 where K₁ = 0."""
    fn = as_callable(net.fn)
    slope = numeric_derivative(fn)
    mixed = expectation(net, lambda u: u * slope(u), K, K1, K2, fn) - K * expectation(net, slope, K, K1, K2)
    return np.asarray(np.where(K1 > 0, mixed / (2.0 * np.where(K1 > 0, K1, 1.0)), 0.0))
