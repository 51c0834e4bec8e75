"""Nonlinearities: V(K, K₁, K₂) with K = K(X, X'), K₁ = K(X, X), K₂ = K(X', X'). This is the definition of each.

Then V's derivatives: by the covariance, for the tangent kernel and for gradients, and by the variances, for gradients.
"""

from __future__ import annotations

import math

import numpy as np

from ..functions import as_callable, breakpoints
from ..layers import (
    GELU,
    Abs,
    Cos,
    Elementwise,
    Erf,
    LayerNorm,
    LeakyReLU,
    NetworkError,
    Nonlinearity,
    NormalizedExp,
    Rbf,
    ReLU,
    Sign,
    Sin,
    SquaredReLU,
    Step,
)
from .covariances import Array, correlation
from .expectation import expectation, numeric_derivative


def nonlinearity(layer: Nonlinearity, K: Array, K1: Array, K2: Array) -> Array:
    match layer:
        case ReLU():
            return layer.gain**2 * relu(K, K1, K2)
        case LeakyReLU():
            return (1.0 - layer.slope) ** 2 * relu(K, K1, K2) + layer.slope * K
        case Abs():
            return 4.0 * relu(K, K1, K2) - K
        case Erf():
            return erf(K, K1, K2)
        case Step():
            return step(K, K1, K2)
        case Sin():
            return sin(K, K1, K2)
        case Cos():
            return cos(K, K1, K2)
        case Rbf():
            return rbf(layer.gamma, K, K1, K2)
        case NormalizedExp():
            return normalized_exp(layer.gamma, K, K1, K2)
        case LayerNorm():
            return K * layer_norm_scale(layer.eps, K1) * layer_norm_scale(layer.eps, K2)
        case Sign():
            return 2.0 / np.pi * np.arcsin(correlation(K, K1, K2))
        case SquaredReLU():
            return squared_relu(K, K1, K2)
        case GELU():
            return gelu(K, K1, K2)
        case Elementwise():
            return elementwise(layer, K, K1, K2)
        case _:
            raise NotImplementedError(f"the reference has no formula for {layer!r}")


def nonlinearity_diagonal(layer: Nonlinearity, K: Array) -> Array:
    """The same at X = X', where the correlation is exactly one."""
    match layer:
        case ReLU():
            return layer.gain**2 * K / 2.0
        case LeakyReLU():
            return (1.0 + layer.slope**2) / 2.0 * K
        case Abs() | NormalizedExp():
            return K
        case Step():
            return np.where(K > 0, 0.5, 0.0)
        case Sign():
            return np.where(K > 0, 1.0, 0.0)
        case SquaredReLU():
            return 1.5 * K * K
        case LayerNorm() if layer.eps == 0.0:
            return np.where(K > 0, 1.0, 0.0)
        case _:
            return nonlinearity(layer, K, K, K)


def relu(K: Array, K1: Array, K2: Array) -> Array:
    """A = p/(2π) · (sin θ + (π − θ) cos θ)."""
    c = correlation(K, K1, K2)
    theta = np.arccos(c)
    p = np.sqrt(K1) * np.sqrt(K2)
    return p / (2.0 * np.pi) * (np.sqrt((1.0 - c) * (1.0 + c)) + (np.pi - theta) * c)


def erf(K: Array, K1: Array, K2: Array) -> Array:
    """(2/π) asin(2K/√P), P = (1 + 2K₁)(1 + 2K₂), as an arctangent: near 1 the arcsine loses half the digits.

    P − 4K² is written as 1 + 2K₁ + 2K₂ + 4(K₁K₂ − K²), which is exact where K₁ = K₂ = K.
    """
    rest = 1.0 + 2.0 * K1 + 2.0 * K2 + 4.0 * np.maximum(K1 * K2 - K * K, 0.0)
    return 2.0 / np.pi * np.arctan2(2.0 * K, np.sqrt(rest))


def step(K: Array, K1: Array, K2: Array) -> Array:
    """(π − θ)/2π, and 0 where a variance is zero: there the argument is 0, and so is step(0)."""
    V = (np.pi - np.arccos(correlation(K, K1, K2))) / (2.0 * np.pi)
    return np.where((K1 > 0) & (K2 > 0), V, 0.0)


def sin(K: Array, K1: Array, K2: Array) -> Array:
    """½(e^{K−m} − e^{−K−m}) with m = (K₁ + K₂)/2, written with expm1 so that small K keep their digits."""
    m = (K1 + K2) / 2.0
    return -0.5 * np.sign(K) * np.exp(np.abs(K) - m) * np.expm1(-2.0 * np.abs(K))


