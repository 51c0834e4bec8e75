"""What every engine offers, of matrices and of gradients, and the one check of numeric range before long work."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, Output, as_real, in_place, to_numpy

from ..program import Activation, Program
from ..series.packed import SeriesTables

Array = NDArray[np.float64]
Advance = Callable[[int], None] | None
"""Told how many pairs were done since it was last told."""


@runtime_checkable
class DiagonalEngine(Protocol):
    """What knows the variances of images."""

    def diagonal(self, X: Any) -> Array:
        """K(x, x) for each image, from the variance recursion in float64. Raises `RangeError`."""
        ...


class Engine(DiagonalEngine, Protocol):
    """Runs one program. Images come as (N, channels, locations), C-contiguous, in the engine's `dtype`.

    K is the kernel of the kind that was asked for: Θ where that is "ntk".

    K[i, j] depends on the two images alone: bit-identical for any batch, tile, thread count and argument order;
    with pools the order of the arguments may move the last bits.
    """

    dtype: np.dtype[Any]
    identity: str
    """What a store records: it changes whenever the bits of a result may."""

    def cross(self, X: Any, Z: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        """K(x, z) for every pair: (N, M) in `dtype`. Images are known to be in range."""
        ...

    def symmetric(self, X: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        """K(x, x') with both triangles from one computation and the diagonal of `diagonal`."""
        ...


@runtime_checkable
class TangentEngine(Engine, Protocol):
    """An engine that runs programs of kind "ntk"."""

    def both(self, X: Any, Z: Any | None, output: Output = "numpy", advance: Advance = None) -> tuple[Any, Any]:
        """(K, Θ) from one pass, of pairs or of one set of images; Θ has the bits that it has alone."""
        ...


class RangeError(ValueError):
    """A variance that the working precision cannot hold.

    >>> from cnngp import Dense, Kernel
    >>> Kernel(Dense(), device="cpu")([[1e30, 0.0]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    cnngp...RangeError: X[0] has pixels of 1e+30, too large to multiply in float32; use dtype='float64', or rescale ...
    """


# Buffer units keep typical values near one (program/nodes.py), so only images of extreme scale come near these.
_EXPONENTS = {4: (-90, 100), 8: (-900, 900)}


def check_range(
    program: Program,
    dtype: np.dtype[Any],
    series: SeriesTables,
    peaks: Array,
    diagonal: Array,
    theta: Array | None = None,
) -> Array:
    """Refuse images whose variances leave the working precision or a series, before any pair is computed.

    Returns the largest of the peaks of all images, (activations,).

    peaks: (N, activations), the largest variance of each image at each nonlinearity, in buffer units. Of a Step, which
    makes as much of a tiny variance as of a large one, the largest of all variances and of their inverses; a variance
    of exactly zero counts for nothing.
    diagonal: (N,), the true K(x, x). theta: (N,), the true Θ(x, x) of a program that has it.
    """
    info = np.finfo(dtype)
    other = "use dtype='float64', or rescale the images" if dtype.itemsize == 4 else "rescale the images"
    for s, a in enumerate(program.activations):
        bottom, top = _variance_range(a, dtype)
        bad = ~((peaks[:, s] == 0) | ((peaks[:, s] < top) & (peaks[:, s] > bottom)))
        if bad.any():
            i = int(np.argmax(bad))
            if a.formula.any_scale:
                raise RangeError(
                    f"image {i} has locations whose variances at {a.place or 'the nonlinearity'} ({a.layer!r}) are "
                    f"too large, or too small beside the others, for {dtype.name}; {other}"
                )
            variance = a.unit * peaks[i, s] / a.formula.argument
            raise RangeError(
                f"image {i} has variance {variance:.3g} at {a.place or 'the nonlinearity'} ({a.layer!r}), "
                f"which {dtype.name} cannot carry; {other}"
            )
        series.check(a, float(peaks[:, s].max()))  # what follows a series beyond its reach has no meaning
    ends = [("K", diagonal, program.unit)]
    if program.theta is not None and theta is not None:
        ends.append(("Θ", theta, program.theta_unit))
    for name, values, unit in ends:
        top = float(info.max) * min(1.0, unit)
        bad = ~((values == 0) | ((values < top) & (values > float(info.tiny))))
        if bad.any():
            i = int(np.argmax(bad))
            raise RangeError(f"{name}(x, x) of image {i} is {values[i]:.3g}, which does not fit {dtype.name}; {other}")
    if program.largest_number > float(info.max):  # and 0 times infinity would be NaN for blank images
        raise RangeError(f"the variances of this network are too large or too small for {dtype.name}; {other}")
    return np.asarray(peaks.max(axis=0))


# Variances are computed in float64, where the square of a smaller pixel is no longer a normal number.
_SMALLEST_PIXEL = 2.0**-500


def check_pixels(X: Any, dtype: np.dtype[Any], name: str = "X", first: int = 0) -> None:
    """Refuse images (N, channels, …) whose squares leave the working precision; `first` is the number of the first."""
    rows = X.reshape(len(X), -1)
    largest = np.maximum(to_numpy(rows.max(axis=1)), -to_numpy(rows.min(axis=1))).astype(np.float64)
    top = float(largest.max())
    if top * top * X.shape[1] >= 2.0 ** _EXPONENTS[dtype.itemsize][1]:
        i = int(np.argmax(largest))
        other = "use dtype='float64', or rescale the images" if dtype.itemsize == 4 else "rescale the images"
        raise RangeError(
            f"{name}[{first + i}] has pixels of {largest[i]:.3g}, too large to multiply in {dtype.name}; {other}"
        )
    faint = (largest > 0.0) & (largest < _SMALLEST_PIXEL)
    if faint.any():
        i = int(np.argmax(faint))
        raise RangeError(
            f"{name}[{first + i}] has no pixel above {largest[i]:.3g}, too small to square in float64; rescale the "
            "images"
        )


def _variance_range(a: Activation, dtype: np.dtype[Any]) -> tuple[float, float]:
    """The largest variance of an image must lie between these, in buffer units."""
    low, high = (2.0 ** (e / a.formula.degree) for e in _EXPONENTS[dtype.itemsize])
    if a.formula.homogeneous:
        return low, high  # the unit does not matter
    if a.formula.any_scale:
        return 0.5, 1.0 / low  # of a variance or its inverse
    if a.formula.blank_is_one:
        low = 0.0  # of a variance too small to hold V is 1, as it should be
    if a.formula.exponential:
        high = {4: 2.0**20, 8: 2.0**45}[dtype.itemsize]  # with K and m rounded, no digit of e^(K − m) is left beyond
    return max(low, low / a.unit), min(2.0 ** _EXPONENTS[dtype.itemsize][1], high / a.unit)


# ---- gradients -----------------------------------------------------------------------------------------------------


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
