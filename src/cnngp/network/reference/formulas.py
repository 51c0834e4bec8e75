"""Nonlinearities: V(K, K₁, K₂) with K = K(X, X'), K₁ = K(X, X), K₂ = K(X', X'). This is the definition of each."""

from __future__ import annotations

from typing import Any

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
    Nonlinearity,
    NormalizedExp,
    Rbf,
    ReLU,
    Sign,
    Sin,
    SquaredReLU,
    Step,
)
from .covariances import Array


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


def correlation(K: Array, K1: Array, K2: Array) -> Array:
    """cos θ = K/√(K₁K₂), and 0 where a variance is zero."""
    p = np.sqrt(K1) * np.sqrt(K2)
    safe = np.where(p > 0, p, 1.0)
    return np.clip(np.where(p > 0, K / safe, 0.0), -1.0, 1.0)


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


def expectation(fn: Any, least: float, K: Array, K1: Array, K2: Array, other: Any = None) -> Array:
    """E[fn(u) fn(v)] by the trapezoidal rule over u = s₁a, v = s₂(ρa + √(1 − ρ²) b), an entry at a time.

    Where there is an `other` function, E[fn(u) other(v)].

    For fn analytic within y of the real line its error is e^{−2πy/(s·step)}: with 5s points to the unit 1e-13 or less
    from y = 1 on (arctan; tanh has π/2), up to s = 40. With the 40 points of a kink 1e-8 remain where the curvature
    jumps (elu), 1e-5 where the slope does (selu).
    """
    c = correlation(K, K1, K2)
    s1, s2 = (np.broadcast_to(np.sqrt(v), c.shape).ravel() for v in (K1, K2))
    rho = c.ravel()
    total = np.zeros(c.size)
    for i in range(c.size):
        step = 1.0 / min(max(least, 5.0 * s1[i], 5.0 * s2[i]), 200.0)
        a = step * np.arange(-np.ceil(9.0 / step), np.ceil(9.0 / step) + 1.0)
        weights = step * np.exp(-0.5 * a * a) / np.sqrt(2.0 * np.pi)
        v = s2[i] * (rho[i] * a[:, None] + np.sqrt((1.0 - rho[i]) * (1.0 + rho[i])) * a)
        total[i] = np.sum(weights * fn(s1[i] * a) * np.sum(weights * (other or fn)(v), axis=1))
    return total.reshape(c.shape)