def cos(K: Array, K1: Array, K2: Array) -> Array:
    """½(e^{K−m} + e^{−K−m}) with m = (K₁ + K₂)/2."""
    m = (K1 + K2) / 2.0
    return 0.5 * (np.exp(K - m) + np.exp(-K - m))


def rbf(gamma: float, K: Array, K1: Array, K2: Array) -> Array:
    """e^{−γ(K₁ + K₂ − 2K)}: K₁ − K and K₂ − K are exact where they are small, and rounding must not make V exceed 1."""
    difference = (K1 - K) + (K2 - K)
    return np.asarray(np.exp(-gamma * np.maximum(difference, 0.0)))


def normalized_exp(gamma: float, K: Array, K1: Array, K2: Array) -> Array:
    """√(K₁K₂) e^{γ(cos θ − 1)}."""
    return np.asarray(np.sqrt(K1) * np.sqrt(K2) * np.exp(gamma * (correlation(K, K1, K2) - 1.0)))


def layer_norm_scale(eps: float, K: Array) -> Array:
    """1/√(K + ε), and 0 where there is neither a variance nor an ε."""
    total = K + eps
    return np.where(total > 0, 1.0 / np.sqrt(np.where(total > 0, total, 1.0)), 0.0)


def squared_relu(K: Array, K1: Array, K2: Array) -> Array:
    """K₁K₂/2π · (3 sin θ cos θ + (π − θ)(1 + 2 cos² θ)): the arc-cosine kernel of order 2."""
    c = correlation(K, K1, K2)
    J = 3.0 * np.sqrt((1.0 - c) * (1.0 + c)) * c + (np.pi - np.arccos(c)) * (1.0 + 2.0 * c * c)
    return K1 * K2 / (2.0 * np.pi) * J


def gelu(K: Array, K1: Array, K2: Array) -> Array:
    """K/4 + (1/2π)(K asin r + (r² + K₁K₂(1 − r²))/(√P √(1 − r²))), P = (1 + K₁)(1 + K₂), r = K/√P.

    Tsuchida, Pearce, van der Heide, Roosta, Gallagher 2020, in a form with no cancellation: P − K² is written as
    1 + K₁ + K₂ + (K₁K₂ − K²).
    """
    P = (1.0 + K1) * (1.0 + K2)
    r = K / np.sqrt(P)
    q: Array = np.sqrt((1.0 + K1 + K2 + np.maximum(K1 * K2 - K * K, 0.0)) / P)  # √(1 − r²)
    return K / 4.0 + (K * np.arctan2(r, q) + (r * r + K1 * K2 * q * q) / (np.sqrt(P) * q)) / (2.0 * np.pi)


def elementwise(layer: Elementwise, K: Array, K1: Array, K2: Array) -> Array:
    """E[fn(u) fn(v)]; a known kink gets more points."""
    return expectation(as_callable(layer.fn), 40.0 if breakpoints(layer.fn) else 4.0, K, K1, K2)


# ---- by the covariance: V̇(K, K₁, K₂) = ∂V/∂K = E[φ'(u) φ'(v)] --------------------------------------------------------


def derivative(layer: Nonlinearity, K: Array, K1: Array, K2: Array) -> Array:
    match layer:
        case ReLU():
            return layer.gain**2 * _relu_derivative(K, K1, K2)
        case LeakyReLU():
            return (1.0 - layer.slope) ** 2 * _relu_derivative(K, K1, K2) + layer.slope
        case Abs():
            return 4.0 * _relu_derivative(K, K1, K2) - 1.0
        case Erf():
            rest = 1.0 + 2.0 * K1 + 2.0 * K2 + 4.0 * np.maximum(K1 * K2 - K * K, 0.0)  # (1 + 2K₁)(1 + 2K₂) − 4K²
            return np.asarray(4.0 / math.pi / np.sqrt(rest))
        case Step() | Sign():
            raise NetworkError(
                f"{layer!r} has no tangent kernel: its slope is zero almost everywhere and infinite at 0, so E[φ'φ'] "
                "does not exist; use Erf() or another smooth function"
            )
        case Sin():
            return cos(K, K1, K2)
        case Cos():
            return sin(K, K1, K2)
        case Rbf():
            return 2.0 * layer.gamma * rbf(layer.gamma, K, K1, K2)
        case NormalizedExp():
            return layer.gamma * np.exp(layer.gamma * (correlation(K, K1, K2) - 1.0))
        case LayerNorm():
            scale = layer_norm_scale(layer.eps, K1) * layer_norm_scale(layer.eps, K2)
            return scale + np.zeros_like(K)
        case SquaredReLU():
            return 4.0 * relu(K, K1, K2)
        case GELU():
            return _gelu_derivative(K, K1, K2)
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
        case NormalizedExp():
            return np.full_like(K, layer.gamma)
        case SquaredReLU():
            return 2.0 * K
        case _:
            return derivative(layer, K, K, K)


