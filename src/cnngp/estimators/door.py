"""Input validation of the estimators: images, labels and matrices from callers are checked once and converted."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import validate_data

from cnngp.common.arrays import (
    NOT_REAL,
    DataError,
    as_images,
    as_real,
    check_images_shape,
    in_place,
    in_shape,
    known_array,
    to_numpy,
)
from cnngp.common.errors import is_number
from cnngp.datasets.augmentation import Copies
from cnngp.gp.leave_one_out import check_groups
from cnngp.matrix.store.store import verified
from cnngp.network.layers import Conv, ConvTranspose, Dense, as_layer
from cnngp.network.shapes import check_input_shape, shape_text
from cnngp.network.walk import leaves

from .request import Request
from .training_images import Images

Array = NDArray[Any]
Floats = NDArray[np.float64]


class Rows(Protocol):
    """Images that are not loaded as a whole: a memory map, a Zarr array, a view; anything with a shape and rows."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, rows: Any) -> Any: ...


ImagesLike = ArrayLike | Rows
"""Accepted images and kernel matrices: arrays of any library, nested lists, and arrays that are read in parts."""

# Smallest weight by which noise can be divided in float64 without becoming infinite.
_LEAST_WEIGHT = 1e-200

ONLY_EXACT = "{} needs the exact model: fit without inducing= and with solver='cholesky'"


@dataclass(frozen=True)
class Training:
    """Training data of a fit, all of one length: images or a matrix, labels, and data of single images."""

    images: Images | None
    y: Array
    K: Any = None
    names: NDArray[np.str_] | None = None
    groups: NDArray[np.intp] | None = None
    image_noise: Floats | None = None
    """Noise variances of single images, added to that of all images, in the kernel's units."""
    y_std: Floats | None = None
    """Standard deviations of measurement errors, in the units of the targets."""
    weight: Floats | None = None
    """Weights by which the noise of each image is divided; None if all are 1."""

    @property
    def noise_of_single_images(self) -> str | None:
        """Name of the argument that sets noise or weights of single images, or None."""
        known = {"image_noise": self.image_noise, "y_std": self.y_std, "sample_weight or class_weight": self.weight}
        return next((name for name, values in known.items() if values is not None), None)


def read_training(
    estimator: BaseEstimator,
    request: Request,
    X: Any,
    y: Any,
    K: Any,
    read: Callable[[Any], Array],
    numbers: bool = False,
    **said: Any,
) -> Training:
    """Check the arguments of a fit, `said` as in `described`; `read` checks labels, or targets if `numbers` is True."""
    X, y, K = (known_array(given, name) for given, name in ((X, "X"), (y, "y"), (K, "K")))
    for name, asked in (("learn", request.learning), ("inducing", request.inducing)):
        if asked is not None and K is not None:
            what = "of changed networks" if name == "learn" else "that it needs"
            raise DataError(f"{name}= computes the kernels {what} from images; give X and no K")
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    if X is None and K is None:
        raise DataError("fit needs images X or a kernel matrix K")
    if numbers and (targets := to_numpy(y, "y")).dtype == object:
        y = as_real(targets, "y")  # before scikit-learn converts text to numbers
    if K is not None:
        K = as_kernel_matrix(K)
        check_length(K.shape[0], y, "rows of K")
    images = None
    if X is not None:
        images, y = _read_images(estimator, request, X, y, numbers)
        shape = images.shape
        if request.input_shape is None and len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] == shape[2] > 4:
            warnings.warn(
                f"X has shape {shape}, read as {shape[1]} channels of {shape[2]} × {shape[3]}; if the channels come "
                f"last, give X.transpose(0, 3, 1, 2), else say so with input_shape={shape[1:]}",
                UserWarning,
                stacklevel=4,
            )
    if said.get("groups") is None and isinstance(X, Copies):
        said["groups"] = X.groups
    training = described(images, read(y), K, **said)
    if request.inducing is not None and training.noise_of_single_images is not None:
        raise DataError(ONLY_EXACT.format(training.noise_of_single_images))
    return training


