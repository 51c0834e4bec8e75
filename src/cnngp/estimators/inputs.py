"""What estimators accept as images."""

from __future__ import annotations

import datetime
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, as_real, in_place, in_shape, refuse_masked, to_numpy
from cnngp.datasets.augmentation import Copies
from cnngp.gp.groups import check_groups
from cnngp.matrix.store.store import verified
from cnngp.network.layers import Network
from cnngp.network.shapes import check_input_shape, shape_text


def as_image_shape(X: NDArray[Any], input_shape: Any) -> NDArray[Any]:
    """X as (N, C, …): arrays of 4 or 5 axes as they are, flat rows and 3 axes by `input_shape`.

    Without an `input_shape`, flat rows stay features of one location; three axes could be (N, H, W) or (N, C, L).
    """
    if input_shape is None:
        if len(X.shape) == 3:
            raise DataError(
                f"X has shape {X.shape}, which could be (N, height, width) or (N, channels, length); "
                f"say which with input_shape=(1, {X.shape[1]}, {X.shape[2]}) or ({X.shape[1]}, {X.shape[2]})"
            )
        return X
    channels, spatial = check_input_shape(input_shape)
    shape = (channels, *spatial)
    images: NDArray[Any] | None = in_shape(X, shape)
    if images is None:
        raise DataError(
            f"X has shape {X.shape}, which does not hold images of input_shape={shape}: expected {math.prod(shape)} "
            f"numbers each, or exactly that shape"
        )
    return images


def warn_of_channels_last(shape: tuple[int, ...]) -> None:
    """Tell the caller of an estimator's `fit` of images that look like (N, height, width, channels)."""
    if len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] == shape[2] > 4:
        warnings.warn(
            f"X has shape {shape}, read as {shape[1]} channels of {shape[2]} × {shape[3]}; if the channels come last, "
            f"give X.transpose(0, 3, 1, 2), else say so with input_shape={shape[1:]}",
            UserWarning,
            stacklevel=5,
        )


def check_fits_images(network: Network, X: NDArray[Any]) -> None:
    """Turn a convolution over flat rows into advice."""
    if X.ndim != 2:
        return
    side = math.isqrt(X.shape[1])
    example = (1, side, side) if side * side == X.shape[1] else "(channels, height, width)"
    layers: list[Any] = [network]
    while layers:
        layer = layers.pop(0)
        kind = type(layer).__name__
        if kind in ("Conv", "ConvTranspose"):
            raise DataError(
                f"X holds rows of {X.shape[1]} numbers, but {layer!r} needs images; give their shape, such as "
                f"input_shape={example}"
            )
        if kind == "Dense":
            return
        layers = [*getattr(layer, "layers", ()), *getattr(layer, "branches", ()), *layers]


def same_shape(X: NDArray[Any], input_shape: tuple[int, ...]) -> NDArray[Any]:
    """Images to predict on, brought to the shape of the training images or refused."""
    images: NDArray[Any] | None = in_shape(X, input_shape)
    if images is not None:
        return images
    given = shape_text(tuple(X.shape[1:]))
    raise DataError(
        f"X holds images of {given}, but the model was fitted on {shape_text(input_shape)} (channels × size); bring "
        "them to that shape"
    )


def as_float(X: NDArray[Any]) -> NDArray[Any]:
    """Floating point as it is; bytes, integers and booleans as float32, which holds them exactly to 2²⁴."""
    X = as_real(X, "X")
    return X if X.dtype in (np.float32, np.float64) else X.astype(np.float32 if X.dtype.itemsize < 4 else np.float64)


def check_real_rows(X: Any) -> None:
    """For flat rows, before scikit-learn checks the rest: it would read text and dates as numbers."""
    refuse_masked(X, "X")
    if hasattr(X, "dtypes") and hasattr(X, "columns"):
        _check_real_columns(X)
        return
    a = X if hasattr(X, "shape") else to_numpy(X)
    dtype = getattr(a, "dtype", None)
    if not isinstance(dtype, np.dtype):
        return
    if dtype.kind == "O":
        if isinstance(a, np.ndarray) and _holds_text_or_dates(a):
            raise DataError("X holds Python objects that are not all real numbers; expected real numbers")
    elif dtype.kind not in "buif":
        raise DataError(f"X has type {dtype}; expected real numbers{_complex(dtype)}")


def _check_real_columns(frame: Any) -> None:
    """The columns of a DataFrame: by their types, and by their values where the type does not say, as of categories."""
    values = None
    for i, (name, dtype) in enumerate(zip(frame.columns, frame.dtypes, strict=True)):
        kind = getattr(dtype, "kind", "O")
        if kind in "buif":
            continue
        if kind == "O":
            values = np.asarray(frame, dtype=object) if values is None else values
            if not _holds_text_or_dates(values[:, i]):
                continue
        raise DataError(f"X has a column {name!r} of type {dtype}; expected real numbers{_complex(dtype)}")


