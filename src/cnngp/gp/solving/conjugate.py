"""Block conjugate gradients for all right-hand sides at once, so that each pass over the matrix serves them all.

In Dubrulle's variant (2001) the residuals are kept as QC with orthonormal Q, so right-hand sides may be, or become,
linearly dependent (the two outputs of a binary classifier are). The recursion's residual drifts from the true one by
rounding, so the result is checked with a product and, if it is not accurate enough, the recursion restarts from there.

The iteration runs on E⁻¹(K + noise·I)E⁻¹ with the root E of a cheap approximation of the matrix, from one pass over it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cnngp.common import files
from cnngp.common.arrays import to_numpy
from cnngp.common.errors import ModelFileError, StoreError

from ..linalg import Array, Factor, NotPositiveDefinite, namespace, triangular_solve

log = logging.getLogger("cnngp")

# Seconds between checkpoints, the most that a killed solve loses; one iteration if that takes longer.
SECONDS = 30.0
_ARRAYS = ("X", "Q", "S", "C", "best", "least", "energy")
_NUMBERS = ("start", "iteration", "history", "gains")
# The recursion has stalled when in this many steps the residual did not fall by a tenth, which alone is not enough (it
# may rise for long before it falls), and the error's A-norm, which falls in every step, hardly fell either.
_PATIENCE = 50
_NO_GAIN = 1e-12
_STALLED = "the residual no longer falls"
_INDEFINITE = "the matrix is not positive definite in the working precision: add noise, or remove repeated points"


class Limits(NamedTuple):
    """Stopping criteria: relative residual ‖b − Ax‖/‖b‖ of each column, and number of passes over the matrix."""

    tolerance: float = 1e-9
    iterations: int = 1000


class Nystrom:
    """Randomised Nyström preconditioner K ≈ UΛUᵀ of rank ℓ (Frangella, Tropp and Udell, 2023), from one pass over K.

        P = U(Λ + μ)Uᵀ/(λ_ℓ + μ) + I − UUᵀ,    E = P^½

    It needs only products with K, in one pass over a store; pivoted Cholesky would read a column of tiles for every
    pivot. With ℓ above about three times the effective dimension tr K(K + μ)⁻¹ the remaining condition number is a
    constant; below that it is still (λ_ℓ + μ)/μ instead of λ₁/μ. With rank 0, E = I.
    """

    def __init__(self, U: Array, values: Array, noise: float) -> None:
        self.U, self.values = U, values
        xp = namespace(U)
        floor = float(values[-1]) + noise if len(values) else 0.0
        # √((λ + μ)/(λ_ℓ + μ)); without noise, a matrix of rank below ℓ needs no preconditioner
        self._root = xp.sqrt((values + noise) / floor) if floor > 0.0 else xp.ones_like(values)

    @classmethod
    def of(cls, multiply: Callable[[Array], Array], xp: Any, n: int, rank: int, noise: float, seed: int) -> Nystrom:
        """Build the approximation from `multiply`, which returns KV without the noise."""
        if rank == 0:
            return cls(xp.zeros((n, 0)), xp.zeros(0), noise)
        omega = xp.asarray(np.random.default_rng(seed).standard_normal((n, rank)))
        omega = xp.linalg.qr(omega)[0]
        sketch = multiply(omega)
        # A shift of the size of rounding keeps the core positive definite; it is subtracted from the values again.
        info = np.finfo(np.float64)
        shift = max(np.sqrt(n) * info.eps * float(xp.linalg.norm(sketch)), info.tiny)  # positive for a zero matrix too
        while True:
            shifted = sketch + shift * omega
            core = omega.T @ shifted
            try:
                C = Factor.of(0.5 * (core + core.T)).A
                break
            except NotPositiveDefinite:  # a float32 matrix is indefinite by more than float64's rounding
                shift *= 10.0
        Q, R = xp.linalg.qr(triangular_solve(C, shifted.T).T)
        U, s, _ = xp.linalg.svd(R)
        return cls(Q @ U, xp.maximum(s * s - shift, 0.0), noise)

    def solve(self, V: Array) -> Array:
        """Return E⁻¹V."""
        return V + self.U @ ((1.0 / self._root - 1.0)[:, None] * (self.U.T @ V))

    def multiply(self, V: Array) -> Array:
        """Return EV."""
        return V + self.U @ ((self._root - 1.0)[:, None] * (self.U.T @ V))


@dataclass(frozen=True)
class State:
    """State of the iteration, from which it can continue after any step."""

    X: Array
    Q: Array
    """Orthonormal basis of the preconditioned residuals, (N, b)."""
    S: Array
    """Search directions, (N, b)."""
    C: Array
    """Coefficients of the preconditioned residuals QC, (b, columns)."""
    start: float
    """Largest true relative residual at the last restart."""
    best: Array
    """Columns of X with the smallest residuals so far; with a singular matrix later ones grow without bound."""
    least: Array
    """Relative residuals of `best`, (columns,)."""
    energy: Array
    """Decrease of ‖error‖²_A of each column since the last restart, (columns,)."""
    iteration: int = 0
    history: tuple[float, ...] = ()
    """Largest relative residual after each iteration since the last restart."""
    gains: tuple[float, ...] = ()
    """Relative increase of `energy` in each of these iterations, for the column in which it is largest."""

    @property
    def stalled(self) -> bool:
        past = self.history
        return len(past) > _PATIENCE and min(past[-_PATIENCE:]) > 0.9 * min(past[:-_PATIENCE])


class Checkpoint:
    """State of the solve of one `problem` in the file `path`, which is always replaced as a whole."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path, self.problem = path, problem
        self.latest: State | None = None
        self._written = time.monotonic()

    def read(self, xp: Any) -> State | None:
        """Return the state of an earlier run, or None; raise for any other file, which would be overwritten."""
        if not self.path.exists():
            return None
        try:
            header, arrays = files.read(self.path, "checkpoint")
        except ModelFileError as error:
            raise StoreError(f"{error}; it is left as it is: give another checkpoint=, or delete it") from None
        if header.get("problem") != self.problem:
            raise StoreError(
                f"{self.path} is the checkpoint of another problem (other matrix, targets, noise or rank); give "
                "another checkpoint=, or delete it"
            )
        numbers = {name: header[name] for name in _NUMBERS}
        numbers |= {name: tuple(header[name]) for name in ("history", "gains")}
        self.latest = State(**{name: xp.asarray(arrays[name]) for name in _ARRAYS}, **numbers)
        return self.latest

    def see(self, state: State) -> None:
        """Keep the state, and write it if the last write is more than `SECONDS` ago."""
        self.latest = state
        if time.monotonic() - self._written >= SECONDS:
            self.write()

    def write(self) -> None:
        """Write the latest state."""
        if self.latest is None:
            return
        header = {"problem": self.problem} | {name: getattr(self.latest, name) for name in _NUMBERS}
        arrays = {name: to_numpy(getattr(self.latest, name)) for name in _ARRAYS}
        try:
            files.write(self.path, header, arrays, "checkpoint")
        except OSError as error:  # a full disk must not end the solve, which can do without a checkpoint
            log.warning(
                "the checkpoint %s cannot be written (%s); a killed solve would start from the beginning",
                self.path,
                error,
            )
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file of a finished solve."""
        with suppress(OSError):
            self.path.unlink()


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
    E: Nystrom,
    limits: Limits,
    state: State | None,
    watch: Callable[[State], Any],
) -> Outcome:
    """Solve AX = B for a positive definite A, given by its products, within `limits`.

    `watch` receives the state after every iteration; the solve can continue from any such `state`.
    """
    xp = namespace(B)

    def begun(X: Array, R: Array, residuals: Array, iteration: int) -> State:
        Q, C = xp.linalg.qr(E.solve(R))
        return State(X, Q, Q, C, float(residuals.max()), X, residuals, xp.zeros_like(residuals), iteration)

    state = state or begun(xp.zeros_like(B), B, relative_residuals(B, B), 0)
    while True:
        state, reason = _iterated(state, multiply, E, B, limits, watch)
        R = B - multiply(state.X)
        residuals = relative_residuals(R, B)
        worst = float(residuals.max())
        if worst <= limits.tolerance:
            return Outcome(state.X, residuals, state.iteration, True, f"every residual is at most {limits.tolerance:g}")
        if reason in (None, _STALLED) and worst <= 0.5 * state.start:
            state = begun(state.X, R, residuals, state.iteration)
            continue
        X = state.X
        if bool((state.least < residuals).any()):  # by columns: one without a solution must not cost the others theirs
            other = relative_residuals(B - multiply(state.best), B)
            better = other < residuals
            X, residuals = xp.where(better, state.best, X), xp.where(better, other, residuals)
        solved = float(residuals.max()) <= limits.tolerance
        return Outcome(X, residuals, state.iteration, solved, reason or "rounding, or the matrix, allows no more")


def relative_residuals(R: Array, B: Array) -> Array:
    """Return ‖r‖/‖b‖ of each column, and ‖r‖ for a column of zeros."""
    xp = namespace(B)
    norms = xp.linalg.norm(B, axis=0)
    return xp.linalg.norm(R, axis=0) / xp.where(norms > 0.0, norms, 1.0)


def _iterated(
    state: State,
    multiply: Callable[[Array], Array],
    E: Nystrom,
    B: Array,
    limits: Limits,
    watch: Callable[[State], Any],
) -> tuple[State, str | None]:
    """Iterate until the recursion reports the tolerance; return the state and None, or why it stopped earlier."""
    xp = namespace(B)
    definite = True
    while not state.history or state.history[-1] > 0.5 * limits.tolerance:
        if state.iteration >= limits.iterations:
            return state, f"{limits.iterations} iterations were not enough"
        if state.stalled and (not definite or sum(state.gains[-_PATIENCE:]) < _NO_GAIN):
            return state, _STALLED if definite else _INDEFINITE
        W = E.solve(state.S)
        T = E.solve(multiply(W))
        G = state.S.T @ T
        ξ, positive = _inverse(0.5 * (G + G.T))
        definite = definite and positive
        if ξ is None:
            return state, _INDEFINITE
        step = ξ @ state.C
        gain = (state.C * step).sum(0)
        energy = state.energy + gain
        X = state.X + W @ step
        Q, ζ = xp.linalg.qr(state.Q - T @ ξ)
        C = ζ @ state.C
        residuals = relative_residuals(E.multiply(Q @ C), B)
        better = residuals < state.least
        state = replace(
            state,
            X=X,
            Q=Q,
            S=Q + state.S @ ζ.T,
            C=C,
            best=xp.where(better, X, state.best),
            least=xp.where(better, residuals, state.least),
            energy=energy,
            iteration=state.iteration + 1,
            history=(*state.history, float(residuals.max())),
            gains=(*state.gains, float((gain / xp.where(energy > 0.0, energy, 1.0)).max())),
        )
        if not np.isfinite(state.history[-1]):
            return state, _INDEFINITE
        watch(state)
    return state, None


def _inverse(G: Array) -> tuple[Array | None, bool]:
    """Return the inverse of a small symmetric matrix, and True if that is positive definite; if not, the inverse of its
    positive part (None without one), which keeps the residuals valid. It is scaled first, as directions differ in size.
    """
    xp = namespace(G)
    d = xp.abs(G.diagonal())
    if not bool(xp.isfinite(d).all()):
        return None, False
    scale = 1.0 / xp.sqrt(xp.where(d > 0.0, d, 1.0))
    scaled = scale[:, None] * G * scale[None, :]
    try:
        definite = bool(xp.isfinite(xp.linalg.cholesky(scaled)).all())  # CuPy returns NaN
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
