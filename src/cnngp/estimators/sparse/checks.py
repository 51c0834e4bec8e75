"""What `SparseGPClassifier` refuses before it starts, each in one line."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from cnngp.common.arrays import DataError, to_numpy
from cnngp.common.checks import is_number, is_whole
from cnngp.kernel.kernel import DTYPES

# Inducing points where no number is given.
_INDUCING = 1000


def check_parameters(parameters: dict[str, Any]) -> None:
    """`ValueError` for a parameter out of its range."""

    def refuse(name: str, expected: str) -> None:
        raise ValueError(f"SparseGPClassifier: {name}={parameters[name]!r}; expected {expected}")

    for name in ("epochs", "batch_size"):
        if not is_whole(parameters[name], 1):
            refuse(name, "a whole number of 1 or more")
    for name in ("learning_rate", "jitter", "epsilon"):
        if not is_number(parameters[name], least=0.0) or parameters[name] == 0:
            refuse(name, "a number above 0")
    if parameters["epsilon"] >= 1:
        refuse("epsilon", "a probability above 0 and below 1")
    if not isinstance(parameters["dtype"], str) or parameters["dtype"] not in DTYPES:
        refuse("dtype", "'float32' or 'float64'")
    if parameters["device"] not in ("auto", "cpu", "cuda"):
        refuse("device", "'auto', 'cpu' or 'cuda'")
    seed = parameters["random_state"]
    if seed is not None and not isinstance(seed, np.random.Generator | np.random.RandomState) and not is_whole(seed, 0):
        refuse("random_state", "a whole number of 0 or more, None, or a generator of NumPy's")


def generators(random_state: Any) -> tuple[np.random.Generator, int]:
    """What draws the inducing points, and the seed of the minibatches: of a number always the same."""
    if isinstance(random_state, np.random.RandomState):
        random_state = int(random_state.randint(2**31))
    rng = np.random.default_rng(random_state)
    return rng, int(random_state) if isinstance(random_state, Integral) else int(rng.integers(2**31))


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


def choose_inducing(inducing: Any, n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Rows of the inducing points: those that are given, or a given number at random, in order."""
    if inducing is None or isinstance(inducing, Integral):
        m = min(_INDUCING, n) if inducing is None else int(inducing)
        if not 1 <= m <= n or isinstance(inducing, bool):
            raise DataError(f"inducing={inducing!r}, but there are {n:,} training images; use 1 to {n:,}")
        return np.sort(rng.choice(n, m, replace=False))
    rows = to_numpy(inducing, "inducing")
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or not len(rows) or rows.min() < 0 or rows.max() >= n:
        raise DataError(f"inducing: expected a number, or rows from 0 to {n - 1:,} of the training images")
    if len(np.unique(rows)) != len(rows):
        raise DataError("inducing: some rows are given twice; give each inducing point once")
    return rows.astype(np.intp)
