"""Posterior without a Cholesky factor: mean and leave-one-out of a sample by one iterative solve, variances by more.

The likelihood, covariances, samples and adding points need a factor and are not available.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy

from .checks import MatrixError, check_amplitude, check_targets
from .exact import Amplitude, Noise
from .leave_one_out import Codes, LeftOut, Sets, as_left_out, leave_out, names_of, sets_left_out
from .linalg import Array, blocks, namespace
from .objectives import amplitude_of
from .posterior import NEEDS_FACTOR, Posterior, Solved
from .solving import ConvergenceWarning, solve_matrix
from .solving.conjugate import Limits
from .solving.matrices import SymmetricMatrix

# Number of training points with a leave-one-out prediction: each is one more right-hand side of the solve.
SAMPLE = 256
# Largest relative residual at which [K⁻¹]_ii of a point is used.
_SOLVED = 1e-6
_LIMITS = Limits(tolerance=_SOLVED)
# Relative residual from which a unit vector has no solution: for a repeated point it stays at 1/√2 or more.
_PROMISING = 0.5
# Number of test points whose variances are solved for together.
_COLUMNS = 256
_NUMBERS = ("noise", "amplitude", "residual", "message", "unsolved", "largest_variance")
_ARRAYS = ("alpha", "inverse_diagonal", "loo_targets")


class IterativeGP(Posterior):
    """Exact posterior for a matrix that is multiplied, never factorised. Entries of K⁻¹ for leave-one-out come from
    solves for the unit vectors of a sample of points, and with `groups` of all points that are left out with them.
    """

    kind = "iterative"
    cheap_variances = False

    def __init__(
        self,
        matrix: SymmetricMatrix,
        Y: Array,
        xp: Any,
        *,
        noise: Noise,
        amplitude: Amplitude = "ml",
        seed: int | None = 0,
        groups: Any = None,
    ) -> None:
        check_amplitude(amplitude)
        if isinstance(noise, str):
            raise MatrixError(
                f"noise={noise!r} needs an eigendecomposition, which does not fit in memory; give a number"
            )
        self.matrix: SymmetricMatrix | None = matrix
        self.noise = float(noise)
        Y = check_targets(xp, Y, matrix.n)
        n, outputs, diagonal = matrix.n, int(Y.shape[1]), matrix.diagonal()
        left_out = None if groups is None else as_left_out(groups, n)
        units, sets = _sample(left_out, n, seed)
        self.variances, self.largest_variance = xp.asarray(diagonal), float(diagonal.max())
        # [A⁻¹]_ii is at least 1/A_ii if A is positive definite: far below that it is wrong, whatever the residual.
        least = 1.0 / np.maximum(diagonal[units] + self.noise, np.finfo(np.float64).tiny)
        solution, inverse, solved = self._solve(matrix, Y, units)
        solved &= inverse.diagonal() >= 0.5 * least
        self.residual, self.message = float(solution.residuals[:outputs].max()), solution.message
        self.alpha = solution.weights[:, :outputs].copy()
        if not solution.converged:
            warnings.warn(f"the linear system was not solved: {self.message}", ConvergenceWarning, stacklevel=6)
        # Leave-one-out covers the points whose whole set was solved for.
        kept = [(at[whole], chosen[whole]) for at, chosen in sets for whole in [solved[at].all(1)]]
        predicted = np.zeros(len(units), bool)
        for at, chosen in kept:
            predicted[at[chosen]] = True
        self.loo_rows = units[predicted]
        of = sum(int(chosen.sum()) for _, chosen in sets)
        self.unsolved = of - len(self.loo_rows)
        if self.unsolved:
            some = self.unsolved < of
            told = "leaves them out of loo_rows_" if some else "has none: loo_error_ is NaN and the temperature 1"
            warnings.warn(
                f"the system was not solved for the unit vectors of {self.unsolved} of {of} images, so leave-one-out "
                f"{told}; add noise, or remove repeated images",
                ConvergenceWarning,
                stacklevel=6,
            )
        inverse_diagonal = np.maximum(inverse.diagonal(), least)
        left = leave_out(
            to_numpy(self.alpha[xp.asarray(units)]),
            inverse_diagonal,
            kept,
            lambda at: np.linalg.inv(inverse[at[:, :, None], at[:, None, :]]),
        )
        self.left = LeftOut(xp.asarray(left.deviations[predicted]), xp.asarray(left.variances[predicted]), left.jointly)
        self.inverse_diagonal = xp.asarray(inverse_diagonal[predicted])
        self.loo_targets = Y[xp.asarray(self.loo_rows)]
        self.groups = None if left_out is None else names_of(left_out[self.loo_rows])
        fit, count = float((Y * self.alpha).sum()), n * outputs
        if amplitude == "loo" and len(self.loo_rows):
            fit, count = self.left.one_by_one, self.loo_targets.size
        self.amplitude = amplitude_of(fit, count, amplitude)

    def _solve(self, matrix: SymmetricMatrix, Y: Array, units: Codes) -> tuple[Any, Any, NDArray[np.bool_]]:
        """Return the solution for the targets, [A⁻¹] among the `units`, and a mask of the units that were solved for.

        One solve includes them all, so that there is one checkpoint and each pass over the matrix serves every column.
        Without noise the unit vectors of repeated points have no solution and stall the whole block: the solve is then
        repeated without those that made no progress, and if that fails, without any.
        """
        xp, outputs = namespace(Y), int(Y.shape[1])
        inverse = np.zeros((len(units), len(units)))
        residuals = np.full(len(units), np.inf)
        tried = np.arange(len(units))
        while True:
            columns = xp.zeros((matrix.n, len(tried)))
            columns[xp.asarray(units[tried]), xp.arange(len(tried))] = 1.0
            solution: Any = solve_matrix(matrix, xp.concatenate([Y, columns], axis=1), self.noise, "cg")
            inverse[:, tried] = to_numpy(solution.weights[xp.asarray(units), outputs:])
            residuals[tried] = to_numpy(solution.residuals[outputs:])
            if solution.converged or not len(tried):
                return solution, 0.5 * (inverse + inverse.T), residuals <= _SOLVED
            promising = tried[residuals[tried] < _PROMISING]
            first = len(tried) == len(units)
            tried = promising if first and len(promising) < len(tried) else tried[:0]

    def variance(self, K_test: Array, diagonal: Array) -> Array:
        """Posterior variance by a solve for each block of test points; slow, as each reads the matrix many times."""
        if self.matrix is None:
            raise MatrixError(
                "a loaded model without a factor has no kernel matrix, so it gives means and no variances; fit it again"
            )
        xp, K_test = namespace(self.alpha), self.checked_test(K_test)
        m = int(K_test.shape[0])
        reduction, failed = xp.empty(m), ""
        for rows in blocks(m, _COLUMNS):
            part = K_test[rows].T
            found = solve_matrix(self.matrix, part, self.noise, "cg", _LIMITS, keep_unfinished=False)
            reduction[rows] = (part * found.weights).sum(0)
            failed = failed or ("" if found.converged else found.message)
        if failed:
            told = f"the systems of the variances were not solved, so these are too large as a rule: {failed}"
            warnings.warn(told, ConvergenceWarning, stacklevel=4)
        return self.amplitude * xp.maximum(xp.asarray(diagonal, dtype=xp.float64) - reduction, 0.0)

    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        raise MatrixError(NEEDS_FACTOR.format("a covariance between test points"))

    def solved(self) -> Solved:
        """Accuracy of the solution; λ_min is between the noise and 1/max [K⁻¹]_ii of the sample, or if some of these
        could not be solved for, the larger of the noise and rounding.
        """
        if self.unsolved:
            high = max(self.noise, self.points * float(np.finfo(np.float64).eps) * self.largest_variance)
        else:
            high = 1.0 / float(self.inverse_diagonal.max())
        return Solved(self.residual, (self.noise, high))

    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        """Everything but the matrix."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays |= {"deviations": self.left.deviations, "left_out_variances": self.left.variances}
        arrays |= {"loo_rows": self.loo_rows} | ({} if self.groups is None else {"loo_groups": self.groups})
        return {name: getattr(self, name) for name in _NUMBERS}, arrays

    @classmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> IterativeGP:
        gp = cls.__new__(cls)
        gp.matrix, gp.groups, gp.loo_rows = None, arrays.get("loo_groups"), np.asarray(arrays["loo_rows"])
        gp.__dict__.update({name: numbers[name] for name in _NUMBERS})
        gp.__dict__.update({name: xp.asarray(arrays[name]) for name in _ARRAYS})
        gp.left = LeftOut(xp.asarray(arrays["deviations"]), xp.asarray(arrays["left_out_variances"]), 0.0)
        return gp


def _sample(left_out: Codes | None, n: int, seed: int | None) -> tuple[Codes, list[Sets]]:
    """Draw about `SAMPLE` of n points, sorted, and the sets that are left out, as positions among these points."""
    rng = np.random.default_rng(seed)
    if left_out is None:
        units = np.sort(rng.choice(n, min(n, SAMPLE), replace=False))
        return units, [(np.arange(len(units))[:, None], np.ones((len(units), 1), bool))]
    sets = [one for alike in sets_left_out(left_out) for one in zip(*alike, strict=True)]
    taken = np.zeros(n, bool)
    drawn: list[Sets] = []
    for k in rng.permutation(len(sets)):
        if not drawn or int(taken.sum()) + len(sets[k][0]) <= SAMPLE:
            drawn.append(sets[k])
            taken[sets[k][0]] = True
    units = np.flatnonzero(taken)
    return units, [(np.searchsorted(units, members)[None], chosen[None]) for members, chosen in drawn]
