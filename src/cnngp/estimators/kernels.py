"""Kernel of a recipe: the weighted sum of its terms' kernels on images, in memory or in a store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import CheckedImages, Output, as_images, to_numpy
from cnngp.common.devices import ActualDevice
from cnngp.datasets.preparation import Preparation, as_preparation
from cnngp.kernel.kernel import Kernel
from cnngp.kernel.symmetry import maps_of
from cnngp.matrix.gram import gram
from cnngp.matrix.store.places import child
from cnngp.matrix.tile_size import expected_seconds
from cnngp.network import placed

from .recipe import Recipe, Term
from .training_images import Images

Array = NDArray[Any]

_elements = lru_cache(maxsize=1024)(placed.elements_of)


@dataclass
class TermKernel:
    """Kernel of a term with its preparation, fitted to the training images; `factor` multiplies its matrix."""

    term: Term
    kernel: Kernel
    preparation: Preparation
    factor: float = 1.0
    _seen: tuple[Any, Any] = field(default=(None, None), repr=False)

    @property
    def is_plain(self) -> bool:
        return bool(self.term.preparation == "plain")

    def images(self, X: Array | Images, again: bool = False) -> Any:
        """Prepare images for this kernel; with `again`, as for training images, the result is cached."""
        if isinstance(X, Images):
            if X.streamed:
                return X.pixels if self.is_plain else PreparedRows(X, self)
            X = np.asarray(X.pixels)
        if self.is_plain:
            return CheckedImages(X)
        if self._seen[0] is X:
            return self._seen[1]
        prepared = CheckedImages(np.asarray(as_images(self.preparation.transform(X), np.dtype(self.kernel.dtype))))
        if again:
            self._seen = X, prepared
        return prepared

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_seen": (None, None)}


class PreparedRows:
    """Lazy view of images that are not in memory, prepared when they are read."""

    def __init__(self, images: Images, term: TermKernel) -> None:
        self._images, self._term, self.dtype = images, term, images.dtype
        self.shape = (len(images), *term.preparation.output_shape(images.shape[1:]))

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> Array:
        if isinstance(rows, slice):
            rows = slice(*rows.indices(len(self)))
        return to_numpy(self._term.images(self._images.at(rows)).array)


class StoredSum:
    """Weighted sum of matrices in stores, computed when rows are read."""

    def __init__(self, parts: Sequence[Any], factors: Sequence[float]) -> None:
        self._parts, self._factors = parts, factors
        self.shape, self.chunks, self.ndim = tuple(parts[0].shape), parts[0].chunks, 2
        self.dtype, self.oindex = np.dtype(np.float64), self

    def __getitem__(self, at: Any) -> Array:
        return np.asarray(
            sum(f * np.asarray(K[at], np.float64) for f, K in zip(self._factors, self._parts, strict=True))
        )


class RecipeKernel:
    """Kernel Σ_t factor_t · K_t on unprepared images, with the part of `Kernel`'s interface that a fit needs."""

    def __init__(self, terms: Sequence[TermKernel]) -> None:
        self.terms = tuple(terms)
        self.single = len(self.terms) == 1
        self.main = max(self.terms, key=lambda t: t.term.weight).kernel
        """Kernel of the term with the largest weight."""
        self.device: ActualDevice = self.main.device
        self.dtype = self.main.dtype

    def prepare(self, X: Array) -> float:
        """Compile the code for `kernel(X)` and return the seconds it took."""
        return sum(t.kernel.prepare(t.images(X[:1024])) for t in self.terms)

    def __call__(
        self, X: Any, Z: Any = None, *, store: Any = None, output: Output = "numpy", progress: bool = True
    ) -> Any:
        """Return K(X, Z), or K(X, X) if Z is None. In a store each term has its own matrix."""
        found: list[Any] = []
        for t in self.terms:
            a, b = (t.images(X, again=True), None) if Z is None else (t.images(X), t.images(Z, again=True))
            if store is None:
                K = gram(t.kernel, a, b, output=output, progress=progress)
                if self.single:
                    return K
                K = K.astype(np.float64)
                K *= t.factor
                found = [np.add(found[0], K, out=found[0])] if found else [K]
            else:  # with one term, a store filled by `gram` can be used
                found.append(gram(t.kernel, a, b, store=store if self.single else child(store, t.term.store_name)))
        return found[0] if store is None or self.single else StoredSum(found, [t.factor for t in self.terms])

    def diag(self, X: Any) -> NDArray[np.float64]:
        """Return k(x, x) of each image."""
        each = (t.kernel.diag(t.images(X)).astype(np.float64) for t in self.terms)
        return np.asarray(
            next(each) if self.single else sum(t.factor * d for t, d in zip(self.terms, each, strict=True))
        )

    @property
    def fingerprint(self) -> str:
        """Hash of everything but the images that determines an entry."""
        said = [f"{t.term!r} {t.kernel.network.fingerprint} {t.factor!r}" for t in self.terms]
        for t in self.terms:
            said += [hashlib.sha256(np.ascontiguousarray(a).data).hexdigest() for a in t.preparation.state().values()]
        return hashlib.sha256("\n".join(said).encode()).hexdigest()

    def engine(self, input_shape: Sequence[int]) -> str:
        """Name of the engine in use, for display."""
        first = self.terms[0]
        return f"{self.device} ({first.kernel.engine_for(first.preparation.output_shape(input_shape)).identity})"

    def expected_seconds(self, X: Array, pairs: int) -> float:
        """Estimate the time of `pairs` of such images on this machine, by timing a few pairs for each term."""
        return sum(expected_seconds(t.kernel, t.images(X[:512]), pairs) for t in self.terms)


