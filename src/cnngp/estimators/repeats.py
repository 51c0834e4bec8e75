"""Images that are there more than once: to leave one out and keep its twin would say nothing of new images.

A repeated image is predicted by its twin, with hardly any variance. A few of them are enough to make leave-one-out
choose no noise and a wrong preparation, so they are left out together. Beside the caller's groups, an image is left out
with its group and with its twins in other groups.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError
from cnngp.gp.linalg import blocks

from .training_images import Images

Codes = NDArray[np.intp]
# Of images that are read at a time.
_BYTES = 1 << 26


def image_codes(images: Images) -> Codes:
    """A number for each image, the same for equal ones."""
    known: dict[bytes, int] = {}
    n, *shape = images.shape
    codes = np.empty(n, np.intp)
    for rows in blocks(n, max(1, _BYTES // (8 * max(1, math.prod(shape))))):
        for i, image in enumerate(images.at(rows), start=rows.start):
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
    pairs = np.unique(np.stack([groups, codes], 1), axis=0)
    return groups if len(pairs) == len(np.unique(codes)) else np.stack([groups, codes], 1)


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
