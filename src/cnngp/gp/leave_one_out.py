"""Leave-one-out in closed form: what all other points say of a point, and those outside of a group of the group.

With K including the noise and α = K⁻¹Y, the points outside of g predict its targets with

    deviations d_g = y_g − mean = [K⁻¹]_gg⁻¹ α_g,    covariance S_g = [K⁻¹]_gg⁻¹ (times the amplitude)

which for one point are α_i/[K⁻¹]_ii and 1/[K⁻¹]_ii. Deviations are measured twice, one by one, Σ d_i²/v_i, and jointly,
Σ_g d_gᵀS_g⁻¹d_g = Σ_g d_gᵀα_g: the second alone knows that two measurements at one image contradict each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from .groups import Sets
from .linalg import Array, Factor, namespace

_POINTS = 512  # whose blocks of K⁻¹ are held at a time
BlockOf = Callable[[Array], Array]
"""Points (sets, size) → their blocks of K⁻¹, (sets, size, size)."""


class LeftOut(NamedTuple):
    """What is said of each point without it, for the amplitude 1."""

    deviations: Array
    """y − mean, (N, outputs)."""
    variances: Array
    """(N,), noise included."""
    jointly: float
    """Σ_g d_gᵀS_g⁻¹d_g; of a set of points that predicts some of them, as large a share as these are of it."""

    @property
    def one_by_one(self) -> float:
        """Σ d²/v."""
        return float((self.deviations**2 / self.variances[:, None]).sum())

    @property
    def log_determinant(self) -> float:
        """Σ log v."""
        return float(namespace(self.variances).log(self.variances).sum())


def leave_out(alpha: Array, diagonal: Array, sets: Iterable[Sets] = (), block_of: BlockOf | None = None) -> LeftOut:
    """Every point without itself, from α (N, outputs) and the diagonal of K⁻¹ (N,), or without its set."""
    xp = namespace(alpha)
    deviations, variances = alpha / diagonal[:, None], 1.0 / diagonal
    jointly = (alpha * deviations).sum(1)
    for members, predicted in in_pieces(sets, least=2):
        assert block_of is not None
        at, chosen = xp.asarray(members), xp.asarray(predicted)
        S = xp.linalg.inv(block_of(at))
        of_all, rows = S @ alpha[at], at[chosen]
        deviations[rows], variances[rows] = of_all[chosen], S.diagonal(axis1=1, axis2=2)[chosen]
        share = (alpha[at] * of_all).sum((1, 2)) / at.shape[1]
        jointly[rows] = xp.broadcast_to(share[:, None], at.shape)[chosen]
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


def in_pieces(sets: Iterable[Sets], least: int = 1) -> Iterator[Sets]:
    """Some sets of at least so many points at a time."""
    for members, predicted in sets:
        count, size = members.shape
        if size >= least:
            step = max(1, _POINTS // size)
            for first in range(0, count, step):
                yield members[first : first + step], np.ascontiguousarray(predicted[first : first + step])
