"""One kernel matrix, all errors: the paper's split, leave-one-out, and training on every image there is.

The paper's training and validation images together are the 60,000, so the matrix of all of them holds K(training) and
K(validation, training) as blocks: about as many pairs as the paper's split alone, and two fits come out of it.
"""

from __future__ import annotations

import functools
import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.devices import output_on
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.classifier import GPClassifier
from cnngp.gp.exact import ExactGP
from cnngp.gp.jitter import JitterWarning
from cnngp.gp.linalg import Array, blocks, namespace
from cnngp.gp.line_search import minimised
from cnngp.kernel.kernel import Kernel
from cnngp.matrix.gram import gram

from .common import percent, release, wait
from .setting import Setting, digest

_ROWS = 2048
"""Rows of a squared-exponential kernel at a time."""


@dataclass(frozen=True)
class SplitImages:
    """Training images followed by the validation ones, and the test images. `X`: (N, C, H, W)."""

    name: str
    X: NDArray[np.float32]
    y: NDArray[Any]
    train: int
    X_test: NDArray[np.float32]
    y_test: NDArray[Any]

    @classmethod
    def of(cls, data: Dataset, train: int, validation: int, test: int) -> SplitImages:
        """The first images of each part of a set with a validation part."""
        if data.X_validation is None or data.y_validation is None:
            raise ValueError(f"{data.name} has no validation images; load it with split='paper'")
        X = np.concatenate([data.X[:train], data.X_validation[:validation]])
        y = np.concatenate([data.y[:train], data.y_validation[:validation]])
        return cls(data.name, X, y, min(train, len(data.X)), data.X_test[:test], data.y_test[:test])

    @property
    def pairs(self) -> int:
        """Of K(all, all) without its diagonal, each once, and K(test, all)."""
        n = len(self.X)
        return n * (n - 1) // 2 + len(self.X_test) * n

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What a piece depends on that uses them."""
        return {
            "data": self.name,
            "images": digest(self.X, self.y, self.X_test, self.y_test),
            "train": self.train,
        }


def network_errors(
    setting: Setting, kernel: Kernel, images: SplitImages, label: str, *, keep: bool = False
) -> dict[str, Any]:
    """Errors in percent and seconds of a network's GP; `label` names its matrices where they go through a store.

    With `keep` they do, so that a killed run computes no tile twice.
    """
    n = len(images.X)
    entry = np.dtype(kernel.dtype).itemsize
    memory.require((entry + 8) * n * n, f"an exact fit of {n:,} images", kernel.device)
    began = time.perf_counter()
    K, K_test = _matrices(setting, kernel, images, label, keep)
    wait(K)
    seconds = time.perf_counter() - began
    values = fits(images, K, K_test, kernel)
    del K, K_test
    release(kernel.device)
    return {
        "pairs": images.pairs,
        "kernel_seconds": seconds,
        "pairs_per_second": images.pairs / seconds,
        "engine": kernel.engine_for(images.X.shape[1:]).identity,
        **values,
    }


def _matrices(setting: Setting, kernel: Kernel, images: SplitImages, label: str, keep: bool) -> tuple[Any, Any]:
    """K(all, all) and K(test, all): on the device, or through a store, where a cluster may fill it."""
    output = output_on(kernel.device)
    if setting.scheduler is None and not keep:
        return kernel(images.X, output=output), kernel(images.X_test, images.X, output=output)
    folder = (setting.out / "stores").resolve()  # workers may have another current folder
    stores = folder / f"{label}.zarr", folder / f"{label}-test.zarr"
    if setting.scheduler is None:
        return gram(kernel, images.X, store=stores[0])[:], gram(kernel, images.X_test, images.X, store=stores[1])[:]
    from cnngp.matrix.cluster.connection import connect

    with connect(setting.scheduler) as client:
        K = gram(kernel, images.X, store=stores[0], client=client)[:]
        K_test = gram(kernel, images.X_test, images.X, store=stores[1], client=client)[:]
    return K, K_test


def fits(images: SplitImages, K: Any, K_test: Any, kernel: Kernel | None) -> dict[str, Any]:
    """Both fits: on the training images, and on all of them. Without a kernel the matrices are taken as they are."""
    n = images.train
    values: dict[str, Any] = {}
    clf = _fitted(images, K[:n, :n], kernel)
    values["validation_error"] = _error(clf, K[n:, :n], images.y[n:])
    values["test_error"] = _error(clf, K_test[:, :n], images.y_test)
    values |= _facts(clf, images.y[:n])
    del clf  # its buffer, before the next one is made
    clf = _fitted(images, K, kernel)
    values["all"] = {"images": len(images.X), "test_error": _error(clf, K_test, images.y_test), **_facts(clf, images.y)}
    return values


def _fitted(images: SplitImages, K: Any, kernel: Kernel | None) -> GPClassifier:
    n = len(K)
    if kernel is None:
        return GPClassifier(solver="cholesky").fit(y=images.y[:n], K=K)
    return GPClassifier(kernel, solver="cholesky").fit(images.X[:n], images.y[:n], K=K)


def _error(clf: GPClassifier, K: Any, y: NDArray[Any]) -> float:
    return percent(clf.predict(K=K) != y)


def _facts(clf: GPClassifier, y: NDArray[Any]) -> dict[str, Any]:
    report = clf.fit_report_
    return {
        "loo_error": percent(clf.loo_predictions_ != y),
        "solve_seconds": report.solve_seconds,
        "log_marginal_likelihood": clf.log_marginal_likelihood_,
        "jitter": report.jitter,
        "residual": report.residual,
        "kernel_error": report.kernel_error,
        "verdict": report.verdict,
    }


# ---- the squared-exponential kernel, a baseline -------------------------------------------------------------------


def rbf(X: Array, Z: Array, lengthscale: float) -> Array:
    """exp(−‖x − z‖²/2ℓ²) of flat float64 rows, (N, F), (M, F) → (N, M); exactly 1 on the diagonal where Z is X."""
    xp = namespace(X)
    K = xp.empty((len(X), len(Z)))
    for rows in blocks(len(X), _ROWS):
        K[rows] = xp.exp(_squared_distances(X[rows], Z) * (-0.5 / lengthscale**2))
    if X is Z:
        i = xp.arange(len(X))
        K[i, i] = 1.0
    return K


def most_likely_lengthscale(X: Array, y: NDArray[Any]) -> float:
    """The ℓ with the highest marginal likelihood of ±1 targets, with the most likely amplitude at each.

    One that makes the matrix singular in float64 is not considered.
    """
    xp = namespace(X)
    D = _squared_distances(X, X)
    scale = float(xp.sqrt(xp.median(D)))
    Y = 2.0 * (y[:, None] == np.unique(y)) - 1.0
    i = xp.arange(len(X))

    def loss(log_ratio: float) -> float:
        K = xp.exp(D * (-0.5 / (scale * math.exp(log_ratio)) ** 2))
        K[i, i] = 1.0
        try:
            return -ExactGP(K, Y, overwrite=True).log_marginal_likelihood
        except JitterWarning:
            return 1e300

    with warnings.catch_warnings():
        warnings.simplefilter("error", JitterWarning)
        found = minimised(loss, -3.0, 1.0, tolerance=0.01)
    return scale * math.exp(found.at)


def _squared_distances(X: Array, Z: Array) -> Array:
    xp = namespace(X)
    D = (X * X).sum(1)[:, None] + (Z * Z).sum(1)[None, :] - 2.0 * (X @ Z.T)
    return xp.maximum(D, 0.0)
