"""A Cholesky factor of matrices that rounding has made indefinite: the smallest multiple of I that helps is added."""

from __future__ import annotations

import warnings

from .checks import MatrixError
from .linalg import Array, Factor, NotPositiveDefinite

# Jitter is tried from far below the rounding of a float64 kernel up to where it would be a model of its own.
JITTERS = tuple(10.0**e for e in range(-14, -1))


class JitterWarning(UserWarning):
    """The kernel matrix is not positive definite in the working precision; a stated multiple of I was added."""


def factorised(A: Array, noise: float, jitter: float = 0.0) -> tuple[Factor, float]:
    """K + noise·I without more jitter where that works, else with the smallest power of ten that does, in place."""
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


def warn_of_jitter(factor: Factor, jitter: float, stacklevel: int) -> None:
    warnings.warn(
        f"the kernel matrix of {len(factor)} points is not positive definite in float64; added {jitter:g} of "
        "its mean diagonal to the diagonal. Repeated points or a float32 kernel do that: remove repeats, use "
        f"dtype='float64', or set noise={jitter * float(factor.diagonal.mean()):.1e} to make it part of the model",
        JitterWarning,
        stacklevel=stacklevel,
    )
