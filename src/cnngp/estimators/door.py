"""The door of an estimator: images, labels and matrices as callers give them, checked once and brought to one form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from cnngp.common.arrays import DataError, as_images, as_real, check_images_shape, known_array, to_numpy

from .inputs import (
    as_float,
    as_image_shape,
    as_kernel_matrix,
    axes,
    check_fits_images,
    check_length,
    check_real_rows,
    same_shape,
    warn_of_another_scale,
    warn_of_channels_last,
)
from .request import Request
from .training_images import Images

Array = NDArray[Any]


def read_training(
    estimator: BaseEstimator, request: Request, X: Any, y: Any, K: Any, regression: bool
) -> tuple[Images | None, Any, Any]:
    """Training images, or None where only a matrix is given; y, the matrix; all of one length."""
    X, y, K = (known_array(given, name) for given, name in ((X, "X"), (y, "y"), (K, "K")))
    for name, asked in (("learn", request.learning), ("inducing", request.inducing)):
        if asked is not None and K is not None:
            what = "of changed networks" if name == "learn" else "that it needs"
            raise DataError(f"{name}= computes the kernels {what} from images; give X and no K")
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
    if X is None and K is None:
        raise DataError("fit needs images X or a kernel matrix K")
    if regression and (targets := to_numpy(y, "y")).dtype == object:
        y = as_real(targets, "y")  # before scikit-learn reads text as numbers
    if K is not None:
        K = as_kernel_matrix(K)
        check_length(K.shape[0], y, "rows of K")
    if X is None:
        return None, y, K
    # With inducing images, what has a shape stays where it is, and is read and checked a block at a time.
    streamed = request.inducing is not None and hasattr(X, "shape") and axes(X) > 3
    X, y = _read(estimator, X, y, streamed, regression)
    images = X if streamed and request.input_shape is None else as_image_shape(X, request.input_shape)
    if request.input_shape is None:
        warn_of_channels_last(tuple(images.shape))
    if not streamed:
        recipe = request.asked_recipe
        for term in () if recipe is None else recipe.terms:
            check_fits_images(term.network, images)
        found = np.asarray(as_images(images, request.working_type))
        # A model predicts by its training images, so it does not share them with a caller who may overwrite them.
        images = found.copy() if found is X or found.base is not None else found
    return Images(images, request.working_type, streamed), y, K


def _read(estimator: BaseEstimator, X: Any, y: Any, streamed: bool, regression: bool) -> tuple[Any, Any]:
    """X as an array of floating-point numbers where it is not `streamed`, with scikit-learn's checks of flat rows."""
    if axes(X) <= 2:
        check_real_rows(X)
        if axes(X) == 2 and hasattr(X, "shape"):
            check_length(X.shape[0], y, "images")
        checks = {"dtype": [np.float64, np.float32], "multi_output": True, "y_numeric": regression}
        found: tuple[Any, Any] = validate_data(estimator, X, y, **checks)
        return found
    X = X if streamed else as_float(to_numpy(X))
    check_images_shape(tuple(X.shape), "X")
    check_length(X.shape[0], y, "images")
    estimator.__dict__.pop("feature_names_in_", None)
    estimator.n_features_in_ = int(np.prod(X.shape[1:]))
    return X, y


def read_test(estimator: BaseEstimator, X: Any, fitted: Array, dtype: np.dtype[Any]) -> Array:
    """Images to predict, of the shape of those that were `fitted`, as one array in the kernel's type."""
    if X is None:
        raise DataError("give images X, or K(test, training) as K=")
    X = known_array(X, "X")
    if axes(X) <= 2:
        check_real_rows(X)
        X = validate_data(estimator, X, reset=False, dtype=[np.float64, np.float32])
    images = same_shape(as_float(to_numpy(X)), tuple(fitted.shape[1:]))
    checked = np.asarray(as_images(images, dtype))
    warn_of_another_scale(checked, fitted)
    return checked
