"""Conversion between NumPy, CuPy and torch arrays, and from any other library through DLPack."""

from __future__ import annotations

import datetime
import math
import sys
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .optional import need

Output = Literal["numpy", "cupy", "torch"]
OUTPUTS: tuple[Output, ...] = ("numpy", "cupy", "torch")

NOT_REAL = (str, bytes, complex, np.complexfloating, np.datetime64, np.timedelta64, datetime.date, datetime.timedelta)
_ON_CPU = (1, 3)
"""DLPack's device types of host memory and of host memory pinned by CUDA."""


class DataError(ValueError):
    """Error for arrays that cannot be used: wrong kind, shape or values.

    >>> from cnngp import Dense, Kernel
    >>> Kernel(Dense(), device="cpu")([[1.0, float("nan")]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    cnngp...DataError: X[0] has NaN pixels; remove or replace them
    """


def kind(a: object) -> Output | None:
    """Return the library that an array belongs to; None for anything else, such as a list."""
    if isinstance(a, np.ndarray):
        return "numpy"
    for name, attribute in (("cupy", "ndarray"), ("torch", "Tensor")):
        module = sys.modules.get(name)  # no array of a library exists before it is imported
        if module is not None and isinstance(a, getattr(module, attribute)):
            return name  # type: ignore[return-value]
    return None


def namespace(a: Any) -> Any:
    """Return the module whose functions accept the array: `cupy` or `numpy`."""
    return sys.modules["cupy"] if kind(a) == "cupy" else np


def is_on_gpu(a: Any) -> bool:
    return kind(a) == "cupy" or (kind(a) == "torch" and bool(a.is_cuda))