_NOT_REAL = (str, bytes, complex, np.complexfloating, np.datetime64, np.timedelta64, datetime.date, datetime.timedelta)


def _holds_text_or_dates(objects: NDArray[Any]) -> bool:
    """Text that could be read as numbers, dates, complex numbers. Other objects are refused by scikit-learn."""
    return any(isinstance(value, _NOT_REAL) for value in objects.flat)


def _complex(dtype: Any) -> str:
    return ". Complex data not supported" if getattr(dtype, "kind", "") == "c" else ""  # as every estimator has to say


def as_kernel_matrix(K: Any, columns: int | None = None) -> Any:
    """A kernel matrix as it is, NumPy's, CuPy's, torch's or one on disk; lists become arrays."""
    if isinstance(K, str | Path):
        raise DataError(f"K={str(K)!r} is a path; give the array in it, as gram or zarr.open_array returns it")
    matrix = verified(in_place(K, "K"))
    shape = tuple(matrix.shape)
    if columns is None and (len(shape) != 2 or shape[0] != shape[1]):
        raise DataError(f"K has shape {shape}; expected (N, N)")
    if columns is not None and (len(shape) != 2 or shape[0] == 0 or shape[1] != columns):
        raise DataError(f"K has shape {shape}; expected (test images, {columns}): a row for each test image")
    return matrix


def checked_diagonal(diagonal: Any, n: int) -> NDArray[np.float64]:
    if diagonal is None:
        raise DataError("variances at the rows of K also need diagonal=, the k(x, x) of each test image")
    values = to_numpy(diagonal, "diagonal")
    if values.shape != (n,) or values.dtype.kind not in "buif":
        raise DataError(
            f"diagonal has shape {values.shape} and type {values.dtype}; expected {n} numbers, one for each row of K"
        )
    if not bool((np.isfinite(values) & (values >= 0.0)).all()):
        raise DataError("diagonal holds NaN, infinity or negative numbers; expected variances k(x, x)")
    return values.astype(np.float64)


def axes(X: Any) -> int:
    """How many axes an array, or a nested list, has."""
    return len(X.shape) if hasattr(X, "shape") else np.asarray(X).ndim


def check_length(n: int, y: Any, what: str) -> None:
    if hasattr(y, "__len__") and not (hasattr(y, "ndim") and y.ndim == 0) and len(y) != n:
        raise DataError(f"{n} {what} but {len(y)} labels in y; give one label per image")


def as_names(names: Any, y: Any) -> NDArray[np.str_] | None:
    """What images are called, one name for each of the labels `y`, such as the paths of their files."""
    if names is None:
        return None
    array = np.array([str(name) for name in names])
    if len(array) != len(y):
        raise DataError(f"{len(array)} names for {len(y)} images; give one name for each image")
    return array


def as_image_noise(noise: Any, n: int) -> NDArray[np.float64]:
    """Variances of the noise of single images, in the kernel's units."""
    values = as_real(to_numpy(noise, "image_noise"), "image_noise")
    if values.shape != (n,) or not bool((np.isfinite(values) & (values >= 0.0)).all()):
        raise DataError(
            f"image_noise has shape {values.shape}; expected {n} variances of 0 or more, one for each image"
        )
    return np.asarray(values, np.float64)


@dataclass(frozen=True)
class Together:
    """Which images are left out together, and whether `groups=` said so or copies brought it."""

    groups: Any
    asked: bool

    def checked(self, n: int) -> NDArray[np.intp] | None:
        """The number of each image's group."""
        return None if self.groups is None else check_groups(self.groups, n)


def groups_of(X: Any, groups: Any) -> Together:
    """The `groups` of a fit: those that were given, or those of copies of images."""
    if groups is not None:
        return Together(to_numpy(groups, "groups"), asked=True)
    return Together(X.groups if isinstance(X, Copies) else None, asked=False)


def warn_of_another_scale(images: NDArray[Any], fitted: NDArray[Any]) -> None:
    """Tell the caller of `predict` of pixels up to 255 for a model of pixels up to 1, or the other way round."""
    if images.ndim < 3:
        return
    high, low = float(images.max()), float(images.min())
    if low < 0.0 or high <= 0.0:  # not pixels as files have them, or blank
        return
    fitted_high = float(fitted.max())
    if (high > 100.0 and fitted_high <= 2.0) or (high <= 1.0 and 100.0 < fitted_high <= 255.0):
        warnings.warn(
            f"X has pixels up to {high:g}, but the model was fitted on pixels up to {fitted_high:g}; bring them to the "
            f"same scale, as with X {'/' if high > 100.0 else '*'} 255",
            UserWarning,
            stacklevel=6,
        )
