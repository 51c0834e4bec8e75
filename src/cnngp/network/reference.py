"""The paper's recursion in float64 NumPy, one function an equation: what every engine is tested against.

It is slow and plain on purpose and shares no code with the engines. Maps carry their locations in the last axes:
K(X, X') has shape (N, M, *locations), the variances K(X, X) and K(X', X') (N, 1, *locations) and (1, M, *locations), so
each formula below is written once and broadcasts.

Pooling needs the covariances of different locations. A network with pools is computed with all of them: the locations
of the first image and then those of the second, K(X, X') of shape (N, M, *locations, *locations). A layer then does to
both what it does to one.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cnngp.common.arrays import to_numpy

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

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Covariances:
    """K(X, X'), K(X, X) and K(X', X'): at corresponding locations, or at every two where `full`."""

    xz: Array
    xx: Array
    zz: Array
    full: bool

    @property
    def axes(self) -> int:
        return (self.xz.ndim - 2) // (2 if self.full else 1)

    def map(self, f: Any) -> Covariances:
        return Covariances(f(self.xz), f(self.xx), f(self.zz), self.full)

    def __add__(self, other: Covariances) -> Covariances:
        if self.xz.shape != other.xz.shape:  # NumPy would repeat a single location at all others
            shapes = " and ".join(str(V.xz.shape[2 : 2 + V.axes]) for V in (self, other))
            raise NetworkError(f"the branches of a Sum must have one shape, but they give {shapes}")
        return Covariances(self.xz + other.xz, self.xx + other.xx, self.zz + other.zz, self.full)


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


def has_pools(net: Layer) -> bool:
    match net:
        case AvgPool() | GlobalAvgPool():
            return True
        case Sequential():
            return any(map(has_pools, net.layers))
        case Sum():
            return any(map(has_pools, net.branches))
        case _:
            return False


def begin(net: Layer, x: Array, z: Array) -> Covariances:
    """What goes into the first layer of a network."""
    return inputs(x, z, has_pools(net))


def inputs(x: Array, z: Array, full: bool = False) -> Covariances:
    """V⁰_ν = (1/C) Σ_c X_{c,ν} X'_{c,ν}; where `full`, V⁰(p, q) = (1/C) Σ_c X_{c,p} X'_{c,q}."""
    C = x.shape[1]
    if full:
        axes = x.ndim - 2
        p, q = "abd"[:axes], "efg"[:axes]
        return Covariances(
            np.einsum(f"nc{p},mc{q}->nm{p}{q}", x, z) / C,
            np.einsum(f"nc{p},nc{q}->n{p}{q}", x, x)[:, None] / C,
            np.einsum(f"mc{p},mc{q}->m{p}{q}", z, z)[None] / C,
            full,
        )
    return Covariances(
        np.einsum("nc...,mc...->nm...", x, z) / C,
        np.einsum("nc...,nc...->n...", x, x)[:, None] / C,
        np.einsum("mc...,mc...->m...", z, z)[None] / C,
        full,
    )


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


# ---- linear layers -------------------------------------------------------------------------------------------------


def per_axis(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else (value,) * axes


def pads_of(layer: Conv | ConvTranspose, axes: int) -> list[tuple[int, int]]:
    if layer.padding == "same":
        reach = [
            d * (k - 1) for k, d in zip(per_axis(layer.kernel_size, axes), per_axis(layer.dilation, axes), strict=True)
        ]
        return [(r // 2, r - r // 2) for r in reach]
    if layer.padding == "valid":
        return [(0, 0)] * axes
    entries = layer.padding if isinstance(layer.padding, tuple) else (layer.padding,) * axes
    return [(p, p) if isinstance(p, int) else p for p in entries]


NUMPY_PADDING = {"zeros": "constant", "circular": "wrap", "reflect": "reflect", "replicate": "edge"}


def fan_in_scale(layer: Conv | ConvTranspose, axes: int) -> float:
    return 1.0 / math.prod(per_axis(layer.kernel_size, axes)) if layer.fan_in == "patch" else 1.0


def convolution(layer: Conv, V: Array, axes: int) -> Array:
    """K_μ = bias_var + weight_var · s · Σ_{ν ∈ patch(μ)} V_ν; of two locations, with the same offset from both."""
    copies = (V.ndim - 2) // max(axes, 1)
    k, stride, dilation = (per_axis(v, axes) for v in (layer.kernel_size, layer.stride, layer.dilation))
    padded = np.pad(V, [(0, 0), (0, 0), *pads_of(layer, axes) * copies], mode=NUMPY_PADDING[layer.padding_mode])  # type: ignore[call-overload]
    out = [(padded.shape[2 + a] - dilation[a] * (k[a] - 1) - 1) // stride[a] + 1 for a in range(axes)]
    total = np.zeros(V.shape[:2] + tuple(out) * copies)
    for tap in itertools.product(*map(range, k)):
        window = tuple(
            slice(t * dilation[a], t * dilation[a] + stride[a] * (out[a] - 1) + 1, stride[a]) for a, t in enumerate(tap)
        )
        total += padded[(slice(None), slice(None), *window * copies)]
    return layer.bias_var + layer.weight_var * fan_in_scale(layer, axes) * total


def transposed_convolution(layer: ConvTranspose, V: Array, axes: int) -> Array:
    """K_μ = bias_var + weight_var · s · Σ_{m: μ ∈ patch(m)} V_m, the adjoint of `convolution`."""
    copies = (V.ndim - 2) // max(axes, 1)
    k, stride, dilation, extra = (
        per_axis(v, axes) for v in (layer.kernel_size, layer.stride, layer.dilation, layer.output_padding)
    )
    pads = pads_of(layer, axes)
    size = V.shape[2 : 2 + axes]
    if layer.padding == "same":
        out = [n * s for n, s in zip(size, stride, strict=True)]
    else:
        out = [(size[a] - 1) * stride[a] - sum(pads[a]) + dilation[a] * (k[a] - 1) + extra[a] + 1 for a in range(axes)]
    # Every location writes its patch into the padded output, of which the padding is cut off.
    ends = [max((size[a] - 1) * stride[a] + dilation[a] * (k[a] - 1) + 1, pads[a][0] + out[a]) for a in range(axes)]
    padded = np.zeros(V.shape[:2] + tuple(ends) * copies)
    for tap in itertools.product(*map(range, k)):
        patch: Any = [
            slice(t * dilation[a], t * dilation[a] + stride[a] * (size[a] - 1) + 1, stride[a])
            for a, t in enumerate(tap)
        ]
        padded[..., *patch * copies] += V
    inside: Any = [slice(pads[a][0], pads[a][0] + out[a]) for a in range(axes)]
    total = padded[..., *inside * copies]
    return layer.bias_var + layer.weight_var * fan_in_scale(layer, axes) * total


def dense(layer: Dense, V: Array, axes: int) -> Array:
    """K = bias_var + weight_var · mean over all locations, each of which has weights of its own."""
    V = equal_locations(V, axes) if V.ndim > 2 + axes else V
    return layer.bias_var + layer.weight_var * np.asarray(V.mean(axis=tuple(range(2, V.ndim))))


def average_pool(layer: AvgPool, V: Array, axes: int) -> Array:
    """K'(P, Q) = 1/(n_P n_Q) Σ_{p ∈ P} Σ_{q ∈ Q} V(p, q): the matrix of the mean along each axis, of both images."""
    for axis in range(2 * axes):
        means = pool_means(layer, axis % axes, V.shape[2 + axis], axes)
        V = np.moveaxis(np.tensordot(V, means, axes=(2 + axis, 1)), -1, 2 + axis)
    return V


def pool_means(layer: AvgPool, axis: int, n: int, axes: int) -> Array:
    """The matrix of the mean along one axis of n places: (windows, n)."""
    size, padding = per_axis(layer.size, axes), per_axis(layer.padding, axes)
    stride = size if layer.stride is None else per_axis(layer.stride, axes)
    k, s, pad = size[axis], stride[axis], padding[axis]
    means = np.zeros(((n + 2 * pad - k) // s + 1, n))
    for P in range(len(means)):
        inside = [p for p in range(P * s - pad, P * s - pad + k) if 0 <= p < n]
        means[P, inside] = 1.0 / (k if layer.count_include_pad else len(inside))
    return means


def equal_locations(V: Array, axes: int) -> Array:
    """V(p, p) of V(p, q), a new array."""
    p = "abd"[:axes]
    values: Array = np.einsum(f"nm{p}{p}->nm{p}", V).copy()
    return values


# ---- nonlinearities: V(K, K₁, K₂) with K = K(X, X'), K₁ = K(X, X), K₂ = K(X', X') -----------------------------------


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
        case GELU():
            return gelu(K, K1, K2)
        case Elementwise():
            return elementwise(layer, K, K1, K2)
        case _:
            raise NotImplementedError(f"the reference has no formula for {layer!r}")


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


def nonlinearity_diagonal(layer: Nonlinearity, K: Array) -> Array:
    """The same at X = X', where the correlation is exactly one."""
    match layer:
        case ReLU():
            return layer.gain**2 * K / 2.0
        case LeakyReLU():
            return (1.0 + layer.slope**2) / 2.0 * K
        case Abs():
            return K
        case Step():
            return np.where(K > 0, 0.5, 0.0)
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
