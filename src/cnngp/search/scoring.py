"""Images of a search, and the score of one network on them: validation error and leave-one-out error.

Matrices stay on the device, and only what a search compares is computed: no variances, no certificate.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.arrays import to_numpy
from cnngp.common.devices import Device, output_on
from cnngp.common.errors import DatasetError, one_line
from cnngp.datasets.dataset import Dataset
from cnngp.datasets.sets import Split
from cnngp.gp.checks import MatrixError
from cnngp.gp.exact import ExactGP
from cnngp.gp.linalg import JitterWarning, blocks
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.kernel import Kernel
from cnngp.kernel.program import Kind
from cnngp.network.layers import Network, NetworkError
from cnngp.network.serialize import from_json

# Entries of K(validation, training) per block. On a GPU a few large blocks are faster, and fit in memory.
_CHUNK = {"cpu": 1 << 23, "cuda": 1 << 27}


@dataclass(frozen=True)
class Problem:
    """Training and validation images with labels as integers from 0, and the options of the kernel."""

    name: str
    X: NDArray[Any]
    y: NDArray[np.intp]
    X_validation: NDArray[Any]
    y_validation: NDArray[np.intp]
    classes: int
    device: Device = "auto"
    dtype: str = "float32"
    threads: int | None = None
    kind: Kind = "nngp"

    @property
    def image_shape(self) -> tuple[int, ...]:
        return tuple(self.X.shape[1:])

    @property
    def pairs(self) -> int:
        n = len(self.X)
        return n * (n - 1) // 2 + n * len(self.X_validation)

    def __str__(self) -> str:
        return f"{self.name}, {len(self.X):,} training and {len(self.X_validation):,} validation images"


class Problems:
    """Problems with the same validation images and different numbers of training images, which are disjoint from them.

    `options` are those of a `Problem`.
    """

    def __init__(self, data: Dataset, validation: int | None, **options: Any) -> None:
        if data.y.ndim != 1 or (data.y.dtype.kind == "f" and bool((data.y != data.y.round()).any())):
            raise DatasetError(
                f"{data.name} has numbers, or several labels an image; a search is for one class an image"
            )
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

    def fingerprint(self) -> str:
        """Hash of all images, labels and their split."""
        data, digest = self._data, hashlib.sha256()
        for a in (data.X, self._y, *self._validation, data.X_test, self._codes(data.y_test)):
            digest.update(f"{a.shape} {a.dtype}".encode())
            digest.update(np.ascontiguousarray(a).data)
        return digest.hexdigest()

    def at(self, train: int | None) -> Problem:
        n = _asked(self._data, "training", train, len(self._data.X))
        return self._problem(n, "validation", *self._validation)

    def on_test(self, train: int) -> Problem:
        """Problem with the test images in place of the validation images."""
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
    """The paper's split for the data sets that have it, because it has validation images; else "standard"."""
    return "paper" if source in ("mnist", "fashion_mnist") else "standard"


@dataclass(frozen=True)
class Score:
    """Score of a network. Errors are fractions; `jitter` is relative to the mean of the kernel's diagonal."""

    error: float
    loo_error: float
    train: int
    validation: int
    jitter: float
    engine: str
    seconds: float
    pairs_per_second: float
    operations: int
    """Operations per pair of images, as counted by `net.shapes`."""


def score(network: Network, problem: Problem) -> Score:
    """Score noise-free regression on ±1 targets, as in `GPClassifier`. Raises `RangeError` and `NetworkError`."""
    start = time.perf_counter()
    kernel = Kernel(network, problem.device, problem.dtype, problem.threads, problem.kind)
    n, output = len(problem.X), output_on(kernel.device)
    memory.require(12 * n * n, f"an exact fit of {n:,} images", kernel.device)
    kernel.prepare(problem.X)
    compiled = time.perf_counter()
    K = kernel(problem.X, output=output, progress=False)
    kernel_seconds = time.perf_counter() - compiled
    Y = 2.0 * np.eye(problem.classes)[problem.y] - 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)  # it is part of the score
        gp = ExactGP(K, Y, amplitude=1.0)
    del K
    wrong = 0
    for rows in blocks(len(problem.X_validation), max(1, _CHUNK[kernel.device] // n)):
        begun = time.perf_counter()
        K_test = kernel(problem.X_validation[rows], problem.X, output=output, progress=False)
        kernel_seconds += time.perf_counter() - begun
        wrong += int((to_numpy(gp.mean(K_test).argmax(1)) != problem.y_validation[rows]).sum())
    left_out = gp.leave_one_out().mean
    engine = kernel.engine_for(problem.image_shape)
    return Score(
        error=wrong / len(problem.X_validation),
        loo_error=float((to_numpy(left_out.argmax(1)) != problem.y).mean()),
        train=n,
        validation=len(problem.X_validation),
        jitter=gp.jitter,
        engine=f"{kernel.device} ({engine.identity})",
        seconds=time.perf_counter() - start,
        pairs_per_second=problem.pairs / kernel_seconds,
        operations=network.shapes(problem.image_shape).cost,
    )


@dataclass(frozen=True)
class Outcome:
    """Outcome of scoring a network: its score, or the reason for having none."""

    score: Score | None = None
    reason: str = ""
    invalid: bool = False
    """True if the network cannot be used with these images at all."""


def outcome(network_json: str, problem: Problem) -> Outcome:
    """Score a network. Errors are returned as text, because the calling process may be unable to unpickle them."""
    try:
        return Outcome(score(from_json(network_json), problem))
    except Exception as error:
        invalid = isinstance(error, (NetworkError, RangeError, MatrixError))
        return Outcome(None, f"{type(error).__name__}: {one_line(error)}", invalid)
