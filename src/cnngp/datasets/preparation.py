"""What is done to images before a kernel sees them, without a look at a label.

`prepare` has what estimators choose from, each image by itself; `prepared` is what published kernels on CIFAR-10 do
first: contrast normalised, and the usual correlations of natural images removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, to_numpy
from cnngp.common.checks import is_number

from .dataset import Pixels

Preparation = Literal["plain", "contrast", "detail", "edges"]
"""How each image is prepared by itself; `prepare` says what each word means."""
PREPARATIONS: tuple[Preparation, ...] = get_args(Preparation)
# Of the shorter side: the width, as a standard deviation, of the blur that is taken away.
_BLUR = {"detail": 1 / 8, "edges": 1 / 16}
# Of its largest pixel: an image that varies by less is flat but for rounding.
_ROUNDING = 1e-6
_AT_A_TIME = 1024

# A flat image has no contrast to normalise, and stays the zeros that it becomes. This part of its norm is rounding.
_FLAT = 1e-7


def normalised(X: Any) -> Pixels:
    """Each image with mean 0 and norm 1, over all its pixels and channels.

    >>> import numpy as np
    >>> X = normalised(np.array([1.0, 3.0, 5.0, 7.0]).reshape(1, 1, 2, 2))
    >>> X.round(3)
    array([[[[-0.671, -0.224],
             [ 0.224,  0.671]]]], dtype=float32)
    """
    images = _images(X)
    flat = images.reshape(len(images), -1).astype(np.float64)
    before = np.linalg.norm(flat, axis=1, keepdims=True)
    flat -= flat.mean(1, keepdims=True)
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    seen = np.where(norm > _FLAT * before, flat / np.where(norm > 0.0, norm, 1.0), 0.0)
    return np.asarray(seen.reshape(images.shape), np.float32)


def check_preparation(preparation: object) -> None:
    if preparation not in PREPARATIONS:
        raise DataError(f"preparation={preparation!r} is not one of {', '.join(map(repr, PREPARATIONS))}")


def prepare(X: Any, preparation: Preparation) -> NDArray[Any]:
    """Images (N, channels, …) as a network is to see them, each by itself, in their own floating-point type.

    "plain" leaves them as they are. "contrast" takes each channel's mean away, so that neither the light nor the colour
    of the whole counts, and gives all images the same variance. "detail" takes away each channel's blurred copy
    instead, with a blur of an eighth of the shorter side, and "edges" of a sixteenth: slow changes of light go, lines
    stay. A flat image becomes zeros.

    >>> import numpy as np
    >>> prepare(np.array([[[[1.0, 3.0], [5.0, 7.0]]]]), "contrast").round(2)
    array([[[[-1.34, -0.45],
             [ 0.45,  1.34]]]])
    """
    check_preparation(preparation)
    images = _images(X)
    kind = images.dtype if images.dtype.kind == "f" else np.dtype(np.float32)
    if preparation == "plain":
        return images.astype(kind, copy=False)
    out = np.empty(images.shape, kind)
    for start in range(0, len(images), _AT_A_TIME):
        rows = slice(start, start + _AT_A_TIME)
        out[rows] = _standardised(images[rows].astype(np.float64), preparation)
    return out


def _standardised(images: NDArray[np.float64], preparation: Preparation) -> NDArray[np.float64]:
    places, everything = tuple(range(2, images.ndim)), tuple(range(1, images.ndim))
    if preparation == "contrast":
        rest = images - images.mean(places, keepdims=True)
    else:
        from scipy.ndimage import gaussian_filter

        blur = _BLUR[preparation] * min(images.shape[2:])
        rest = images - gaussian_filter(images, (0.0, 0.0, *[blur] * len(places)), mode="nearest")
    spread = np.sqrt((rest**2).mean(everything, keepdims=True))
    flat = spread <= _ROUNDING * abs(images).max(everything, keepdims=True)
    return np.where(flat, 0.0, rest / np.where(flat, 1.0, spread))


@dataclass(frozen=True)
class Zca:
    """Whitening that keeps images as near to themselves as it can: x ↦ V (Λ + ε)^-½ Vᵀ x, VΛVᵀ the pixels' covariance.

    Fit it on training images alone and apply it to all. `regularisation` is ε, a variance in the units of the pixels:
    directions with less than that stay small. Published kernels on CIFAR-10 use 10⁻⁴ after `normalised`.

    >>> import numpy as np
    >>> X = normalised(np.random.default_rng(0).random((100, 1, 2, 2)))
    >>> white = Zca.fit(X)(X).reshape(100, 4)
    >>> (white.T @ white / 100).round(1)[:2]
    array([[ 0.7, -0.2, -0.2, -0.2],
           [-0.2,  0.7, -0.2, -0.2]], dtype=float32)
    """

    matrix: NDArray[np.float32]
    """(pixels, pixels), symmetric."""

    @classmethod
    def fit(cls, X: Any, regularisation: float = 1e-4) -> Self:
        """From training images: their second moments, which are the covariance where images have mean 0."""
        if not is_number(regularisation, least=1e-12):
            raise DataError(f"regularisation={regularisation!r}: expected a positive number")
        images = _images(X)
        flat = images.reshape(len(images), -1).astype(np.float64)
        values, V = np.linalg.eigh(flat.T @ flat / len(flat))
        return cls(((V / np.sqrt(np.maximum(values, 0.0) + regularisation)) @ V.T).astype(np.float32))

    def __call__(self, X: Any) -> Pixels:
        images = _images(X)
        flat = images.reshape(len(images), -1).astype(np.float32)
        if flat.shape[1] != len(self.matrix):
            raise DataError(
                f"X has images of {flat.shape[1]} pixels; this whitening was fitted to images of {len(self.matrix)}"
            )
        return np.asarray(flat @ self.matrix).reshape(images.shape)


def prepared(X: Any, X_test: Any, regularisation: float = 1e-4) -> tuple[Pixels, Pixels]:
    """Training and test images as published kernels on CIFAR-10 see them: normalised, then whitened.

    The whitening is fitted to the training images alone.
    """
    train, test = normalised(X), normalised(X_test)
    whiten = Zca.fit(train, regularisation)
    return whiten(train), whiten(test)


def _images(X: Any) -> NDArray[Any]:
    images = to_numpy(X, "X")
    if images.ndim < 3 or images.dtype.kind not in "fui" or not len(images):
        raise DataError(f"X has shape {images.shape} and type {images.dtype}; expected images (N, channels, …)")
    if not np.isfinite(images).all():
        raise DataError("X holds NaN or infinity; expected images of finite numbers")
    return images
