"""Derivatives of nonlinearities that only gradients need: by one variance, and where blank images count as equal."""

from __future__ import annotations

import math

import numpy as np

from cnngp.network.functions import as_callable
from cnngp.network.layers import (
    GELU,
    Abs,
    Cos,
    Elementwise,
    Erf,
    LayerNorm,
    LeakyReLU,
    Nonlinearity,
    NormalizedExp,
    Rbf,
    ReLU,
    Sin,
    SquaredReLU,
)
from cnngp.network.reference import Array, nonlinearity, nonlinearity_diagonal
from cnngp.network.reference.formulas import derivative, expectation, numeric_derivative


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
        case Sin():
            return -0.5 * nonlinearity(net, K, K1, K2)
        case Cos():
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
    """(q K₂(2 + K₁) − (r²/q)(4 + K₁ + K₂ + r²/q²))/(4π(1 + K₁)√P): ∂/∂K₁ of the formula above."""
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
