"""Leave-one-out in closed form: what all other points say of a point, and those outside of a group of the group.

With K including the noise and α = K⁻¹Y, the points outside of g predict its targets with

    deviations d_g = y_g − mean = [K⁻¹]_gg⁻¹ α_g,    covariance S_g = [K⁻¹]_gg⁻¹ (times the amplitude)

which for one point are α_i/[K⁻¹]_ii and 1/[K⁻¹]_ii. Deviations are measured twice, one by one, Σ d_i²/v_i, and jointly,
Σ_g d_gᵀS_g⁻¹d_g = Σ_g d_gᵀα_g: the second alone knows that two measurements at one image contradict each other.

Points that are left out together are copies of one image, pictures of one film or of one patient. Groups are an array
(N,) of their numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .checks import MatrixError
from .linalg import Array, Factor, blocks, namespace

Codes = NDArray[np.intp]
BlockOf = Callable[[Array], Array]
"""Points (sets, size) → their blocks of K⁻¹, (sets, size, size)."""

_POINTS = 512  # whose blocks of K⁻¹ are held at a time
_MANY = 20  # groups, that stand for all others


class LeftOut(NamedTuple):
    """What is said of each point without it, for the amplitude 1."""

    deviations: Array
    """y − mean, (N, outputs)."""
    variances: Array
    """(N,), noise included."""
    jointly: float
    """Σ_g d_gᵀS_g⁻¹d_g."""

    @property
    def one_by_one(self) -> float:
        """Σ d²/v."""
        return float((self.deviations**2 / self.variances[:, None]).sum())

    @property
    def log_determinant(self) -> float:
        """Σ log v."""
        return float(namespace(self.variances).log(self.variances).sum())


def leave_out(alpha: Array, diagonal: Array, sets: Iterable[Codes] = (), block_of: BlockOf | None = None) -> LeftOut:
    """Every point without itself, from α (N, outputs) and the diagonal of K⁻¹ (N,), or without its set."""
    xp = namespace(alpha)
    deviations, variances = alpha / diagonal[:, None], 1.0 / diagonal
    jointly = (alpha * deviations).sum(1)
    for members in in_pieces(sets, least=2):
        assert block_of is not None
        at = xp.asarray(members)
        S = xp.linalg.inv(block_of(at))
        deviations[at], variances[at] = S @ alpha[at], S.diagonal(axis1=1, axis2=2)
        share = (alpha[at] * deviations[at]).sum((1, 2)) / at.shape[1]
        jointly[at] = xp.broadcast_to(share[:, None], at.shape)
    return LeftOut(deviations, variances, float(jointly.sum()))


def blocks_of_factor(factor: Factor) -> BlockOf:
    """Blocks of K⁻¹ = L⁻ᵀL⁻¹, from columns of L⁻¹."""

    def block_of(at: Array) -> Any:
        xp, n = namespace(at), len(factor)
        columns = xp.zeros((n, at.size))
        columns[at.ravel(), xp.arange(at.size)] = 1.0
        V = factor.solve_lower(columns).T.reshape(*at.shape, n)
        return V @ V.transpose(0, 2, 1)

    return block_of


def in_pieces(sets: Iterable[Codes], least: int = 1) -> Iterator[Codes]:
    """Some sets of at least so many points at a time."""
    for members in sets:
        count, size = members.shape
        if size >= least:
            for piece in blocks(count, max(1, _POINTS // size)):
                yield members[piece]


# ---- what is left out together ---------------------------------------------------------------------------------------


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


def with_new(groups: Codes | None, m: int) -> Codes | None:
    """The same with `m` more points, each a group of its own."""
    return None if groups is None else np.concatenate([groups, groups.max() + 1 + np.arange(m)])


def sets_left_out(groups: Codes) -> Iterator[Codes]:
    """Points that are left out together, (sets, size), for each size."""
    sizes = np.bincount(groups)
    by_group = np.split(np.argsort(groups, kind="stable"), np.cumsum(sizes)[:-1])
    for size in np.unique(sizes[sizes > 0]):
        yield np.stack([by_group[g] for g in np.flatnonzero(sizes == size)])


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
    whole = whole_groups(groups, most, np.random.default_rng(0))
    if len(np.unique(groups[whole])) >= _MANY:
        return whole
    return np.sort(np.argsort(groups, kind="stable")[:: -(-len(groups) // most)])


def one_of_each(groups: Codes | None, n: int) -> Codes:
    """The first of the n points of each group; all of them where there are no groups."""
    return np.arange(n) if groups is None else np.asarray(np.unique(groups, return_index=True)[1])
