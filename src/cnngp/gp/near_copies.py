"""Novelty and near copies of points, by the kernel's correlations k(x, z)/√(k(x, x) k(z, z)).

In the kernel's feature space these are cosines of angles, independent of the scale of the kernel and, for a ReLU
network without biases, of that of the pixels. The novelty of a point is 1 − its largest correlation with a known point.

Undeclared near copies are frames of one film, pictures of one patient, crops of one photograph. If each image has one,
leave-one-out says nothing about new images, because the copy predicts it. Single linkage joins the images of each class
to their nearest neighbours. For independent images the links have all lengths; with near copies they are either short,
inside a film, or long, between films. A warning follows if predictions become worse when images joined by short links
are left out together.
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

# Largest number of images of a class that are compared, and of images that are left out again.
_MOST_OF_A_CLASS, _MOST_LEFT_OUT = 3000, 2000
# Smallest ratio of lengths across the gap, smallest share of short links, and smallest share and number of long ones.
_GAP, _LEAST_SHORT, _LEAST_LONG, _FEWEST_LONG = 1.6, 0.3, 0.02, 4
# Smallest squared distance: below the rounding of a float32 kernel two images count as equal.
_ROUNDING = 1e-6
# A warning needs an error without near copies that is larger by this factor, and by this many standard errors.
_MUCH, _STANDARD_ERRORS = 1.5, 2.0
_ROWS = 512  # rows of correlations that are in memory at a time


def novelty(K: Array, diagonal: Array, variances: Array) -> Array:
    """Novelty between 0 and 1, (M,), from K(test, points) (M, N) and k(x, x) of the test points (M,) and points (N,).

    A point without variance, such as a blank image, has no direction, so its novelty is 1.

    >>> import numpy as np
    >>> novelty(np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([4.0, 0.0]), np.array([1.0, 1.0]))
    array([0., 1.])
    """
    xp = namespace(K)
    return xp.clip(1.0 - (K * _inverse_root(diagonal)[:, None] * _inverse_root(variances)[None]).max(1), 0.0, 1.0)


def novelty_of_points(upper: Array, variances: Array) -> Array:
    """Novelty of each point relative to all others, (N,), from the entries above the diagonal of the kernel matrix."""
    xp, n = namespace(upper), len(upper)
    scale = _inverse_root(variances)
    largest = xp.zeros(n)
    for k in blocks(n, _ROWS):
        C = xp.triu(upper[k, k.start :] * scale[k, None] * scale[None, k.start :], 1)
        largest[k] = xp.maximum(largest[k], C.max(1))
        largest[k.start :] = xp.maximum(largest[k.start :], C.max(0))
    return xp.clip(1.0 - largest, 0.0, 1.0)


def _inverse_root(variances: Array) -> Array:
    """Return 1/√v, or 0 for a point without variance."""
    xp = namespace(variances)
    there = variances > 0.0
    return xp.where(there, 1.0 / xp.sqrt(xp.where(there, variances, 1.0)), 0.0)


# ---- near copies -----------------------------------------------------------------------------------------------------


def warn_of_near_copies(posterior: Posterior, labels: Codes | None, errors: Callable[[Floats], Floats]) -> None:
    """Warn if near copies make leave-one-out much better than predictions of new images, and recommend `groups=`.

    `labels` are the class numbers, None for regression; `errors` returns the error of each point from leave-one-out
    means (N, outputs). Models without a factor of all points are not examined.
    """
    gp = posterior.exact
    if gp is None or (found := near_copies(gp, labels)) is None:
        return
    rows = whole_groups(found, _MOST_LEFT_OUT, np.random.default_rng(0))
    if labels is not None:  # a class with a single film cannot be predicted without that film
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
    """Group numbers (N,) of near copies; None if images are not far nearer to a few others than to the rest.

    Points that `gp` already leaves out together count as one.
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
    if gp.groups is not None:  # each point takes the group of its representative
        of_group = np.empty(int(gp.groups.max()) + 1, np.intp)
        of_group[gp.groups[kept]] = codes[kept]
        codes = of_group[gp.groups]
    return np.asarray(np.unique(codes, return_inverse=True)[1], np.intp)


def _distances(gp: ExactGP, rows: Codes) -> Floats | None:
    """Distances √(2 − 2·correlation) of all pairs in SciPy's order, in units of their median; None if that is 0."""
    from scipy.spatial.distance import squareform

    K = to_numpy(gp.kernel_between(rows))
    scale = np.sqrt(np.maximum(K.diagonal(), np.finfo(np.float64).tiny))
    squares = np.maximum(2.0 - 2.0 * K / scale / scale[:, None], _ROUNDING)
    unit = float(np.median(squares))
    return np.sqrt(squareform(squares, checks=False) / unit) if unit > _ROUNDING else None


def _gap(lengths: Floats) -> float | None:
    """Length in the middle of the widest gap between short and long links, or None without a gap."""
    lengths = np.sort(lengths)
    least = math.ceil(_LEAST_SHORT * len(lengths))
    most = len(lengths) - max(_FEWEST_LONG, math.ceil(_LEAST_LONG * len(lengths)))
    if most < least:
        return None
    ratios = lengths[least : most + 1] / lengths[least - 1 : most]
    at = int(ratios.argmax())
    return float(np.sqrt(lengths[least + at] * lengths[least + at - 1])) if ratios[at] >= _GAP else None
