"""NumPy, CuPy and torch arrays in and out: the one place that knows their kinds."""

from __future__ import annotations

import math
import sys
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .optional import need

Output = Literal["numpy", "cupy", "torch"]
OUTPUTS: tuple[Output, ...] = ("numpy", "cupy", "torch")


class DataError(ValueError):
    """Data that cannot be used: wrong kind, shape or values.

    >>> from cnngp import Dense, Kernel
    >>> Kernel(Dense(), device="cpu")([[1.0, float("nan")]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    cnngp...DataError: X[0] has NaN pixels; remove or replace them
    """


def kind(a: object) -> Output | None:
    """Which library an array belongs to; None for what is no array yet, such as a list."""
    if isinstance(a, np.ndarray):
        return "numpy"
    for name, attribute in (("cupy", "ndarray"), ("torch", "Tensor")):
        module = sys.modules.get(name)  # an array of it cannot exist before it is imported
        if module is not None and isinstance(a, getattr(module, attribute)):
            return name  # type: ignore[return-value]
    return None


def refuse_masked(a: object, name: str) -> None:
    """No part of cnngp knows which entries a mask hides, and NumPy drops it without a word when it converts."""
    parts = a if isinstance(a, list | tuple) else (a,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise DataError(
            f"{name} is a masked array, whose mask would be lost; remove what it hides, or fill it with numbers by "
            f"{name}.filled(…)"
        )


def namespace(a: Any) -> Any:
    """The module whose functions take the array: `cupy` or `numpy`."""
    return sys.modules["cupy"] if kind(a) == "cupy" else np


def is_on_gpu(a: Any) -> bool:
    return kind(a) == "cupy" or (kind(a) == "torch" and bool(a.is_cuda))


def to_numpy(a: Any, name: str = "X") -> NDArray[Any]:
    """Any array or nested list as NumPy; torch tensors lose their gradient, arrays on a card are copied."""
    refuse_masked(a, name)
    _refuse_sparse(a, name)
    match kind(a):
        case "torch":
            try:
                # bfloat16 is unknown to NumPy and fits float32
                a = a.float() if str(a.dtype) == "torch.bfloat16" else a
                return np.asarray(a.detach().cpu().numpy())
            except (TypeError, RuntimeError) as error:
                raise DataError(f"{name}: this tensor cannot become an array ({str(error).splitlines()[0]})") from None
        case "cupy":
            return np.asarray(a.get())
        case _:
            try:
                return np.asarray(a)
            except ValueError:
                raise DataError(f"{name}: rows of different lengths; expected one array") from None


def in_place(a: Any, name: str) -> Any:
    """What has a shape and gives its rows for slices, as it is and where it is: NumPy, CuPy, torch, a memory map, Zarr,
    HDF5. A list or a DataFrame becomes an array.
    """
    refuse_masked(a, name)
    _refuse_sparse(a, name)
    is_frame = hasattr(a, "iloc")  # slices of it are columns by name
    return a if hasattr(a, "shape") and hasattr(a, "__getitem__") and not is_frame else to_numpy(a, name)


def _refuse_sparse(a: Any, name: str) -> None:
    if hasattr(a, "toarray") and hasattr(a, "nnz"):  # SciPy's and CuPy's
        raise DataError(f"{name} is a sparse matrix ({type(a).__name__}); give {name}.toarray(), a dense one")


def to_cupy(a: Any, name: str = "X") -> Any:
    """Any array on the card; without a copy where it is there already."""
    cupy = need("cupy", f"{name} on the card")
    if kind(a) == "torch" and a.is_cuda:
        return cupy.from_dlpack(a.detach())
    if kind(a) == "cupy":
        return a
    host = to_numpy(a, name)
    if host.dtype.char == "g":  # cards have no long double; a value beyond float64 is reported as infinite
        with np.errstate(over="ignore"):
            host = host.astype(np.float64)
    return cupy.asarray(host)


def check_output(output: object) -> None:
    """Refuse a kind of array that there is none of, or that cannot be made here, before anything is computed."""
    if output not in OUTPUTS:
        raise ValueError(f"output={output!r} is not one of {', '.join(map(repr, OUTPUTS))}")
    if output != "numpy":
        need(str(output), f"output={output!r}")


def to_output(a: Any, output: Output) -> Any:
    """A NumPy or CuPy result as the kind that was asked for."""
    if output == "numpy":
        return to_numpy(a)
    check_output(output)
    if output == "cupy":
        return to_cupy(a)
    import torch

    return torch.from_dlpack(a) if kind(a) == "cupy" else torch.from_numpy(np.ascontiguousarray(a))


def as_real(a: Any, name: str) -> Any:
    """`a`, an array of any library or on disk, if it holds real numbers; Python's own, in an object array, as float64.

    For what is about to be converted: complex numbers would lose a part, text would be read as numbers.
    """
    refuse_masked(a, name)
    dtype = np.dtype(a.dtype)
    if dtype.kind == "O" and isinstance(a, np.ndarray):
        if not any(isinstance(value, _NOT_REAL) for value in a.flat):
            try:
                return a.astype(np.float64)
            except (TypeError, ValueError, OverflowError):
                pass
        raise DataError(f"{name} holds Python objects that are not all real numbers; expected real numbers")
    check_real(dtype, name)
    return a


_NOT_REAL = (str, bytes, complex, np.complexfloating)


def check_real(dtype: np.dtype[Any], name: str) -> None:
    if dtype.kind not in "buif":
        raise DataError(f"{name} has type {dtype}; expected real numbers")


def check_images_shape(shape: tuple[int, ...], name: str) -> None:
    if not 2 <= len(shape) <= 5:
        hint = ""
        if len(shape) == 1:
            hint = "; for one image use X[None]"
        raise DataError(
            f"{name} has shape {shape}; expected (N, channels, height, width), or (N, features), "
            f"(N, channels, length) or (N, channels, depth, height, width){hint}"
        )
    if 0 in shape:
        raise DataError(f"{name} has shape {shape}, which is empty; expected at least one image with pixels")


def in_shape(X: Any, shape: tuple[int, ...]) -> Any | None:
    """Images as (N, *shape): as they are, or from fewer axes with as many numbers; None where they hold something else.

    >>> in_shape(np.zeros((5, 64)), (1, 8, 8)).shape
    (5, 1, 8, 8)
    """
    held = tuple(X.shape[1:])
    if held == shape:
        return X
    if 0 < len(held) < len(shape) and math.prod(held) == math.prod(shape):
        return X.reshape(len(X), *shape)
    return None


class CheckedImages:
    """Images, in host memory, that have been through `as_images`: it gives them and parts of them back unread.

    Whoever has checked the images of a caller hands them on like this, so that they are checked once.
    """

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Any) -> CheckedImages:
        return CheckedImages(self.array[rows])


