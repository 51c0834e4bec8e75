"""What `SparseGPClassifier` refuses before it starts, each in one line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from ..arrays import DataError, to_numpy
from ..kernel import DTYPES

# Inducing points where no number is given.
_INDUCING = 1000


def check_parameters(parameters: dict[str, Any]) -> None:
    """`ValueError` for a parameter out of its range."""

    def refuse(name: str, expected: str) -> None:
        raise ValueError(f"SparseGPClassifier: {name}={parameters[name]!r}; expected {expected}")

    for name in ("epochs", "batch_size"):
        value = parameters[name]
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            refuse(name, "a whole number of 1 or more")
    for name in ("learning_rate", "jitter", "epsilon"):
        value = parameters[name]
        if not isinstance(value, int | float | np.floating) or not math.isfinite(value) or value <= 0:
            refuse(name, "a number above 0")
    if parameters["epsilon"] >= 1:
        refuse("epsilon", "a probability above 0 and below 1")
    if parameters["dtype"] not in DTYPES:
        refuse("dtype", "'float32' or 'float64'")
    if parameters["device"] not in ("auto", "cpu", "cuda"):
        refuse("device", "'auto', 'cpu' or 'cuda'")
    if not isinstance(parameters["random_state"], int | np.integer) or parameters["random_state"] < 0:
        refuse("random_state", "a whole number of 0 or more")


def check_labels(y: Any, images: int) -> NDArray[Any]:
    """One label per image, of any kind."""
    if y is None:
        raise ValueError("SparseGPClassifier requires y to be passed, but the target y is None")
    labels = column_or_1d(to_numpy(y, "y"), warn=True)
    if labels.dtype == object and all(isinstance(label, str) for label in labels):
        labels = labels.astype(str)
    check_classification_targets(labels)
    if len(labels) != images:
        raise DataError(f"{images} images but {len(labels)} labels in y; give one label per image")
    return np.asarray(labels)


def choose_inducing(inducing: Any, n: int, random_state: int) -> NDArray[np.intp]:
    """Rows of the inducing points: those that are given, or so many at random, in order."""
    if inducing is None or isinstance(inducing, int | np.integer):
        m = min(_INDUCING, n) if inducing is None else int(inducing)
        if not 1 <= m <= n or isinstance(inducing, bool):
            raise DataError(f"inducing={inducing!r}, but there are {n:,} training images; use 1 to {n:,}")
        return np.sort(np.random.default_rng(random_state).choice(n, m, replace=False))
    rows = np.asarray(inducing)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or not len(rows) or rows.min() < 0 or rows.max() >= n:
        raise DataError(f"inducing: expected a number, or rows from 0 to {n - 1:,} of the training images")
    if len(np.unique(rows)) != len(rows):
        raise DataError("inducing: some rows are given twice; give each inducing point once")
    return rows.astype(np.intp)
