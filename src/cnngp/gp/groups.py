"""Points that are left out together: copies of one image, pictures of one film or of one patient.

What the points outside of a group g say of its targets follows from the block of K⁻¹ that belongs to the group:

    mean y_g − [K⁻¹]_gg⁻¹ α_g,    covariance [K⁻¹]_gg⁻¹

which for a group of one is the usual leave-one-out. Groups of one size are done at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .checks import MatrixError
from .linalg import Array, Factor, namespace

_COLUMNS = 512  # of L⁻¹, that are held at a time


def check_groups(groups: Any, n: int) -> NDArray[np.intp]:
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


def of_one_size(groups: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    """The points of all groups of a size, (groups, size), for each size."""
    sizes = np.bincount(groups)
    by_group = np.split(np.argsort(groups, kind="stable"), np.cumsum(sizes)[:-1])
    for size in np.unique(sizes[sizes > 0]):
        yield np.stack([by_group[g] for g in np.flatnonzero(sizes == size)])


def whole_groups(groups: NDArray[np.intp], most: int, rng: np.random.Generator) -> NDArray[np.intp]:
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


def one_of_each(groups: NDArray[np.intp] | None, n: int) -> NDArray[np.intp]:
    """The first of the n points of each group; all of them where there are no groups."""
    return np.arange(n) if groups is None else np.unique(groups, return_index=True)[1]


def left_out(blocks: Array, alpha: Array) -> tuple[Array, Array]:
    """Deviations y − mean (groups, size, outputs) and variances (groups, size), from blocks of K⁻¹ and their α."""
    inverse = namespace(blocks).linalg.inv(blocks)
    return inverse @ alpha, inverse.diagonal(axis1=1, axis2=2)


def leave_groups_out(
    factor: Factor, groups: NDArray[np.intp], alpha: Array, inverse_diagonal: Array
) -> tuple[Array, Array]:
    """The same of every point, (N, outputs) and (N,), a few columns of L⁻¹ at a time."""
    xp, n = namespace(alpha), len(factor)
    deviations, variances = alpha / inverse_diagonal[:, None], 1.0 / inverse_diagonal  # of points by themselves
    for members in of_one_size(groups):
        count, size = members.shape
        if size == 1:
            continue
        step = max(1, _COLUMNS // size)
        for first in range(0, count, step):
            at = xp.asarray(members[first : first + step])
            columns = xp.zeros((n, at.size))
            columns[at.ravel(), xp.arange(at.size)] = 1.0
            V = factor.solve_lower(columns).T.reshape(*at.shape, n)
            deviations[at], variances[at] = left_out(V @ V.transpose(0, 2, 1), alpha[at])
    return deviations, variances