def as_images(
    X: Any, dtype: np.dtype[Any], name: str = "X", on_gpu: bool = False, first: int | NDArray[np.intp] = 0
) -> Any:
    """X as a C-contiguous array of the working precision, (N, C, …), checked: real, finite, not empty, 2 to 5 axes.

    `first` is the number of the first image, or of each, for messages about a part of a larger set.
    """
    if isinstance(X, CheckedImages):
        if X.dtype == dtype:
            return to_cupy(X.array, name) if on_gpu else np.ascontiguousarray(X.array)
        X = X.array  # of another precision, in which a pixel may be out of range
    a: Any = as_real(to_cupy(X, name) if on_gpu and kind(X) in ("cupy", "torch") else to_numpy(X, name), name)
    a = to_cupy(a, name) if on_gpu else a
    check_images_shape(tuple(a.shape), name)
    xp = namespace(a)
    with np.errstate(over="ignore"):  # a pixel beyond the working precision is reported below
        images = xp.ascontiguousarray(a, dtype=dtype)
    finite = xp.isfinite(images)
    if not bool(finite.all()):
        i = int(xp.argmax(~finite.reshape(len(images), -1).all(axis=1)))
        bad = "NaN" if bool(xp.isnan(images[i]).any()) else "infinite (or beyond the range of " + dtype.name + ")"
        number = first + i if isinstance(first, int) else int(first[i])
        raise DataError(f"{name}[{number}] has {bad} pixels; remove or replace them")
    blank = xp.flatnonzero(~images.reshape(len(images), -1).any(axis=1)) if a.dtype.itemsize > dtype.itemsize else ()
    if len(blank) and bool(a[blank].any()):
        i = int(blank[int(xp.argmax(a[blank].reshape(len(blank), -1).any(axis=1)))])
        number = first + i if isinstance(first, int) else int(first[i])
        raise DataError(f"{name}[{number}] has pixels so small that {dtype.name} rounds all to 0; rescale the images")
    return images
