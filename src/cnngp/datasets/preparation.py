"""Preparations of images: scikit-learn transformers, fitted without a look at a label, that run before a kernel.

`Contrast`, `Detail` and `Edges` change each image by itself; `Normalised` followed by `Zca` is what published kernels
on CIFAR-10 do first; `PatchWhitening` takes away what neighbouring pixels usually have in common. All of them have a
name that stands for them in a `Term`, in a command and in a file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from cnngp.common.arrays import DataError, to_numpy
from cnngp.common.checks import is_number, is_whole

Array = NDArray[Any]
Map = Callable[[Any], Any]

# Of its largest pixel: an image that varies by less is flat but for rounding, and becomes zeros.
_ROUNDING = 1e-6
# A flat image has no contrast to normalise. This part of its norm is rounding.
_FLAT = 1e-7
_AT_A_TIME = 1024
# Numbers of patches that are held at a time.
_ENTRIES = 1 << 24


class Preparation(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Images (N, channels, …) as a network is to see them, in their own floating-point type.

    `fit` learns from training images where there is something to learn, and `transform` prepares any images.
    """

    learned: ClassVar[tuple[str, ...]] = ()
    """Names of the arrays that `fit` makes."""

    def fit(self, X: Any, y: Any = None, *, maps: Sequence[Map] = ()) -> Self:
        """Learn from training images, and from their images under `maps` (a group) as much as from themselves."""
        images = _images(X)
        self.input_shape_ = images.shape[1:]
        self._learn(images, maps)
        return self

    def transform(self, X: Any) -> Array:
        """The images prepared."""
        images = _images(X)
        kind = images.dtype if images.dtype.kind == "f" else np.dtype(np.float32)
        for name in self.learned:
            if not hasattr(self, name):
                raise DataError(f"{self!r} has learned from no images yet; call fit")
        shape = getattr(self, "input_shape_", images.shape[1:])
        if self.learned and images.shape[1:] != tuple(shape):
            raise DataError(
                f"X has images of shape {images.shape[1:]}; this {type(self).__name__} was fitted to {shape}"
            )
        parts = (self._prepared(images[start : start + _AT_A_TIME]) for start in range(0, len(images), _AT_A_TIME))
        return np.concatenate([part.astype(kind, copy=False) for part in parts])

    @property
    def learns(self) -> bool:
        """Whether `fit` learns anything."""
        return bool(self.learned)

    def output_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a prepared image."""
        return tuple(input_shape)

    def images_for(self, input_shape: Sequence[int]) -> int:
        """How many images it has to learn from: with fewer it treats these unlike new ones, and leave-one-out by the
        same images is too hopeful.
        """
        return 0

    def state(self) -> dict[str, Array]:
        """What was learned, for a file."""
        return {name: np.asarray(getattr(self, name)) for name in self.learned}

    def restored(self, state: dict[str, Array], input_shape: Sequence[int]) -> Self:
        """What `state` was taken of, fitted to images of this shape; `ValueError` for other arrays."""
        self.input_shape_ = tuple(input_shape)
        for name in self.learned:
            if state[name].shape != self._shape_of(name) or state[name].dtype.kind != "f":
                raise ValueError(f"{name} of shape {state[name].shape} for images of {tuple(input_shape)}")
            setattr(self, name, state[name])
        return self

    def _shape_of(self, name: str) -> tuple[int, ...]:
        raise NotImplementedError

    def _learn(self, images: Array, maps: Sequence[Map]) -> None:
        pass

    def _prepared(self, images: Array) -> Array:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(self.unfitted()) == vars(other.unfitted())

    def __hash__(self) -> int:
        return hash(repr(self))

    def unfitted(self) -> Self:
        """The same with nothing learned."""
        return type(self)(**self.get_params(deep=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = False, True
        tags.requires_fit = bool(self.learned)
        return tags


class Plain(Preparation):
    """Images as they are."""

    def _prepared(self, images: Array) -> Array:
        return images


class _Standardised(Preparation):
    """What is left of an image when something is taken away, with a variance of 1 over all its pixels."""

    def _prepared(self, images: Array) -> Array:
        exact = images.astype(np.float64)
        everything = tuple(range(1, images.ndim))
        rest = exact - self._slow(exact)
        spread = np.sqrt((rest**2).mean(everything, keepdims=True))
        flat = spread <= _ROUNDING * abs(exact).max(everything, keepdims=True)
        return np.where(flat, 0.0, rest / np.where(flat, 1.0, spread))

    def _slow(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        raise NotImplementedError


class Contrast(_Standardised):
    """Without each channel's mean, and with one variance for all images: neither light nor colour of the whole counts.

    >>> import numpy as np
    >>> Contrast().fit_transform(np.array([[[[1.0, 3.0], [5.0, 7.0]]]])).round(2)
    array([[[[-1.34, -0.45],
             [ 0.45,  1.34]]]])
    """

    def _slow(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(images.mean(tuple(range(2, images.ndim)), keepdims=True))


class _Unblurred(_Standardised):
    blur: ClassVar[float]
    """Width of the blur that is taken away, a standard deviation, as a part of the shorter side."""

    def _slow(self, images: NDArray[np.float64]) -> NDArray[np.float64]:
        from scipy.ndimage import gaussian_filter

        width = self.blur * min(images.shape[2:])
        places = images.ndim - 2
        return np.asarray(gaussian_filter(images, (0.0, 0.0, *[width] * places), mode="nearest"))


class Detail(_Unblurred):
    """Without a copy of each channel that is blurred by an eighth of the shorter side: slow changes of light go."""

    blur = 1 / 8


class Edges(_Unblurred):
    """Without a copy of each channel that is blurred by a sixteenth of the shorter side: fine lines stay."""

    blur = 1 / 16


class Normalised(Preparation):
    """Each image with mean 0 and norm 1, over all its pixels and channels.

    >>> import numpy as np
    >>> Normalised().fit_transform(np.array([1.0, 3.0, 5.0, 7.0]).reshape(1, 1, 2, 2)).round(3)
    array([[[[-0.671, -0.224],
             [ 0.224,  0.671]]]])
    """

    def _prepared(self, images: Array) -> Array:
        flat = images.reshape(len(images), -1).astype(np.float64)
        before = np.linalg.norm(flat, axis=1, keepdims=True)
        flat -= flat.mean(1, keepdims=True)
        norm = np.linalg.norm(flat, axis=1, keepdims=True)
        seen = np.where(norm > _FLAT * before, flat / np.where(norm > 0.0, norm, 1.0), 0.0)
        return np.asarray(seen.reshape(images.shape))


class Zca(Preparation):
    """Whitening that keeps images as near to themselves as it can: x ↦ V (Λ + ε)^-½ Vᵀ x, VΛVᵀ the pixels' covariance.

    `regularisation` is ε, a variance in the units of the pixels: directions with less than that stay small. Published
    kernels on CIFAR-10 use 10⁻⁴ after `Normalised`, which is the preparation "zca". It needs more images than pixels:
    with fewer, training images become unlike all others, and leave-one-out is too hopeful.

    >>> import numpy as np
    >>> X = Normalised().fit_transform(np.random.default_rng(0).random((100, 1, 2, 2)))
    >>> white = Zca().fit_transform(X).reshape(100, 4)
    >>> (white.T @ white / 100).round(1)[:2]
    array([[ 0.7, -0.2, -0.2, -0.2],
           [-0.2,  0.7, -0.2, -0.2]])
    """

    learned = ("matrix_",)

    def __init__(self, regularisation: float = 1e-4) -> None:
        self.regularisation = regularisation

    def images_for(self, input_shape: Sequence[int]) -> int:
        return int(np.prod(tuple(input_shape)))

    def _shape_of(self, name: str) -> tuple[int, ...]:
        pixels = int(np.prod(self.input_shape_))
        return pixels, pixels

    def _learn(self, images: Array, maps: Sequence[Map]) -> None:
        if not is_number(self.regularisation, least=1e-12):
            raise DataError(f"Zca: regularisation={self.regularisation!r}: expected a positive number")
        flat = images.reshape(len(images), -1).astype(np.float64)
        n, pixels = flat.shape
        if n * max(1, len(maps)) < pixels:
            rows = np.concatenate([g(images).reshape(n, -1) for g in maps]).astype(np.float64) if maps else flat
            self.matrix_ = _inverse_root_of_few(rows, self.regularisation).astype(np.float32)
            return
        moments = _symmetrised(flat.T @ flat / n, images.shape[1:], maps)
        self.matrix_ = _inverse_root(moments, self.regularisation).astype(np.float32)

    def _prepared(self, images: Array) -> Array:
        kind = images.dtype if images.dtype.kind == "f" else np.dtype(np.float32)
        return np.asarray(images.reshape(len(images), -1).astype(kind) @ self.matrix_).reshape(images.shape)


class PatchWhitening(Preparation):
    """Every location's patch of `size` × `size` pixels and all channels, whitened, as size² times as many channels.

    Patches are zero-padded, and multiplied by (Σ + ε)^(−½) with Σ the second moments of training patches and
    ε = `regularisation` times the mean of Σ's diagonal. For networks that begin with `Conv(1)`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).random((5, 3, 8, 8))
    >>> PatchWhitening(3).fit_transform(X).shape
    (5, 27, 8, 8)
    """

    learned = ("matrix_",)

    def __init__(self, size: int = 3, regularisation: float = 1e-2) -> None:
        self.size = size
        self.regularisation = regularisation

    def output_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        channels, *places = input_shape
        return channels * self.size ** len(places), *places

    def _shape_of(self, name: str) -> tuple[int, ...]:
        channels = self.output_shape(self.input_shape_)[0]
        return channels, channels

    def _learn(self, images: Array, maps: Sequence[Map]) -> None:
        if not is_whole(self.size, least=1) or self.size % 2 == 0:
            raise DataError(f"PatchWhitening: size={self.size!r}: expected an odd number of pixels")
        if not is_number(self.regularisation, least=1e-12):
            raise DataError(f"PatchWhitening: regularisation={self.regularisation!r}: expected a positive number")
        channels, places = self.output_shape(images.shape[1:])[0], int(np.prod(images.shape[2:]))
        total = np.zeros((channels, channels))
        step = max(1, _ENTRIES // (channels * places))
        for start in range(0, len(images), step):
            patches = self._patches(images[start : start + step].astype(np.float64)).reshape(-1, channels)
            total += patches.T @ patches
        patch = (images.shape[1], *[self.size] * (images.ndim - 2))
        moments = _symmetrised(total / (len(images) * places), patch, maps)
        self.matrix_ = _inverse_root(moments, self.regularisation * float(moments.trace()) / channels).astype(
            np.float32
        )

    def _prepared(self, images: Array) -> Array:
        kind = images.dtype if images.dtype.kind == "f" else np.dtype(np.float32)
        channels, *places = self.output_shape(images.shape[1:])
        out = np.empty((len(images), channels, *places), kind)
        step = max(1, _ENTRIES // (channels * int(np.prod(places))))
        for start in range(0, len(images), step):
            rows = slice(start, start + step)
            white = self._patches(images[rows].astype(kind)) @ self.matrix_
            out[rows] = np.moveaxis(white, -1, 1)
        return out

    def _patches(self, images: Array) -> Array:
        """(N, …, channels · size²), zeros beyond the edge."""
        axes = tuple(range(2, images.ndim))
        around = [(0, 0), (0, 0)] + [(self.size // 2, self.size // 2)] * len(axes)
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(images, around), [self.size] * len(axes), axis=axes)
        patches = np.moveaxis(windows, 1, 1 + len(axes))  # (N, …, channels, size, …)
        return np.ascontiguousarray(patches).reshape(*patches.shape[: 1 + len(axes)], -1)


class Chain(Preparation):
    """One preparation after the other; in a `Term`, a tuple of them.

    >>> Chain(("normalised", Zca(1e-3)))
    Chain(steps=('normalised', Zca(regularisation=0.001)))
    """

    def __init__(self, steps: tuple[Any, ...] = ()) -> None:
        self.steps = steps

    def fit(self, X: Any, y: Any = None, *, maps: Sequence[Map] = ()) -> Self:
        images, self.fitted_ = _images(X), []
        self.input_shape_ = images.shape[1:]
        for step in map(as_preparation, self.steps):
            self.fitted_.append(step.fit(images, maps=maps))
            images = step.transform(images)
        return self

    @property
    def learns(self) -> bool:
        return any(as_preparation(step).learns for step in self.steps)

    def transform(self, X: Any) -> Array:
        for step in getattr(self, "fitted_", None) or map(as_preparation, self.steps):
            X = step.transform(X)
        return np.asarray(X)

    def output_shape(self, input_shape: Sequence[int]) -> tuple[int, ...]:
        for step in map(as_preparation, self.steps):
            input_shape = step.output_shape(input_shape)
        return tuple(input_shape)

    def images_for(self, input_shape: Sequence[int]) -> int:
        most = 0
        for step in map(as_preparation, self.steps):
            most = max(most, step.images_for(input_shape))
            input_shape = step.output_shape(input_shape)
        return most

    def state(self) -> dict[str, Array]:
        return {f"{i}.{name}": array for i, step in enumerate(self.fitted_) for name, array in step.state().items()}

    def restored(self, state: dict[str, Array], input_shape: Sequence[int]) -> Self:
        self.input_shape_, self.fitted_, shape = tuple(input_shape), [], tuple(input_shape)
        for i, step in enumerate(map(as_preparation, self.steps)):
            own = {name.removeprefix(f"{i}."): array for name, array in state.items() if name.startswith(f"{i}.")}
            self.fitted_.append(step.restored(own, shape))
            shape = step.output_shape(shape)
        return self


_KINDS: dict[str, type[Preparation]] = {
    kind.__name__: kind for kind in (Plain, Contrast, Detail, Edges, Normalised, Zca, PatchWhitening)
}
NAMED: dict[str, Callable[[], Preparation]] = {
    "plain": Plain,
    "contrast": Contrast,
    "detail": Detail,
    "edges": Edges,
    "normalised": Normalised,
    "zca": lambda: Chain(("normalised", Zca())),
    "patches": lambda: Chain(("normalised", PatchWhitening())),
}
"""Preparations by the names that stand for them."""


def as_preparation(given: Any) -> Preparation:
    """A preparation that has learned nothing, from its name, an object, or a tuple of several.

    >>> as_preparation("contrast"), as_preparation(("normalised", Zca()))
    (Contrast(), Chain(steps=('normalised', Zca())))
    """
    if isinstance(given, Preparation):
        return given.unfitted()
    if isinstance(given, tuple | list) and given:
        for step in given:
            as_preparation(step)
        return Chain(tuple(given))
    if not isinstance(given, str) or given not in NAMED:
        raise DataError(
            f"preparation={given!r} is not one of {', '.join(map(repr, NAMED))}, a Preparation or a tuple of these"
        )
    return NAMED[given]()


def preparation_to_json(given: Any) -> Any:
    """A name, a list of several, or the arguments of one; `DataError` for a class from elsewhere."""
    if isinstance(given, str):
        return given
    if isinstance(given, Chain | tuple | list):
        return [preparation_to_json(step) for step in (given.steps if isinstance(given, Chain) else given)]
    if _KINDS.get(type(given).__name__) is not type(given):
        raise DataError(
            f"{given!r} cannot be written to a file, from which no code is run; only {', '.join(_KINDS)} can"
        )
    values = given.get_params(deep=False).items()
    return {"kind": type(given).__name__} | {k: v.item() if isinstance(v, np.generic) else v for k, v in values}


def preparation_from_json(data: Any) -> Any:
    """What `preparation_to_json` made; `ValueError` for anything else."""
    if isinstance(data, list):
        return tuple(preparation_from_json(step) for step in data)
    if isinstance(data, dict):
        arguments = dict(data)
        name = arguments.pop("kind", None)
        if name not in _KINDS or set(arguments) - set(_KINDS[name]().get_params()):
            raise ValueError(f"no preparation {data!r}")
        return _KINDS[name](**arguments)
    as_preparation(data)
    return data


def _symmetrised(moments: Array, shape: Sequence[int], maps: Sequence[Map]) -> Array:
    """Second moments as of the images and all their mirror images or turns."""
    if not maps:
        return moments
    places = np.arange(len(moments)).reshape(1, *shape)
    orders = [np.asarray(g(places)).ravel() for g in maps]
    return np.asarray(sum(moments[np.ix_(order, order)] for order in orders) / len(orders))


def _inverse_root(moments: Array, added: float) -> Array:
    """(moments + added·I)^(−½), zero where both are."""
    values, V = np.linalg.eigh(moments)
    size = np.maximum(values, 0.0) + added
    return np.asarray((V * np.divide(1.0, np.sqrt(size), out=np.zeros_like(size), where=size > 0.0)) @ V.T)


def _inverse_root_of_few(rows: Array, added: float) -> Array:
    """The same of the second moments of fewer rows than columns, from the eigenvectors of the smaller side."""
    values, U = np.linalg.eigh(rows @ rows.T / len(rows))
    seen = values > _ROUNDING**2 * values[-1]
    V = rows.T @ (U[:, seen] / np.sqrt(values[seen] * len(rows)))
    gains = 1.0 / np.sqrt(values[seen] + added) - 1.0 / math.sqrt(added)
    return np.asarray((V * gains) @ V.T + np.eye(rows.shape[1]) / math.sqrt(added))


def _images(X: Any) -> Array:
    images = to_numpy(X, "X")
    if images.ndim < 3 or images.dtype.kind not in "fui" or not len(images):
        raise DataError(f"X has shape {images.shape} and type {images.dtype}; expected images (N, channels, …)")
    if not np.isfinite(images).all():
        raise DataError("X holds NaN or infinity; expected images of finite numbers")
    return images