def refuse_masked(a: object, name: str) -> None:
    """Raise `DataError` for masked arrays, whose mask NumPy would silently drop on conversion."""
    parts = a if isinstance(a, list | tuple) else (a,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise DataError(
            f"{name} is a masked array, whose mask would be lost; remove what it hides, or fill it with numbers by "
            f"{name}.filled(…)"
        )


def known_array(a: Any, name: str) -> Any:
    """Return `a`, or a view of it if only DLPack gives access; raise `DataError` for masked and sparse arrays."""
    refuse_masked(a, name)
    if hasattr(a, "toarray") and hasattr(a, "nnz"):  # sparse matrices of SciPy and CuPy
        raise DataError(f"{name} is a sparse matrix ({type(a).__name__}); give {name}.toarray(), a dense one")
    if kind(a) is not None or not hasattr(a, "__dlpack__") or hasattr(a, "__array__"):
        return a
    on_cpu = a.__dlpack_device__()[0] in _ON_CPU
    library = np if on_cpu else need("cupy", f"{name} on the card")
    try:
        return library.from_dlpack(a)
    except Exception as error:  # each library has exception types of its own
        reason = str(error).partition("\n")[0]
        raise DataError(f"{name}: {type(a).__name__} cannot be read through DLPack ({reason})") from None


def to_numpy(a: Any, name: str = "X") -> NDArray[Any]:
    """Convert any array or nested list to NumPy; torch tensors are detached, arrays on a GPU are copied."""
    a = known_array(a, name)
    try:
        match kind(a):
            case "torch":  # NumPy has no bfloat16; float32 holds it exactly
                a = a.float() if str(a.dtype) == "torch.bfloat16" else a
                return np.asarray(a.detach().cpu().numpy())
            case "cupy":
                return np.asarray(a.get())
            case _:
                return np.asarray(a)
    except ValueError:
        raise DataError(f"{name}: rows of different lengths; expected one array") from None
    except (TypeError, RuntimeError) as error:
        if kind(a) != "torch":
            raise
        raise DataError(f"{name}: this tensor cannot become an array ({str(error).splitlines()[0]})") from None


def in_place(a: Any, name: str) -> Any:
    """Return an array of any library or on disk (memory map, Zarr, HDF5) uncopied; a list or a DataFrame as NumPy."""
    a = known_array(a, name)
    is_frame = hasattr(a, "iloc")  # indexing a DataFrame selects columns by name
    return a if hasattr(a, "shape") and hasattr(a, "__getitem__") and not is_frame else to_numpy(a, name)


def to_cupy(a: Any, name: str = "X") -> Any:
    """Convert any array to CuPy, without a copy if it is on the GPU already."""
    cupy = need("cupy", f"{name} on the card")
    a = known_array(a, name)
    if kind(a) == "torch" and a.is_cuda:
        return cupy.from_dlpack(a.detach())
    if kind(a) == "cupy":
        return a
    host = to_numpy(a, name)
    if host.dtype.char == "g":  # GPUs have no long double; a value beyond float64 is reported as infinite
        with np.errstate(over="ignore"):
            host = host.astype(np.float64)
    return cupy.asarray(host)


def check_output(output: object) -> None:
    """Raise an error, before anything is computed, if the output kind is unknown or its library is missing."""
    if output not in OUTPUTS:
        raise ValueError(f"output={output!r} is not one of {', '.join(map(repr, OUTPUTS))}")
    if output != "numpy":
        need(str(output), f"output={output!r}")


def to_output(a: Any, output: Output) -> Any:
    """Convert a NumPy or CuPy result to the requested kind."""
    if output == "numpy":
        return to_numpy(a)
    check_output(output)
    if output == "cupy":
        return to_cupy(a)
    import torch

    return torch.from_dlpack(a) if kind(a) == "cupy" else torch.from_numpy(np.ascontiguousarray(a))


def as_real(a: Any, name: str) -> Any:
    """Return an array of any library or on disk if it holds real numbers; object arrays of numbers become float64.

    Conversion would drop the imaginary part of complex numbers and parse text, so both raise `DataError` before it.
    """
    refuse_masked(a, name)
    dtype = np.dtype(a.dtype)
    if dtype.kind == "O" and isinstance(a, np.ndarray):
        if not any(isinstance(value, NOT_REAL) for value in a.flat):
            try:
                return a.astype(np.float64)
            except (TypeError, ValueError, OverflowError):
                pass
        raise DataError(f"{name} holds Python objects that are not all real numbers; expected real numbers")
    if dtype.kind not in "buif":
        raise DataError(f"{name} has type {dtype}; expected real numbers")
    return a


def check_images_shape(shape: tuple[int, ...], name: str) -> None:
    if not 2 <= len(shape) <= 5:
        hint = "; for one image use X[None]" if len(shape) == 1 else ""
        raise DataError(
            f"{name} has shape {shape}; expected (N, channels, height, width), or (N, features), "
            f"(N, channels, length) or (N, channels, depth, height, width){hint}"
        )
    if 0 in shape:
        raise DataError(f"{name} has shape {shape}, which is empty; expected at least one image with pixels")


def in_shape(X: Any, shape: tuple[int, ...]) -> Any | None:
    """Images as (N, *shape), reshaped if they have fewer axes and the same number of values; None if they do not fit.

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
    """Images in host memory that have passed `as_images`, which returns them and slices of them without rechecking."""

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
    """X as a C-contiguous array (N, C, …) of the working precision, checked: real, finite, not empty, 2 to 5 axes.

    `first` is the index of the first image, or of each image, for messages about a part of a larger set.
    """
    if isinstance(X, CheckedImages):
        if X.dtype == dtype:
            return to_cupy(X.array, name) if on_gpu else np.ascontiguousarray(X.array)
        X = X.array  # to another precision, in which a pixel may be out of range
    X = known_array(X, name)
    a: Any = as_real(to_cupy(X, name) if on_gpu and kind(X) in ("cupy", "torch") else to_numpy(X, name), name)
    a = to_cupy(a, name) if on_gpu else a
    check_images_shape(tuple(a.shape), name)
    xp = namespace(a)
    with np.errstate(over="ignore"):  # a pixel beyond the working precision is reported below
        images = xp.ascontiguousarray(a, dtype=dtype)

    def number(i: Any) -> int:
        return first + int(i) if isinstance(first, int) else int(first[int(i)])

    finite = xp.isfinite(images)
    if not bool(finite.all()):
        i = int(xp.argmax(~finite.reshape(len(images), -1).all(axis=1)))
        bad = "NaN" if bool(xp.isnan(images[i]).any()) else "infinite (or beyond the range of " + dtype.name + ")"
        raise DataError(f"{name}[{number(i)}] has {bad} pixels; remove or replace them")
    blank = xp.flatnonzero(~images.reshape(len(images), -1).any(axis=1)) if a.dtype.itemsize > dtype.itemsize else ()
    if len(blank) and bool(a[blank].any()):
        i = blank[int(xp.argmax(a[blank].reshape(len(blank), -1).any(axis=1)))]
        raise DataError(
            f"{name}[{number(i)}] has pixels so small that {dtype.name} rounds all to 0; rescale the images"
        )
    return images
