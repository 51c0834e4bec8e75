"""What a gradient is told of the matrix, G, and what it gives back: the same for every engine."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, as_real, in_place, to_numpy

from ..program import Program
from .base import Advance, RangeError

Array = NDArray[np.float64]


class Gradient(NamedTuple):
    """Σ G ∂K/∂θ by name, and Σ G ∂K/∂pixel, (N, pixels), where the program goes on to the images."""

    parameters: dict[str, float]
    of_x: Array | None
    of_z: Array | None


class GradientEngine(Protocol):
    """Gradients of one network. Images come as `Engine` takes them, known to be in range."""

    identity: str
    """Changes whenever a result may."""

    def gradient(self, X: Any, Z: Any | None, G: Array, advance: Advance = None) -> Gradient:
        """Σ G ∂K/∂θ; without Z, of the matrix of X with both triangles and its diagonal."""
        ...


def checked_weights(G: Any, shape: tuple[int, int]) -> Array:
    """G as float64, if it is a matrix of finite numbers, one for each entry of K."""
    weights: Array = as_real(to_numpy(in_place(G, "G"), "G"), "G").astype(np.float64)
    if weights.shape != shape:
        raise DataError(f"G has shape {weights.shape}; expected {shape}, a number for each entry of the kernel matrix")
    if not np.isfinite(weights).all():
        i, j = np.argwhere(~np.isfinite(weights))[0]
        raise DataError(f"G[{i}, {j}] is {weights[i, j]}; expected finite numbers")
    return weights


def prepared(G: Array, symmetric: bool) -> tuple[Array, Array, int]:
    """(weights of the pairs, weights of the diagonal, exponent): G as numbers up to one, times 2^exponent.

    Of the matrix of one set, a pair above the diagonal stands for its mirror image too, and those below get nothing.
    """
    exponent = math.frexp(float(np.max(np.abs(G), initial=0.0)))[1]
    weights: Array = np.ldexp(G, -exponent)
    if not symmetric:
        return weights, np.zeros(len(G)), exponent
    return np.triu(weights + weights.T, 1), weights.diagonal().copy(), exponent


def finished(
    program: Program, shares: Iterable[tuple[str, float]], of_x: Array | None, of_z: Array | None, exponent: int
) -> Gradient:
    """The gradient in true units, from what parameters and pixels got in those of the program and 2^exponent."""

    def in_true_units(values: Array) -> Array:
        with np.errstate(over="ignore"):
            scaled = np.asarray(np.ldexp(program.unit * values, exponent))
        if not np.isfinite(scaled).all():
            raise RangeError("the gradient is beyond float64; use a smaller G")
        return scaled

    found = dict.fromkeys(program.network.parameters(), 0.0)
    for name, part in shares:
        found[name] += part
    derivatives = in_true_units(np.array(list(found.values())))
    named = dict(zip(found, map(float, derivatives), strict=True))
    pixels = (None if g is None else in_true_units(g) for g in (of_x, of_z))
    return Gradient(named, *pixels)
