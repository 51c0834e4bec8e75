"""Which images the inducing ones are, and the blocks of kernels that regression through them needs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import memory
from .arrays import DataError, Output, as_images, to_numpy
from .gp import Amplitude, Noise, factorised, float64_buffer
from .inducing import SAMPLE, InducingGP
from .kernel import Kernel
from .linalg import blocks, namespace
from .store_places import child
from .tiled import gram

Array = NDArray[Any]
Doubt = Callable[[Array, Array], Array]
"""From means (n, outputs) and targets (n, outputs): how sure a model is of each image, the least sure smallest."""

# Entries of K(images, inducing) that are held at a time, and candidates that are looked at for each image chosen.
_ENTRIES = {"cpu": 1 << 22, "cuda": 1 << 26}
_CANDIDATES = 8
# Of the mean diagonal: keeps the model that chooses from being singular.
_FIRST_NOISE = 1e-6


class Images:
    """Training images that stay where they are: an array, a memory map, a Zarr array or a view of one's own."""

    def __init__(self, X: Any, kernel: Kernel) -> None:
        self.X = X
        self.kernel = kernel
        self.output: Output = "cupy" if kernel.device == "cuda" else "numpy"

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def at(self, rows: slice | NDArray[np.intp]) -> Array:
        """Images of a slice, or of sorted row numbers, checked and in the kernel's type."""
        first = rows.start if isinstance(rows, slice) else 0
        part = self.X[rows] if isinstance(rows, slice) else getattr(self.X, "oindex", self.X)[rows]
        return np.asarray(as_images(part, np.dtype(self.kernel.dtype), "X", first=first))

    def cross(self, rows: slice | NDArray[np.intp], Z: Array) -> Any:
        return self.kernel(self.at(rows), Z, output=self.output, progress=False)

    def block(self, inducing: int) -> int:
        """Images whose kernels with the inducing ones are held at a time."""
        return max(1, _ENTRIES[self.kernel.device] // inducing)


def fit_inducing(
    images: Images,
    Y: NDArray[np.float64],
    inducing: Any,
    doubt: Doubt,
    *,
    noise: Noise,
    amplitude: Amplitude,
    loss: Callable[[Any, Any], float] | None,
    seed: int | None,
    store: Any,
) -> tuple[InducingGP, Array]:
    """The model and its inducing images, in one pass over the training images after the choice."""
    rows, Z = _chosen(images, Y, inducing, doubt, seed)
    m = len(Z)
    block = min(images.block(m), len(images))
    sampled = min(SAMPLE, len(images))
    need = 8 * (2 * m * m + 3 * block * m + 4 * sampled * m)
    memory.require(need, f"regression through {m:,} inducing images", images.kernel.device)
    sample = np.sort(np.random.default_rng(seed).choice(len(images), sampled, replace=False))
    own = np.where(np.isin(sample, rows), np.searchsorted(rows, sample), -1)
    diagonal = images.kernel.diag(images.at(sample))
    parts = kernel_parts(images, Z, Y, store)
    K_mm = images.kernel(Z, output=images.output)
    gp = InducingGP(K_mm, parts, sample, diagonal, noise=noise, amplitude=amplitude, own=own, loss=loss)
    return gp, Z


def _chosen(
    images: Images, Y: NDArray[np.float64], inducing: Any, doubt: Doubt, seed: int | None
) -> tuple[NDArray[np.intp], Array]:
    """Row numbers (none for images of the caller's own) and the inducing images."""
    n = len(images)
    if isinstance(inducing, Integral):
        m = int(inducing)
        if not 1 <= m <= n or inducing is True:
            raise DataError(f"inducing={inducing}: expected between 1 and the {n:,} training images")
        rows = choose(images, Y, m, doubt, seed)
        return rows, images.at(rows)
    given = to_numpy(inducing, "inducing")
    if given.ndim == 1 and given.dtype.kind in "iu" and len(given):
        rows = np.unique(given.astype(np.intp))
        if rows[0] < 0 or rows[-1] >= n:
            raise DataError(f"inducing holds row numbers {rows[0]} to {rows[-1]}; expected 0 to {n - 1:,}")
        return rows, images.at(rows)
    shape = tuple(images.X.shape[1:])
    if given.ndim < 2 or tuple(given.shape[1:]) != shape:
        raise DataError(
            f"inducing has shape {given.shape} and type {given.dtype}; expected how many, row numbers of X, or images "
            f"of shape {shape}"
        )
    return np.empty(0, np.intp), np.asarray(as_images(given, np.dtype(images.kernel.dtype), "inducing"))


def choose(images: Images, Y: NDArray[np.float64], m: int, doubt: Doubt, seed: int | None) -> NDArray[np.intp]:
    """Half of the rows at random, half where the exact GP of the first half is least sure.

    Functions of their own are worth most to images near a boundary: docs/solve.md has figures.
    """
    n = len(images)
    rng = np.random.default_rng(seed)
    order = rng.permutation(n) if n <= 1 << 24 else rng.choice(n, min(n, (_CANDIDATES + 1) * m), replace=False)
    first = np.sort(order[: m - m // 2])
    rest = np.sort(order[len(first) : len(first) + _CANDIDATES * m])
    if len(rest) <= m // 2:
        return np.sort(order[:m])
    Z = images.at(first)
    K = float64_buffer(images.kernel(Z, output=images.output), overwrite=True)
    factor, _ = factorised(K, _FIRST_NOISE * float(K.diagonal().mean()))
    alpha = factor.solve(namespace(K).asarray(Y[first]))
    scores = np.empty(len(rest))
    for part in blocks(len(rest), images.block(len(first))):
        rows = rest[part]
        mean = images.cross(rows, Z).astype(np.float64) @ alpha
        scores[part] = doubt(to_numpy(mean), Y[rows])
    return np.sort(np.concatenate([first, rest[np.argsort(scores, kind="stable")[: m // 2]]]))


def kernel_parts(
    images: Images, Z: Array, Y: NDArray[np.float64], store: Any = None
) -> Iterator[tuple[slice, Any, Any]]:
    """K(X, Z) and Y, some rows at a time; from a store where one is given, so that a killed fit goes on."""
    from tqdm.auto import tqdm

    size = images.block(len(Z))
    K = None
    if store is not None:
        digest = hashlib.sha256(str(Z.shape).encode() + Z.tobytes()).hexdigest()
        K = gram(images.kernel, images.X, Z, store=child(store, f"inducing-{digest[:16]}"))
    with tqdm(total=len(images), desc="kernel", delay=2.0, disable=None, unit="image", leave=False) as bar:
        for rows in blocks(len(images), size):
            yield rows, images.cross(rows, Z) if K is None else K[rows, :], Y[rows]
            bar.update(rows.stop - rows.start)
