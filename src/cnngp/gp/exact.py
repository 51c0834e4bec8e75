"""Exact Gaussian processes from matrices alone: kernel matrices and targets in, moments out.

    f ~ GP(0, a·k),   y = f + ε,   ε ~ N(0, a·noise)

with one kernel shared by all outputs. The amplitude a multiplies the kernel and the noise alike, so means do not depend
on it; variances and likelihood do. Everything is float64, on NumPy or CuPy arrays, in one N×N buffer (`linalg.py`).
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from cnngp.common import files
from cnngp.common.arrays import to_numpy

from .checks import (
    MatrixError,
    as_float64,
    check_amplitude,
    check_noise,
    check_point_noise,
    check_targets,
    check_test,
    float64_buffer,
)
from .groups import as_left_out, sets_left_out
from .jitter import JitterWarning, factorised, warn_of_jitter
from .leave_one_out import LeftOut, blocks_of_factor, leave_out
from .likelihood import LOG_2PI, amplitude_of, twice_negative_log
from .linalg import Array, Factor, NotPositiveDefinite, namespace
from .noise import Loss, chosen_noise
from .novelty import novelty_of_points
from .records import LeaveOneOut, Record, Solved

if TYPE_CHECKING:
    from .posterior import NewPoints

__all__ = ["Amplitude", "ExactGP", "JitterWarning", "MatrixError", "Noise", "posterior_samples", "weighted_kernels"]

Amplitude = Literal["ml", "loo"] | float
Noise = Literal["ml", "loo"] | float

# Times the amplitude by leave-one-out, where that of the likelihood is made of contradictions inside of groups.
_CONTRADICTORY = 25.0


class ExactGP:
    """The posterior given targets `Y` (N, outputs) at N points with kernel matrix `K` (N, N).

    `noise` is the variance of the noise in the kernel's units, "ml" or "loo"; `point_noise` (N,) has more of it for
    some points than for others. `amplitude` is "ml", "loo" or a number.
    Noise by leave-one-out has the least `loss` of means and targets, or the highest density of the targets where None;
    `rounding` is the relative error of the entries of K, below which it does not go. Points of one of the `groups`
    (N,) are left out together; of (N, 2), groups and images, also those of the same image in other groups. Noise by
    leave-one-out then sees how far they contradict each other, and the amplitude "ml" beside it is that of the same
    predictions.
    `jitter` is one known to be needed, from an earlier fit. With `overwrite=True` a float64 `K` is used as the buffer
    and its content is lost.

    >>> import numpy as np
    >>> gp = ExactGP(np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[1.0], [-1.0]]), amplitude=1.0)
    >>> gp.mean(np.array([[1.0, 0.5]]))
    array([[1.]])
    """

    kind: ClassVar[str] = "exact"

    def __init__(
        self,
        K: Array,
        Y: Array,
        *,
        noise: Noise = 0.0,
        amplitude: Amplitude = "ml",
        jitter: float = 0.0,
        point_noise: Array | None = None,
        overwrite: bool = False,
        rounding: float = 0.0,
        groups: Any = None,
        loss: Loss | None = None,
    ) -> None:
        check_noise(noise)
        check_amplitude(amplitude)
        A = float64_buffer(K, overwrite)
        xp = namespace(A)
        self.Y = check_targets(xp, Y, A.shape[0])
        self.point_noise = check_point_noise(xp, point_noise, A.shape[0])
        self.variances = A.diagonal().copy()
        """k(x, x) of each point: the diagonal of K before the noise of single points is added to it."""
        _add_to_diagonal(A, self.point_noise)
        self.left_out = None if groups is None else as_left_out(groups, A.shape[0])
        self.noise = chosen_noise(A, self.Y, noise, amplitude, rounding, self.left_out, loss)
        self.jitter = jitter
        """What was added to the diagonal beside the noise, relative to the diagonal's mean."""
        # Where groups are left out to choose the noise, the likelihood would take copies that agree for evidence of a
        # small amplitude, and those that contradict each other for evidence of a large one.
        grouped = self.left_out is not None and noise == "loo"
        self._amplitude_rule: Amplitude = "loo" if grouped and amplitude == "ml" else amplitude
        self.factor = self._factorise(A)
        self._condition()
        if self._amplitude_rule == "ml" and self.left_out is not None:
            self._warn_of_contradictions()

    def _factorise(self, A: Array) -> Factor:
        factor, jitter = factorised(A, self.noise, self.jitter)
        if jitter != self.jitter:
            warn_of_jitter(factor, jitter, stacklevel=8)  # whoever called an estimator's fit
        self.jitter = jitter
        return factor

    def _condition(self) -> None:
        """All that depends on the targets: α = (K + noise·I)⁻¹Y, leave-one-out, amplitude, likelihood."""
        n, outputs = self.Y.shape
        self.alpha = self.factor.solve(self.Y)
        self.inverse_diagonal = self.factor.inverse_diagonal()
        self._left = self._leave_out(self.left_out)
        match self._amplitude_rule:
            case "ml":  # Σ_c y_cᵀK⁻¹y_c/(N·C)
                fit = float((self.Y * self.alpha).sum())
            case _:  # the maximum of Σ log N(y_i; leave-one-out mean, a/[K⁻¹]_ii)
                fit = self._left.one_by_one
        self.amplitude = amplitude_of(fit, n * outputs, self._amplitude_rule)

    def _leave_out(self, groups: NDArray[np.intp] | None) -> LeftOut:
        sets = () if groups is None else sets_left_out(groups)
        return leave_out(self.alpha, self.inverse_diagonal, sets, blocks_of_factor(self.factor))

    def _warn_of_contradictions(self) -> None:
        """Targets that contradict each other inside of groups, of which too little noise makes a huge amplitude."""
        usual = self._left.one_by_one / self.Y.size
        if self.amplitude > _CONTRADICTORY * usual > 0.0:
            warnings.warn(
                "targets of images that are alike contradict each other by more than the noise explains, so predicted "
                f"standard deviations are {math.sqrt(self.amplitude / usual):.3g} times what leaving these images out "
                "together finds; choose the noise by noise='loo', or take amplitude='loo'",
                UserWarning,
                stacklevel=7,
            )

    @property
    def log_marginal_likelihood(self) -> float:
        """Σ_c log N(y_c; 0, a(K + noise·I))."""
        n, outputs = self.Y.shape
        fit, log_determinant = float((self.Y * self.alpha).sum()), self.factor.log_determinant()
        loss = twice_negative_log(fit, log_determinant, n, outputs, self.amplitude)
        return -0.5 * (loss + float(n * outputs) * LOG_2PI)

    def mean(self, K_test: Array) -> Array:
        """E[f] at M test points from their kernel with the training points, (M, N) → (M, outputs)."""
        return self.checked_test(K_test) @ self.alpha

    def variance(self, K_test: Array, diagonal: Array) -> Array:
        """Var[f], shared by the outputs, from K(test, training) (M, N) and k(test, test) (M,) → (M,)."""
        V = self.factor.solve_lower(self.checked_test(K_test).T)
        xp = namespace(V)
        return self.amplitude * xp.maximum(as_float64(xp, diagonal, "the diagonal") - (V * V).sum(0), 0.0)

    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        """Cov[f] between M test points, shared by the outputs, (M, N) and (M, M) → (M, M)."""
        V = self.factor.solve_lower(self.checked_test(K_test).T)
        xp = namespace(V)
        return self.amplitude * (as_float64(xp, K_test_test, "K(test, test)") - V.T @ V)

    def leave_one_out(self) -> LeaveOneOut:
        """What the other N − 1 points predict for each y_i: mean y_i − α_i/[K⁻¹]_ii (N, outputs), variance (N,).

        Where there are groups, what the points of all other groups predict.
        """
        return self._predictions(self._left, self.groups)

    def leave_out(self, groups: NDArray[np.intp]) -> LeaveOneOut:
        """`leave_one_out` with the points of other groups left out together than those of the fit."""
        return self._predictions(self._leave_out(groups), groups)

    def _predictions(self, left: LeftOut, groups: Any) -> LeaveOneOut:
        mean, variance = self.Y - left.deviations, self.amplitude * left.variances
        return LeaveOneOut(mean, variance, self.Y, np.arange(self.points), groups)

    def deviations_of(self, Y: Array) -> Array:
        """y − leave-one-out mean for other targets at the same points, (N, outputs), each point left out by itself."""
        return self.factor.solve(Y) / self.inverse_diagonal[:, None]

    @property
    def groups(self) -> Any:
        """The number of each point's group, (N,); None without groups."""
        return self.left_out if self.left_out is None or self.left_out.ndim == 1 else self.left_out[:, 0]

    @property
    def points(self) -> int:
        """How many points K(test, training) has columns for."""
        return int(self.Y.shape[0])

    @property
    def record(self) -> Record:
        return Record(
            points=self.points,
            noise=self.noise,
            amplitude=self.amplitude,
            largest_variance=float(self.variances.max()),
            jitter=self.jitter,
            log_marginal_likelihood=self.log_marginal_likelihood,
        )

    @property
    def exact(self) -> ExactGP:
        return self

    def solved(self) -> Solved:
        return Solved(self.residual(), self.smallest_eigenvalue_bounds(), self.spread())

    def novelty(self) -> Array:
        """How unlike all others each point is; see `novelty.py`."""
        return novelty_of_points(self.factor.A, self.variances)

    def residual(self) -> float:
        """‖(K + noise·I)α − Y‖/‖Y‖: how well the linear system was solved."""
        xp = namespace(self.Y)
        scale = float(xp.linalg.norm(self.Y))
        return float(xp.linalg.norm(self.factor.multiply(self.alpha) - self.Y)) / scale if scale > 0 else 0.0

    def smallest_eigenvalue_bounds(self, iterations: int = 12) -> tuple[float, float]:
        """1/tr K⁻¹ ≤ λ_min ≤ min(1/max [K⁻¹]_ii, vᵀKv), of the matrix that was factorised.

        v is the unit vector of an inverse iteration, whose Rayleigh quotient comes close to λ_min.
        """
        xp = namespace(self.Y)
        v = xp.asarray(np.random.default_rng(0).standard_normal((self.points, 1)))
        for _ in range(iterations):
            v = self.factor.solve(v / xp.linalg.norm(v))
        v = v / xp.linalg.norm(v)
        high = min(1.0 / float(self.inverse_diagonal.max()), float((v * self.factor.multiply(v)).sum()))
        return 1.0 / float(self.inverse_diagonal.sum()), high

    def spread(self) -> float:
        """Mean k(x, x) − mean k(x, z): the mean squared distance of the functions' values from their mean."""
        n = self.points
        ones = namespace(self.Y).ones((n, 1))
        entries = float((ones * self.factor.multiply(ones)).sum()) - n * self.factor.shift
        return max(float(self.variances.mean()) - (entries - float(self.point_noise.sum())) / n**2, 0.0)

    def kernel_between(self, rows: Any) -> Array:
        """K between the points `rows`, from the triangle that survives above the factor's diagonal."""
        xp, A = namespace(self.Y), self.factor.A
        at = xp.asarray(rows)
        # Of a pair, the entry above the diagonal is the one whose row comes first.
        K = A[xp.minimum(at[:, None], at[None, :]), xp.maximum(at[:, None], at[None, :])]
        K[xp.arange(len(at)), xp.arange(len(at))] = self.variances[at]
        return K

    def votes(self, K_test: Array) -> Array:
        """What each point's targets add to the mean at M test points, (M, N, outputs): h_i y_ic, h = (K + noise·I)⁻¹k.

        Their sum over the points is the mean.
        """
        h = self.factor.solve(self.checked_test(K_test).T).T
        return h[:, :, None] * self.Y[None]

    def grow(self, new: NewPoints) -> None:
        """Condition on more points by a block update of the factor."""
        K_new_old, K_new = new.with_points(), new.among_themselves()
        if len(new.new_outputs):
            columns = list(self.Y.T)
            for position in sorted(new.new_outputs, reverse=True):
                columns.insert(int(position), -namespace(self.Y).ones(self.points))
            self.Y = namespace(self.Y).stack(columns, axis=1)
        self.add(K_new_old, K_new, new.Y, new.point_noise)

    def add(self, K_new_old: Array, K_new: Array, Y_new: Array, point_noise: Array | None = None) -> None:
        """Condition on M more points by a block update of the factor, from K(new, old) (M, N) and K(new, new)."""
        xp = namespace(self.Y)
        K_new_old, K_new = self.checked_test(K_new_old), float64_buffer(K_new)
        point_noise = check_point_noise(xp, point_noise, K_new.shape[0])
        variances = K_new.diagonal().copy()
        if K_new_old.shape[0] != K_new.shape[0]:
            raise MatrixError(f"K(new, old) has {K_new_old.shape[0]} rows, K(new, new) {K_new.shape[0]}")
        Y_new = check_targets(xp, Y_new, K_new.shape[0])
        if Y_new.shape[1] != self.Y.shape[1]:
            raise MatrixError(f"the new targets have {Y_new.shape[1]} outputs, the old ones {self.Y.shape[1]}")
        _add_to_diagonal(K_new, point_noise)
        try:
            self.factor = self.factor.extended(K_new_old, K_new)
            # The same amount is on the diagonal, whose mean the new points have changed.
            self.jitter = (self.factor.shift - self.noise) / float(self.factor.diagonal.mean()) if self.jitter else 0.0
        except NotPositiveDefinite:  # more jitter is needed everywhere, so everything is factorised again
            self.factor = self._factorise_with(K_new_old, K_new)
        self.Y = xp.concatenate([self.Y, Y_new])
        self.variances = xp.concatenate([self.variances, variances])
        self.point_noise = xp.concatenate([self.point_noise, point_noise])
        if self.left_out is not None:  # each new point is a group of its own
            new = np.arange(len(Y_new)).reshape(-1, *[1] * (self.left_out.ndim - 1))
            self.left_out = np.concatenate([self.left_out, self.left_out.max(0) + 1 + new])
        self._condition()

    # ---- files ---------------------------------------------------------------------------------------------------

    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays that `restored` makes the same model of; `K` in `dtype` where that loses nothing."""
        K = files.packed(to_numpy(self.factor.A), to_numpy(self.variances), dtype)
        numbers = {"noise": self.noise, "jitter": self.jitter, "amplitude_rule": self._amplitude_rule}
        groups = {} if self.left_out is None else {"groups": self.left_out}
        return numbers, {"Y": self.Y, "K": K, "point_noise": self.point_noise} | groups

    @classmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> ExactGP:
        Y, K = arrays["Y"], xp.asarray(files.unpacked(arrays["K"], len(arrays["Y"])))
        return cls(
            K,
            Y,
            noise=numbers["noise"],
            amplitude=numbers["amplitude_rule"],
            jitter=numbers["jitter"],
            point_noise=arrays["point_noise"],
            overwrite=True,
            groups=arrays.get("groups"),
        )

    def _factorise_with(self, K_new_old: Array, K_new: Array) -> Factor:
        old, n, m = self.factor, len(self.factor), K_new.shape[0]
        A = namespace(K_new).empty((n + m, n + m))
        A[:n, :n], A[n:, :n], A[:n, n:], A[n:, n:] = old.A, K_new_old, K_new_old.T, K_new
        Factor(A[:n, :n], old.diagonal, old.shift).restore()  # in the copy: what fails leaves the model as it was
        return self._factorise(A)

    def checked_test(self, K_test: Array) -> Array:
        """K(test, training) in float64, checked."""
        return check_test(namespace(self.Y), K_test, self.points)


def posterior_samples(mean: Array, cov: Array, n: int, seed: int | None) -> Array:
    """`n` functions with these moments at M points: (n, M, outputs).

    The square root of the covariance is taken by eigenvalues: near the training points it is singular.
    """
    xp = namespace(cov)
    values, Q = xp.linalg.eigh(cov)
    z = np.random.default_rng(seed).standard_normal((n, *mean.shape))
    return mean + (Q * xp.sqrt(xp.maximum(values, 0.0))) @ xp.asarray(z)


def weighted_kernels(K_test: Array, weights: Array) -> Array:
    """k(x, x_i) w_ic, (M, points, outputs): the terms whose sum over the points is the mean."""
    return K_test[:, :, None] * weights[None]


def _add_to_diagonal(A: Array, values: Array) -> None:
    i = namespace(A).arange(len(A))
    A[i, i] += values
