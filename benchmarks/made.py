"""Synthetic images of ten classes of shapes, with random position, size, rotation, colours and texture.

Nothing in this package was tuned on images of this kind, and any number of any size can be drawn, so they show whether
a choice made on digits holds elsewhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cnngp import datasets

KINDS = ("disc", "ring", "square", "frame", "triangle", "cross", "bar", "stripes", "checks", "dots")


def things(n: int, size: int = 28, channels: int = 1, seed: int = 0, noise: float = 0.1) -> tuple[NDArray, NDArray]:
    """Images (n, channels, size, size) in [0, 1] and their classes as indices of `KINDS`."""
    from scipy.ndimage import gaussian_filter

    rng = np.random.default_rng(seed)
    labels = rng.integers(len(KINDS), size=n)
    fine = 4  # samples along each side of a pixel, for soft edges
    at = (np.arange(size * fine) + 0.5) / (size * fine) * 2.0 - 1.0
    y, x = np.meshgrid(at, at, indexing="ij")
    images = np.empty((n, channels, size, size), np.float32)
    for i, kind in enumerate(labels):
        angle, scale = rng.uniform(-0.5, 0.5), rng.uniform(0.5, 0.8)
        right, down = rng.uniform(-0.25, 0.25, 2)
        u, v = (x - right) / scale, (y - down) / scale
        u, v = np.cos(angle) * u + np.sin(angle) * v, np.cos(angle) * v - np.sin(angle) * u
        covered = _inside(KINDS[kind], u, v).reshape(size, fine, size, fine).mean((1, 3))
        back, front = rng.uniform(0.0, 0.45, channels), rng.uniform(0.55, 1.0, channels)
        if rng.random() < 0.5:
            back, front = front, back
        grain = gaussian_filter(rng.standard_normal((size, size)), rng.uniform(0.3, size / 14))
        grain *= noise / grain.std()
        picture = back[:, None, None] + (front - back)[:, None, None] * covered + grain
        images[i] = np.clip(picture, 0.0, 1.0)
    return images, labels


def _inside(kind: str, u: NDArray, v: NDArray) -> NDArray:
    """Mask of a shape, in coordinates in which it extends from about −1 to 1."""
    radius, side = np.hypot(u, v), np.maximum(abs(u), abs(v))
    match kind:
        case "disc":
            return radius < 0.9
        case "ring":
            return (radius < 1.0) & (radius > 0.6)
        case "square":
            return side < 0.8
        case "frame":
            return (side < 0.9) & (side > 0.55)
        case "triangle":
            return (v < 0.8) & (v > 2.0 * abs(u) - 0.9)
        case "cross":
            return (side < 1.0) & (np.minimum(abs(u), abs(v)) < 0.28)
        case "bar":
            return (abs(u) < 0.3) & (abs(v) < 1.0)
        case "stripes":
            return (radius < 1.0) & (np.mod(u, 0.66) < 0.33)
        case "checks":
            return (radius < 1.0) & ((np.mod(u, 0.8) < 0.4) ^ (np.mod(v, 0.8) < 0.4))
        case "dots":
            return (radius < 1.0) & (np.hypot(np.mod(u, 0.7) - 0.35, np.mod(v, 0.7) - 0.35) < 0.22)
    raise ValueError(f"no kind {kind!r}")


def made(train: int, test: int, size: int = 28, channels: int = 1, seed: int = 0) -> datasets.Dataset:
    """Data set of these images; training and test images come from different seeds."""
    X, y = things(train, size, channels, seed=2 * seed)
    X_test, y_test = things(test, size, channels, seed=2 * seed + 1)
    return datasets.Dataset("things", X, y, X_test, y_test)
