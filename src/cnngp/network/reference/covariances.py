"""What the recursion carries along a network: K(X, X'), K(X, X) and K(X', X'), from the images on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..layers import AvgPool, GlobalAvgPool, Layer, NetworkError, Sequential, Sum

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


def equal_locations(V: Array, axes: int) -> Array:
    """V(p, p) of V(p, q), a new array."""
    p = "abd"[:axes]
    values: Array = np.einsum(f"nm{p}{p}->nm{p}", V).copy()
    return values


def correlation(K: Array, K1: Array, K2: Array) -> Array:
    """cos θ = K/√(K₁K₂), and 0 where a variance is zero."""
    p = np.sqrt(K1) * np.sqrt(K2)
    safe = np.where(p > 0, p, 1.0)
    return np.clip(np.where(p > 0, K / safe, 0.0), -1.0, 1.0)
