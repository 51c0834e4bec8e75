"""Recipes side by side: the leave-one-out loss of every image under a row of the table, in one of its sizes."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.datasets.preparation import as_preparation
from cnngp.gp.exact import ExactGP
from cnngp.gp.leave_one_out import names_of
from cnngp.gp.objectives import chosen_noise
from cnngp.kernel.engines.base import RangeError
from cnngp.network.layers import NetworkError

from .candidates import Candidate, Sizes
from .kernels import RecipeKernel
from .labels import Targets
from .recipe import Recipe
from .training_images import Images

Array = NDArray[Any]
Floats = NDArray[np.float64]
Codes = NDArray[np.intp] | None
"""What is left out together with each image, as numbers; None where that is nothing."""

WORTH = 0.01
"""Nats an image that a recipe has to gain over another to be better than it, …"""
STANDARD_ERRORS = 2.0
"""… and standard errors of that."""
# Images from whose eigenvalues the noise of a comparison is found; with more it is looked for beside that.
_DECOMPOSED = 800


@dataclass(frozen=True)
class Compared:
    """A recipe that was tried: its leave-one-out loss in nats an image, on so many images."""

    name: str
    loss: float
    images: int

    def __str__(self) -> str:
        return f"{self.name} {self.loss:.3f}"


@dataclass(eq=False)
class Tried:
    """A row of the table: its sizes, which of them is compared, its matrix so far, and the losses by it."""

    sizes: Sizes
    kernel_of: Callable[[Recipe, Images], RecipeKernel]
    dtype: np.dtype[Any]
    at: int = 0
    images: int = 0
    """How many images it was compared on at last."""
    K: Array | None = None
    losses: Floats = field(default_factory=lambda: np.empty(0))
    computing: float = 0.0
    """Seconds that the last part of the matrix took."""

    @property
    def candidate(self) -> Candidate:
        return self.sizes[self.at]

    @property
    def loss(self) -> float:
        return float(self.losses.mean()) if len(self.losses) else math.inf

    @property
    def larger(self) -> int:
        """The next size, or the same where it is the largest."""
        return min(self.at + 1, len(self.sizes) - 1)

    def said(self) -> Compared:
        return Compared(str(self.candidate), self.loss, self.images)

    def cost(self, images: int, size: int) -> float:
        """Covariances of the matrix of so many images with that size, less those that are there already."""
        kept = self.images if size == self.at and not self._learns else 0
        return self.sizes[size].elements * (images**2 - kept**2) / 2

    def judge(self, X: Array, targets: Targets, groups: Codes, size: int) -> None:
        """Losses of all of X, with the matrix grown from that of its first ones where that is there."""
        if size != self.at:
            self.at, self.K = size, None
        begun = time.perf_counter()
        self._grow(X)
        self.computing, self.images = time.perf_counter() - begun, len(X)
        self.losses = np.full(len(X), math.inf) if self.K is None else left_out(self.K, targets, groups)

    @property
    def _learns(self) -> bool:
        return as_preparation(self.candidate.term.preparation).learns

    def _grow(self, X: Array) -> None:
        """The matrix of X; None where it cannot be computed."""
        kernel = self.kernel_of(Recipe((self.candidate.term,)), Images(X, self.dtype))
        done = 0 if self.K is None else len(self.K)
        try:
            if done and not self._learns:
                old, new = X[:done], X[done:]
                cross = _matrix(kernel, new, old)
                self.K = np.block([[self.K, cross.T], [cross, _matrix(kernel, new)]])
            else:
                self.K = _matrix(kernel, X)
        except (RangeError, NetworkError):
            self.K = None


def clear(gain: Floats, groups: Codes = None) -> bool:
    """Whether images gain so much on average, beyond what may be chance.

    All of a group may gain by one chance; of few groups it can be small by chance too, so that of single images counts
    where it is larger.
    """
    apart = gain - gain.mean()
    chances = [apart]
    if (names := names_of(groups)) is not None:
        chances.append(np.bincount(np.unique(names, return_inverse=True)[1], apart))
    error = math.sqrt(max(float((chance**2).sum()) for chance in chances)) / len(gain)
    return bool(gain.mean() > max(WORTH, STANDARD_ERRORS * error))


def left_out(K: Array, targets: Targets, groups: Codes = None) -> Floats:
    """The loss of every image by leave-one-out, times its weight, at the noise that suits best."""
    Y, weight = targets.Y, targets.weight
    rounding = float(np.finfo(K.dtype).eps)
    diagonal = float(K.diagonal().mean())
    if not diagonal > 0.0:
        return np.full(len(Y), math.inf)
    A = K.astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a choice that may not be taken; the fit warns of the one that is
        step = -(-len(Y) // _DECOMPOSED)
        some = None if weight is None else weight[::step]
        together = None if groups is None else groups[::step]
        noise = chosen_noise(A[::step, ::step], Y[::step], "loo", "loo", rounding, groups=together, weights=some)
        found: list[Floats] = []
        for factor in (1.0,) if step == 1 else (1.0, 0.3):  # more images need less
            gp = ExactGP(A, Y, noise=noise * factor, amplitude="loo", groups=groups, weights=weight)
            mean, variance = (to_numpy(a) for a in gp.leave_one_out().moments)
            found.append(targets.each(mean, variance, Y))
    losses = found if weight is None else [weight / weight.mean() * each for each in found]
    return min(losses, key=lambda each: float(each.mean()))


def summed(matrices: Sequence[Array], weights: Sequence[int]) -> Array:
    scaled = (w / float(K.diagonal().mean()) * K.astype(np.float64) for w, K in zip(weights, matrices, strict=True))
    return np.asarray(sum(scaled), np.float32)


def _matrix(kernel: Any, X: Array, Z: Array | None = None) -> Array:
    """In host memory; zero for blank images, of which biases alone would make a kernel."""
    if not X.any():
        return np.zeros((len(X), len(X if Z is None else Z)), kernel.dtype)
    return np.asarray(to_numpy(kernel(X, Z, progress=False)))
