"""Validated training images of a fit: access in memory or in blocks, detection of duplicates, and balanced samples.

Leaving out an image but not its duplicate says nothing about new images: the duplicate predicts it with hardly any
variance, and a few duplicates make leave-one-out choose no noise and a wrong preparation. So equal images are left out
together, in addition to the caller's groups: an image with its group, and with its duplicates in other groups.
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

# Number of images for fitting preparations and scaling terms, if the images are not in memory.
_FEW = 2000
# Bytes of images that are read at a time.
_BYTES = 1 << 26


@dataclass(frozen=True)
class Images:
    """Training images (N, C, …) in the kernel's type: an array, or a source that is read and checked in blocks."""

    pixels: Any
    dtype: np.dtype[Any]
    streamed: bool = False
    """True if `pixels` is a memory map, a Zarr array or a view, which is not copied."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.pixels.shape)

    def __len__(self) -> int:
        return int(self.pixels.shape[0])

    def at(self, rows: slice | Codes) -> Array:
        """Return the images of a slice or of row numbers."""
        if not self.streamed:
            return np.asarray(self.pixels[rows])
        if isinstance(rows, slice):
            return np.asarray(as_images(self.pixels[rows], self.dtype, "X", first=rows.start))
        at, back = np.unique(rows, return_inverse=True)  # files are read in order of rows
        return np.asarray(as_images(getattr(self.pixels, "oindex", self.pixels)[at], self.dtype, "X", first=at)[back])

    def some(self) -> Array:
        """Return all images if they are in memory, else up to `_FEW` of them, evenly spaced."""
        if not self.streamed:
            return np.asarray(self.pixels)
        return self.at(np.unique(np.linspace(0, len(self) - 1, _FEW).astype(np.intp)))

    def codes(self) -> Codes:
        """Number of each image, the same for equal images."""
        known: dict[bytes, int] = {}
        codes = np.empty(len(self), np.intp)
        for rows in blocks(len(self), max(1, _BYTES // (8 * max(1, math.prod(self.shape[1:]))))):
            for i, image in enumerate(self.at(rows), start=rows.start):
                digest = hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()
                codes[i] = known.setdefault(digest, len(known))
        return codes


def is_repeated(codes: Codes) -> NDArray[np.bool_]:
    """Mask of the images that equal an earlier one."""
    repeated = np.ones(len(codes), bool)
    repeated[np.unique(codes, return_index=True)[1]] = False
    return repeated


def left_out_together(groups: Codes | None, codes: Codes) -> Codes | None:
    """Groups for `sets_left_out`: the caller's groups, equal images, or both; None if each image is left out alone."""
    if not is_repeated(codes).any():
        return groups
    if groups is None:
        return codes if codes.max() > 0 else None  # if all images are equal, nothing would remain
    pairs = np.stack([groups, codes], 1)
    return groups if len(np.unique(pairs, axis=0)) == len(np.unique(codes)) else pairs


def joined(together: Codes | None) -> Codes | None:
    """Merge groups that share equal images, (N,), for models that only leave out whole groups."""
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
    """Draw rows of `n` images, balanced between classes, with at most one of each group; sorted, or `shuffled` so that
    any first ones of them are balanced too.

    Targets that rarely repeat, as in regression, have no classes.
    """
    if groups is not None:  # images of one group would predict each other
        apart = one_of_each(groups, len(Y))
        found = apart[balanced(Y[apart], n, seed, shuffled=True)]
        return found if shuffled else np.sort(found)
    drawn = np.random.default_rng(seed).permutation(len(Y))
    _, codes = np.unique(Y[drawn], axis=0, return_inverse=True)
    if 2 * (codes.max() + 1) <= len(Y):
        drawn = drawn[in_turn(codes)]
    return drawn[:n] if shuffled else np.sort(drawn[:n])


def in_turn(codes: Codes) -> Codes:
    """Return an order in which the first image of each class, or group, comes before all second ones, and so on."""
    turn = np.empty(len(codes), np.intp)
    for code in range(codes.max() + 1):
        turn[codes == code] = np.arange((codes == code).sum())
    return np.argsort(turn, kind="stable")
