"""Points that are left out together: copies of one image, pictures of one film or of one patient.

Groups are an array (N,) of their numbers, or (N, 2) with the number of the image beside it: then a point is predicted
without its group and without the points of other groups that have the same image.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import MatrixError

Codes = NDArray[np.intp]
Sets = tuple[Codes, NDArray[np.bool_]]
"""Points that are left out together, (sets, size), and which of them each set predicts."""
_MANY = 20  # groups, that stand for all others


def check_groups(groups: Any, n: int) -> Codes:
    """The number of each point's group, from whatever names the groups."""
    names = np.asarray(groups)
    if names.shape != (n,) or (names.dtype.kind == "f" and not np.isfinite(names).all()):
        raise MatrixError(f"groups has shape {names.shape}; expected {n} names or numbers, one for each image")
    try:
        found, codes = np.unique(names, return_inverse=True)
    except TypeError:
        raise MatrixError("groups holds names that cannot be compared; expected all numbers or all text") from None
    if len(found) < 2:
        raise MatrixError("groups puts all images together, so that none is left to predict them; give at least two")
    return np.asarray(codes, np.intp)


def as_left_out(groups: Any, n: int) -> Codes:
    """Groups as `sets_left_out` reads them: numbers (N,), or with an image beside each (N, 2) as they are."""
    pairs = np.asarray(groups)
    return np.asarray(pairs, np.intp) if pairs.shape == (n, 2) and pairs.dtype.kind in "iu" else check_groups(groups, n)


def with_new_groups(left_out: Codes | None, m: int) -> Codes | None:
    """The same with `m` more points, each a group (and an image) of its own."""
    if left_out is None:
        return None
    new = np.arange(m).reshape(-1, *[1] * (left_out.ndim - 1))
    return np.concatenate([left_out, left_out.max(0) + 1 + new])


def sets_left_out(groups: Codes) -> Iterator[Sets]:
    """Sets of points that are left out together, (sets, size), and which of them each set predicts, for each size.

    Every point is predicted by one set: its group, and the points of the same image where that stands in other groups.
    """
    if groups.ndim == 1:
        sizes = np.bincount(groups)
        by_group = np.split(np.argsort(groups, kind="stable"), np.cumsum(sizes)[:-1])
        for size in np.unique(sizes[sizes > 0]):
            members = np.stack([by_group[g] for g in np.flatnonzero(sizes == size)])
            yield members, np.ones(members.shape, bool)
        return
    group, image = groups.T
    pairs = np.unique(groups, axis=0)
    shared = np.bincount(pairs[:, 1]) > 1
    sets = []
    for of_group, of_image in {(int(g), int(i) if shared[i] else -1) for g, i in pairs}:
        twins = image == of_image  # none where the group alone is left out
        members = np.flatnonzero((group == of_group) | twins)
        own = twins[members] if of_image >= 0 else ~shared[image[members]]
        sets.append((members, own & (group[members] == of_group)))
    of_size = np.array([len(members) for members, _ in sets])
    for size in np.unique(of_size):
        alike = sorted((sets[k] for k in np.flatnonzero(of_size == size)), key=lambda s: s[0][s[1]][0])
        yield np.stack([members for members, _ in alike]), np.stack([predicted for _, predicted in alike])


def whole_groups(groups: Codes, most: int, rng: np.random.Generator) -> Codes:
    """Sorted points of groups that are drawn at random, none of them in part, `most` points at most; the points of the
    smallest group where that alone is larger.
    """
    sizes = np.bincount(groups)
    taken, room = np.zeros(len(sizes), bool), most
    for g in rng.permutation(np.flatnonzero(sizes)):
        if sizes[g] <= room:
            taken[g], room = True, room - sizes[g]
    if not taken.any():
        taken[np.argmin(np.where(sizes > 0, sizes, len(groups) + 1))] = True
    return np.flatnonzero(taken[groups])


def thinned(groups: Codes, most: int) -> Codes:
    """About `most` of the points, sorted, so that contradictions inside of groups stay among them: whole groups where
    these are many, else the same share of each group.
    """
    names = groups if groups.ndim == 1 else groups[:, 0]
    whole = whole_groups(names, most, np.random.default_rng(0))
    if len(np.unique(names[whole])) >= _MANY:
        return whole
    return np.sort(np.argsort(names, kind="stable")[:: -(-len(groups) // most)])


def one_of_each(groups: Codes | None, n: int) -> Codes:
    """The first of the n points of each group; all of them where there are no groups.

    Where groups share images, the first with an image that no group before it has given.
    """
    if groups is None:
        return np.arange(n)
    if groups.ndim == 1:
        return np.asarray(np.unique(groups, return_index=True)[1])
    found: dict[int, int] = {}
    images: set[int] = set()
    for row, (group, image) in enumerate(groups.tolist()):
        if group not in found and image not in images:
            found[group] = row
            images.add(image)
    return np.array(sorted(found.values()), np.intp)
