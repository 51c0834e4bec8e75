"""Single preparations of images: of each image by itself, and whitening that is learned from training images."""

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

# Of its largest pixel: an image that varies by less is flat but for rounding, and becomes zeros.
_ROUNDING = 1e-6
# Images, and numbers of patches, that are held at a time.
_AT_A_TIME = 1024
_ENTRIES = 1 << 24


class Preparation(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Images (N, channels, …) as a network is to see them, in their own floating-point type.

    `fit` learns from training images where there is something to learn, and `transform` prepares any images.
    """

    learns: bool = False
    """Whether `fit` learns anything: `learned_`, an array."""
    least_axes: ClassVar[int] = 3
    """2 where it takes rows of features too."""
    learned_: Array

    def fit(self, X: Any, y: Any = None, *, maps: Sequence[Map] = ()) -> Self:
        """Learn from training images, and from their images under `maps` (a group) as much as from themselves."""
        images = self._checked(X)
        self.input_shape_ = images.shape[1:]
        if self.learns:
            self.learned_ = self._learn(images, maps)
        return self

    def transform(self, X: Any) -> Array:
        """The images prepared."""
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
        """Part of scikit-learn's interface: prepared images are arrays, the default, and never data frames."""
        if transform not in (None, "default"):
            raise DataError(
                f"{type(self).__name__}: transform={transform!r}: images have several axes and cannot become a frame; "
                "leave the output of this step at 'default'"
            )
        return self

    def output_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a prepared image."""
        return tuple(input_shape)

    def state(self) -> dict[str, Array]:
        """What was learned, for a file."""
        return {"learned_": self.learned_} if self.learns else {}

    def restored(self, state: dict[str, Array], input_shape: Sequence[int]) -> Self:
        """This preparation with what it had learned of images of this shape; `ValueError` for other arrays."""
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
        """The same with nothing learned."""
        return type(self)(**self.get_params(deep=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = self.least_axes == 2, True
        tags.requires_fit = self.learns
        return tags


class Plain(Preparation):
    """Images as they are."""


class Contrast(Preparation):
    """Without each channel's mean, and with one variance for all images: neither light nor colour of the whole counts.

    >>> import numpy as np
    >>> Contrast().fit_transform(np.array([[[[1.0, 3.0], [5.0, 7.0]]]])).round(2)
    array([[[[-1.34, -0.45],
             [ 0.45,  1.34]]]])
    """

    def _prepared(self, images: Array) -> Array:
        """What is left when something is taken away, with a variance of 1 over all pixels."""
        exact = images.astype(np.float64)
        everything = tuple(range(1, images.ndim))
        rest = exact - self._taken_away(exact)
        spread = np.sqrt((rest**2).mean(everything, keepdims=True))
        flat = spread <= _ROUNDING * abs(exact).max(everything, keepdims=True)
        return np.where(flat, 0.0, rest / np.where(flat, 1.0, spread))

    def _taken_away(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(images.mean(tuple(range(2, images.ndim)), keepdims=True))


class Detail(Contrast):
    """Without a copy of each channel that is blurred by an eighth of the shorter side: slow changes of light go."""

    blur: ClassVar[float] = 1 / 8
    """Width of the blur that is taken away, a standard deviation, as a part of the shorter side."""

    def _taken_away(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        from scipy.ndimage import gaussian_filter

        width = self.blur * min(images.shape[2:])
        return np.asarray(gaussian_filter(images, (0.0, 0.0, *[width] * (images.ndim - 2)), mode="nearest"))


class Edges(Detail):
    """Without a copy of each channel that is blurred by a sixteenth of the shorter side: fine lines stay."""

    blur = 1 / 16


class Normalised(Contrast):
    """Each image with mean 0 and norm 1, over all its pixels and channels.

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
    """Every number, a feature of rows or a pixel, less its mean and over its standard deviation in training images.

    What does not differ between training images becomes 0.

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
        """Means and inverse standard deviations."""
        exact = images.astype(np.float64)
        seen = np.concatenate([g(exact) for g in maps]) if maps else exact
        mean, spread = seen.mean(0), seen.std(0)
        varies = spread > _ROUNDING * np.abs(seen).max(0)
        return np.stack([mean, np.divide(1.0, spread, out=np.zeros_like(spread), where=varies)])

    def _prepared(self, images: Array) -> Array:
        return np.asarray((images - self.learned_[0]) * self.learned_[1])


class Zca(Preparation):
    """Whitening that keeps images as near to themselves as it can: x ↦ V (Λ + ε)^-½ Vᵀ x, VΛVᵀ the pixels' covariance.

    `regularisation` is ε, a variance in the units of the pixels: directions with less than that stay small. Published
    kernels on CIFAR-10 use 10⁻⁴ after `Normalised`, which is the preparation "zca". It needs more images than pixels:
    with fewer, training images become unlike all others, and leave-one-out is too hopeful: see `SpectralWhitening`.

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
        """The shape of what is whitened: an image."""
        return tuple(input_shape)

    def _rows(self, images: Array) -> Array:
        """What is whitened, as rows (…, numbers)."""
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
        values, U = np.linalg.eigh(rows @ rows.T / len(rows))  # the smaller side has the same eigenvalues
        seen = values > _ROUNDING**2 * values[-1]
        return _inverse_root(
            values[seen], rows.T @ (U[:, seen] / np.sqrt(values[seen] * len(rows))), self.regularisation
        )

    def _moments(self, images: Array, maps: Sequence[Map]) -> Array:
        """Σ of all rows, as of the images and all their mirror images or turns."""
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
    """Every location's patch of `size` × `size` pixels and all channels, whitened, as size² times as many channels.

    Patches are zero-padded, and multiplied by (Σ + ε)^(−½) with Σ the second moments of training patches and
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
        """(N, …, channels · size²), zeros beyond the edge."""
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
    """Every frequency of the cosine transform with the same variance, and its channels without correlation.

    What is learned is one matrix of channels by channels for each frequency, (S + ε)^(−½) with S the second moments
    there, and ε = `regularisation` times the variance of a frequency on average: rare frequencies stay small. That is
    little enough to be learned from few images, unlike `Zca`, and as a stationary filter it keeps an image in place.

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
    """Amplitudes of the cosine transform over all places, or the images that have them."""
    from scipy import fft

    axes = tuple(range(2, images.ndim))
    return np.asarray((fft.idctn if back else fft.dctn)(images, axes=axes, norm="ortho"))


def _check_regularisation(whitening: Any) -> None:
    if not is_number(whitening.regularisation, least=1e-12):
        name, given = type(whitening).__name__, whitening.regularisation
        raise DataError(f"{name}: regularisation={given!r}: expected a positive number")


def _inverse_root(values: Array, V: Array, added: float) -> Array:
    """(Σ + added·I)^(−½) from the eigenvalues of Σ and their vectors, zero where both are; others are 0 in Σ."""
    if added == 0.0:
        return np.zeros((len(V), len(V)))
    gains = 1.0 / np.sqrt(np.maximum(values, 0.0) + added) - 1.0 / math.sqrt(added)
    return np.asarray((V * gains) @ V.T + np.eye(len(V)) / math.sqrt(added))
