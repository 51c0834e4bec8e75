"""The posterior without a factor: means by one iterative solve, leave-one-out for a sample, variances by more solves.

What needs all of a factor (the likelihood, covariances, samples, adding points) is not there, and says so.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy

from .checks import MatrixError, check_amplitude, check_targets, check_test
from .exact import Amplitude, Noise, weighted_kernels
from .groups import Sets, as_left_out, sets_left_out
from .leave_one_out import LeftOut, leave_out
from .likelihood import amplitude_of
from .linalg import Array, blocks, namespace
from .records import LeaveOneOut, Record, Solved
from .solving import ConvergenceWarning, solve_matrix
from .solving.matrices import SymmetricMatrix

if TYPE_CHECKING:
    from .posterior import NewPoints

Codes = NDArray[np.intp]
Floats = NDArray[np.float64]

# Training points whose leave-one-out prediction is computed: each is one more right-hand side of the one solve.
SAMPLE = 256
# The relative residual up to which [K⁻¹]_ii of a point is used.
_SOLVED = 1e-6
# That from which a unit vector has no solution: a repeated point's stays at 1/√2 or above.
_PROMISING = 0.5
# Test points whose variances are solved for together.
_COLUMNS = 256


class IterativeGP:
    """`ExactGP` for a matrix that is only multiplied. What leave-one-out of a sample needs of K⁻¹ comes from solves for
    unit vectors, of the sample and of all that is left out with it where there are `groups`.
    """

    kind: ClassVar[str] = "iterative"
    exact = None

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
        groups: Any = None,
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
        units, sets = _sample(None if groups is None else as_left_out(groups, n), n, seed)
        diagonal = matrix.diagonal()
        # [A⁻¹]_ii is at least 1/A_ii where A is positive definite: far below that it is no solution, whatever remains.
        least = 1.0 / np.maximum(diagonal[units] + self.noise, np.finfo(np.float64).tiny)
        solution, blocks_of_inverse, solved = self._solve(matrix, Y, units, xp)
        solved &= blocks_of_inverse.diagonal() >= 0.5 * least
        if not solution.converged:
            warnings.warn(f"the linear system was not solved: {solution.message}", ConvergenceWarning, stacklevel=6)
        self._residual = float(solution.residuals[:outputs].max())
        self.message = solution.message
        self.alpha = solution.weights[:, :outputs].copy()
        self._leave_out(units, sets, blocks_of_inverse, np.maximum(blocks_of_inverse.diagonal(), least), solved)
        if self.unsolved:
            warnings.warn(
                _unsolved(self.unsolved, self.unsolved + len(self.loo_rows)), ConvergenceWarning, stacklevel=6
            )
        self.loo_targets = Y[xp.asarray(self.loo_rows)]
        names = None if groups is None else as_left_out(groups, n).reshape(n, -1)[:, 0]
        self.groups = None if names is None else names[self.loo_rows]
        self.largest_variance = float(diagonal.max())
        fit, of = float((Y * self.alpha).sum()), n * outputs
        if amplitude == "loo" and len(self.loo_rows):
            fit, of = self._left.one_by_one, self.loo_targets.size
        self.amplitude = amplitude_of(fit, of, amplitude)

    def _solve(self, matrix: SymmetricMatrix, Y: Array, units: Codes, xp: Any) -> tuple[Any, Floats, NDArray[np.bool_]]:
        """The solution for the targets, [A⁻¹] among the `units`, and which of these were solved for.

        One solve for all, so that there is one checkpoint and every pass over the matrix serves all of it. The unit
        vectors of repeated points have no solution without noise, and hold up the whole block: then those that came
        nowhere are left out, and should that not do, all of them.
        """
        outputs = int(Y.shape[1])
        inverse = np.zeros((len(units), len(units)))
        residuals = np.full(len(units), np.inf)
        tried = np.arange(len(units))
        while True:
            columns = xp.zeros((matrix.n, len(tried)))
            columns[xp.asarray(units[tried]), xp.arange(len(tried))] = 1.0
            solution: Any = solve_matrix(matrix, xp.concatenate([Y, columns], axis=1), self.noise, self.method)
            inverse[:, tried] = to_numpy(solution.weights[xp.asarray(units), outputs:])
            residuals[tried] = to_numpy(solution.residuals[outputs:])
            if solution.converged or not len(tried):
                return solution, inverse, residuals <= _SOLVED
            promising = tried[residuals[tried] < _PROMISING]
            first = len(tried) == len(units)
            tried = promising if first and len(promising) < len(tried) else tried[:0]

    def _leave_out(
        self, units: Codes, sets: list[Sets], inverse: Floats, diagonal: Floats, solved: NDArray[np.bool_]
    ) -> None:
        """Leave-one-out of the points whose whole set was solved for."""
        xp = namespace(self.alpha)
        inverse, of_units = 0.5 * (inverse + inverse.T), self.alpha[xp.asarray(units)]
        kept, predicted = [], np.zeros(len(units), bool)
        self.unsolved = 0
        for at, chosen in sets:
            whole = solved[at].all(1)
            self.unsolved += int(chosen[~whole].sum())
            predicted[at[whole][chosen[whole]]] = True
            kept.append((at[whole], chosen[whole]))
        left = leave_out(to_numpy(of_units), diagonal, kept, lambda at: inverse[at[:, :, None], at[:, None, :]])
        self.loo_rows = units[predicted]
        self._left = LeftOut(
            xp.asarray(left.deviations[predicted]), xp.asarray(left.variances[predicted]), left.jointly
        )
        self.inverse_diagonal = xp.asarray(diagonal[predicted])

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
        failed: list[str] = []
        for rows in blocks(int(K_test.shape[0]), size):
            part = K_test[rows].T
            solution = solve_matrix(
                self.matrix, part, self.noise, self.method, tolerance=_SOLVED, keep_unfinished=False
            )
            reduction[rows] = (part * solution.weights).sum(0)
            if not solution.converged:
                failed.append(solution.message)
        if failed:
            told = f"the systems of the variances were not solved, so these are too large as a rule: {failed[0]}"
            warnings.warn(told, ConvergenceWarning, stacklevel=4)
        return self.amplitude * xp.maximum(xp.asarray(diagonal, dtype=xp.float64) - reduction, 0.0)

    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        raise MatrixError(_NEEDS_FACTOR.format("a covariance between test points"))

    def votes(self, K_test: Array) -> Array:
        """What each point adds to the mean, (M, N, outputs): k(x, x_i) α_i."""
        return weighted_kernels(check_test(namespace(self.alpha), K_test, self.points), self.alpha)

    def grow(self, new: NewPoints) -> None:
        if len(new.new_outputs):
            raise MatrixError(_NEEDS_FACTOR.format("adding a class"))
        raise MatrixError(_NEEDS_FACTOR.format("adding images"))

    def leave_one_out(self) -> LeaveOneOut:
        """At the points of the sample; exact for each of them."""
        mean, variance = self.loo_targets - self._left.deviations, self.amplitude * self._left.variances
        return LeaveOneOut(mean, variance, self.loo_targets, self.loo_rows, self.groups)

    @property
    def record(self) -> Record:
        return Record(self.points, self.noise, self.amplitude, self.largest_variance, cheap_variances=False)

    def solved(self) -> Solved:
        """The smallest eigenvalue is between the noise and 1/max [K⁻¹]_ii of the sample; where some of these could not
        be solved for, rounding's.
        """
        if self.unsolved:
            high = max(self.noise, self.points * float(np.finfo(np.float64).eps) * self.largest_variance)
        else:
            high = 1.0 / float(self.inverse_diagonal.max())
        return Solved(self._residual, (self.noise, high))

    @property
    def variances(self) -> Array:
        """k(x, x) of each point, from the matrix."""
        if self.matrix is None:
            raise MatrixError(_LOADED)
        return namespace(self.alpha).asarray(self.matrix.diagonal())

    # ---- files ---------------------------------------------------------------------------------------------------

    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays that `restored` makes the same model of, without the matrix."""
        numbers = {
            "method": self.method,
            "noise": self.noise,
            "amplitude": self.amplitude,
            "residual": self._residual,
            "message": self.message,
            "unsolved": self.unsolved,
            "largest_variance": self.largest_variance,
        }
        names = ("alpha", "inverse_diagonal", "loo_rows", "loo_targets")
        arrays = {name: getattr(self, name) for name in names}
        arrays |= {"deviations": self._left.deviations, "left_out_variances": self._left.variances}
        return numbers, arrays | ({} if self.groups is None else {"loo_groups": self.groups})

    @classmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> IterativeGP:
        gp = cls.__new__(cls)
        gp.matrix = None
        gp.method, gp.message = numbers["method"], numbers["message"]
        gp.unsolved = numbers["unsolved"]
        gp.noise, gp.amplitude = numbers["noise"], numbers["amplitude"]
        gp._residual, gp.largest_variance = numbers["residual"], numbers["largest_variance"]
        gp.alpha, gp.loo_targets = xp.asarray(arrays["alpha"]), xp.asarray(arrays["loo_targets"])
        gp.inverse_diagonal, gp.loo_rows = xp.asarray(arrays["inverse_diagonal"]), np.asarray(arrays["loo_rows"])
        gp._left = LeftOut(xp.asarray(arrays["deviations"]), xp.asarray(arrays["left_out_variances"]), 0.0)
        gp.groups = arrays.get("loo_groups")
        return gp


