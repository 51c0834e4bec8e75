"""Image preprocessing steps: normalisation of each image by itself, and whitening learned from training images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from cnngp.common.arrays import DataError, as_real, to_numpy
from cnngp.common.errors import is_number, is_whole

Array = NDArray[Any]
Map = Callable[[Any], Any]

# An image that varies by less than this part of its largest pixel is constant up to rounding, and becomes zeros.
_ROUNDING = 1e-6
# Number of images, and of entries of patches, that are in memory at a time.
_AT_A_TIME = 1024
_ENTRIES = 1 << 24


class Preparation(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base class: a transformer of images (N, channels, …) that keeps their floating-point type.

    `fit` learns from training images, if the preparation learns anything, and `transform` prepares any images.
    """

    learns: bool = False
    """True if `fit` learns an array, `learned_`."""
    least_axes: ClassVar[int] = 3
    """Smallest number of axes of X: 2 if rows of features are accepted too."""
    learned_: Array

    def fit(self, X: Any, y: Any = None, *, maps: Sequence[Map] = ()) -> Self:
        """Learn from training images; with `maps`, a symmetry group, from their images under each map equally."""
        images = self._checked(X)
        self.input_shape_ = images.shape[1:]
        if self.learns:
            self.learned_ = self._learn(images, maps)
        return self

    def transform(self, X: Any) -> Array:
        """Return the prepared images."""
        images = self._checked(X)
        shape, name = images.shape[1:], type(self).__name__
        if self.learns and not hasattr(self, "learned_"):
            raise DataError(f"{self!r} has learned from no images yet; call fit")
        if self.learns and shape != self.input_shape_:
            raise DataError(f"X has images of shape {shape}; this {name} was fitted to {self.input_shape_}")
        kind = images.dtype if images.dtype.kind == "f" else np.dtype(np.float32)
        step = min(_AT_A_TIME, max(1, _ENTRIES // math.prod(self.output_shape(shape))))
        parts = (self._prepared(images[start : start + step]) for start in range(0, len(images), step))
        return np.concatenate([part.astype(kind, copy=False) for part in parts])

    def set_output(self, *, transform: str | None = None) -> Self:
        """Accept scikit-learn's default output only: prepared images are arrays, never data frames."""
        if transform not in (None, "default"):
            raise DataError(
                f"{type(self).__name__}: transform={transform!r}: images have several axes and cannot become a frame; "
                "leave the output of this step at 'default'"
            )
        return self

    def output_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of a prepared image."""
        return tuple(input_shape)

    def state(self) -> dict[str, Array]:
        """Learned arrays, for a file."""
        return {"learned_": self.learned_} if self.learns else {}

    def restored(self, state: dict[str, Array], input_shape: Sequence[int]) -> Self:
        """Restore what was learned from images of this shape; raise `ValueError` for arrays that do not fit."""
        if self.learns:
            array = state["learned_"]
            if array.shape != self._learned_shape(input_shape) or array.dtype.kind != "f":
                raise ValueError(f"{type(self).__name__}: {array.shape} for images of {tuple(input_shape)}")
            self.learned_ = array
        self.input_shape_ = tuple(input_shape)
        return self

    def _learn(self, images: Array, maps: Sequence[Map]) -> Array:
        raise NotImplementedError

    def _learned_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        return ()

    def _prepared(self, images: Array) -> Array:
        return images

    def _checked(self, X: Any) -> Array:
        images = as_real(to_numpy(X, "X"), "X")
        if images.ndim < self.least_axes or images.dtype.kind == "b" or not len(images):
            raise DataError(f"X has shape {images.shape} and type {images.dtype}; expected images (N, channels, …)")
        if not np.isfinite(images).all():
            raise DataError("X holds NaN or infinity; expected images of finite numbers")
        return np.asarray(images)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(self.unfitted()) == vars(other.unfitted())

    def __hash__(self) -> int:
        return hash(repr(self))

    def unfitted(self) -> Self:
        """Return an unfitted copy."""
        return type(self)(**self.get_params(deep=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = self.least_axes == 2, True
        tags.requires_fit = self.learns
        return tags


class Plain(Preparation):
    """Images unchanged."""


class Contrast(Preparation):
    """Subtract each channel's mean and scale each image to variance 1, which removes overall brightness and colour.

    >>> import numpy as np
    >>> Contrast().fit_transform(np.array([[[[1.0, 3.0], [5.0, 7.0]]]])).round(2)
    array([[[[-1.34, -0.45],
             [ 0.45,  1.34]]]])
    """

    def _prepared(self, images: Array) -> Array:
        """Subtract `_taken_away` and scale the rest to a variance of 1 over all pixels."""
        exact = images.astype(np.float64)
        everything = tuple(range(1, images.ndim))
        rest = exact - self._taken_away(exact)
        spread = np.sqrt((rest**2).mean(everything, keepdims=True))
        flat = spread <= _ROUNDING * abs(exact).max(everything, keepdims=True)
        return np.where(flat, 0.0, rest / np.where(flat, 1.0, spread))

    def _taken_away(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(images.mean(tuple(range(2, images.ndim)), keepdims=True))


class Detail(Contrast):
    """Subtract a copy of each channel blurred by an eighth of the shorter side (high-pass); scale to variance 1."""

    blur: ClassVar[float] = 1 / 8
    """Standard deviation of the subtracted blur, as a fraction of the shorter side."""

    def _taken_away(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        from scipy.ndimage import gaussian_filter

        width = self.blur * min(images.shape[2:])
        return np.asarray(gaussian_filter(images, (0.0, 0.0, *[width] * (images.ndim - 2)), mode="nearest"))


class Edges(Detail):
    """Like `Detail` with a blur of a sixteenth of the shorter side, which keeps only fine lines."""

    blur = 1 / 16


class Normalised(Contrast):
    """Scale each image to mean 0 and norm 1 over all its pixels and channels.

    >>> import numpy as np
    >>> Normalised().fit_transform(np.array([1.0, 3.0, 5.0, 7.0]).reshape(1, 1, 2, 2)).round(3)
    array([[[[-0.671, -0.224],
             [ 0.224,  0.671]]]])
    """

    def _prepared(self, images: Array) -> Array:
        return super()._prepared(images) / math.sqrt(math.prod(images.shape[1:]))

    def _taken_away(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(images.mean(tuple(range(1, images.ndim)), keepdims=True))


class Standardised(Preparation):
    """Standardise each feature or pixel by its mean and standard deviation in the training images.

    Features that are constant in the training images become 0.

    >>> import numpy as np
    >>> Standardised().fit_transform(np.array([[1.0, 500.0, 3.0], [3.0, 700.0, 3.0]]))
    array([[-1., -1.,  0.],
           [ 1.,  1.,  0.]])
    """

    learns = True
    least_axes = 2

    def _learned_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        return 2, *input_shape

    def _learn(self, images: Array, maps: Sequence[Map]) -> Array:
        """Return means and inverse standard deviations."""
        exact = images.astype(np.float64)
        seen = np.concatenate([g(exact) for g in maps]) if maps else exact
        mean, spread = seen.mean(0), seen.std(0)
        varies = spread > _ROUNDING * np.abs(seen).max(0)
        return np.stack([mean, np.divide(1.0, spread, out=np.zeros_like(spread), where=varies)])

    def _prepared(self, images: Array) -> Array:
        return np.asarray((images - self.learned_[0]) * self.learned_[1])


class Zca(Preparation):
    """ZCA whitening: x ↦ V (Λ + ε)^-½ Vᵀ x, with VΛVᵀ the second moments of the pixels; stays close to the image.

    `regularisation` is ε, a variance in the units of the pixels: directions with less variance stay small. Published
    kernels on CIFAR-10 use 10⁻⁴ after `Normalised`, which is the preparation "zca". It needs more images than pixels:
    with fewer, training images become unlike all others and leave-one-out is too optimistic; see `SpectralWhitening`.

    >>> import numpy as np
    >>> X = Normalised().fit_transform(np.random.default_rng(0).random((100, 1, 2, 2)))
    >>> white = Zca().fit_transform(X).reshape(100, 4)
    >>> (white.T @ white / 100).round(1)[:2]
    array([[ 0.7, -0.2, -0.2, -0.2],
           [-0.2,  0.7, -0.2, -0.2]])
    """

    learns = True

    def __init__(self, regularisation: float = 1e-4) -> None:
        self.regularisation = regularisation

    def _row_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the vectors that are whitened: an image."""
        return tuple(input_shape)

    def _rows(self, images: Array) -> Array:
        """Return the vectors to whiten as rows (…, numbers)."""
        return images.reshape(len(images), -1)

    def _learned_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        return (math.prod(self._row_shape(input_shape)),) * 2

    def _learn(self, images: Array, maps: Sequence[Map]) -> Array:
        _check_regularisation(self)
        return self._whitening(images, maps).astype(np.float32)

    def _whitening(self, images: Array, maps: Sequence[Map]) -> Array:
        if len(images) * max(1, len(maps)) >= math.prod(images.shape[1:]):
            return _inverse_root(*np.linalg.eigh(self._moments(images, maps)), self.regularisation)
        rows = self._rows(np.concatenate([g(images) for g in maps]) if maps else images).astype(np.float64)
        values, U = np.linalg.eigh(rows @ rows.T / len(rows))  # the smaller Gram matrix has the same eigenvalues
        seen = values > _ROUNDING**2 * values[-1]
        return _inverse_root(
            values[seen], rows.T @ (U[:, seen] / np.sqrt(values[seen] * len(rows))), self.regularisation
        )

    def _moments(self, images: Array, maps: Sequence[Map]) -> Array:
        """Second moments Σ of all rows, averaged over the images under all `maps`."""
        total, count = np.zeros(self._learned_shape(images.shape[1:])), 0
        step = max(1, _ENTRIES // math.prod(self.output_shape(images.shape[1:])))
        for start in range(0, len(images), step):
            rows = self._rows(images[start : start + step].astype(np.float64)).reshape(-1, len(total))
            total += rows.T @ rows
            count += len(rows)
        places = np.arange(len(total)).reshape(1, *self._row_shape(images.shape[1:]))
        orders = [np.asarray(g(places)).ravel() for g in maps] or [places.ravel()]
        return np.asarray(sum(total[np.ix_(order, order)] for order in orders) / (count * len(orders)))

    def _prepared(self, images: Array) -> Array:
        rows = self._rows(images if images.dtype.kind == "f" else images.astype(np.float32)) @ self.learned_
        return rows.reshape(images.shape)


class PatchWhitening(Zca):
    """Whitened patches of `size` × `size` pixels around each location, as size² times as many channels.

    Patches, with zero padding, are multiplied by (Σ + ε)^(−½) with Σ the second moments of training patches and
    ε = `regularisation` times the mean of Σ's diagonal. For networks that begin with `Conv(1)`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((5, 3, 8, 8))
    >>> PatchWhitening(3).fit_transform(X).shape
    (5, 27, 8, 8)
    """

    def __init__(self, size: int = 3, regularisation: float = 1e-2) -> None:
        super().__init__(regularisation)
        self.size = size

    def output_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        return math.prod(self._row_shape(input_shape)), *input_shape[1:]

    def _row_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        return input_shape[0], *[self.size] * (len(input_shape) - 1)

    def _rows(self, images: Array) -> Array:
        """Return the patches as rows (N, …, channels · size²), with zeros beyond the edge."""
        axes = tuple(range(2, images.ndim))
        around = [(0, 0), (0, 0)] + [(self.size // 2, self.size // 2)] * len(axes)
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(images, around), [self.size] * len(axes), axis=axes)
        patches = np.moveaxis(windows, 1, 1 + len(axes))  # (N, …, channels, size, …)
        return np.ascontiguousarray(patches).reshape(*patches.shape[: 1 + len(axes)], -1)

    def _whitening(self, images: Array, maps: Sequence[Map]) -> Array:
        if not is_whole(self.size, least=1) or self.size % 2 == 0:
            raise DataError(f"PatchWhitening: size={self.size!r}: expected an odd number of pixels")
        moments = self._moments(images, maps)
        return _inverse_root(*np.linalg.eigh(moments), self.regularisation * float(moments.diagonal().mean()))

    def _prepared(self, images: Array) -> Array:
        rows = self._rows(images if images.dtype.kind == "f" else images.astype(np.float32))
        return np.moveaxis(rows @ self.learned_, -1, 1)


class SpectralWhitening(Preparation):
    """Whitening of the cosine transform: equal variance at every frequency, without correlation between channels.

    For each frequency a matrix (channels, channels) is learned, (S + ε)^(−½) with S the second moments there and
    ε = `regularisation` times the mean variance of the frequencies: weak frequencies stay small. These are few enough
    numbers to be learned from few images, unlike `Zca`, and a stationary filter does not move the image's content.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((50, 3, 8, 8))
    >>> white = SpectralWhitening().fit(X)
    >>> white.transform(X).shape, white.learned_.shape
    ((50, 3, 8, 8), (8, 8, 3, 3))
    """

    learns = True

    def __init__(self, regularisation: float = 3.0) -> None:
        self.regularisation = regularisation

    def _learned_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        return *input_shape[1:], input_shape[0], input_shape[0]

    def _learn(self, images: Array, maps: Sequence[Map]) -> Array:
        _check_regularisation(self)
        moments = np.zeros(self._learned_shape(images.shape[1:]))
        for g in maps or (np.asarray,):
            for start in range(0, len(images), _AT_A_TIME):
                waves = _waves(np.asarray(g(images[start : start + _AT_A_TIME])).astype(np.float64))
                moments += np.einsum("nc...,nd...->...cd", waves, waves)
        moments /= len(images) * max(1, len(maps))
        values, V = np.linalg.eigh(moments)
        added = self.regularisation * float(values.mean())
        if added == 0.0:  # blank images
            return np.zeros(moments.shape, np.float32)
        gains = 1.0 / np.sqrt(np.maximum(values, 0.0) + added)
        return np.asarray((V * gains[..., None, :]) @ V.swapaxes(-1, -2), np.float32)

    def _prepared(self, images: Array) -> Array:
        images = images if images.dtype.kind == "f" else images.astype(np.float32)
        return _waves(np.einsum("...cd,nd...->nc...", self.learned_, _waves(images)), back=True)


def _waves(images: Array, back: bool = False) -> Array:
    """Cosine transform over all locations, or with `back` its inverse."""
    from scipy import fft

    axes = tuple(range(2, images.ndim))
    return np.asarray((fft.idctn if back else fft.dctn)(images, axes=axes, norm="ortho"))


def _check_regularisation(whitening: Any) -> None:
    if not is_number(whitening.regularisation, least=1e-12):
        name, given = type(whitening).__name__, whitening.regularisation
        raise DataError(f"{name}: regularisation={given!r}: expected a positive number")


def _inverse_root(values: Array, V: Array, added: float) -> Array:
    """Return (Σ + added·I)^(−½), or zeros if `added` is 0, from Σ's eigenvectors; other eigenvalues of Σ are 0."""
    if added == 0.0:
        return np.zeros((len(V), len(V)))
    gains = 1.0 / np.sqrt(np.maximum(values, 0.0) + added) - 1.0 / math.sqrt(added)
    return np.asarray((V * gains) @ V.T + np.eye(len(V)) / math.sqrt(added))
