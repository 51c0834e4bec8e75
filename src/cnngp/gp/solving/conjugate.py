"""Block conjugate gradients: all right-hand sides together, so that each pass over the matrix serves them all.

Dubrulle's variant (2001): the residuals are kept as QC with orthonormal Q, which makes it indifferent to right-hand
sides that are, or become, linearly dependent (the two outputs of a binary classifier are). The recursion's residual
drifts from the true one by rounding, so what it claims is checked by a product and, where wrong, begun anew from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..linalg import Array, namespace
from .preconditioner import Preconditioner

# The recursion has stalled when in this many steps the residual did not fall by a tenth, which alone says little (it
# may rise for long before it falls), and the error's A-norm, which falls in every step, did not either.
_PATIENCE = 50
_NO_GAIN = 1e-12


@dataclass
class State:
    """All that the iteration carries, so that it can be stopped at any step and taken up again."""

    X: Array
    Q: Array
    """Orthonormal basis of the preconditioned residuals, (N, b)."""
    S: Array
    """Search directions, (N, b)."""
    C: Array
    """The preconditioned residuals are QC, (b, columns)."""
    start: float
    """The largest true residual when the recursion was last begun."""
    best: Array
    """Columns of X with the least residuals so far: where the matrix is singular, they rise again without bound."""
    least: Array
    """The relative residuals of `best`, (columns,)."""
    energy: Array
    """What ‖error‖²_A of each column has fallen by since the recursion was last begun, (columns,)."""
    iteration: int = 0
    history: list[float] = field(default_factory=list)
    """The largest relative residual after each iteration since the recursion was last begun."""
    gains: list[float] = field(default_factory=list)
    """What each of these iterations added to `energy`, as a fraction of it, in the column where that is most."""


@dataclass(frozen=True)
class Outcome:
    X: Array
    residuals: Array
    """‖b − Ax‖/‖b‖ of each column, measured with a product."""
    iterations: int
    converged: bool
    reason: str


def solve_block(
    multiply: Callable[[Array], Array],
    B: Array,
    E: Preconditioner,
    *,
    tolerance: float,
    iterations: int,
    state: State | None = None,
    watch: Callable[[State], Any] = lambda state: None,
) -> Outcome:
    """X with AX = B for a positive definite A known by its products, to ‖b − Ax‖ ≤ tolerance·‖b‖ in each column.

    `watch` sees the state after every iteration; a `state` that it kept goes on from there.
    """
    xp = namespace(B)
    norms = xp.linalg.norm(B, axis=0)
    norms = xp.where(norms > 0.0, norms, 1.0)  # a column of zeros has the solution zero

    def relative(R: Array) -> Array:
        return xp.linalg.norm(R, axis=0) / norms

    done = 0 if state is None else state.iteration
    if state is None:
        state = _begin(xp.zeros_like(B), B, E, relative(B), 0)
    while True:
        reason = _iterate(state, multiply, E, relative, tolerance, iterations, watch)
        done = state.iteration
        R = B - multiply(state.X)
        residuals = relative(R)
        worst = float(residuals.max())
        if worst <= tolerance:
            return Outcome(state.X, residuals, done, True, f"every residual is at most {tolerance:g}")
        if reason in (None, _STALLED) and worst <= 0.5 * state.start:
            state = _begin(state.X, R, E, residuals, done)
            continue
        X = state.X
        if bool((state.least < residuals).any()):  # by columns: one without a solution must not cost the others theirs
            other = relative(B - multiply(state.best))
            better = other < residuals
            X, residuals = xp.where(better, state.best, X), xp.where(better, other, residuals)
        solved = float(residuals.max()) <= tolerance
        return Outcome(X, residuals, done, solved, reason or "rounding, or the matrix, allows no more")


_STALLED = "the residual no longer falls"
_INDEFINITE = "the matrix is not positive definite in the working precision: add noise, or remove repeated points"


def _begin(X: Array, R: Array, E: Preconditioner, residuals: Array, iteration: int) -> State:
    xp = namespace(R)
    Q, C = xp.linalg.qr(E.solve(R))
    return State(X, Q, Q.copy(), C, float(residuals.max()), X, residuals, xp.zeros_like(residuals), iteration)


def _iterate(
    state: State,
    multiply: Callable[[Array], Array],
    E: Preconditioner,
    relative: Callable[[Array], Array],
    tolerance: float,
    iterations: int,
    watch: Callable[[State], Any],
) -> str | None:
    """Until the recursion claims the tolerance (None), or why it stopped before that."""
    xp = namespace(state.X)
    definite = True
    while not state.history or state.history[-1] > 0.5 * tolerance:
        if state.iteration >= iterations:
            return f"{iterations} iterations were not enough"
        if _stalled(state.history) and (not definite or sum(state.gains[-_PATIENCE:]) < _NO_GAIN):
            return _STALLED if definite else _INDEFINITE
        W = E.solve_transposed(state.S)
        T = E.solve(multiply(W))
        G = state.S.T @ T
        ξ, positive = _inverse(0.5 * (G + G.T))
        definite = definite and positive
        if ξ is None:
            return _INDEFINITE
        step = ξ @ state.C
        gain = (state.C * step).sum(0)
        state.energy = state.energy + gain
        state.gains.append(float((gain / xp.where(state.energy > 0.0, state.energy, 1.0)).max()))
        state.X = state.X + W @ step
        state.Q, ζ = xp.linalg.qr(state.Q - T @ ξ)
        state.C = ζ @ state.C
        state.S = state.Q + state.S @ ζ.T
        state.iteration += 1
        residuals = relative(E.multiply(state.Q @ state.C))
        state.history.append(float(residuals.max()))
        if not np.isfinite(state.history[-1]):
            return _INDEFINITE
        better = residuals < state.least
        state.best = xp.where(better, state.X, state.best)
        state.least = xp.where(better, residuals, state.least)
        watch(state)
    return None


def _stalled(history: list[float]) -> bool:
    return len(history) > _PATIENCE and min(history[-_PATIENCE:]) > 0.9 * min(history[:-_PATIENCE])


def _inverse(G: Array) -> tuple[Array | None, bool]:
    """G⁻¹ of a small symmetric matrix, and whether it is positive definite; where not, of its positive part (None where
    there is none): the residuals stay right, and what can be solved is. Scaled first, as directions differ in length.
    """
    xp = namespace(G)
    d = xp.abs(G.diagonal())
    if not bool(xp.isfinite(d).all()):
        return None, False
    scale = 1.0 / xp.sqrt(xp.where(d > 0.0, d, 1.0))
    scaled = scale[:, None] * G * scale[None, :]
    try:
        definite = bool(xp.isfinite(xp.linalg.cholesky(scaled)).all())  # CuPy answers with NaN
    except np.linalg.LinAlgError:
        definite = False
    if definite:
        return scale[:, None] * xp.linalg.inv(scaled) * scale[None, :], True
    values, V = xp.linalg.eigh(scaled)
    positive = values > len(G) * np.finfo(np.float64).eps * float(xp.abs(values).max())
    if not bool(positive.any()):
        return None, False
    V = scale[:, None] * V * xp.where(positive, 1.0 / xp.sqrt(xp.abs(xp.where(positive, values, 1.0))), 0.0)[None, :]
    return V @ V.T, False
