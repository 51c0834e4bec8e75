"""Nonlinearities: V(K, K₁, K₂), with K = K(X, X'), K₁ = K(X, X), K₂ = K(X', X'), and V̇ = ∂V/∂K = E[φ'(u) φ'(v)].

Each definition is written in terms of K, K₁, K₂ and the correlation c = cos θ, which is exactly 1 for an image with
itself.
"""

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
from .covariances import Array, Covariances, Maps, equal_locations


def nonlinearity(layer: Nonlinearity, K: Array, K1: Array, K2: Array) -> Array:
    return _value(layer, K, K1, K2, correlation(K, K1, K2))


def nonlinearity_diagonal(layer: Nonlinearity, K: Array) -> Array:
    return _value(layer, K, K, K, np.ones_like(K))


def derivative(layer: Nonlinearity, K: Array, K1: Array, K2: Array) -> Array:
    return _slope(layer, K, K1, K2, correlation(K, K1, K2))


def derivative_diagonal(layer: Nonlinearity, K: Array) -> Array:
    """Return V̇ at X = X'. The slope of a ReLU at 0 counts as 0."""
    return _slope(layer, K, K, K, np.ones_like(K))


def correlation(K: Array, K1: Array, K2: Array) -> Array:
    """Correlation cos θ = K/√(K₁K₂), and 0 where a variance is zero."""
    p = np.sqrt(K1) * np.sqrt(K2)
    safe = np.where(p > 0, p, 1.0)
    return np.clip(np.where(p > 0, K / safe, 0.0), -1.0, 1.0)


def _value(layer: Nonlinearity, K: Array, K1: Array, K2: Array, c: Array) -> Array:
    p, m, positive = np.sqrt(K1) * np.sqrt(K2), (K1 + K2) / 2.0, (K1 > 0) & (K2 > 0)
    match layer:
        case ReLU():
            return layer.gain**2 * _arc_cosine(p, c)
        case LeakyReLU():
            return (1.0 - layer.slope) ** 2 * _arc_cosine(p, c) + layer.slope * K
        case Abs():
            return 4.0 * _arc_cosine(p, c) - K
        case SquaredReLU():  # K₁K₂/2π · (3 sin θ cos θ + (π − θ)(1 + 2 cos² θ)): the arc-cosine kernel of order 2
            J = 3.0 * np.sqrt((1.0 - c) * (1.0 + c)) * c + (np.pi - np.arccos(c)) * (1.0 + 2.0 * c * c)
            return K1 * K2 / (2.0 * np.pi) * J
        case Step():  # (π − θ)/2π; 0 where a variance is zero, because step(0) = 0
            return np.where(positive, (np.pi - np.arccos(c)) / (2.0 * np.pi), 0.0)
        case Sign():
            return np.where(positive, 2.0 / np.pi * np.arcsin(c), 0.0)
        case Erf():  # (2/π) asin(2K/√P), P = (1 + 2K₁)(1 + 2K₂), by atan2: asin would lose half the digits near 1
            return 2.0 / np.pi * np.arctan2(2.0 * K, np.sqrt(_erf_rest(K, K1, K2)))
        case Sin():  # ½(e^{K−m} − e^{−K−m}), with expm1 so that small K keep their digits
            return -0.5 * np.sign(K) * np.exp(np.abs(K) - m) * np.expm1(-2.0 * np.abs(K))
        case Cos():  # ½(e^{K−m} + e^{−K−m})
            return 0.5 * (np.exp(K - m) + np.exp(-K - m))
        case Rbf():  # e^{−γ(K₁ + K₂ − 2K)}; the differences are exact where they are small, and V never exceeds 1
            return np.asarray(np.exp(-layer.gamma * np.maximum((K1 - K) + (K2 - K), 0.0)))
        case NormalizedExp():  # √(K₁K₂) e^{γ(cos θ − 1)}
            return np.asarray(p * np.exp(layer.gamma * (c - 1.0)))
        case LayerNorm() if layer.eps == 0.0:
            return np.where(positive, c, 0.0)
        case LayerNorm():
            return K * _layer_norm_scale(layer.eps, K1) * _layer_norm_scale(layer.eps, K2)
        case GELU():  # K/4 + (1/2π)(K asin r + (r² + K₁K₂(1 − r²))/(√P √(1 − r²))): Tsuchida et al. 2020
            P, r, q = _gelu_parts(K, K1, K2)
            return K / 4.0 + (K * np.arctan2(r, q) + (r * r + K1 * K2 * q * q) / (np.sqrt(P) * q)) / (2.0 * np.pi)
        case Elementwise():
            return expectation(layer, as_callable(layer.fn), K, K1, K2)
        case _:
            raise NotImplementedError(f"the reference has no formula for {layer!r}")