def described(
    images: Images | None,
    y: Array,
    K: Any = None,
    *,
    names: Any = None,
    image_noise: Any = None,
    y_std: Any = None,
    groups: Any = None,
    sample_weight: Any = None,
    class_weight: Any = None,
) -> Training:
    """Check the data of single images and drop images of weight 0."""
    n, weight = len(y), _weights(sample_weight, class_weight, y)
    names = None if names is None else np.array([str(name) for name in names])
    if names is not None and len(names) != n:
        raise DataError(f"{len(names)} names for {n} images; give one name for each image")
    groups = None if groups is None else check_groups(to_numpy(groups, "groups"), n)
    image_noise = None if image_noise is None else _of_each(image_noise, n, "image_noise", "variances")
    y_std = None if y_std is None else _of_each(y_std, n, "y_std", "standard deviations")
    if weight is None or weight.all():
        return Training(images, y, K, names, groups, image_noise, y_std, weight)
    rows = np.flatnonzero(weight)
    names, groups, image_noise, y_std = (None if a is None else a[rows] for a in (names, groups, image_noise, y_std))
    images = None if images is None else Images(images.at(rows), images.dtype)
    K = None if K is None else to_numpy(K[:])[np.ix_(rows, rows)]
    groups = None if groups is None else check_groups(groups, len(rows))
    return Training(images, y[rows], K, names, groups, image_noise, y_std, weight[rows])


def _read_images(estimator: BaseEstimator, request: Request, X: Any, y: Any, numbers: bool) -> tuple[Images, Any]:
    """Check training images (N, C, …) and y, with scikit-learn's checks for flat rows.

    With inducing images, images with a shape are not loaded, but read and checked in blocks.
    """
    given, streamed = X, request.inducing is not None and hasattr(X, "shape") and axes(X) > 3
    if axes(X) <= 2:
        X = check_real_rows(X)
        if axes(X) == 2 and hasattr(X, "shape"):
            check_length(X.shape[0], y, "images")
        checks = {"dtype": [np.float64, np.float32], "multi_output": True, "y_numeric": numbers}
        X, y = validate_data(estimator, X, y, **checks)
    else:
        X = X if streamed else to_numpy(X)
        check_images_shape(tuple(X.shape), "X")
        check_length(X.shape[0], y, "images")
        estimator.__dict__.pop("feature_names_in_", None)
        estimator.n_features_in_ = int(np.prod(X.shape[1:]))
    if not streamed or request.input_shape is not None:
        X = _as_image_shape(X, request.input_shape)
    if not streamed:
        for term in () if request.recipe is None or X.ndim > 2 else request.recipe.terms:
            layers = (layer for _, layer in leaves(as_layer(term.network, "network")))
            first = next((layer for layer in layers if isinstance(layer, Conv | ConvTranspose | Dense)), None)
            if isinstance(first, Conv | ConvTranspose):
                raise DataError(
                    f"X holds rows of {X.shape[1]} numbers, but {first!r} needs images; give their shape, such as "
                    "input_shape=(1, height, width)"
                )
        X = np.asarray(as_images(X, request.working_type))
        # The model needs its training images, so it copies them in case the caller overwrites theirs.
        X = X.copy() if X is given or X.base is not None else X
    return Images(X, request.working_type, streamed), y


