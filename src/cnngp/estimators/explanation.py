"""Explanations of predictions: the training images that speak for and against each class, and saliency maps, the
gradients of the means with respect to the pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, to_numpy
from cnngp.datasets.preparation import Preparation
from cnngp.gp.linalg import blocks
from cnngp.kernel.kernel import Kernel
from cnngp.kernel.symmetry import Map, SymmetricEngine, maps_of

from .kernels import RecipeKernel

Array = NDArray[Any]
Floats = NDArray[np.float64]

# Step of finite differences of a preparation, relative to an image's largest pixel; and numbers in memory at a time.
_STEP, _ENTRIES = 1e-4, 1 << 22


@dataclass(frozen=True)
class Voice:
    """A training image and its share in the mean of a class."""

    row: int
    """Its row in `X_`."""
    share: float
    label: Any
    """Label of the image; None if unknown, as for inducing images that are not training images."""
    name: str | None

    def as_dict(self) -> dict[str, Any]:
        label = self.label.tolist() if hasattr(self.label, "tolist") else self.label
        return {"row": self.row, "share": self.share, "label": label, "name": self.name}


@dataclass(frozen=True)
class Explanation:
    """Decomposition of a prediction into shares of the training images.

    The exact model's mean of class c at x is a sum over the training images, Σ_i h_i y_ic with h = (K + noise·I)⁻¹k(x):
    an image with h_i > 0 speaks for its own class and against the others. For a model without a factor, or with
    inducing images, the shares are the terms k(x, x_i) w_ic of its mean.
    """

    classes: NDArray[Any]
    predicted: Any
    probabilities: Floats
    mean: Floats
    """Mean of each class, the sum of `shares` over the training images; usually between −1 (no) and +1 (yes)."""
    shares: Floats
    """Contributions to the mean, (training images, classes)."""
    novelty: float
    """Novelty relative to the training images: 0 if equal to one of them, 1 if unrelated."""
    novelty_rank: float
    """Share of the training images with a smaller leave-one-out novelty than this image; NaN if unknown."""
    labels: NDArray[Any] | None
    names: NDArray[np.str_] | None
    saliency: Floats | None = None
    """∂/∂pixel of the mean of the predicted class, in the shape of the image, if requested."""

    def speaking_for(self, label: Any = None, n: int = 5) -> list[Voice]:
        """Return the `n` training images with the largest shares in a class's mean, by default the predicted one's."""
        return self._voices(label, n, 1.0)

    def speaking_against(self, label: Any = None, n: int = 5) -> list[Voice]:
        """Return the `n` training images with the most negative shares in the mean of a class."""
        return self._voices(label, n, -1.0)

    def _voices(self, label: Any, n: int, sign: float) -> list[Voice]:
        share = self.shares[:, self._column(label)]
        labels, names = ([None] * len(share) if known is None else known for known in (self.labels, self.names))
        first = [int(i) for i in np.argsort(-sign * share, kind="stable")[:n] if sign * share[i] > 0.0]
        return [Voice(i, float(share[i]), labels[i], None if names[i] is None else str(names[i])) for i in first]

    def as_dict(self, n: int = 5) -> dict[str, Any]:
        """Values for JSON: the main shares in the predicted class; `rest` is the sum of all other shares."""
        column = self._column(None)
        voices = [*self.speaking_for(n=n), *self.speaking_against(n=n)]
        return {
            "mean": float(self.mean[column]),
            "novelty": self.novelty,
            "novelty_rank": None if np.isnan(self.novelty_rank) else self.novelty_rank,
            "for": [v.as_dict() for v in self.speaking_for(n=n)],
            "against": [v.as_dict() for v in self.speaking_against(n=n)],
            "rest": float(self.mean[column]) - sum(v.share for v in voices),
        }

    def __str__(self) -> str:
        column = self._column(None)
        lines = [
            f"{self.classes[column]}: probability {self.probabilities[column]:.3f}, mean {self.mean[column]:+.3f}, "
            f"novelty {self.novelty:.3f}"
        ]
        if not np.isnan(self.novelty_rank):
            lines[0] += f" (more than {self.novelty_rank:.0%} of the training images)"
        for voice in (*self.speaking_for(), *self.speaking_against()):
            name = f"training image {voice.row}" if not voice.name else voice.name
            said = "" if voice.label is None else f", labelled {voice.label}"
            lines.append(f"  {voice.share:+.3f}  {name}{said}")
        return "\n".join(lines)

    def _column(self, label: Any) -> int:
        """Column of the class `label`, or of the class with the largest mean."""
        if label is None:
            return int(self.mean.argmax())
        found = np.flatnonzero(self.classes == label)
        if not len(found):
            raise DataError(f"{label!r} is not a class of the model: {self.classes.tolist()[:10]}")
        return int(found[0])


# ---- saliency --------------------------------------------------------------------------------------------------------


def slopes(kernel: RecipeKernel, X: Array, Z: Array, weights: Floats) -> Floats:
    """Gradient ∂/∂x_m of Σ_j weights_mj k(x_m, z_j) for each image x_m of X, in the shape of X."""
    total = np.zeros(X.shape)
    for t in kernel.terms:
        x, z = (to_numpy(t.images(images).array) for images in (X, Z))
        found = _of_kernel(t.kernel, x, z, t.factor * weights)
        total += found if t.is_plain else _before(t.preparation, X, found)
    return total


def _of_kernel(kernel: Kernel, x: Array, z: Array, weights: Floats) -> Floats:
    if kernel.symmetry is None:
        return np.asarray(to_numpy(kernel.gradient(x, z, weights, wrt="images", progress=False)[0]), np.float64)
    # Σ_gh k(h x, g z)/|G|²; if the network commutes with the group, all h give the same sum.
    maps = maps_of(kernel.symmetry)
    engine = kernel.engine_for(x.shape[1:])
    moves = maps[:1] if isinstance(engine, SymmetricEngine) and engine.commutes else maps
    own = Kernel(kernel.network, kernel.device, kernel.dtype, kernel.threads, kernel.kind, kernel.check)
    images = np.concatenate([np.ascontiguousarray(g(z)) for g in maps])
    each = np.tile(weights, len(maps)) / (len(maps) * len(moves))
    found = (_inverse(h, maps, x)(_of_kernel(own, np.ascontiguousarray(h(x)), images, each)) for h in moves)
    return np.asarray(sum(found))


def _inverse(h: Map, maps: tuple[Map, ...], x: Array) -> Map:
    """Return the inverse of h in the group."""
    places = np.arange(x[0].size).reshape(x.shape[1:])
    return next(g for g in maps if np.array_equal(g(h(places)), places))


def _before(preparation: Preparation, X: Array, slopes: Floats) -> Floats:
    """Convert slopes by prepared images to slopes by the original pixels, by central differences of the preparation."""
    found = np.empty(X.shape)
    for image, by_prepared, result in zip(X.astype(np.float64), slopes, found, strict=True):
        step = _STEP * max(float(np.abs(image).max()), np.finfo(np.float64).tiny)
        for pixels in blocks(image.size, max(1, _ENTRIES // image.size)):  # each copy moves one of them
            moves = step * np.eye(pixels.stop - pixels.start, image.size, pixels.start).reshape(-1, *image.shape)
            ahead, behind = (preparation.transform(image + s * moves).reshape(len(moves), -1) for s in (1.0, -1.0))
            result.reshape(-1)[pixels] = (ahead - behind) @ by_prepared.reshape(-1) / (2.0 * step)
    return found