def _sample(groups: Codes | None, n: int, seed: int | None) -> tuple[Codes, list[Sets]]:
    """Sorted points to solve for, about `SAMPLE` of n, and by their places among these the sets that are left out, with
    the points that each set predicts.
    """
    rng = np.random.default_rng(seed)
    if groups is None:
        units = np.sort(rng.choice(n, min(n, SAMPLE), replace=False))
        return units, [(np.arange(len(units))[:, None], np.ones((len(units), 1), bool))]
    sets = [(one, chosen) for at, of in sets_left_out(groups) for one, chosen in zip(at, of, strict=True)]
    taken = np.zeros(n, bool)
    drawn: list[Sets] = []
    for k in rng.permutation(len(sets)):
        if not drawn or int(taken.sum()) + len(sets[k][0]) <= SAMPLE:
            drawn.append(sets[k])
            taken[sets[k][0]] = True
    units = np.flatnonzero(taken)
    return units, [(np.searchsorted(units, at)[None], chosen[None]) for at, chosen in drawn]


def _unsolved(count: int, of: int) -> str:
    told = f"the system was not solved for the unit vectors of {count} of {of} images, so leave-one-out "
    told += "leaves them out of loo_rows_" if count < of else "has none: loo_error_ is NaN and the temperature 1"
    return told + "; add noise, or remove repeated images"


_NEEDS_FACTOR = "{} needs a Cholesky factor, which solver='cg' and 'mixed' do not make; use solver='cholesky'"
_LOADED = "a loaded model without a factor has no kernel matrix, so it gives means and no variances; fit it again"
