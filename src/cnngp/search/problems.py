"""The images of a search: the same validation images with any number of training images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import DatasetError
from cnngp.datasets.dataset import Dataset
from cnngp.datasets.sets import Split

from .scoring import Problem


class Problems:
    """The same validation images with any number of training images; those are never validated on."""

    def __init__(self, data: Dataset, validation: int | None, **options: Any) -> None:
        if data.X_validation is None or data.y_validation is None:
            n = len(data.X)
            data = data.hold_out(_asked(data, "validation", n // 4 if validation is None else validation, n - 1))
        assert data.X_validation is not None
        assert data.y_validation is not None
        self._data, self._options = data, options
        self._classes = np.unique(np.concatenate([data.y, data.y_validation, data.y_test]))
        if len(self._classes) < 2:
            raise DatasetError(f"{data.name} holds one class only; a search needs at least two")
        self._y = self._codes(data.y)
        held = _asked(data, "validation", validation, len(data.X_validation))
        self._validation = data.X_validation[:held], self._codes(data.y_validation[:held])

    def at(self, train: int | None) -> Problem:
        n = _asked(self._data, "training", train, len(self._data.X))
        return self._problem(n, "validation", *self._validation)

    def on_test(self, train: int) -> Problem:
        """The test images in the place of the validation ones."""
        return self._problem(train, "test", self._data.X_test, self._codes(self._data.y_test))

    def _problem(self, train: int, what: str, X: NDArray[Any], y: NDArray[np.intp]) -> Problem:
        unknown = self._classes[np.setdiff1d(y, self._y[:train])]
        if len(unknown):
            raise DatasetError(
                f"the {what} images of {self._data.name} have labels that its first {train:,} training images do not "
                f"have: {unknown.tolist()[:5]}; use more training images"
            )
        own = self._data.X[:train], self._y[:train]
        return Problem(self._data.name, *own, X, y, len(self._classes), **self._options)

    def _codes(self, labels: NDArray[Any]) -> NDArray[np.intp]:
        return np.searchsorted(self._classes, labels)


def _asked(data: Dataset, what: str, n: int | None, held: int) -> int:
    if n is not None and not 1 <= n <= held:
        raise DatasetError(f"{data.name} has {held:,} {what} images to give, but {n:,} were asked for")
    return held if n is None else n


def split_for(source: str) -> Split:
    """The paper's where there is one: it has validation images."""
    return "paper" if source in ("mnist", "fashion_mnist") else "standard"
