"""Σ G ∂K/∂θ for all parameters θ of a network at once: the recursion of reference/ run backwards, in float64 NumPy.

It is what the engines' gradients are tested against, and as plain as the reference. Going forwards, each layer leaves
behind how to go back: from the cotangents ∂L/∂K of what it gave, L = Σ G K, to those of what it was given. A linear
layer goes back by its transpose; a nonlinearity V(K, K₁, K₂) multiplies by ∂V/∂K, and adds to the cotangents of the two
images' variances by ∂V/∂K₁ and ∂V/∂K₂. On its way a layer notes what its own parameters gave.

Where a variance is exactly zero, the derivatives of a ReLU depend on the direction. There the two images count as
equal: ∂V/∂K = 1/2 and ∂V/∂K₁ = 0. That is right for all weights, which cannot change such a variance, and for biases
where both images are blank; where only one is, a bias_var of 0 has an infinite derivative, of which this is a finite
part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias, assert_never

import numpy as np
from numpy.typing import ArrayLike

from cnngp.network.composition import check_network
from cnngp.network.layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Identity,
    Layer,
    LeakyReLU,
    Network,
    NetworkError,
    Nonlinearity,
    NormalizedExp,
    Rbf,
    ReLU,
    Sequential,
    Sign,
    Step,
    Sum,
    as_layer,
)
from cnngp.network.reference import Array, Covariances, Maps, begin, nonlinearity, propagate
from cnngp.network.reference.covariances import equal_locations
from cnngp.network.reference.formulas import correlation
from cnngp.network.reference.linear import fan_in_scale, pool_means, taps, windows
from cnngp.network.walk import inside, name_of
from helpers.derivatives import by_covariance, by_own_variance, by_variance

Back: TypeAlias = Callable[[Covariances], Covariances]
"""From the cotangents of a layer's output to those of its input."""
Gradient: TypeAlias = dict[str, float]


def gradient(net: Network, X: ArrayLike, Z: ArrayLike | None, G: ArrayLike) -> Gradient:
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
    found = dict.fromkeys(layer.parameters(), 0.0)
    K, back = _walk(layer, begin(layer, x, z).K, "", found)
    g = np.array(G, dtype=np.float64)
    of_variances = np.zeros(len(x))
    if Z is None:
        of_variances = g.diagonal().copy()
        np.fill_diagonal(g, 0.0)
    back(
        Covariances(g.reshape(K.xz.shape), of_variances.reshape(K.xx.shape), np.zeros_like(K.zz), K.full)
    )  # the variances of Z are those of X where there is no Z: counted once
    return found


def _after(net: Layer, V: Covariances) -> Covariances:
    return propagate(net, Maps(V)).K


def _walk(net: Layer, V: Covariances, place: str, found: Gradient) -> tuple[Covariances, Back]:
    match net:
        case Conv() | ConvTranspose() | Dense():
            return _weights(net, V, place, found)
        case AvgPool() | GlobalAvgPool():
            return _after(net, V), lambda G: transposed(net, G, V)
        case Nonlinearity():
            return _nonlinearity(net, V, place, found)
        case Identity():
            return V, lambda G: G
        case Sequential():
            backs = []
            for where, layer in inside(net, place):
                V, back = _walk(layer, V, where, found)
                backs.append(back)

            def through(G: Covariances) -> Covariances:
                for back in reversed(backs):
                    G = back(G)
                return G

            return V, through
        case Sum():
            branches = [_walk(branch, V, where, found) for where, branch in inside(net, place)]
            total = branches[0][0]
            for K, _ in branches[1:]:
                total = total + K

            def both(G: Covariances) -> Covariances:
                first, *others = (back(G) for _, back in branches)
                for other in others:
                    first = first + other
                return first

            return total, both
        case _:
            assert_never(net)


# ---- linear layers -------------------------------------------------------------------------------------------------


def _weights(
    net: Conv | ConvTranspose | Dense, V: Covariances, place: str, found: Gradient
) -> tuple[Covariances, Back]:
    """K = bias_var + weight_var · sum(V): ∂L/∂bias_var = Σ ∂L/∂K, ∂L/∂weight_var = Σ ∂L/∂K · sum(V)."""
    sums = _after(replace(net, weight_var=1.0, bias_var=0.0), V)

    def back(G: Covariances) -> Covariances:
        for g, s in zip((G.xz, G.xx, G.zz), (sums.xz, sums.xx, sums.zz), strict=True):
            found[name_of(place, "weight_var")] += float(np.sum(g * s))
            found[name_of(place, "bias_var")] += float(np.sum(g))
        return transposed(net, G, V).map(lambda g: net.weight_var * g)

    return _after(net, V), back


def transposed(
    net: Conv | ConvTranspose | Dense | AvgPool | GlobalAvgPool, G: Covariances, V: Covariances
) -> Covariances:
    """The transpose of a linear layer with weight_var = 1: cotangents of the shape of V."""

    def one(g: Array, v: Array) -> Array:
        match net:
            case Conv() | ConvTranspose():
                return _of_weights(net, g, v.shape, V.axes)
            case Dense():
                return _of_dense(g, v.shape, V)
            case AvgPool():
                for axis in range(2 * V.axes):
                    means = pool_means(net, axis % V.axes, v.shape[2 + axis], V.axes)
                    g = np.moveaxis(np.tensordot(g, means, axes=(2 + axis, 0)), -1, 2 + axis)
                return g
            case GlobalAvgPool():
                return np.array(np.broadcast_to(g.reshape(*g.shape[:2], *(1,) * (v.ndim - 2)), v.shape)) / math.prod(
                    v.shape[2:]
                )

    return Covariances(one(G.xz, V.xz), one(G.xx, V.xx), one(G.zz, V.zz), V.full)


