"""Cheap approximations P = EEᵀ of K + noise·I that make conjugate gradients converge in few passes.

The iteration runs on E⁻¹(K + noise·I)E⁻ᵀ, so a preconditioner is asked for E⁻¹V, E⁻ᵀV and EV and for nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..jitter import factorised
from ..linalg import Array, Factor, NotPositiveDefinite, namespace, triangular_solve

# Of the mean diagonal: about where float32 begins to tell a singular matrix from another.
_FLOAT32_JITTER = 1e-7


class Preconditioner(Protocol):
    def solve(self, V: Array) -> Array:
        """E⁻¹V."""
        ...

    def solve_transposed(self, V: Array) -> Array:
        """E⁻ᵀV."""
        ...

    def multiply(self, V: Array) -> Array:
        """EV."""
        ...


class Nystrom:
    """The randomised Nyström approximation K ≈ UΛUᵀ of rank ℓ (Frangella, Tropp and Udell, 2023), from one pass over K.

        P = U(Λ + μ)Uᵀ/(λ_ℓ + μ) + I − UUᵀ,    E = P^½

    It needs products with K alone, which a store gives in one pass; pivoted Cholesky would read a column of tiles for
    every pivot. With ℓ above about three times the effective dimension tr K(K + μ)⁻¹ the condition number left is a
    constant; below that it is still (λ_ℓ + μ)/μ instead of λ₁/μ.
    """

    def __init__(self, U: Array, values: Array, noise: float) -> None:
        self.U = U
        self.values = values
        xp = namespace(U)
        floor = float(values[-1]) + noise
        # √((λ + μ)/(λ_ℓ + μ)); a matrix of rank below ℓ without noise has no directions left that would need it
        self._root = xp.sqrt((values + noise) / floor) if floor > 0.0 else xp.ones_like(values)

    @classmethod
    def of(cls, multiply: Callable[[Array], Array], xp: Any, n: int, rank: int, noise: float, seed: int) -> Nystrom:
        """`multiply` gives KV without the noise."""
        omega = xp.asarray(np.random.default_rng(seed).standard_normal((n, rank)))
        omega = xp.linalg.qr(omega)[0]
        sketch = multiply(omega)
        # A shift of the size of the rounding keeps the core positive definite; it is taken off the values again.
        info = np.finfo(np.float64)
        shift = max(np.sqrt(n) * info.eps * float(xp.linalg.norm(sketch)), info.tiny)  # also of a matrix of zeros
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
        return V + self.U @ ((1.0 / self._root - 1.0)[:, None] * (self.U.T @ V))

    solve_transposed = solve

    def multiply(self, V: Array) -> Array:
        return V + self.U @ ((self._root - 1.0)[:, None] * (self.U.T @ V))


class RoughFactor:
    """E = L, the Cholesky factor in float32 of K + (noise + jitter)·I, in a buffer of 4 bytes an entry.

    Where the matrix came in float32 the buffer still holds it above the diagonal, so products need no second copy.
    """

    def __init__(self, A: Array, noise: float) -> None:
        """A: float32, overwritten."""
        self.noise = noise
        self.factor, self.jitter = factorised(A, noise, _FLOAT32_JITTER)

    def product(self, V: Array) -> Array:
        """(K + noise·I)V in float64, from the float32 matrix that survived in the buffer."""
        return self.factor.multiply(V, self.noise)

    def solve(self, V: Array) -> Array:
        return self.factor.solve_lower(V.astype(self.factor.A.dtype)).astype(V.dtype)

    def solve_transposed(self, V: Array) -> Array:
        return self.factor.solve_upper(V.astype(self.factor.A.dtype)).astype(V.dtype)

    def multiply(self, V: Array) -> Array:
        return self.factor.multiply_lower(V.astype(self.factor.A.dtype)).astype(V.dtype)


class Nothing:
    """E = I."""

    def solve(self, V: Array) -> Array:
        return V

    solve_transposed = multiply = solve
