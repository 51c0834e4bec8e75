"""Near copies that nobody named: frames of one film, pictures of one patient, crops of one photograph.

Leave-one-out says nothing of new images where each image has a near copy: the copy predicts it. Near copies are found
by the kernel's own correlations. Of each class the minimum spanning tree joins every image to its nearest neighbours;
its edges have all lengths where images are independent, and with near copies they are either short, inside of a film,
or long, between films. A warning follows where leaving out together what short edges join makes predictions worse.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy

from .exact import ExactGP
from .groups import one_of_each, whole_groups
from .posterior import Posterior

Codes = NDArray[np.intp]
Floats = NDArray[np.float64]

# Images of a class that are looked at, and those that are left out again.
_MOST_OF_A_CLASS, _MOST_LEFT_OUT = 3000, 2000
# How many times longer edges beyond the gap are, the least share of short ones, and of long ones with their number.
_GAP, _LEAST_SHORT, _LEAST_LONG, _FEWEST_LONG = 1.6, 0.3, 0.02, 4
# Of 1 − correlation, below which two images are one: the rounding of a float32 kernel.
_ROUNDING = 1e-6
# How many times larger the error without near copies is, and by how many standard errors, to speak of it.
_MUCH, _STANDARD_ERRORS = 1.5, 2.0


def warn_of_near_copies(
    posterior: Posterior, labels: Codes | None, errors: Callable[[Floats], Floats], stacklevel: int = 2
) -> None:
    """Warn where near copies make leave-one-out much better than predictions of new images are, and name `groups=`.

    `labels` are the numbers of the classes, None for targets without classes; `errors` gives the error of each point
    from leave-one-out means (N, outputs). Of models without a factor of all points nothing is said.
    """
    gp = posterior.exact
    if gp is None or (found := near_copies(gp, labels)) is None:
        return
    rows = whole_groups(found, _MOST_LEFT_OUT, np.random.default_rng(0))
    if labels is not None:  # a class of one film cannot be predicted without it
        pairs = np.unique(np.stack([labels, found]), axis=1)[0]
        rows = rows[(np.bincount(pairs) > 1)[labels[rows]]]
    if not len(rows):
        return
    alone = errors(to_numpy(gp.leave_one_out().mean))[rows]
    apart = errors(to_numpy(gp.leave_out(found).mean))[rows]
    of_group = np.bincount(np.unique(found[rows], return_inverse=True)[1], apart - alone)
    uncertainty = math.sqrt(float((of_group**2).sum())) / len(rows)
    if apart.mean() <= max(_MUCH * alone.mean(), alone.mean() + _STANDARD_ERRORS * uncertainty):
        return
    first = np.flatnonzero(found == np.bincount(found).argmax())
    warnings.warn(
        f"many images are far nearer to a few others than to the rest of their class (rows {first[0]} and {first[1]}, "
        "for example), as frames of one film or pictures of one patient are: leave-one-out then says little of new "
        f"images. With such images left out together its error is {apart.mean():.3g}, not {alone.mean():.3g}; say "
        "which belong together by groups=",
        UserWarning,
        stacklevel=stacklevel + 1,
    )


def near_copies(gp: ExactGP, labels: Codes | None) -> Codes | None:
    """Numbers (N,) of groups of near copies; None where images are not far nearer to a few others than to the rest.

    Points of the groups that `gp` leaves out together already count as one.
    """
    kept = one_of_each(gp.groups, gp.points)
    of = np.zeros(gp.points, np.intp) if labels is None else labels
    trees = []
    for c in np.unique(of[kept]):
        rows = kept[of[kept] == c][:_MOST_OF_A_CLASS]
        if len(rows) > 2 and (tree := _spanning_tree(gp, rows)) is not None:
            trees.append(tree)
    if not trees:
        return None
    first, second, lengths = (np.concatenate(part) for part in zip(*trees, strict=True))
    limit = _gap(lengths)
    return None if limit is None else _joined(gp, kept, first[lengths < limit], second[lengths < limit])


def _spanning_tree(gp: ExactGP, rows: Codes) -> tuple[Codes, Codes, Floats] | None:
    """Edges (first, second, length) of the minimum spanning tree of these points (Prim, 1957), lengths in units of
    their median distance √(2 − 2·correlation); None where all are one.
    """
    K = to_numpy(gp.kernel_between(rows))
    scale = np.sqrt(np.maximum(K.diagonal(), np.finfo(np.float64).tiny))
    squares = np.maximum(2.0 - 2.0 * K / scale / scale[:, None], _ROUNDING)
    if not (unit := float(np.median(squares))) > _ROUNDING:
        return None
    n = len(rows)
    nearest, distance = np.zeros(n, np.intp), squares[0].copy()
    distance[0] = np.inf
    first, second, lengths = np.empty(n - 1, np.intp), np.empty(n - 1, np.intp), np.empty(n - 1)
    outside = np.ones(n, bool)
    outside[0] = False
    for k in range(n - 1):
        j = int(distance.argmin())
        first[k], second[k], lengths[k] = rows[nearest[j]], rows[j], distance[j]
        outside[j], distance[j] = False, np.inf
        closer = outside & (squares[j] < distance)
        distance[closer], nearest[closer] = squares[j, closer], j
    return first, second, np.sqrt(lengths / unit)


def _gap(lengths: Floats) -> float | None:
    """The length in the middle of the widest gap between short and long edges, if there is one."""
    lengths = np.sort(lengths)
    least = math.ceil(_LEAST_SHORT * len(lengths))
    most = len(lengths) - max(_FEWEST_LONG, math.ceil(_LEAST_LONG * len(lengths)))
    if most < least:
        return None
    ratios = lengths[least : most + 1] / lengths[least - 1 : most]
    at = int(ratios.argmax())
    return float(np.sqrt(lengths[least + at] * lengths[least + at - 1])) if ratios[at] >= _GAP else None


def _joined(gp: ExactGP, kept: Codes, first: Codes, second: Codes) -> Codes:
    """Groups of the points that these edges join, with what `gp` leaves out together."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = gp.points
    if gp.groups is not None:  # each point with the one that stands for its group
        of_group = np.empty(int(gp.groups.max()) + 1, np.intp)
        of_group[gp.groups[kept]] = kept
        first, second = np.concatenate([first, np.arange(n)]), np.concatenate([second, of_group[gp.groups]])
    edges: Any = coo_array((np.ones(len(first)), (first, second)), shape=(n, n))
    return np.asarray(connected_components(edges, directed=False)[1], np.intp)
