"""Training images that were checked at the door of a fit: which of them are equal, and parts that are drawn of them.

To leave an image out and keep its twin says nothing of new images: the twin predicts it, with hardly any variance, and
a few are enough to make leave-one-out choose no noise and a wrong preparation. So equal images are left out together,
beside the caller's groups: an image with its group, and with its twins in other groups.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, as_images
from cnngp.gp.leave_one_out import one_of_each
from cnngp.gp.linalg import blocks

Array = NDArray[Any]
Codes = NDArray[np.intp]

# Of images that stay where they are, those by which preparations are fitted and terms scaled.
_FEW = 2000
# Of images that are read at a time.
_BYTES = 1 << 26


@dataclass(frozen=True)
class Images:
    """Training images (N, C, …) in the kernel's type: an array, or a source that is read and checked block by block."""

    pixels: Any
    dtype: np.dtype[Any]
    streamed: bool = False
    """Whether `pixels` is a memory map, a Zarr array or a view, of which no copy is made."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.pixels.shape)

    def __len__(self) -> int:
        return int(self.pixels.shape[0])

    def at(self, rows: slice | Codes) -> Array:
        """Images of a slice, or of row numbers."""
        if not self.streamed:
            return np.asarray(self.pixels[rows])
        if isinstance(rows, slice):
            return np.asarray(as_images(self.pixels[rows], self.dtype, "X", first=rows.start))
        at, back = np.unique(rows, return_inverse=True)  # files give rows in order
        return np.asarray(as_images(getattr(self.pixels, "oindex", self.pixels)[at], self.dtype, "X", first=at)[back])

    def some(self) -> Array:
        """All images that are in memory; of others as many as need not be few, spread evenly."""
        if not self.streamed:
            return np.asarray(self.pixels)
        return self.at(np.unique(np.linspace(0, len(self) - 1, _FEW).astype(np.intp)))

    def codes(self) -> Codes:
        """A number for each image, the same for equal ones."""
        known: dict[bytes, int] = {}
        codes = np.empty(len(self), np.intp)
        for rows in blocks(len(self), max(1, _BYTES // (8 * max(1, math.prod(self.shape[1:]))))):
            for i, image in enumerate(self.at(rows), start=rows.start):
                digest = hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()
                codes[i] = known.setdefault(digest, len(known))
        return codes


def is_repeated(codes: Codes) -> NDArray[np.bool_]:
    """Which images have been there before."""
    repeated = np.ones(len(codes), bool)
    repeated[np.unique(codes, return_index=True)[1]] = False
    return repeated


def left_out_together(groups: Codes | None, codes: Codes) -> Codes | None:
    """What is left out with each image, for `sets_left_out`: groups, equal images, or both; None where it is alone."""
    if not is_repeated(codes).any():
        return groups
    if groups is None:
        return codes if codes.max() > 0 else None  # of one image alone nothing would be left
    pairs = np.stack([groups, codes], 1)
    return groups if len(np.unique(pairs, axis=0)) == len(np.unique(codes)) else pairs


def joined(together: Codes | None) -> Codes | None:
    """Groups (N,) in which equal images are together as well, for models that leave out nothing but whole groups."""
    if together is None or together.ndim == 1:
        return together
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    # A graph of groups and images, with an edge for each row.
    groups, codes = together.T
    size = (int(groups.max()) + 1, int(codes.max()) + 1)
    edges = coo_array((np.ones(len(codes)), (groups, size[0] + codes)), shape=(sum(size), sum(size)))
    found = np.asarray(connected_components(edges, directed=False)[1][groups], np.intp)
    if found.min() == found.max():
        raise DataError(
            "images that are equal stand in different groups and join all of them, and inducing= leaves out nothing "
            "but whole groups; take out the repeated images, or fit the exact model without inducing="
        )
    return found


def balanced(
    Y: NDArray[np.float64], n: int, seed: int | None, groups: Codes | None = None, shuffled: bool = False
) -> Codes:
    """Rows of `n` images, drawn at random, as many of each class as can be, and one at most of each group; sorted, or
    `shuffled`, so that the first ones of them are such rows too.

    Targets that are hardly ever the same, as those of a regression, have no classes.
    """
    if groups is not None:  # of several, one would say what another is
        apart = one_of_each(groups, len(Y))
        found = apart[balanced(Y[apart], n, seed, shuffled=True)]
        return found if shuffled else np.sort(found)
    drawn = np.random.default_rng(seed).permutation(len(Y))
    _, codes = np.unique(Y[drawn], axis=0, return_inverse=True)
    if 2 * (codes.max() + 1) <= len(Y):
        drawn = drawn[in_turn(codes)]
    return drawn[:n] if shuffled else np.sort(drawn[:n])


def in_turn(codes: Codes) -> Codes:
    """An order in which the first image of each class, or group, comes before all second ones, and so on."""
    turn = np.empty(len(codes), np.intp)
    for code in range(codes.max() + 1):
        turn[codes == code] = np.arange((codes == code).sum())
    return np.argsort(turn, kind="stable")
