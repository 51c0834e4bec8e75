"""Images that are there more than once: to leave one out and keep its twin would say nothing of new images.

A repeated image is predicted by its twin, with hardly any variance. A few of them are enough to make leave-one-out
choose no noise and a wrong preparation, so they are left out together, as the images of one of the caller's groups.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.gp.linalg import blocks

Codes = NDArray[np.intp]
# Of images that are read at a time.
_BYTES = 1 << 26


def image_codes(images: Any, at: Callable[[slice], Any] | None = None) -> Codes:
    """A number for each image, the same for equal ones; `at` gives those of a slice where they are not an array."""
    known: dict[bytes, int] = {}
    n, *shape = images.shape
    codes = np.empty(n, np.intp)
    for rows in blocks(n, max(1, _BYTES // (8 * max(1, math.prod(shape))))):
        for i, image in enumerate(images[rows] if at is None else at(rows), start=rows.start):
            digest = hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()
            codes[i] = known.setdefault(digest, len(known))
    return codes


def is_repeated(codes: Codes) -> NDArray[np.bool_]:
    """Which images have been there before."""
    repeated = np.ones(len(codes), bool)
    repeated[np.unique(codes, return_index=True)[1]] = False
    return repeated


def joined(groups: Codes | None, codes: Codes) -> Codes | None:
    """Groups in which equal images are together as well; None where there is nothing to keep together."""
    if not is_repeated(codes).any():
        return groups
    if groups is None:
        together = codes
    else:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        # A graph of groups and images, with an edge for each row.
        size = (int(groups.max()) + 1, int(codes.max()) + 1)
        edges = coo_array((np.ones(len(codes)), (groups, size[0] + codes)), shape=(sum(size), sum(size)))
        together = np.asarray(connected_components(edges, directed=False)[1][groups], np.intp)
    return together if len(np.unique(together)) > 1 else None
