"""One kernel matrix, all errors: the paper's split, leave-one-out, and training on every image there is.

The paper's training and validation images together are the 60,000, so the matrix of all of them holds K(training) and
K(validation, training) as blocks: about as many pairs as the paper's split alone, and two fits come out of it.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.devices import output_on
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.classifier import GPClassifier
from cnngp.kernel.kernel import Kernel
from cnngp.matrix.gram import gram

from .common import percent, release, wait
from .setting import Setting, digest


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
        images = digest(self.X, self.y, self.X_test, self.y_test)
        return {"data": self.name, "images": images, "train": self.train}


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

    def through(client: Any) -> tuple[Any, Any]:
        K = gram(kernel, images.X, store=folder / f"{label}.zarr", client=client)[:]
        return K, gram(kernel, images.X_test, images.X, store=folder / f"{label}-test.zarr", client=client)[:]

    if setting.scheduler is None:
        return through(None)
    from cnngp.matrix.cluster.connection import connect

    with connect(setting.scheduler) as client:
        return through(client)


def fits(images: SplitImages, K: Any, K_test: Any, kernel: Kernel) -> dict[str, Any]:
    """Both fits: on the training images, and on all of them."""
    n = images.train

    def fitted(K: Any, K_test: Any) -> tuple[GPClassifier, dict[str, Any]]:
        X, y = images.X[: len(K)], images.y[: len(K)]
        clf = GPClassifier(kernel, solver="cholesky").fit(X, y, K=K)
        report = clf.fit_report_
        return clf, {
            "test_error": percent(clf.predict(K=K_test) != images.y_test),
            "loo_error": percent(clf.loo_predictions_ != y),
            "solve_seconds": report.solve_seconds,
            "log_marginal_likelihood": clf.log_marginal_likelihood_,
            "jitter": report.jitter,
            "residual": report.residual,
            "kernel_error": report.kernel_error,
            "verdict": report.verdict,
        }

    clf, values = fitted(K[:n, :n], K_test[:, :n])
    values = {"validation_error": percent(clf.predict(K=K[n:, :n]) != images.y[n:]), **values}
    del clf  # its buffer, before the next one is made
    return values | {"all": {"images": len(images.X), **fitted(K, K_test)[1]}}