def _as_image_shape(X: Array, input_shape: Any) -> Array:
    """Bring X to (N, C, …): arrays of 4 or 5 axes unchanged, flat rows and 3 axes by `input_shape`.

    Without an `input_shape`, flat rows stay features of one location, and three axes raise, because they could be
    (N, H, W) or (N, C, L).
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
    images: Array | None = in_shape(X, shape)
    if images is None:
        raise DataError(
            f"X has shape {X.shape}, which does not hold images of input_shape={shape}: expected {math.prod(shape)} "
            f"numbers each, or exactly that shape"
        )
    return images


def read_test(estimator: BaseEstimator, X: Any, fitted: Array, dtype: np.dtype[Any]) -> Array:
    """Check images to predict and bring them to the shape of the `fitted` ones, in the kernel's type.

    Warns about pixels up to 255 for a model of pixels up to 1, or the reverse.
    """
    if X is None:
        raise DataError("give images X, or K(test, training) as K=")
    X = known_array(X, "X")
    if axes(X) <= 2:
        X = validate_data(estimator, check_real_rows(X), reset=False, dtype=[np.float64, np.float32])
    pixels, shape = to_numpy(X), tuple(fitted.shape[1:])
    images = in_shape(pixels, shape)
    if images is None:
        raise DataError(
            f"X holds images of {shape_text(tuple(pixels.shape[1:]))}, but the model was fitted on "
            f"{shape_text(shape)} (channels × size); bring them to that shape"
        )
    checked = np.asarray(as_images(images, dtype))
    if checked.ndim <= 2 or float(checked.min()) < 0.0:  # rows of features, or not the pixels of files
        return checked
    high, usual = float(checked.max()), float(fitted.max())
    if (high > 100.0 and usual <= 2.0) or (0.0 < high <= 1.0 and 100.0 < usual <= 255.0):
        warnings.warn(
            f"X has pixels up to {high:g}, but the model was fitted on pixels up to {usual:g}; bring them to the "
            f"same scale, as with X {'/' if high > 100.0 else '*'} 255",
            UserWarning,
            stacklevel=5,
        )
    return checked


def check_real_rows(X: Any) -> Any:
    """Check that flat rows are real numbers, before scikit-learn, which would convert text and dates to numbers.

    Columns of a DataFrame are checked by type, and by value if the type leaves it open, as for categories.
    """
    frame = hasattr(X, "dtypes") and hasattr(X, "columns")
    a = X if frame or hasattr(X, "shape") else to_numpy(X)
    types = zip(X.columns, X.dtypes, strict=True) if frame else [("", getattr(a, "dtype", None))]
    for i, (name, dtype) in enumerate(types):
        kind = getattr(dtype, "kind", "O" if frame else "b")
        if kind in "buif":
            continue
        if kind == "O":  # scikit-learn raises for other objects
            values = np.asarray(a, dtype=object)
            if not any(isinstance(value, NOT_REAL) for value in (values[:, i] if frame else values).flat):
                continue
            if not frame:
                raise DataError("X holds Python objects that are not all real numbers; expected real numbers")
        has = f"a column {name!r} of" if frame else "has"
        complex_ = ". Complex data not supported" if kind == "c" else ""  # wording that scikit-learn requires
        raise DataError(f"X {'has ' if frame else ''}{has} type {dtype}; expected real numbers{complex_}")
    return X


def axes(X: Any) -> int:
    """Number of axes of an array or a nested list."""
    return len(X.shape) if hasattr(X, "shape") else np.asarray(X).ndim


# ---- matrices, and data of single images -----------------------------------------------------------------------------


def as_kernel_matrix(K: Any, columns: int | None = None) -> Any:
    """Check a kernel matrix of NumPy, CuPy, PyTorch or on disk and return it unchanged; lists become arrays."""
    if isinstance(K, str | Path):
        raise DataError(f"K={str(K)!r} is a path; give the array in it, as gram or zarr.open_array returns it")
    matrix = verified(in_place(K, "K"))
    shape = tuple(matrix.shape)
    if columns is None and (len(shape) != 2 or shape[0] != shape[1]):
        raise DataError(f"K has shape {shape}; expected (N, N)")
    if columns is not None and (len(shape) != 2 or shape[0] == 0 or shape[1] != columns):
        raise DataError(f"K has shape {shape}; expected (test images, {columns}): a row for each test image")
    return matrix


def checked_diagonal(diagonal: Any, n: int) -> Floats:
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


def check_length(n: int, y: Any, what: str) -> None:
    if hasattr(y, "__len__") and not (hasattr(y, "ndim") and y.ndim == 0) and len(y) != n:
        raise DataError(f"{n} {what} but {len(y)} labels in y; give one label per image")


def _of_each(values: Any, n: int, name: str, what: str) -> Floats:
    """Check one number of 0 or more for each image: noise variances in the kernel's units, errors or weights."""
    numbers = as_real(to_numpy(values, name), name)
    if numbers.shape != (n,):
        raise DataError(f"{name} has shape {numbers.shape}; expected {n} {what} of 0 or more, one for each image")
    if len(wrong := numbers[~(np.isfinite(numbers) & (numbers >= 0.0))]):
        raise DataError(f"{name} has {wrong[0]:g} among its {n} {what}; expected numbers of 0 or more")
    return np.asarray(numbers, np.float64)


def _weights(sample_weight: Any, class_weight: Any, labels: Array) -> Floats | None:
    """Weight of each image, by which its noise is divided: its own times that of its class; None if all are 1."""
    weight = np.ones(len(labels))
    if class_weight is not None:
        if class_weight != "balanced" and not isinstance(class_weight, Mapping):
            raise DataError(f"class_weight={class_weight!r}: expected None, 'balanced' or a dict of weights by class")
        for w in class_weight.values() if isinstance(class_weight, Mapping) else ():
            if not is_number(w, least=0.0):
                raise DataError(f"class_weight holds {w!r}; expected a weight of 0 or more for each class")
        weight = compute_sample_weight(class_weight, labels)
    if sample_weight is not None:
        weight = weight * _of_each(sample_weight, len(labels), "sample_weight", "weights")
    if not weight.any():
        raise DataError("all weights are zero, by sample_weight or class_weight; expected some above 0")
    if bool(((weight > 0.0) & (weight < _LEAST_WEIGHT)).any()):
        raise DataError(f"a weight of {weight[weight > 0.0].min():.3g} is too small to divide noise by; give 0 instead")
    return None if bool((weight == 1.0).all()) else weight
