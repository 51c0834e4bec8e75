"""How alike points are, by the kernel's correlations k(x, z)/√(k(x, x) k(z, z)): novelty, and near copies.

In the kernel's feature space they are cosines of angles, which depend neither on the scale of the kernel nor, for a
ReLU network without biases, on that of the pixels. The novelty of a point is 1 − its largest one with a known point.

Near copies that nobody named are frames of one film, pictures of one patient, crops of one photograph. Leave-one-out
says nothing of new images where each image has one: the copy predicts it. Of each class single linkage joins every
image to its nearest neighbours; its links have all lengths where images are independent, and with near copies they are
either short, inside of a film, or long, between films. A warning follows where leaving out together what short links
join makes predictions worse.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy

from .leave_one_out import Codes, one_of_each, whole_groups
from .linalg import Array, blocks, namespace

if TYPE_CHECKING:
    from .exact import ExactGP
    from .posterior import Posterior

Floats = NDArray[np.float64]

# Images of a class that are looked at, and those that are left out again.
_MOST_OF_A_CLASS, _MOST_LEFT_OUT = 3000, 2000
# How many times longer links beyond the gap are, the least share of short ones, and of long ones with their number.
_GAP, _LEAST_SHORT, _LEAST_LONG, _FEWEST_LONG = 1.6, 0.3, 0.02, 4
# Of 1 − correlation, below which two images are one: the rounding of a float32 kernel.
_ROUNDING = 1e-6
# How many times larger the error without near copies is, and by how many standard errors, to speak of it.
_MUCH, _STANDARD_ERRORS = 1.5, 2.0
_ROWS = 512  # whose correlations are held at a time


def novelty(K: Array, diagonal: Array, variances: Array) -> Array:
    """From K(test, points) (M, N), k(x, x) of the test points (M,) and of the points (N,): (M,) between 0 and 1.

    A point without variance, as a blank image may be, has no direction: it is as novel as can be.

    >>> import numpy as np
    >>> novelty(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([4.0, 0.0]), np.array([1.0, 1.0]))
    array([0., 1.])
    """
    xp = namespace(K)
    return xp.clip(1.0 - (K * _inverse_root(diagonal)[:, None] * _inverse_root(variances)[None]).max(1), 0.0, 1.0)


def novelty_of_points(upper: Array, variances: Array) -> Array:
    """The novelty of each point to all others, (N,), from what stands above the diagonal of their kernel matrix."""
    xp, n = namespace(upper), len(upper)
    scale = _inverse_root(variances)
    largest = xp.zeros(n)
    for k in blocks(n, _ROWS):
        C = xp.triu(upper[k, k.start :] * scale[k, None] * scale[None, k.start :], 1)
        largest[k] = xp.maximum(largest[k], C.max(1))
        largest[k.start :] = xp.maximum(largest[k.start :], C.max(0))
    return xp.clip(1.0 - largest, 0.0, 1.0)


def _inverse_root(variances: Array) -> Array:
    """1/√v; 0 for a point without variance."""
    xp = namespace(variances)
    there = variances > 0.0
    return xp.where(there, 1.0 / xp.sqrt(xp.where(there, variances, 1.0)), 0.0)


# ---- near copies -----------------------------------------------------------------------------------------------------


def warn_of_near_copies(posterior: Posterior, labels: Codes | None, errors: Callable[[Floats], Floats]) -> None:
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
    apart = errors(to_numpy(gp.means_without(found)))[rows]
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
        stacklevel=3,
    )


def near_copies(gp: ExactGP, labels: Codes | None) -> Codes | None:
    """Numbers (N,) of groups of near copies; None where images are not far nearer to a few others than to the rest.

    Points of the groups that `gp` leaves out together already count as one.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    kept = one_of_each(gp.groups, gp.points)
    of = np.zeros(gp.points, np.intp) if labels is None else labels
    linked = []
    for c in np.unique(of[kept]):
        rows = kept[of[kept] == c][:_MOST_OF_A_CLASS]
        if len(rows) > 2 and (lengths := _distances(gp, rows)) is not None:
            linked.append((rows, linkage(lengths, "single")))
    limit = _gap(np.concatenate([links[:, 2] for _, links in linked])) if linked else None
    if limit is None:
        return None
    codes = np.arange(gp.points)
    for rows, links in linked:
        codes[rows] = rows[0] + len(codes) * fcluster(links, limit, "distance")
    if gp.groups is not None:  # each point with the one that stands for its group
        of_group = np.empty(int(gp.groups.max()) + 1, np.intp)
        of_group[gp.groups[kept]] = codes[kept]
        codes = of_group[gp.groups]
    return np.asarray(np.unique(codes, return_inverse=True)[1], np.intp)


def _distances(gp: ExactGP, rows: Codes) -> Floats | None:
    """Distances √(2 − 2·correlation) of all pairs in scipy's order, in units of their median; None where all are 0."""
    from scipy.spatial.distance import squareform

    K = to_numpy(gp.kernel_between(rows))
    scale = np.sqrt(np.maximum(K.diagonal(), np.finfo(np.float64).tiny))
    squares = np.maximum(2.0 - 2.0 * K / scale / scale[:, None], _ROUNDING)
    unit = float(np.median(squares))
    return np.sqrt(squareform(squares, checks=False) / unit) if unit > _ROUNDING else None


def _gap(lengths: Floats) -> float | None:
    """The length in the middle of the widest gap between short and long links, if there is one."""
    lengths = np.sort(lengths)
    least = math.ceil(_LEAST_SHORT * len(lengths))
    most = len(lengths) - max(_FEWEST_LONG, math.ceil(_LEAST_LONG * len(lengths)))
    if most < least:
        return None
    ratios = lengths[least : most + 1] / lengths[least - 1 : most]
    at = int(ratios.argmax())
    return float(np.sqrt(lengths[least + at] * lengths[least + at - 1])) if ratios[at] >= _GAP else None
