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

# Iterations without a gain of a tenth after which the recursion is taken to have stalled.
_PATIENCE = 50


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
    """The X with the least residual so far: where the matrix is singular, residuals rise again without bound."""
    least: float
    iteration: int = 0
    history: list[float] = field(default_factory=list)
    """The largest relative residual after each iteration since the recursion was last begun."""


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
        state = _begin(xp.zeros_like(B), B, E, float(relative(B).max()), 0)
    while True:
        reason = _iterate(state, multiply, E, relative, tolerance, iterations, watch)
        done = state.iteration
        R = B - multiply(state.X)
        residuals = relative(R)
        worst = float(residuals.max())
        if worst <= tolerance:
            return Outcome(state.X, residuals, done, True, f"every residual is at most {tolerance:g}")
        if reason in (None, _STALLED) and worst <= 0.5 * state.start:
            state = _begin(state.X, R, E, worst, done)
            continue
        X = state.X
        if state.least < worst:
            other = relative(B - multiply(state.best))
            if float(other.max()) < worst:
                X, residuals = state.best, other
        return Outcome(X, residuals, done, False, reason or "rounding, or the matrix, allows no more")


_STALLED = "the residual no longer falls"
_INDEFINITE = "the matrix is not positive definite in the working precision: add noise, or remove repeated points"


def _begin(X: Array, R: Array, E: Preconditioner, start: float, iteration: int) -> State:
    Q, C = namespace(R).linalg.qr(E.solve(R))
    return State(X, Q, Q.copy(), C, start, X, start, iteration)


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
        if _stalled(state.history):
            return _STALLED if definite else _INDEFINITE
        W = E.solve_transposed(state.S)
        T = E.solve(multiply(W))
        G = state.S.T @ T
        ξ, positive = _inverse(0.5 * (G + G.T))
        definite = definite and positive
        if ξ is None:
            return _INDEFINITE
        state.X = state.X + W @ (ξ @ state.C)
        state.Q, ζ = xp.linalg.qr(state.Q - T @ ξ)
        state.C = ζ @ state.C
        state.S = state.Q + state.S @ ζ.T
        state.iteration += 1
        state.history.append(float(relative(E.multiply(state.Q @ state.C)).max()))
        if not np.isfinite(state.history[-1]):
            return _INDEFINITE
        if state.history[-1] < state.least:
            state.best, state.least = state.X, state.history[-1]
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
