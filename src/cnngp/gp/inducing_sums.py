"""What regression through inducing points has to know of its training points, summed over them a block at a time."""

from __future__ import annotations

import copy
from typing import Any

from .checks import MatrixError
from .linalg import Array, blocks, namespace

_PANEL = 2048


class Sums:
    """B = Σ ω φφᵀ (m, m), Σ ω φyᵀ (m, outputs), Σ ω‖y‖² and Σ log ω of the points so far, ω = 1/(1 + discount·u).

    u is what the inducing points cannot say about a point, in units of the mean k(x, x): such points count as noisier
    than others.
    """

    def __init__(self, xp: Any, m: int, discount: float) -> None:
        self.discount = discount
        self.B = xp.zeros((m, m))
        self.rhs: Array = None
        self.squares = 0.0
        self.log_weights = 0.0
        self.n = 0

    def weights(self, unknown: Array) -> Array:
        return 1.0 / (1.0 + self.discount * unknown)

    def add(self, Phi: Array, Y: Array, unknown: Array) -> None:
        """Points with features `Phi` (m, M), targets `Y` (M, outputs) and u (M,). `mirror` has to follow."""
        if self.rhs is None:
            self.rhs = namespace(self.B).zeros((len(self.B), Y.shape[1]))
        if Y.shape[1] != self.rhs.shape[1]:
            raise MatrixError(f"the targets have {Y.shape[1]} outputs; the model has {self.rhs.shape[1]}")
        weighted = Phi
        if self.discount:
            w = self.weights(unknown)
            weighted, self.log_weights = Phi * w, self.log_weights + float(namespace(w).log(w).sum())
            self.squares += float((w[:, None] * Y * Y).sum())
        else:
            self.squares += float((Y * Y).sum())
        for k in blocks(len(self.B), _PANEL):  # only what is on or above the diagonal
            self.B[k, k.start :] += weighted[k] @ Phi[k.start :].T
        self.rhs += weighted @ Y
        self.n += int(Y.shape[0])

    def mirror(self) -> None:
        """The lower triangle of B from the upper one."""
        xp = namespace(self.B)
        for k in blocks(len(self.B), _PANEL):
            upper = xp.triu(self.B[k, k], 1)
            self.B[k, k] = upper + upper.T + xp.diag(self.B[k, k].diagonal())
            self.B[k.stop :, k] = self.B[k, k.stop :].T

    def copy(self, B: Array) -> Sums:
        """The same sums with arrays of their own, `B` among them."""
        other = copy.copy(self)
        other.B, other.rhs = B, self.rhs.copy()
        return other
