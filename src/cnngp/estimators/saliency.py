"""Where a model looks: gradients of its means by the pixels of an image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.datasets.preparation import Preparation
from cnngp.gp.linalg import blocks
from cnngp.kernel.kernel import Kernel
from cnngp.kernel.symmetry import Map, SymmetricEngine, maps_of

from .kernels import RecipeKernel

Array = NDArray[Any]
Floats = NDArray[np.float64]

# Of an image's largest pixel, how far pixels are moved to differentiate a preparation; and numbers held at a time.
_STEP, _ENTRIES = 1e-4, 1 << 22


def slopes(kernel: RecipeKernel, X: Array, Z: Array, weights: Floats) -> Floats:
    """∂/∂x_m of Σ_j weights_mj k(x_m, z_j) for every image x_m of X, in the shape of X."""
    total = np.zeros(X.shape)
    for t in kernel.terms:
        x, z = (to_numpy(t.once(images).array) for images in (X, Z))
        found = _of_kernel(t.kernel, x, z, t.factor * weights)
        total += found if t.is_plain else _before(t.preparation, X, found)
    return total


def _of_kernel(kernel: Kernel, x: Array, z: Array, weights: Floats) -> Floats:
    if kernel.symmetry is None:
        return np.asarray(to_numpy(kernel.gradient(x, z, weights, wrt="images", progress=False)[0]), np.float64)
    # Σ_gh k(h x, g z)/|G|², of which all h say the same where the network commutes with them.
    maps = maps_of(kernel.symmetry)
    engine = kernel.engine_for(x.shape[1:])
    moves = maps[:1] if isinstance(engine, SymmetricEngine) and engine.commutes else maps
    own = Kernel(kernel.network, kernel.device, kernel.dtype, kernel.threads, kernel.kind, kernel.check)
    images = np.concatenate([np.ascontiguousarray(g(z)) for g in maps])
    each = np.tile(weights, len(maps)) / (len(maps) * len(moves))
    found = (_inverse(h, maps, x)(_of_kernel(own, np.ascontiguousarray(h(x)), images, each)) for h in moves)
    return np.asarray(sum(found))


def _inverse(h: Map, maps: tuple[Map, ...], x: Array) -> Map:
    """The map of the group that takes back what h does."""
    places = np.arange(x[0].size).reshape(x.shape[1:])
    return next(g for g in maps if np.array_equal(g(h(places)), places))


def _before(preparation: Preparation, X: Array, slopes: Floats) -> Floats:
    """Slopes by prepared images as slopes by the images themselves, pixel by pixel, by differences of second order."""
    found = np.empty(X.shape)
    for image, by_prepared, result in zip(X.astype(np.float64), slopes, found, strict=True):
        step = _STEP * max(float(np.abs(image).max()), np.finfo(np.float64).tiny)
        for pixels, moved in _moved(image, step):
            ahead, behind = (preparation.transform(images).reshape(len(images), -1) for images in moved)
            result.reshape(-1)[pixels] = (ahead - behind) @ by_prepared.reshape(-1) / (2.0 * step)
    return found


def _moved(image: Floats, step: float) -> Iterator[tuple[slice, tuple[Floats, Floats]]]:
    """The image with each of some pixels a step up, and a step down."""
    for pixels in blocks(image.size, max(1, _ENTRIES // image.size)):
        steps = np.zeros((pixels.stop - pixels.start, image.size))
        steps[:, pixels] = step * np.eye(len(steps))
        steps = steps.reshape(len(steps), *image.shape)
        yield pixels, (image + steps, image - steps)