def _slope(layer: Nonlinearity, K: Array, K1: Array, K2: Array, c: Array) -> Array:
    match layer:
        case ReLU():  # E[1(u > 0) 1(v > 0)] = (π − θ)/2π; 0 where a variance is 0, because Θ is 0 there
            return layer.gain**2 * _value(Step(), K, K1, K2, c)
        case LeakyReLU():
            return (1.0 - layer.slope) ** 2 * _value(Step(), K, K1, K2, c) + layer.slope
        case Abs():
            return 4.0 * _value(Step(), K, K1, K2, c) - 1.0
        case SquaredReLU():
            return 4.0 * _value(ReLU(), K, K1, K2, c)
        case Step() | Sign():
            raise NetworkError(
                f"{layer!r} has no tangent kernel: its slope is zero almost everywhere and infinite at 0, so E[φ'φ'] "
                "does not exist; use Erf() or another smooth function"
            )
        case Erf():
            return np.asarray(4.0 / np.pi / np.sqrt(_erf_rest(K, K1, K2)))
        case Sin():
            return _value(Cos(), K, K1, K2, c)
        case Cos():
            return _value(Sin(), K, K1, K2, c)
        case Rbf():
            return 2.0 * layer.gamma * _value(layer, K, K1, K2, c)
        case NormalizedExp():
            return layer.gamma * np.exp(layer.gamma * (c - 1.0))
        case LayerNorm():
            return _layer_norm_scale(layer.eps, K1) * _layer_norm_scale(layer.eps, K2) + np.zeros_like(K)
        case GELU():  # 1/4 + (asin r + (r/q)((3 + K₁ + K₂) + r²/q²)/P)/2π; the terms in K₁K₂ cancel
            P, r, q = _gelu_parts(K, K1, K2)
            inner = np.arctan2(r, q) + r / q * ((3.0 + K1 + K2) + r * r / (q * q)) / P
            return 0.25 + inner / (2.0 * np.pi)
        case Elementwise():
            return expectation(layer, numeric_derivative(as_callable(layer.fn)), K, K1, K2)
        case _:
            raise NotImplementedError(f"the reference has no derivative for {layer!r}")


def _arc_cosine(p: Array, c: Array) -> Array:
    """A = p/(2π) · (sin θ + (π − θ) cos θ)."""
    return p / (2.0 * np.pi) * (np.sqrt((1.0 - c) * (1.0 + c)) + (np.pi - np.arccos(c)) * c)


def _erf_rest(K: Array, K1: Array, K2: Array) -> Array:
    """Return (1 + 2K₁)(1 + 2K₂) − 4K², in a form that is exact where K₁ = K₂ = K."""
    return 1.0 + 2.0 * K1 + 2.0 * K2 + 4.0 * np.maximum(K1 * K2 - K * K, 0.0)


def _layer_norm_scale(eps: float, K: Array) -> Array:
    """Return 1/√(K + ε), and 0 where both are zero."""
    total = K + eps
    return np.where(total > 0, 1.0 / np.sqrt(np.where(total > 0, total, 1.0)), 0.0)


def layer_norm_over_all(layer: LayerNorm, x: Maps) -> Maps:
    """Divide K and Θ by √((K₁ + ε)(K₂ + ε)), with K₁ and K₂ the means over all locations: one constant per image."""

    def scale(variances: Array) -> Array:
        K = equal_locations(variances, x.K.axes) if x.K.full else variances
        mean = K.mean(axis=tuple(range(2, K.ndim)))
        return _layer_norm_scale(layer.eps, mean).reshape(*mean.shape, *(1,) * (variances.ndim - 2))

    first, second = scale(x.K.xx), scale(x.K.zz)
    return x.map(lambda V: Covariances(V.xz * first * second, V.xx * first * first, V.zz * second * second, V.full))


def _gelu_parts(K: Array, K1: Array, K2: Array) -> tuple[Array, Array, Array]:
    """Return P = (1 + K₁)(1 + K₂), r = K/√P, q = √(1 − r²); P − K² = 1 + K₁ + K₂ + (K₁K₂ − K²) avoids cancellation."""
    P = (1.0 + K1) * (1.0 + K2)
    return P, K / np.sqrt(P), np.sqrt((1.0 + K1 + K2 + np.maximum(K1 * K2 - K * K, 0.0)) / P)


def expectation(layer: Elementwise, fn: Any, K: Array, K1: Array, K2: Array, other: Any = None) -> Array:
    """E[fn(u) other(v)] by the trapezoidal rule over u = s₁a, v = s₂(ρa + √(1 − ρ²) b), one entry at a time.

    `fn` is the layer's function or its slope; `other` defaults to `fn`. For fn analytic within y of the real line the
    error is e^{−2πy/(s·step)}: with 5s points per unit it is 1e-13 or less for y ≥ 1 (arctan; tanh has π/2), up to
    s = 40. With the 40 points used for a known kink the error is 1e-8 where the curvature jumps (elu) and 1e-5 where
    the slope jumps (selu).
    """
    least = 40.0 if breakpoints(layer.fn) else 4.0
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


def numeric_derivative(fn: Any) -> Any:
    """Derivative by central differences of order eight: error about 1e-12 for functions of order 1, smooth over 0.1."""
    h = 0.02
    weights = (4.0 / 5.0, -1.0 / 5.0, 4.0 / 105.0, -1.0 / 280.0)

    def slope(x: Array) -> Any:
        return sum(w * (fn(x + k * h) - fn(x - k * h)) for k, w in enumerate(weights, start=1)) / h

    return slope