def fitted_preparation(term: Term, images: Images) -> Preparation:
    """Return a term's preparation, fitted to training images and their images under its symmetry."""
    preparation = as_preparation(term.preparation)
    if term.preparation != "plain":
        preparation.fit(images.some(), maps=() if term.symmetry is None else maps_of(term.symmetry))
    return preparation


def prepared(term: Term, X: Array) -> Array:
    """Return training images as prepared for a term's kernel in a fit."""
    return X if term.preparation == "plain" else fitted_preparation(term, Images(X, X.dtype)).transform(X)


def kernel_of(recipe: Recipe, images: Images, make: Callable[..., Kernel], scaled: bool = True) -> RecipeKernel:
    """Build the recipe's kernel for training images, with fitted preparations and scaled terms.

    `make(network, symmetry)` makes a `Kernel`. A single term keeps the scale of its network; see `unit_of`.
    """
    found = [TermKernel(t, make(t.network, t.symmetry), fitted_preparation(t, images)) for t in recipe.terms]
    if len(found) > 1 and scaled:
        few = images.some()
        for t in found:
            t.factor = t.term.weight / _mean(t.kernel.diag(t.images(few)))
    return RecipeKernel(found)


def unit_of(kernel: RecipeKernel, recipe: Recipe, images: Images, diagonal: NDArray[Any] | None = None) -> float:
    """Factor from the recipe's noise to that of the matrix: 1, or for a single term, which is not scaled, its mean
    diagonal over its weight. `diagonal` is that of these images, if known.
    """
    if not kernel.single:
        return 1.0
    return _mean(kernel.diag(images.some()) if diagonal is None else diagonal) / recipe.terms[0].weight


def _mean(diagonal: NDArray[Any]) -> float:
    mean = float(diagonal.astype(np.float64).mean())
    return mean if mean > 0.0 else 1.0


def elements_of(term: Term, input_shape: Sequence[int]) -> int:
    """Number of covariances per pair of images, including the pairs that a symmetry adds."""
    shape = as_preparation(term.preparation).output_shape(input_shape)
    return max(1, _elements(term.network, shape)) * (1 if term.symmetry is None else len(maps_of(term.symmetry)))
