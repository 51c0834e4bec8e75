"""In-place Cholesky factorisation: memory, not time, limits the number of images of an exact GP.

The buffer is N×N, in float64. L replaces the lower triangle and the diagonal; the matrix itself survives above it, so a
failed attempt can be undone, residuals measured and rows added without a second copy. Everything is built from matrix
products and small triangular blocks, which NumPy and CuPy share.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cnngp.common.arrays import namespace as namespace

# An ndarray of NumPy or CuPy, which have no common type.
Array = Any

# Jitters to try, relative to the mean diagonal: from far below the rounding of a float64 kernel up to where jitter
# would change the model.
JITTERS = tuple(10.0**e for e in range(-14, -1))
# Matrices with up to this many rows are decomposed with one BLAS thread. Two threads synchronise at every column: with
# other work running, a leave-one-out of 200 points took 180 ms with two and 2 ms with one, of 1,300 points 1,200 and
# 67 ms, and eigenvalues of 3,000 columns 34 and 11 s.
ONE_THREAD = 3000
# A solve for many right-hand sides with more operations than this consists of large products and uses all threads.
_WORTH_THREADS = 2 * 10**9
_lock = threading.Lock()
_limits: list[Any] = []  # the shared limit, once for each current user


class MatrixError(ValueError):
    """Error for a kernel matrix, targets or parameters that do not define a Gaussian process."""


class JitterWarning(UserWarning):
    """Warning that a multiple of I was added, because the matrix is not positive definite in the working precision."""


class NotPositiveDefinite(ArithmeticError):
    """Error for a pivot that is zero, negative, NaN, or no larger than rounding."""


@contextmanager
def one_thread_if_small(A: Array, right: int = 0) -> Iterator[None]:
    """Limit BLAS to one thread for work on a small matrix in host memory; `right` is the size of the right-hand side.

    The limit applies to the whole process: its first user sets it, its last one lifts it.
    """
    if namespace(A) is not np or len(A) > ONE_THREAD or len(A) * right > _WORTH_THREADS:
        yield
        return
    with _lock:
        _limits.append(_limits[0] if _limits else _blas().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _lock:
            limit = _limits.pop()
            if not _limits:
                limit.restore_original_limits()


@functools.cache
def _blas() -> Any:
    """Controller of the BLAS libraries of NumPy and SciPy."""
    import scipy.linalg  # noqa: F401  which may load a library of its own
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def factorised(A: Array, noise: float, jitter: float = 0.0) -> tuple[Factor, float]:
    """Factorise K + noise·I in place with `jitter` or, if needed, a larger power of ten; return factor and jitter."""
    mean_diagonal = float(A.diagonal().mean())
    if mean_diagonal == 0.0 and noise == 0.0 and not A.diagonal().any():
        raise MatrixError(
            f"the kernel of all {A.shape[0]} points is zero: blank images give zero in a network without biases; "
            "give one a bias_var, or other images"
        )
    for relative in (jitter, *(j for j in JITTERS if j > jitter)):
        try:
            return Factor.of(A, noise + relative * mean_diagonal), relative
        except NotPositiveDefinite:
            continue
    raise MatrixError(
        f"the kernel matrix of {A.shape[0]} points is not positive semi-definite: adding {JITTERS[-1]:g} of its "
        f"mean diagonal ({mean_diagonal:.3g}) does not make it so; it is not the matrix of a kernel"
    )


def warn_of_jitter(
    n: int, jitter: float, diagonal: Array, stacklevel: int, name: str = "the kernel matrix", knob: str = "noise"
) -> None:
    """Warn of added jitter; `knob` is the parameter that adds to the diagonal of the matrix called `name`."""
    warnings.warn(
        f"{name} of {n} points is not positive definite in float64; added {jitter:g} of its mean diagonal to the "
        "diagonal. Repeated points or a float32 kernel do that: remove repeats, use dtype='float64', or set "
        f"{knob}={jitter * float(diagonal.mean()):.1e} to make it part of the model",
        JitterWarning,
        stacklevel=stacklevel,
    )


def triangular_solve(L: Array, B: Array, transposed: bool = False) -> Array:
    """Return L⁻¹B or L⁻ᵀB for a small lower triangle; entries above the diagonal are not read."""
    if namespace(L) is np:
        from scipy.linalg import solve_triangular
    else:
        from cupyx.scipy.linalg import solve_triangular
    return solve_triangular(L, B, trans=1 if transposed else 0, lower=True, check_finite=False)


def blocks(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


def _block_size(A: Array) -> int:
    return 512 if namespace(A) is np else 2048


class Factor:
    """Cholesky factor L with L Lᵀ = K + shift·I, in the buffer `A` that held K.

    >>> import numpy as np
    >>> factor = Factor.of(np.array([[4.0, 2.0], [2.0, 2.0]]))
    >>> factor.solve(np.array([[2.0], [2.0]]))
    array([[0.],
           [1.]])
    """

    def __init__(self, A: Array, diagonal: Array, shift: float) -> None:
        self.A = A
        self.diagonal = diagonal  # diag(K), (N,), which L overwrites in the buffer
        self.shift = shift

    @classmethod
    def of(cls, A: Array, shift: float = 0.0) -> Factor:
        """Factorise K + shift·I in place; if that raises `NotPositiveDefinite`, the buffer holds K again."""
        factor = cls(A, A.diagonal().copy(), shift)
        try:
            with one_thread_if_small(A):
                factor._factorise()
        except NotPositiveDefinite:
            factor.restore()
            raise
        return factor

    def __len__(self) -> int:
        return int(self.A.shape[0])

    def _factorise(self) -> None:
        """Left-looking Cholesky: one product reduces a panel by all columns to its left, then the panel is solved."""
        A, n = self.A, len(self)
        for k in blocks(n, _block_size(A)):
            rest = slice(k.stop, n)
            left = A[k, : k.start]
            A_kk = A[k, k] - left @ left.T  # rows and columns k of the Schur complement
            L_kk = _small_cholesky(A_kk, self.diagonal[k] + self.shift, A_kk.diagonal() + self.shift)
            A[k, k] = _over_lower(A[k, k], L_kk)
            if rest.start < n:
                panel = A[rest, k] - A[rest, : k.start] @ left.T
                A[rest, k] = triangular_solve(L_kk, panel.T).T

    def restore(self) -> Array:
        """Restore K in the buffer and return it; the factor is lost."""
        A, xp = self.A, namespace(self.A)
        for k in blocks(len(self), _block_size(A)):
            A[k.stop :, k] = A[k, k.stop :].T
            upper = xp.triu(A[k, k], 1)
            A[k, k] = upper + upper.T
        set_diagonal(A, self.diagonal)
        return A

    def solve_lower(self, B: Array) -> Array:
        """Return L⁻¹B."""
        A, X = self.A, B.copy()
        with one_thread_if_small(A, B.size):
            for k in blocks(len(self), _block_size(A)):
                X[k] = triangular_solve(A[k, k], X[k] - A[k, : k.start] @ X[: k.start])
        return X

    def solve(self, B: Array) -> Array:
        """Return (K + shift·I)⁻¹B = L⁻ᵀL⁻¹B."""
        return self.solve_upper(self.solve_lower(B))

    def solve_upper(self, B: Array) -> Array:
        """Return L⁻ᵀB."""
        A, X = self.A, B.copy()
        with one_thread_if_small(A, B.size):
            for k in reversed(list(blocks(len(self), _block_size(A)))):
                X[k] = triangular_solve(A[k, k], X[k] - A[k.stop :, k].T @ X[k.stop :], transposed=True)
        return X

    def multiply(self, B: Array, shift: float | None = None) -> Array:
        """Return (K + shift·I)B from K above the diagonal; by default with the factor's own shift."""
        A, xp = self.A, namespace(self.A)
        Y = (self.diagonal + (self.shift if shift is None else shift))[:, None] * B
        for k in blocks(len(self), _block_size(A)):
            upper = xp.triu(A[k, k], 1)
            Y[k] += upper @ B[k] + upper.T @ B[k] + A[k, k.stop :] @ B[k.stop :]
            Y[k.stop :] += A[k, k.stop :].T @ B[k]
        return Y

    def log_determinant(self) -> float:
        """Return log |K + shift·I|."""
        return 2.0 * float(namespace(self.A).log(self.A.diagonal()).sum())

    def inverse_diagonal(self) -> Array:
        """Return diag (K + shift·I)⁻¹: [K⁻¹]_ii = Σ_{k ≥ i} (L⁻¹)_ki², a few columns of L⁻¹ at a time."""
        A, xp, n = self.A, namespace(self.A), len(self)
        size = _block_size(A)
        result = xp.empty(n)
        with one_thread_if_small(A):
            for i in blocks(n, size):
                X = xp.zeros((n - i.start, i.stop - i.start))  # rows i.start… of the columns i of L⁻¹
                for k in blocks(n - i.start, size):
                    rows = slice(i.start + k.start, i.start + k.stop)
                    B = -(A[rows, i.start : rows.start] @ X[: k.start]) if k.start else xp.eye(k.stop, X.shape[1])
                    X[k] = triangular_solve(A[rows, rows], B)
                result[i] = (X * X).sum(0)
        return result

    def extended(self, K_new_old: Array, K_new: Array) -> Factor:
        """Factor of the matrix with new rows: the old triangle is copied, only the new rows are computed.

        [[K, K₂₁ᵀ], [K₂₁, K₂₂]]:  L₂₁ = K₂₁L⁻ᵀ,  L₂₂L₂₂ᵀ = K₂₂ + shift·I − L₂₁L₂₁ᵀ
        """
        L21 = self.solve_lower(K_new_old.T).T
        S = K_new - L21 @ L21.T
        L22 = _small_cholesky(S, K_new.diagonal() + self.shift, S.diagonal() + self.shift)
        A = self.joined(K_new_old, _over_lower(K_new, L22))
        A[len(self) :, : len(self)] = L21
        return Factor(A, namespace(A).concatenate([self.diagonal, K_new.diagonal()]), self.shift)

    def joined(self, K_new_old: Array, K_new: Array) -> Array:
        """New buffer [[A, K₂₁ᵀ], [K₂₁, K₂₂]], in which A is this factor's buffer."""
        n, m = len(self), int(K_new.shape[0])
        A = namespace(self.A).empty((n + m, n + m))
        A[:n, :n], A[:n, n:], A[n:, :n], A[n:, n:] = self.A, K_new_old.T, K_new_old, K_new
        return A


def _small_cholesky(S: Array, original: Array, pivots: Array) -> Array:
    """Cholesky factor of S with the diagonal `pivots`; `original` is that diagonal before subtracting earlier columns.

    A pivot of a few ulps of the original is rounding of that subtraction, with a random sign, so it is refused.
    """
    xp = namespace(S)
    S = S.copy()
    set_diagonal(S, pivots)
    try:
        L = xp.linalg.cholesky(S)
    except np.linalg.LinAlgError:
        raise NotPositiveDefinite from None
    squares = L.diagonal() ** 2
    if not bool((squares > 8.0 * np.finfo(S.dtype).eps * original).all()):  # false for NaN too, which CuPy returns
        raise NotPositiveDefinite
    return L


def set_diagonal(A: Array, values: Array) -> None:
    i = namespace(A).arange(len(A))
    A[i, i] = values


def _over_lower(block: Array, L: Array) -> Array:
    """Combine `L` in the lower triangle and on the diagonal with `block` above."""
    return namespace(block).triu(block, 1) + namespace(L).tril(L)
