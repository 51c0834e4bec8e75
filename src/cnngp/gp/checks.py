"""Validation of kernel matrices, targets and numbers, and their conversion to float64 arrays of NumPy or CuPy.

A matrix may be on disk and larger than half of the memory, so it is read once and piece by piece.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from cnngp.common.arrays import as_real, in_place, is_on_gpu, kind, to_cupy, to_numpy
from cnngp.common.errors import is_number
from cnngp.common.optional import need

from .linalg import Array, blocks, namespace
from .linalg import MatrixError as MatrixError

# Rows that are read and converted at a time, and the side of the tiles in which symmetry is checked.
_ROWS = 256
_TILE = 512
# Bounds of the targets: between these, their squares (in likelihoods and amplitudes) are normal float64 numbers, even
# summed over millions.
_SQUARABLE = (1e-140, 1e140)


def check_noise(noise: object) -> None:
    if noise not in ("ml", "loo") and not is_number(noise, least=0.0):
        raise MatrixError(
            f"noise={noise!r}: expected a variance of 0 or more, 'ml' to choose it by likelihood, or 'loo' by "
            "leave-one-out"
        )


def check_amplitude(amplitude: object) -> None:
    if amplitude not in ("ml", "loo") and (not is_number(amplitude, least=0.0) or amplitude == 0):
        raise MatrixError(f"amplitude={amplitude!r}: expected 'ml', 'loo' or a positive number")


def as_float64(xp: Any, a: Array, name: str) -> Array:
    """Convert real numbers of any library to a float64 array of `xp`."""
    a = a if kind(a) == "cupy" else to_numpy(a, name)
    return xp.asarray(as_real(a, name), dtype=xp.float64)


def checked_numbers(
    xp: Any, a: Array, name: str, shape: tuple[int | None, ...], expected: str, least: float = -math.inf
) -> Array:
    """Return `a` in float64 if it is finite, at least `least` and of `shape`, in which None is any length but 0."""
    a = as_float64(xp, a, name)
    if a.ndim != len(shape) or any(n != m if m is not None else n == 0 for n, m in zip(a.shape, shape, strict=True)):
        raise MatrixError(f"the shape of {name} is {a.shape}; expected {expected}")
    if not bool((xp.isfinite(a) & (a >= least)).all()):
        too_low = "" if least == -math.inf else f", or a number below {least:g}"
        raise MatrixError(f"NaN or infinity in {name}{too_low}")
    return a


def check_test(xp: Any, K_test: Array, points: int, kernel: str = "K") -> Array:
    """Return K(test, training) in float64, checked; `kernel` is its name in errors."""
    name = f"{kernel}(test, training)"
    return checked_numbers(xp, K_test, name, (None, points), f"(test points, {points} training points)")


def check_targets(xp: Any, Y: Array, n: int) -> Array:
    Y = checked_numbers(xp, as_float64(xp, Y, "Y"), "the targets", (n, None), f"({n} points, outputs)")
    largest = float(xp.abs(Y).max())
    if largest > 0.0 and not _SQUARABLE[0] < largest < _SQUARABLE[1]:
        size = "large" if largest > 1.0 else "small"
        raise MatrixError(f"targets of {largest:.3g} are too {size} to square in float64; rescale them")
    return Y


def float64_buffer(K: Array, overwrite: bool = False, on_gpu: bool = False) -> Array:
    """Copy `K` into a float64 buffer, piece by piece, so that an array on disk is never in memory twice, and check it.

    A chunked array, such as Zarr's, is read once by chunks; `overwrite` uses `K` itself if possible; `on_gpu` copies it
    directly to the GPU.
    """
    K = as_matrix(K)
    xp = need("cupy", "a matrix on the card") if on_gpu else namespace(K)
    if overwrite and isinstance(K, xp.ndarray) and K.dtype == np.float64 and getattr(K.flags, "writeable", True):
        A = K
    else:
        A = xp.empty(K.shape)
        chunks: Any = getattr(K, "chunks", None)  # of Zarr and HDF5, if all are of one size
        sized = isinstance(chunks, tuple) and all(isinstance(n, int) for n in chunks)
        height, width = chunks if sized else (_ROWS, len(A))
        for rows in blocks(len(A), height):
            for columns in blocks(len(A), width):
                A[rows, columns] = xp.asarray(K[rows, columns])
    _check_symmetric(A)
    return A


def as_matrix(K: Any) -> Any:
    """Return a square matrix of NumPy, CuPy or on disk unchanged and PyTorch's converted; raise if it is not real."""
    shape = tuple(getattr(K, "shape", ()))
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise MatrixError(f"the kernel matrix has shape {shape}; expected (N, N) with N at least 1")
    K = in_place(K, "K")
    if kind(K) == "torch":
        K = to_cupy(K, "K") if is_on_gpu(K) else to_numpy(K, "K")
    return as_real(K, "the kernel matrix")


def _check_symmetric(A: Array) -> None:
    """Compare each tile with its mirror image: whole rows against columns would miss the cache at every element."""
    xp = namespace(A)
    scale = float(xp.abs(A.diagonal()).max())
    for rows in blocks(A.shape[0], _TILE):
        for columns in blocks(rows.stop, _TILE):
            with np.errstate(invalid="ignore"):  # ∞ − ∞, reported below
                gap = float(xp.abs(A[rows, columns] - A[columns, rows].T).max())
            if not math.isfinite(gap):
                raise MatrixError("the kernel matrix contains NaN or infinity; an unfinished store does too")
            if gap > 1e-6 * scale:
                raise MatrixError(f"the kernel matrix is not symmetric: K and Kᵀ differ by {gap:.3g}")
