"""Leave-one-out through inducing points: what the model says of a point, or of a group, without it.

A ← B + noise·I, H = Φᵀ A⁻¹ Φ for the features Φ (m, s) of the s points that are left out together, with weights
Ω = diag(ω). The blocks of the inverse of the N × N matrix ΦᵀΦ + noise·Ω⁻¹ are (Ω − ΩHΩ)/noise, so by
`leave_one_out.py`

    mean y − (I − HΩ)⁻¹(y − f),    variance of y: k(x, x) − φᵀφ + noise·(1 + [(I − HΩ)⁻¹H]_ii)

Inducing points among them leave with their functions, as an image that was never seen has none. With G = L⁻¹e of these,
so that their weights β = Gᵀw are 0:

    f ← f − Cᵀ S⁻¹ β,   H ← H − Cᵀ S⁻¹ C,   φᵀφ ← φᵀφ − pᵀ(GᵀG)⁻¹p,   S = Gᵀ A⁻¹ G,  C = Gᵀ A⁻¹ Φ,  p = Gᵀφ

The weights of the other points stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .checks import MatrixError
from .groups import sets_left_out
from .leave_one_out import in_pieces
from .linalg import Array, Factor, namespace

_LEAST = 1e-12  # keeps 1 − ωh above rounding


class InducingLeftOut:
    """Points of the sample by their number in it: `own` (sample,) is the number of the inducing point that each one is,
    or −1, and `groups` (sample,) says which are left out together, None for each by itself.
    """

    def __init__(self, basis: Factor, own: Any, groups: Any = None) -> None:
        self.own, self.groups = np.asarray(own), None if groups is None else np.unique(groups, return_inverse=True)[1]
        if self.groups is not None and self.groups.shape != self.own.shape:
            raise MatrixError(f"groups of {self.groups.shape} points for a sample of {self.own.shape}")
        xp, inducing = namespace(basis.A), self.own >= 0
        units = xp.zeros((len(basis), int(inducing.sum())))
        units[xp.asarray(self.own[inducing]), xp.arange(int(inducing.sum()))] = 1.0
        self._G = basis.solve_lower(units) if inducing.any() else units
        self._together = []  # points (groups, size) and columns of G (groups, inducing points in each), alike
        column = np.cumsum(inducing) - 1
        together = np.arange(len(self.own)) if self.groups is None else self.groups
        for members, _ in in_pieces(sets_left_out(together)):
            counts = inducing[members].sum(1)
            for count in np.unique(counts):
                alike = members[counts == count]
                self._together.append((alike, column[alike[inducing[alike]]].reshape(len(alike), count)))

    def predict(
        self, features: Array, diagonal: Array, targets: Array, weights: Array, factor: Factor, w: Array
    ) -> tuple[Array, Array]:
        """Means (sample, outputs) and variances (sample,) of y without amplitude.

        From the features Φ (m, sample), k(x, x), y and ω of the sample, the factor of A and the weights w of Φ. A point
        that is there several times has the sum of their weights and the mean of their targets.
        """
        xp = namespace(w)
        V, U = factor.solve_lower(features), factor.solve_lower(self._G) if self._G.shape[1] else self._G
        mean, variance = xp.empty_like(targets), xp.empty_like(diagonal)
        for points, columns in self._together:
            at = xp.asarray(points)
            Phi, half = features.T[at], V.T[at]  # (groups, size, m)
            f, H, known = Phi @ w, half @ _turned(half), (Phi * Phi).sum(2)
            if columns.shape[1]:
                of = xp.asarray(columns)
                G, own = self._G.T[of], U.T[of]  # (groups, inducing points, m)
                C, p = own @ _turned(half), G @ _turned(Phi)
                S = own @ _turned(own)
                f, H = f - _turned(C) @ _solved(S, G @ w), H - _turned(C) @ _solved(S, C)
                known = known - (p * _solved(G @ _turned(G), p)).sum(1)
            root = xp.sqrt(weights[at])[:, :, None]
            # (I − HΩ)⁻¹ = Ω^−½ (I − Ω^½HΩ^½)⁻¹ Ω^½, of a symmetric matrix
            left = (1.0 + _LEAST) * xp.eye(at.shape[1]) - root * H * _turned(root)
            mean[at] = targets[at] - _solved(left, root * (targets[at] - f)) / root
            spread = xp.maximum((_solved(left, root * H) / root).diagonal(axis1=1, axis2=2), 0.0)
            variance[at] = xp.maximum(diagonal[at] - known, 0.0) + factor.shift * (1.0 + spread)
        return mean, variance


def _turned(A: Array) -> Array:
    return A.transpose(0, 2, 1)


def _solved(A: Array, B: Array) -> Array:
    """A⁻¹B for small symmetric matrices; a row of zeros, of a point that says nothing, gives 0."""
    xp = namespace(A)
    empty = A.diagonal(axis1=1, axis2=2) <= 0.0
    return xp.linalg.solve(A + empty[:, :, None] * xp.eye(A.shape[1]), B)