def _of_weights(net: Conv | ConvTranspose, g: Array, shape: tuple[int, ...], axes: int) -> Array:
    """What each place of the input has given to outputs comes back from them."""
    copies, size, total = (len(shape) - 2) // axes, shape[2 : 2 + axes], np.zeros(shape)
    for at, places in taps(windows(net, size)[1], copies):
        if isinstance(net, Conv):
            np.add.at(total, places, g[at])  # in padding that copies, a place stands several times
        else:
            total[at] += g[places]
    return fan_in_scale(net, axes) * total


def _of_dense(g: Array, shape: tuple[int, ...], V: Covariances) -> Array:
    """The mean over equal locations: all of them get the same, different locations nothing."""
    spatial = shape[2 : 2 + V.axes]
    share = g.reshape(*g.shape[:2], *(1,) * V.axes) / math.prod(spatial)
    out = np.zeros(shape)
    out[_equal(spatial) if V.full else ...] = share
    return out


def _equal(spatial: tuple[int, ...]) -> Any:
    """The index of V(p, p) in an array of all V(p, q)."""
    locations = np.ogrid[tuple(slice(size) for size in spatial)]
    return (slice(None), slice(None), *locations, *locations)


# ---- nonlinearities ------------------------------------------------------------------------------------------------


def _nonlinearity(net: Nonlinearity, K: Covariances, place: str, found: Gradient) -> tuple[Covariances, Back]:
    n = K.axes
    if isinstance(net, Step | Sign):
        raise NetworkError(
            f"{net!r} has no gradient: its kernel has an infinite slope where two patches are alike; use Erf() or "
            "another smooth function",
            place,
        )
    Kx, Kz = (equal_locations(K.xx, n), equal_locations(K.zz, n)) if K.full else (K.xx, K.zz)

    def first(v: Array) -> Array:
        return v.reshape(*v.shape, *(1,) * n) if K.full else v

    def second(v: Array) -> Array:
        return v.reshape(*v.shape[:2], *(1,) * n, *v.shape[2:]) if K.full else v

    def back(G: Covariances) -> Covariances:
        K1, K2 = first(Kx), second(Kz)
        p, q = (tuple(range(2, 2 + n)), tuple(range(2 + n, 2 + 2 * n))) if K.full else ((), ())
        of_x = (G.xz * by_variance(net, K.xz, K1, K2)).sum(axis=(1, *q))[:, None]
        of_z = (G.xz * by_variance(net, K.xz, K2, K1)).sum(axis=(0, *p))[None]
        _own(net, place, found, G.xz, K.xz, K1, K2)
        return Covariances(
            G.xz * by_covariance(net, K.xz, K1, K2), of_one(G.xx, K.xx, Kx, of_x), of_one(G.zz, K.zz, Kz, of_z), K.full
        )

    def of_one(g: Array, k: Array, v: Array, more: Array) -> Array:
        """The cotangents of an image's own covariances, with `more` for its variances from elsewhere."""
        diagonal = (equal_locations(g, n) if K.full else g) * by_own_variance(net, v)
        _own_diagonal(net, place, found, equal_locations(g, n) if K.full else g, v)
        if not K.full:
            return diagonal + more
        others = g.copy()
        others[_equal(v.shape[2:])] = 0.0
        one, two = first(v), second(v)
        _own(net, place, found, others, k, one, two)
        more = more + (others * by_variance(net, k, one, two)).sum(axis=tuple(range(2 + n, 2 + 2 * n)))
        more = more + (others * by_variance(net, k, two, one)).sum(axis=tuple(range(2, 2 + n)))
        out = others * by_covariance(net, k, one, two)
        out[_equal(v.shape[2:])] = diagonal + more
        return out

    return _after(net, K), back


def _own(net: Nonlinearity, place: str, found: Gradient, G: Array, K: Array, K1: Array, K2: Array) -> None:
    """What the layer's own parameter gave."""
    match net:
        case ReLU():
            found[name_of(place, "gain")] += float(np.sum(G * 2.0 * net.gain * nonlinearity(ReLU(), K, K1, K2)))
        case LeakyReLU():
            found[name_of(place, "slope")] += float(
                np.sum(G * (K - 2.0 * (1.0 - net.slope) * nonlinearity(ReLU(), K, K1, K2)))
            )
        case Rbf():
            found[name_of(place, "gamma")] += float(np.sum(G * (2.0 * K - K1 - K2) * nonlinearity(net, K, K1, K2)))
        case NormalizedExp():
            V = nonlinearity(net, K, K1, K2)
            found[name_of(place, "gamma")] += float(np.sum(G * (correlation(K, K1, K2) - 1.0) * V))
        case _:
            pass


def _own_diagonal(net: Nonlinearity, place: str, found: Gradient, G: Array, K: Array) -> None:
    match net:
        case ReLU():
            found[name_of(place, "gain")] += float(np.sum(G * net.gain * K))
        case LeakyReLU():
            found[name_of(place, "slope")] += float(np.sum(G * net.slope * K))
        case _:
            pass
