"""Which images the inducing ones are: by default those whose targets the others explain least."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, Output, as_images, to_numpy
from cnngp.common.devices import array_module, output_on
from cnngp.gp.checks import float64_buffer
from cnngp.gp.linalg import blocks, factorised
from cnngp.matrix.store.places import child

from .kernels import RecipeKernel
from .repeats import image_codes, is_repeated
from .training_images import Images

Array = NDArray[Any]

# Entries of K(images, inducing) that are worked on at a time.
_ENTRIES = {"cpu": 1 << 22, "cuda": 1 << 26}
# Images that are looked at for each one chosen, and steps in which they are chosen. One step (half at random, half the
# worst of the rest) leaves resnet(32) on MNIST a third further from the exact GP than eight, and sixteen gain 2 %.
_CANDIDATES = 9
_ROUNDS = 8
# Of the mean diagonal, in the model that chooses: with less it runs after wrong labels.
_NOISE = 1e-2


@dataclass(frozen=True)
class Source:
    """Training images and the kernel that they are seen with, where it computes."""

    images: Images
    kernel: RecipeKernel

    @property
    def xp(self) -> Any:
        """The module whose arrays live where the kernel does."""
        return array_module(self.kernel.device)

    @property
    def output(self) -> Output:
        return output_on(self.kernel.device)

    def __len__(self) -> int:
        return len(self.images)

    def at(self, rows: slice | NDArray[np.intp]) -> Array:
        return self.images.at(rows)

    def bytes_of_candidate(self, m: int) -> int:
        """Of an image that may be chosen: its pixels, and its kernels with the m that are."""
        return int(self.images.dtype.itemsize * (m + np.prod(self.images.shape[1:])))

    def block(self, inducing: int) -> int:
        """Images whose kernels with the inducing ones are worked on at a time."""
        return max(1, _ENTRIES[self.kernel.device] // inducing)


@dataclass(frozen=True)
class Chosen:
    """Inducing images `Z`, their `rows` among the training images (none for images of the caller's own), and
    K(training images, Z), some `columns` after the other, where the choice had to compute all of it.
    """

    rows: NDArray[np.intp]
    Z: Array
    columns: Sequence[Any] = ()

    def numbers(self, sample: NDArray[np.intp]) -> NDArray[np.intp]:
        """Which inducing image each of some training images is, −1 for none."""
        number = {row: k for k, row in enumerate(self.rows.tolist())}
        return np.array([number.get(row, -1) for row in sample.tolist()], np.intp)


def asked_for(images: Source, inducing: Any) -> int | Chosen:
    """How many images are to be chosen, or those that the caller has chosen: row numbers, or images of their own."""
    n = len(images)
    if isinstance(inducing, Integral):
        m = int(inducing)
        if not 1 <= m <= n or inducing is True:
            raise DataError(f"inducing={inducing}: expected between 1 and the {n:,} training images")
        return m
    given = to_numpy(inducing, "inducing")
    if given.ndim == 1 and given.dtype.kind in "iu" and len(given):
        rows = np.unique(given.astype(np.intp))
        if rows[0] < 0 or rows[-1] >= n:
            raise DataError(f"inducing holds row numbers {rows[0]} to {rows[-1]}; expected 0 to {n - 1:,}")
        return Chosen(rows, images.at(rows))
    shape = images.images.shape[1:]
    if given.ndim < 2 or tuple(given.shape[1:]) != shape:
        raise DataError(
            f"inducing has shape {given.shape} and type {given.dtype}; expected how many, row numbers of X, or images "
            f"of shape {shape}"
        )
    Z = np.asarray(as_images(given, images.images.dtype, "inducing"))
    return Chosen(np.empty(0, np.intp), Z)


def choose(
    images: Source,
    Y: NDArray[np.float64],
    m: int,
    reserved: NDArray[np.intp],
    rng: np.random.Generator,
    room: int | None = None,
    store: Any = None,
) -> Chosen:
    """Some rows at random, then in rounds those from whose targets the exact GP of the rows so far is furthest.

    Functions of their own are worth most to images that the others get wrong: docs/solve.md has figures. The `reserved`
    rows are taken only when no others are left: what the model says of images that were passed over because it was
    right about them, or chosen because it was wrong, is no measure of what it says of others. Images that are there
    twice come last. Without a store, kernels and images take no more than `room` bytes, but those of 2·m candidates.
    """
    n = len(images)
    if m == n:
        return Chosen(np.arange(n), images.at(slice(0, n)))
    pool = _pool(images, m, reserved, rng, room if store is None else None)
    all_of_them = len(pool) == n
    X, targets = images.at(slice(0, n) if all_of_them else pool), Y[pool]
    # Two equal images in one round would make the matrix of the chosen singular.
    group = np.where(is_repeated(image_codes(Images(X, X.dtype))), 2, np.isin(pool, reserved))
    at = np.empty(0, np.intp)
    columns: list[Any] = []
    errors = rng.random(len(pool))
    for part in np.array_split(np.arange(m), min(_ROUNDS, m)):
        group[at] = 3
        new = np.sort(np.lexsort((-errors, group))[: len(part)])
        at = np.concatenate([at, new])
        if len(at) < m or all_of_them:
            columns.append(columns_of(images, X, X[new], store, pool))
        if len(at) < m:
            errors = _errors(images.xp, columns, at, targets, images.block(len(at)))
    return Chosen(pool[at], X[at], columns if all_of_them else ())


def _pool(
    images: Source, m: int, reserved: NDArray[np.intp], rng: np.random.Generator, room: int | None
) -> NDArray[np.intp]:
    """Rows to choose from, sorted: all of them, or a number of them at random, without the reserved ones."""
    n, size = len(images), _CANDIDATES * m
    if room is not None:
        size = max(2 * m, min(size, room // images.bytes_of_candidate(m)))
    if size >= n:
        return np.arange(n)
    drawn = rng.choice(n, min(n, size + len(reserved)), replace=False)
    return np.sort(drawn[~np.isin(drawn, reserved)][:size])


def columns_of(images: Source, X: Any, Z: Array, store: Any, rows: NDArray[np.intp] | None = None) -> Any:
    """K(X, Z) where the kernel's device is, or in a store inside `store`, so that a killed fit goes on.

    X are all images, or those in `rows`; many fits may share a store, each with parts of its own.
    """
    if store is None:
        return images.kernel(X, Z, output=images.output)
    digest = hashlib.sha256(f"{images.kernel.fingerprint} {images.images.shape} {Z.shape}".encode())
    for array in (np.arange(0) if rows is None else rows, Z):
        digest.update(np.ascontiguousarray(array).data)
    return images.kernel.gram(X, Z, store=child(store, f"inducing-{digest.hexdigest()[:16]}"))


def rows_of(xp: Any, columns: Sequence[Any], rows: slice | NDArray[np.intp]) -> Any:
    """K(X[rows], Z) from K(X, Z) in parts, arrays of `xp` or of Zarr."""
    at = rows if isinstance(rows, slice) else xp.asarray(rows)
    return xp.concatenate([xp.asarray(c.oindex[rows]) if hasattr(c, "oindex") else c[at] for c in columns], axis=1)


def _errors(
    xp: Any, columns: Sequence[Any], at: NDArray[np.intp], targets: NDArray[np.float64], block: int
) -> NDArray[np.float64]:
    """Squared errors of the exact GP of the images `at`, on all."""
    K = float64_buffer(rows_of(xp, columns, at), overwrite=True)
    factor, _ = factorised(K, _NOISE * float(K.diagonal().mean()))
    alpha = factor.solve(xp.asarray(targets[at]))
    errors = np.empty(len(targets))
    for rows in blocks(len(targets), block):
        mean = to_numpy(rows_of(xp, columns, rows).astype(xp.float64) @ alpha)
        errors[rows] = ((mean - targets[rows]) ** 2).sum(1)
    return errors