def _relu_derivative(K: Array, K1: Array, K2: Array) -> Array:
    """E[1(u > 0) 1(v > 0)] = (π − θ)/2π: ∂A/∂K of the ReLU. Where a variance is 0 so is Θ, and 0 is put here."""
    theta = np.arccos(correlation(K, K1, K2))
    return np.where((K1 > 0) & (K2 > 0), (np.pi - theta) / (2.0 * np.pi), 0.0)


def _gelu_derivative(K: Array, K1: Array, K2: Array) -> Array:
    """1/4 + (asin r + (r/q)·((3 + K₁ + K₂) + r²/q²)/P)/2π with P = (1 + K₁)(1 + K₂), r = K/√P, q = √(1 − r²).

    ∂/∂K of the formula above; the terms of order K₁K₂, which cancel, are taken out by hand.
    """
    P = (1.0 + K1) * (1.0 + K2)
    r = K / np.sqrt(P)
    q: Array = np.sqrt((1.0 + K1 + K2 + np.maximum(K1 * K2 - K * K, 0.0)) / P)
    inner = np.arctan2(r, q) + r / q * ((3.0 + K1 + K2) + r * r / (q * q)) / P
    return 0.25 + inner / (2.0 * np.pi)


# ---- for gradients, where blank images count as equal: by the covariance, by one variance, by all three at once ------


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
        case ReLU():
            return net.gain**2 * _relu_by_variance(K, K1, K2)
        case LeakyReLU():
            return (1.0 - net.slope) ** 2 * _relu_by_variance(K, K1, K2)
        case Abs():
            return 4.0 * _relu_by_variance(K, K1, K2)
        case Erf():
            rest = 1.0 + 2.0 * K1 + 2.0 * K2 + 4.0 * np.maximum(K1 * K2 - K * K, 0.0)
            return np.asarray(-4.0 / math.pi * K / (np.sqrt(rest) * (1.0 + 2.0 * K1)))
        case Sin():
            return -0.5 * sin(K, K1, K2)
        case Cos():
            return -0.5 * cos(K, K1, K2)
        case Rbf():
            return -net.gamma * rbf(net.gamma, K, K1, K2)
        case NormalizedExp():
            return _normalized_exp_by_variance(net.gamma, K, K1, K2)
        case LayerNorm():
            return -0.5 * K * layer_norm_scale(net.eps, K1) ** 3 * layer_norm_scale(net.eps, K2)
        case SquaredReLU():
            return _squared_relu_by_variance(K, K1, K2)
        case GELU():
            return _gelu_by_variance(K, K1, K2)
        case Elementwise():
            return _elementwise_by_variance(net, K, K1, K2)
        case _:
            raise NotImplementedError(f"the reference has no derivative for {net!r}")


def _relu_by_variance(K: Array, K1: Array, K2: Array) -> Array:
    """∂A/∂K₁ = sin θ/(4π) · √(K₂/K₁)."""
    c = correlation(K, K1, K2)
    positive = (K1 > 0) & (K2 > 0)
    ratio = np.sqrt(np.where(positive, K2, 0.0) / np.where(positive, K1, 1.0))
    return np.asarray(np.sqrt((1.0 - c) * (1.0 + c)) / (4.0 * np.pi) * ratio)


def _normalized_exp_by_variance(gamma: float, K: Array, K1: Array, K2: Array) -> Array:
    """½√(K₂/K₁)(1 − γ cos θ) e^{γ(cos θ − 1)}; 0 where a variance is 0."""
    c = correlation(K, K1, K2)
    positive = (K1 > 0) & (K2 > 0)
    ratio = np.sqrt(np.where(positive, K2, 0.0) / np.where(positive, K1, 1.0))
    return np.asarray(0.5 * ratio * (1.0 - gamma * c) * np.exp(gamma * (c - 1.0)))


def _squared_relu_by_variance(K: Array, K1: Array, K2: Array) -> Array:
    """K₂(sin θ cos θ + π − θ)/2π."""
    c = correlation(K, K1, K2)
    return K2 / (2.0 * np.pi) * (np.sqrt((1.0 - c) * (1.0 + c)) * c + np.pi - np.arccos(c))


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
    least = 40.0 if breakpoints(net.fn) else 4.0
    mixed = expectation(lambda u: u * slope(u), least, K, K1, K2, fn) - K * expectation(slope, least, K, K1, K2)
    return np.asarray(np.where(K1 > 0, mixed / (2.0 * np.where(K1 > 0, K1, 1.0)), 0.0))
