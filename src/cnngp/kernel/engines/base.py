"""Interfaces of engines, for matrices and for gradients, and the check of numeric range before long computations."""

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
"""Progress callback, given the number of pairs computed since its last call."""


@runtime_checkable
class DiagonalEngine(Protocol):
    """An object that computes the variances of images."""

    def diagonal(self, X: Any) -> Array:
        """K(x, x) for each image, from the variance recursion in float64. Raises `RangeError`."""
        ...


class Engine(DiagonalEngine, Protocol):
    """Runs one program. Images are (N, channels, locations), C-contiguous, in the engine's `dtype`.

    K is the kernel of the program's kind: Θ for "ntk".

    K[i, j] depends on the two images alone: bit-identical for any batch, tile, thread count and argument order;
    with pools the order of the arguments may change the last bits.
    """

    dtype: np.dtype[Any]
    identity: str
    """Name recorded in stores; it changes whenever the bits of a result may change."""

    def cross(self, X: Any, Z: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        """K(x, z) for every pair, (N, M) in `dtype`. The images must be in range."""
        ...

    def symmetric(self, X: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        """K(x, x') with both triangles from one computation and the diagonal of `diagonal`."""
        ...


@runtime_checkable
class TangentEngine(Engine, Protocol):
    """An engine that runs programs of kind "ntk"."""

    def both(self, X: Any, Z: Any | None, output: Output = "numpy", advance: Advance = None) -> tuple[Any, Any]:
        """(K, Θ) from one pass, for two sets of images or one; Θ has the same bits as when computed alone."""
        ...


class RangeError(ValueError):
    """Error for a variance that the working precision cannot hold.

    >>> from cnngp import Dense, Kernel
    >>> Kernel(Dense(), device="cpu")([[1e30, 0.0]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    cnngp...RangeError: X[0] has pixels of 1e+30, too large to multiply in float32; use dtype='float64', or rescale ...
    """


# Exponents of the allowed range. Units keep typical values near one (program/nodes.py), so only images of extreme scale
# come near its ends.
_EXPONENTS = {4: (-90, 100), 8: (-900, 900)}


def check_range(
    program: Program,
    dtype: np.dtype[Any],
    series: SeriesTables,
    peaks: Array,
    diagonal: Array,
    theta: Array | None = None,
) -> Array:
    """Raise an error for images whose variances exceed the working precision or a series, before any pair is computed.

    Returns the maximum of the peaks over all images, (activations,).

    peaks: (N, activations), the largest variance of each image at each nonlinearity, in buffer units. For a Step, which
    depends on a tiny variance as much as on a large one, the largest of all variances and their inverses; variances of
    exactly zero are ignored.
    diagonal: (N,), the true K(x, x). theta: (N,), the true Θ(x, x) if the program computes it.
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
        series.check(a, float(peaks[:, s].max()))  # in order: results after a series beyond its range are meaningless
    ends = [("K", diagonal, program.unit)]
    if program.theta is not None and theta is not None:
        ends.append(("Θ", theta, program.theta_unit))
    for name, values, unit in ends:
        top = float(info.max) * min(1.0, unit)
        bad = ~((values == 0) | ((values < top) & (values > float(info.tiny))))
        if bad.any():
            i = int(np.argmax(bad))
            raise RangeError(f"{name}(x, x) of image {i} is {values[i]:.3g}, which does not fit {dtype.name}; {other}")
    if program.largest_number > float(info.max):  # as infinity it would give NaN for blank images
        raise RangeError(f"the variances of this network are too large or too small for {dtype.name}; {other}")
    return np.asarray(peaks.max(axis=0))


# Variances are computed in float64, in which the square of a smaller pixel is subnormal.
_SMALLEST_PIXEL = 2.0**-500


def check_pixels(X: Any, dtype: np.dtype[Any], name: str = "X", first: int = 0) -> None:
    """Raise `RangeError` for images (N, channels, …) whose squares are out of range; `first` is the first's index."""
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
    """Bounds of the largest variance of an image, in buffer units."""
    low, high = (2.0 ** (e / a.formula.degree) for e in _EXPONENTS[dtype.itemsize])
    if a.formula.homogeneous:
        return low, high  # the unit does not matter
    if a.formula.any_scale:
        return 0.5, 1.0 / low  # for the larger of a variance and its inverse
    if a.formula.blank_is_one:
        low = 0.0  # V is correctly 1 for a variance too small to represent
    if a.formula.exponential:
        high = {4: 2.0**20, 8: 2.0**45}[dtype.itemsize]  # beyond, rounding K and m leaves no digit of e^(K − m)
    return max(low, low / a.unit), min(2.0 ** _EXPONENTS[dtype.itemsize][1], high / a.unit)


# ---- gradients -----------------------------------------------------------------------------------------------------


class Gradient(NamedTuple):
    """Σ G ∂K/∂θ by name, and Σ G ∂K/∂pixel, (N, pixels), if the program differentiates by the images."""

    parameters: dict[str, float]
    of_x: Array | None
    of_z: Array | None


class GradientEngine(Protocol):
    """Gradients of one network. Images have the form that `Engine` takes, and must be in range."""

    identity: str
    """Changes whenever a result may change."""

    def gradient(self, X: Any, Z: Any | None, G: Array, advance: Advance = None) -> Gradient:
        """Σ G ∂K/∂θ; without Z, for the whole matrix of X including its diagonal."""
        ...


def checked_weights(G: Any, shape: tuple[int, int]) -> Array:
    """Return G as float64; raise `DataError` unless it has a finite number for each entry of K."""
    weights: Array = as_real(to_numpy(in_place(G, "G"), "G"), "G").astype(np.float64)
    if weights.shape != shape:
        raise DataError(f"G has shape {weights.shape}; expected {shape}, a number for each entry of the kernel matrix")
    if not np.isfinite(weights).all():
        i, j = np.argwhere(~np.isfinite(weights))[0]
        raise DataError(f"G[{i}, {j}] is {weights[i, j]}; expected finite numbers")
    return weights


def prepared(G: Array, symmetric: bool) -> tuple[Array, Array, int]:
    """Return (weights of the pairs, weights of the diagonal, exponent): G scaled to at most one, times 2^exponent.

    In a symmetric matrix an entry above the diagonal includes the weight of its mirror image; those below are zero.
    """
    exponent = math.frexp(float(np.max(np.abs(G), initial=0.0)))[1]
    weights: Array = np.ldexp(G, -exponent)
    if not symmetric:
        return weights, np.zeros(len(G)), exponent
    return np.triu(weights + weights.T, 1), weights.diagonal().copy(), exponent


def finished(
    program: Program, shares: Iterable[tuple[str, float]], of_x: Array | None, of_z: Array | None, exponent: int
) -> Gradient:
    """Convert gradients by parameters and pixels from the program's unit and 2^exponent to true units."""

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
