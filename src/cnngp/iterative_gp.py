"""The posterior without a factor: means by one iterative solve, leave-one-out for a sample, variances by more solves.

What needs all of a factor (the likelihood, covariances, samples, adding points) is not there, and says so.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from .gp import Amplitude, MatrixError, Noise, check_amplitude, check_targets, check_test
from .linalg import Array, blocks, namespace
from .solving import ConvergenceWarning, solve_matrix
from .solving.matrices import SymmetricMatrix

# Training points whose leave-one-out prediction is computed: each is one more right-hand side of the one solve.
SAMPLE = 256
# Test points whose variances are solved for together.
_COLUMNS = 256


class IterativeGP:
    """`ExactGP` for a matrix that is only multiplied. [K⁻¹]_ii of the sample comes from solves for its unit vectors."""

    log_marginal_likelihood = None
    jitter = 0.0

    def __init__(
        self,
        matrix: SymmetricMatrix,
        Y: Array,
        xp: Any,
        *,
        noise: Noise,
        amplitude: Amplitude = "ml",
        method: str = "cg",
        seed: int | None = 0,
    ) -> None:
        check_amplitude(amplitude)
        if isinstance(noise, str):
            raise MatrixError(
                f"noise={noise!r} needs an eigendecomposition, which does not fit in memory; give a number"
            )
        self.matrix: SymmetricMatrix | None = matrix
        self.method = method
        self.noise = float(noise)
        Y = check_targets(xp, Y, matrix.n)
        n, outputs = matrix.n, int(Y.shape[1])
        self.loo_rows = np.sort(np.random.default_rng(seed).choice(n, min(n, SAMPLE), replace=False))
        at, columns = xp.asarray(self.loo_rows), xp.arange(len(self.loo_rows))
        units = xp.zeros((n, len(self.loo_rows)))
        units[at, columns] = 1.0
        # One solve for all, so that there is one checkpoint and every pass over the matrix serves all of it.
        solution = solve_matrix(matrix, xp.concatenate([Y, units], axis=1), self.noise, method)
        if not solution.converged:
            warnings.warn(f"the linear system was not solved: {solution.message}", ConvergenceWarning, stacklevel=5)
        weights: Any = solution.weights
        self.alpha = weights[:, :outputs].copy()
        diagonal = matrix.diagonal()
        # [A⁻¹]_ii is at least 1/A_ii, also where the solve did not get so far.
        least = 1.0 / np.maximum(diagonal[self.loo_rows] + self.noise, np.finfo(np.float64).tiny)
        self.inverse_diagonal = xp.maximum(weights[at, outputs + columns], xp.asarray(least))
        self.loo_targets = Y[at]
        self._residual = float(solution.residuals[:outputs].max())
        self.message = solution.message
        self.largest_variance = float(diagonal.max())
        match amplitude:
            case "ml":
                value = float((Y * self.alpha).sum()) / (n * outputs)
            case "loo":
                value = float((self.alpha[at] ** 2 / self.inverse_diagonal[:, None]).mean())
            case number:
                value = float(number)
        self.amplitude = value if value > 0.0 else 1.0

    @property
    def points(self) -> int:
        return int(self.alpha.shape[0])

    def mean(self, K_test: Array) -> Array:
        """E[f] at M test points, (M, N) → (M, outputs)."""
        return check_test(namespace(self.alpha), K_test, self.points) @ self.alpha

    def variance(self, K_test: Array, diagonal: Array) -> Array:
        """Var[f] by a solve for every block of test points: right, and slow, as each reads the matrix many times."""
        xp = namespace(self.alpha)
        if self.matrix is None:
            raise MatrixError(_LOADED)
        K_test = check_test(xp, K_test, self.points)
        reduction = xp.empty(int(K_test.shape[0]))
        size = _COLUMNS if self.method == "cg" else int(K_test.shape[0])  # every "mixed" solve factorises anew
        for rows in blocks(int(K_test.shape[0]), size):
            part = K_test[rows].T
            solution = solve_matrix(self.matrix, part, self.noise, self.method, tolerance=1e-6)
            reduction[rows] = (part * solution.weights).sum(0)
        return self.amplitude * xp.maximum(xp.asarray(diagonal, dtype=xp.float64) - reduction, 0.0)

    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        raise MatrixError(_NEEDS_FACTOR.format("a covariance between test points"))

    def sample(self, K_test: Array, K_test_test: Array, n: int, seed: int | None = None) -> Array:
        raise MatrixError(_NEEDS_FACTOR.format("a sample of functions"))

    def add(self, *_: Any) -> None:
        raise MatrixError(_NEEDS_FACTOR.format("adding images"))

    def leave_one_out(self) -> tuple[Array, Array]:
        """Mean y_i − α_i/[K⁻¹]_ii and variance at the points of the sample; exact for each of them."""
        alpha = self.alpha[namespace(self.alpha).asarray(self.loo_rows)]
        return self.loo_targets - alpha / self.inverse_diagonal[:, None], self.amplitude / self.inverse_diagonal

    def residual(self) -> float:
        return self._residual

    def smallest_eigenvalue_bounds(self) -> tuple[float, float]:
        """The noise, and 1/max [K⁻¹]_ii of the sample."""
        return self.noise, 1.0 / float(self.inverse_diagonal.max())

    # ---- files ---------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays that `restored` makes the same model of, without the matrix."""
        numbers = {
            "method": self.method,
            "noise": self.noise,
            "amplitude": self.amplitude,
            "residual": self._residual,
            "message": self.message,
            "largest_variance": self.largest_variance,
        }
        names = ("alpha", "inverse_diagonal", "loo_rows", "loo_targets")
        return numbers, {name: getattr(self, name) for name in names}

    @classmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> IterativeGP:
        gp = cls.__new__(cls)
        gp.matrix = None
        gp.method, gp.message = numbers["method"], numbers["message"]
        gp.noise, gp.amplitude = numbers["noise"], numbers["amplitude"]
        gp._residual, gp.largest_variance = numbers["residual"], numbers["largest_variance"]
        gp.alpha, gp.loo_targets = xp.asarray(arrays["alpha"]), xp.asarray(arrays["loo_targets"])
        gp.inverse_diagonal, gp.loo_rows = xp.asarray(arrays["inverse_diagonal"]), np.asarray(arrays["loo_rows"])
        return gp


_NEEDS_FACTOR = "{} needs a Cholesky factor, which solver='cg' and 'mixed' do not make; use solver='cholesky'"
_LOADED = "a loaded model without a factor has no kernel matrix, so it gives means and no variances; fit it again"
