"""Leave-one-out in closed form: predictions of a point, or of a group of points, from all others.

With K including the noise and α = K⁻¹Y, the points outside g predict its targets with

    deviations d_g = y_g − mean = [K⁻¹]_gg⁻¹ α_g,    covariance S_g = [K⁻¹]_gg⁻¹ (times the amplitude)

which for one point are α_i/[K⁻¹]_ii and 1/[K⁻¹]_ii. Deviations are measured in two ways: one by one, Σ d_i²/v_i, and
jointly, Σ_g d_gᵀS_g⁻¹d_g = Σ_g d_gᵀα_g. Only the second detects two contradictory measurements of one image.

Points that are left out together are, for example, copies of one image, frames of one film or pictures of one patient.
Groups are an array (N,) of group numbers, or (N, 2) with image numbers in the second column: a point is then predicted
without its group and without the points of other groups that have the same image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .checks import MatrixError
from .linalg import Array, Factor, blocks, namespace

Codes = NDArray[np.intp]
Sets = tuple[Codes, NDArray[np.bool_]]
"""Points that are left out together, (sets, size), and a mask of those that each set predicts."""
CovarianceOf = Callable[[Array], Array]
"""Points (sets, size) → S of each set, [K⁻¹]_gg⁻¹, (sets, size, size)."""

_POINTS = 512  # points left out at a time, in sets
_MANY = 20  # whole groups that are enough to represent all of them


class LeftOut(NamedTuple):
    """Leave-one-out residuals (`deviations`) and variances, for the amplitude 1."""

    deviations: Array
    """y − mean, (N, outputs)."""
    variances: Array
    """(N,), noise included."""
    jointly: float
    """Σ_g d_gᵀS_g⁻¹d_g; a set that predicts only some of its points counts in that proportion."""

    @property
    def one_by_one(self) -> float:
        """Σ d²/v."""
        return float((self.deviations**2 / self.variances[:, None]).sum())

    @property
    def log_determinant(self) -> float:
        """Σ log v."""
        return float(namespace(self.variances).log(self.variances).sum())


def leave_out(
    alpha: Array, diagonal: Array, sets: Iterable[Sets] = (), covariance_of: CovarianceOf | None = None
) -> LeftOut:
    """Predict each point without itself or its set, from α (N, outputs) and the diagonal of K⁻¹ (N,)."""
    xp = namespace(alpha)
    deviations, variances = alpha / diagonal[:, None], 1.0 / diagonal
    jointly = (alpha * deviations).sum(1)
    for members, predicted in in_pieces(sets, least=2):
        assert covariance_of is not None
        at, chosen = xp.asarray(members), xp.asarray(predicted)
        S = covariance_of(at)
        of_all, rows = S @ alpha[at], at[chosen]
        deviations[rows], variances[rows] = of_all[chosen], S.diagonal(axis1=1, axis2=2)[chosen]
        share = (alpha[at] * of_all).sum((1, 2)) / at.shape[1]
        jointly[rows] = xp.broadcast_to(share[:, None], at.shape)[chosen]
    return LeftOut(deviations, variances, float(jointly.sum()))


def covariance_by_factor(factor: Factor) -> CovarianceOf:
    """Return a function that computes S by a factor: with V = L⁻¹E_g = QR, [K⁻¹]_gg = VᵀV, so S = R⁻¹R⁻ᵀ.

    VᵀV itself has the square of V's condition number: for copies without noise, S would be rounding alone.
    """

    def covariance_of(at: Array) -> Any:
        xp, n = namespace(at), len(factor)
        columns = xp.zeros((n, at.size))
        columns[at.ravel(), xp.arange(at.size)] = 1.0
        V = factor.solve_lower(columns).reshape(n, *at.shape).transpose(1, 0, 2)
        root = xp.linalg.inv(xp.linalg.qr(V, mode="r"))
        return root @ root.transpose(0, 2, 1)

    return covariance_of


def in_pieces(sets: Iterable[Sets], least: int = 1) -> Iterator[Sets]:
    """Yield the sets of at least `least` points, about `_POINTS` points at a time."""
    for members, predicted in sets:
        count, size = members.shape
        if size >= least:
            for piece in blocks(count, max(1, _POINTS // size)):
                yield members[piece], predicted[piece]


# ---- groups that are left out together -------------------------------------------------------------------------------


def check_groups(groups: Any, n: int) -> Codes:
    """Return the group number of each point, from names or numbers of the groups."""
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
    """Return groups in the form of `sets_left_out`: numbers (N,), or numbers of groups and images (N, 2) unchanged."""
    pairs = np.asarray(groups)
    return np.asarray(pairs, np.intp) if pairs.shape == (n, 2) and pairs.dtype.kind in "iu" else check_groups(groups, n)


def names_of(left_out: Codes | None) -> Codes | None:
    """Group number of each point, (N,); None without groups."""
    return left_out if left_out is None or left_out.ndim == 1 else left_out[:, 0]


def with_new(left_out: Codes | None, m: int) -> Codes | None:
    """Append `m` points, each a group (and an image) of its own."""
    if left_out is None:
        return None
    return np.concatenate([left_out, np.add.outer(np.arange(m), left_out.max(0) + 1)])


def sets_left_out(left_out: Codes) -> Iterator[Sets]:
    """Yield, for each size, the sets of points that are left out together and the points that each set predicts.

    Every point is predicted by one set: its group, and the points of the same image if other groups have that too.
    """
    both = left_out.reshape(len(left_out), -1)[:, [0, -1]].T  # without image numbers, a group counts as an image
    by_group, by_image = (np.split(np.argsort(a, kind="stable"), np.cumsum(np.bincount(a))[:-1]) for a in both)
    group, image = both
    shared = np.bincount(np.unique(both, axis=1)[1]) > 1  # images that are in several groups
    keys = np.stack([group, np.where(shared[image], image, -1)], 1)
    kinds = np.unique(keys, axis=0)
    sets = [by_group[g] if i < 0 else np.union1d(by_group[g], by_image[i]) for g, i in kinds.tolist()]
    sizes = np.array([len(members) for members in sets])
    for size in np.unique(sizes):
        alike = np.flatnonzero(sizes == size)
        members = np.stack([sets[k] for k in alike])
        yield members, (keys[members] == kinds[alike][:, None]).all(2)


def whole_groups(groups: Codes, most: int, rng: np.random.Generator) -> Codes:
    """Draw whole groups at random with at most `most` points in all; return their points, sorted.

    If every group is larger than that, the points of the smallest one.
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
    """Select at most about `most` points, sorted, that keep contradictions inside groups: whole groups if many fit,
    else the same share of each group.
    """
    names = groups.reshape(len(groups), -1)[:, 0]
    whole = whole_groups(names, most, np.random.default_rng(0))
    if len(np.unique(names[whole])) >= _MANY:
        return whole
    return np.sort(np.argsort(names, kind="stable")[:: -(-len(groups) // most)])


def one_of_each(groups: Codes | None, n: int) -> Codes:
    """Return the first point of each group, or all n points without groups.

    If groups share images, a group's point is the first whose image has not been taken.
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
    return np.array(list(found.values()), np.intp)
