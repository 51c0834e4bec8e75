"""What one network is worth: its kernel, the exact GP, the error on validation images and by leave-one-out.

The matrices stay on the device, and nothing is computed but what a search compares: no variances, no certificate.
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
from cnngp.gp.exact import ExactGP
from cnngp.gp.jitter import JitterWarning
from cnngp.gp.linalg import blocks
from cnngp.kernel.kernel import Kernel
from cnngp.kernel.program import Kind
from cnngp.network.layers import Network

# Entries of K(validation, training) at a time. On a card few large blocks are faster, and there is memory for them.
_CHUNK = {"cpu": 1 << 23, "cuda": 1 << 27}


@dataclass(frozen=True)
class Problem:
    """Training and validation images with labels as numbers from 0, and what computes on them."""

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

    @property
    def bytes_needed(self) -> int:
        """K as it comes and in float64, and what is at work beside them."""
        return 16 * len(self.X) ** 2

    def fingerprint(self) -> str:
        """A hash of the images, labels, precision and kind of kernel: what an error depends on beside the network."""
        kind = "" if self.kind == "nngp" else f" {self.kind}"
        digest = hashlib.sha256(f"{self.dtype} {self.classes}{kind}".encode())
        for a in (self.X, self.y, self.X_validation, self.y_validation):
            digest.update(f"{a.shape} {a.dtype}".encode() + np.ascontiguousarray(a).data)
        return digest.hexdigest()

    def __str__(self) -> str:
        return f"{self.name}, {len(self.X):,} training and {len(self.X_validation):,} validation images"


@dataclass(frozen=True)
class Score:
    """Errors are fractions; `jitter` is relative to the mean of the kernel's diagonal."""

    error: float
    loo_error: float
    train: int
    validation: int
    jitter: float
    engine: str
    seconds: float
    compile_seconds: float
    kernel_seconds: float
    pairs_per_second: float
    elements: int
    """Covariances that a nonlinearity of the network reads for a pair of images."""
    operations: int
    """Operations for a pair of images, as `net.shapes` counts them."""


def score(network: Network, problem: Problem, progress: bool = False) -> Score:
    """Noise-free regression on ±1 targets, as `GPClassifier` does it. Raises `RangeError` and `NetworkError`."""
    start = time.perf_counter()
    kernel = Kernel(network, problem.device, problem.dtype, problem.threads, problem.kind)
    n, output = len(problem.X), output_on(kernel.device)
    memory.require(12 * n * n, f"an exact fit of {n:,} images", kernel.device)
    kernel.prepare(problem.X)
    compiled = time.perf_counter()
    K = kernel(problem.X, output=output, progress=progress)
    kernel_seconds = time.perf_counter() - compiled
    Y = 2.0 * np.eye(problem.classes)[problem.y] - 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)  # it is part of the score
        gp = ExactGP(K, Y, amplitude=1.0)
    del K
    wrong = 0
    for rows in blocks(len(problem.X_validation), max(1, _CHUNK[kernel.device] // n)):
        begun = time.perf_counter()
        K_test = kernel(problem.X_validation[rows], problem.X, output=output, progress=progress)
        kernel_seconds += time.perf_counter() - begun
        wrong += int((to_numpy(gp.mean(K_test).argmax(1)) != problem.y_validation[rows]).sum())
    left_out = gp.leave_one_out().mean
    engine = kernel.engine_for(problem.image_shape)
    cost = network.shapes(problem.image_shape)
    return Score(
        error=wrong / len(problem.X_validation),
        loo_error=float((to_numpy(left_out.argmax(1)) != problem.y).mean()),
        train=n,
        validation=len(problem.X_validation),
        jitter=gp.jitter,
        engine=f"{kernel.device} ({engine.identity})",
        seconds=time.perf_counter() - start,
        compile_seconds=compiled - start,
        kernel_seconds=kernel_seconds,
        pairs_per_second=problem.pairs / kernel_seconds,
        elements=cost.elements,
        operations=cost.cost,
    )
