"""Covariances that the recursion propagates, starting from the images: K(X, X'), K(X, X) and K(X', X')."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..layers import AvgPool, GlobalAvgPool, Layer, NetworkError
from ..walk import leaves

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Covariances:
    """K(X, X'), K(X, X) and K(X', X') at corresponding locations, or at all pairs of locations if `full`."""

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
        if self.xz.shape != other.xz.shape:  # NumPy would broadcast a single location over all others
            shapes = " and ".join(str(V.xz.shape[2 : 2 + V.axes]) for V in (self, other))
            raise NetworkError(f"the branches of a Sum must have one shape, but they give {shapes}")
        return Covariances(self.xz + other.xz, self.xx + other.xx, self.zz + other.zz, self.full)


@dataclass(frozen=True)
class Maps:
    """K and the tangent kernel Θ at one point of a network; `theta` is None if only K is needed."""

    K: Covariances
    theta: Covariances | None = None

    def map(self, f: Callable[[Covariances], Covariances]) -> Maps:
        return Maps(f(self.K), None if self.theta is None else f(self.theta))

    def __add__(self, other: Maps) -> Maps:
        both = self.theta is not None and other.theta is not None
        return Maps(self.K + other.K, self.theta + other.theta if both else None)  # type: ignore[operator]


def has_pools(net: Layer) -> bool:
    return any(isinstance(layer, AvgPool | GlobalAvgPool) for _, layer in leaves(net))


def inputs(x: Array, z: Array, full: bool = False) -> Covariances:
    """Input covariances V⁰_ν = (1/C) Σ_c X_{c,ν} X'_{c,ν}; if `full`, V⁰(p, q) = (1/C) Σ_c X_{c,p} X'_{c,q}."""
    C = x.shape[1]
    p = "abd"[: x.ndim - 2]
    q = "efg"[: x.ndim - 2] if full else p
    at = p + q if full else p
    return Covariances(
        np.einsum(f"nc{p},mc{q}->nm{at}", x, z) / C,
        np.einsum(f"nc{p},nc{q}->n{at}", x, x)[:, None] / C,
        np.einsum(f"mc{p},mc{q}->m{at}", z, z)[None] / C,
        full,
    )


def equal_locations(V: Array, axes: int) -> Array:
    """Extract V(p, p) from V(p, q), as a new array."""
    p = "abd"[:axes]
    values: Array = np.einsum(f"nm{p}{p}->nm{p}", V).copy()
    return values


def pairwise(
    of_pair: Callable[[Array, Array, Array], Array], of_one: Callable[[Array], Array], V: Covariances
) -> Covariances:
    """Apply a function of K(p, q), the variance of the first image at p and that of the second at q, everywhere.

    `of_one` is the same function of a variance alone, for p = q in one image.
    """
    if not V.full:
        return Covariances(of_pair(V.xz, V.xx, V.zz), of_one(V.xx), of_one(V.zz), False)
    n = V.axes
    Kx, Kz = equal_locations(V.xx, n), equal_locations(V.zz, n)  # (N, 1, *p) and (1, M, *p)

    def first(K: Array) -> Array:
        return K.reshape(*K.shape, *(1,) * n)

    def second(K: Array) -> Array:
        return K.reshape(*K.shape[:2], *(1,) * n, *K.shape[2:])

    def of_image(K: Array, variances: Array) -> Array:
        out = of_pair(K, first(variances), second(variances))
        locations = np.ogrid[tuple(slice(size) for size in variances.shape[2:])]
        equal: Any = (slice(None), slice(None), *locations, *locations)
        out[equal] = of_one(variances)
        return out

    return Covariances(of_pair(V.xz, first(Kx), second(Kz)), of_image(V.xx, Kx), of_image(V.zz, Kz), True)
