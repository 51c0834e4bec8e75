"""Exact Gaussian process regression from kernel matrices and targets.

    f ~ GP(0, a·k),   y = f + ε,   ε ~ N(0, a·noise)

with one kernel for all outputs. The amplitude a multiplies both the kernel and the noise, so the mean does not depend
on it; variances and likelihood do. Everything is float64, on NumPy or CuPy arrays, in one N×N buffer (`linalg.py`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from cnngp.common import files
from cnngp.common.arrays import to_numpy

from .checks import (
    MatrixError,
    as_float64,
    check_amplitude,
    check_noise,
    check_targets,
    checked_numbers,
    float64_buffer,
)
from .leave_one_out import (
    Codes,
    LeftOut,
    as_left_out,
    covariance_by_factor,
    leave_out,
    names_of,
    sets_left_out,
    with_new,
)
from .linalg import Array, Factor, NotPositiveDefinite, factorised, namespace, set_diagonal, warn_of_jitter
from .near_copies import novelty_of_points
from .objectives import LOG_2PI, Loss, amplitude_beside, amplitude_of, chosen_noise, twice_negative_log
from .posterior import Posterior, Solved, relative_residual

Amplitude = Literal["ml", "loo"] | float
Noise = Literal["ml", "loo"] | float

# A likelihood amplitude of this many times the leave-one-out amplitude comes from contradictory targets inside groups.
_CONTRADICTORY = 25.0
# Steps of the inverse iteration for the smallest eigenvalue.
_ITERATIONS = 12
_TINY = float(np.finfo(np.float64).tiny)


class ExactGP(Posterior):
    """Exact posterior given targets `Y` (N, outputs) at N points with kernel matrix `K` (N, N).

    `noise` is the noise variance in the kernel's units, "ml" or "loo"; for each point it is divided by its `weights`
    (N,), and `point_noise` (N,) is added to it. `amplitude` is "ml", "loo" or a number.
    The noise "loo" minimises the `loss` of leave-one-out means and targets, or by default maximises the leave-one-out
    density of the targets; `rounding`, the relative error of K's entries, sets its lower limit. Points of one of the
    `groups` (N,) are left out together; with groups and images (N, 2), so are points of the same image in other groups.
    The noise "loo" then accounts for contradictory targets inside groups, and the amplitude "ml" is taken from the same
    leave-one-out predictions.
    `errors` (N,) are variances of measurement errors in the units of the targets: y = f + ε + δ, δ_i ~ N(0, errors_i).
    The amplitude "ml" then maximises the likelihood with these errors.
    `jitter` is the jitter that an earlier fit needed. With `overwrite=True` a float64 `K` is used as the buffer and its
    content is lost.

    >>> import numpy as np
    >>> gp = ExactGP(np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[1.0], [-1.0]]), amplitude=1.0)
    >>> gp.mean(np.array([[1.0, 0.5]]))
    array([[1.]])
    """

    kind = "exact"

    def __init__(
        self,
        K: Array,
        Y: Array,
        *,
        noise: Noise = 0.0,
        amplitude: Amplitude = "ml",
        jitter: float = 0.0,
        point_noise: Array | None = None,
        errors: Array | None = None,
        weights: Array | None = None,
        overwrite: bool = False,
        rounding: float = 0.0,
        groups: Any = None,
        loss: Loss | None = None,
    ) -> None:
        check_noise(noise)
        check_amplitude(amplitude)
        A = float64_buffer(K, overwrite)
        xp, n = namespace(A), len(A)
        self.Y = check_targets(xp, Y, n)
        if weights is not None:
            weights = checked_numbers(xp, weights, "the weights of single points", (n,), f"({n},)", _TINY)
        self.variances = A.diagonal().copy()  # without the noise of single points
        self.point_noise = _checked_noise(xp, point_noise, n, noise)
        set_diagonal(A, self.variances + self.point_noise)
        self.left_out = None if groups is None else as_left_out(groups, n)

        def choose(amplitude: Amplitude) -> float:
            return chosen_noise(A, self.Y, noise, amplitude, rounding, self.left_out, loss, weights)

        if errors is not None:
            errors = checked_numbers(xp, errors, "the errors of single targets", (n,), f"({n},)", 0.0)
            if amplitude == "loo":
                raise MatrixError("the amplitude beside known errors is 'ml' or a number, not 'loo'")
            if amplitude == "ml":
                if isinstance(noise, str):  # choose the noise given the errors, then the amplitude given both
                    first = amplitude_beside(A, self.Y, 0.0, errors)
                    set_diagonal(A, self.variances + self.point_noise + errors / first)
                    noise = choose(first)
                by_weight = 0.0 if weights is None else noise / weights - noise
                set_diagonal(A, self.variances + self.point_noise + by_weight)
                amplitude = amplitude_beside(A, self.Y, noise, errors)
            self.point_noise = self.point_noise + errors / amplitude
            set_diagonal(A, self.variances + self.point_noise)
        self.noise = choose(amplitude)
        if weights is not None:
            self.point_noise = self.point_noise + (self.noise / weights - self.noise)
            set_diagonal(A, self.variances + self.point_noise)
        self.jitter = jitter
        # With groups and noise "loo", the likelihood would be misleading: copies that agree would suggest a small
        # amplitude, and copies that contradict each other a large one.
        grouped = self.left_out is not None and noise == "loo"
        self._amplitude_rule: Amplitude = "loo" if grouped and amplitude == "ml" else amplitude
        self.factor = self._factorise(A)
        self._condition()
        usual = self.left.one_by_one / self.Y.size
        if self._amplitude_rule == "ml" and groups is not None and self.amplitude > _CONTRADICTORY * usual > 0.0:
            # If targets inside groups contradict each other, too little noise gives a huge amplitude.
            warnings.warn(
                "targets of images that are alike contradict each other by more than the noise explains, so predicted "
                f"standard deviations are {math.sqrt(self.amplitude / usual):.3g} times what leaving these images out "
                "together finds; choose the noise by noise='loo', or take amplitude='loo'",
                UserWarning,
                stacklevel=6,
            )

    def _factorise(self, A: Array) -> Factor:
        factor, jitter = factorised(A, self.noise, self.jitter)
        if jitter != self.jitter:
            warn_of_jitter(len(factor), jitter, factor.diagonal, stacklevel=8)  # the caller of an estimator's fit
        self.jitter = jitter
        return factor

    def _condition(self) -> None:
        """Compute everything that depends on the targets: α = (K + noise·I)⁻¹Y, leave-one-out, amplitude."""
        self.largest_variance = float(self.variances.max())
        self.alpha = self.factor.solve(self.Y)
        self.inverse_diagonal = self.factor.inverse_diagonal()
        self.left, self.groups = self._without(self.left_out), names_of(self.left_out)
        self.loo_targets, self.loo_rows = self.Y, np.arange(self.points)
        self._fit = float((self.Y * self.alpha).sum())  # Σ_c y_cᵀK⁻¹y_c
        # "ml": this over N·C; "loo": the a that maximises Σ log N(y_i; leave-one-out mean, a/[K⁻¹]_ii)
        fit = self._fit if self._amplitude_rule == "ml" else self.left.one_by_one
        self.amplitude = amplitude_of(fit, self.Y.size, self._amplitude_rule)

    def _without(self, groups: Codes | None) -> LeftOut:
        sets = () if groups is None else sets_left_out(groups)
        return leave_out(self.alpha, self.inverse_diagonal, sets, covariance_by_factor(self.factor))

    # ---- answers -------------------------------------------------------------------------------------------------

    def variance(self, K_test: Array, diagonal: Array) -> Array:
        V = self.factor.solve_lower(self.checked_test(K_test).T)
        xp = namespace(V)
        return self.amplitude * xp.maximum(as_float64(xp, diagonal, "the diagonal") - (V * V).sum(0), 0.0)

    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        V = self.factor.solve_lower(self.checked_test(K_test).T)
        return self.amplitude * (as_float64(namespace(V), K_test_test, "K(test, test)") - V.T @ V)

    def means_without(self, groups: Codes) -> Array:
        """Leave-one-out means with groups other than those of the fit."""
        return self.Y - self._without(groups).deviations

    def deviations_of(self, Y: Array) -> Array:
        """Leave-one-out residuals of other targets at the same points, (N, outputs), each point left out alone."""
        return self.factor.solve(Y) / self.inverse_diagonal[:, None]

    def votes(self, K_test: Array) -> Array:
        """Contribution of each point's targets to the mean, (M, N, outputs): h_i y_ic with h = (K + noise·I)⁻¹k."""
        h = self.factor.solve(self.checked_test(K_test).T).T
        return h[:, :, None] * self.Y[None]

    def novelty(self) -> Array:
        """Novelty of each point relative to all others; see `near_copies.py`."""
        return novelty_of_points(self.factor.A, self.variances)

    def kernel_between(self, rows: Any) -> Array:
        """Kernel matrix of the points `rows`, read from the triangle above the factor's diagonal."""
        xp, A = namespace(self.Y), self.factor.A
        at = xp.asarray(rows)
        # An entry above the diagonal has the smaller number as its row.
        K = A[xp.minimum(at[:, None], at[None, :]), xp.maximum(at[:, None], at[None, :])]
        K[xp.arange(len(at)), xp.arange(len(at))] = self.variances[at]
        return K

    # ---- numbers -------------------------------------------------------------------------------------------------

    @property
    def exact(self) -> ExactGP:
        return self

    @property
    def log_marginal_likelihood(self) -> float:
        """Log marginal likelihood Σ_c log N(y_c; 0, a(K + noise·I))."""
        n, outputs = self.Y.shape
        loss = twice_negative_log(self._fit, self.factor.log_determinant(), n, outputs, self.amplitude)
        return -0.5 * (loss + float(n * outputs) * LOG_2PI)

    def solved(self) -> Solved:
        """Accuracy of the solution, with 1/tr K⁻¹ ≤ λ_min ≤ min(1/max [K⁻¹]_ii, vᵀKv) of the factorised matrix: v is
        the unit vector of an inverse iteration, whose Rayleigh quotient approaches λ_min.
        """
        xp, n = namespace(self.Y), self.points
        v = xp.asarray(np.random.default_rng(0).standard_normal((n, 1)))
        for _ in range(_ITERATIONS):
            v = self.factor.solve(v / xp.linalg.norm(v))
        v = v / xp.linalg.norm(v)
        high = min(1.0 / float(self.inverse_diagonal.max()), float((v * self.factor.multiply(v)).sum()))
        ones = xp.ones((n, 1))
        entries = float((ones * self.factor.multiply(ones)).sum()) - n * self.factor.shift
        spread = float(self.variances.mean()) - (entries - float(self.point_noise.sum())) / n**2
        bounds = 1.0 / float(self.inverse_diagonal.sum()), high
        return Solved(relative_residual(self.factor.multiply(self.alpha), self.Y), bounds, max(spread, 0.0))

    # ---- more points ---------------------------------------------------------------------------------------------

    def add(
        self,
        K_new_old: Array,
        K_new: Array,
        Y_new: Array,
        point_noise: Array | None = None,
        groups: Codes | None = None,
        new_outputs: Sequence[int] = (),
        errors: Array | None = None,
    ) -> None:
        """Condition on M more points by a block update of the factor, from K(new, old) (M, N) and K(new, new).

        `groups` are those of all N + M points; without them each new point is a group of its own. A new output is
        inserted before each of the old outputs `new_outputs`; for it the old points have the target −1.
        """
        xp, n = namespace(self.Y), self.points
        Y_old = xp.asarray(np.insert(to_numpy(self.Y), list(new_outputs), -1.0, axis=1)) if new_outputs else self.Y
        K_new_old, K_new = self.checked_test(K_new_old), float64_buffer(K_new)
        if K_new_old.shape[0] != K_new.shape[0]:
            raise MatrixError(f"K(new, old) has {K_new_old.shape[0]} rows, K(new, new) {K_new.shape[0]}")
        point_noise = _checked_noise(xp, point_noise, K_new.shape[0], self.noise)
        if errors is not None:
            if isinstance(self._amplitude_rule, str):
                raise MatrixError(
                    "errors of new targets need a model whose amplitude is a number: fit with y_std, or amplitude="
                )
            point_noise = point_noise + xp.asarray(errors) / self.amplitude
        variances = K_new.diagonal().copy()
        Y_new = check_targets(xp, Y_new, K_new.shape[0])
        if Y_new.shape[1] != Y_old.shape[1]:
            raise MatrixError(f"the new targets have {Y_new.shape[1]} outputs, the old ones {Y_old.shape[1]}")
        set_diagonal(K_new, variances + point_noise)
        try:
            self.factor = self.factor.extended(K_new_old, K_new)
            # The absolute amount stays the same, but the new points have changed the mean of the diagonal.
            self.jitter = (self.factor.shift - self.noise) / float(self.factor.diagonal.mean()) if self.jitter else 0.0
        except NotPositiveDefinite:  # more jitter is needed on the whole diagonal, so all is factorised again
            A = self.factor.joined(K_new_old, K_new)  # a copy, so that a failure leaves the model as it was
            Factor(A[:n, :n], self.factor.diagonal, self.factor.shift).restore()
            self.factor = self._factorise(A)
        self.Y = xp.concatenate([Y_old, Y_new])
        self.variances = xp.concatenate([self.variances, variances])
        self.point_noise = xp.concatenate([self.point_noise, point_noise])
        self.left_out = with_new(self.left_out, len(Y_new)) if groups is None else groups
        self._condition()

    # ---- files ---------------------------------------------------------------------------------------------------

    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        K = files.packed(to_numpy(self.factor.A), to_numpy(self.variances), dtype)
        numbers = {"noise": self.noise, "jitter": self.jitter, "amplitude": self._amplitude_rule}
        groups = {} if self.left_out is None else {"groups": self.left_out}
        return numbers, {"Y": self.Y, "K": K, "point_noise": self.point_noise} | groups

    @classmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> ExactGP:
        K = xp.asarray(files.unpacked(arrays["K"], len(arrays["Y"])))
        own = {name: arrays.get(name) for name in ("point_noise", "groups")}
        return cls(K, arrays["Y"], overwrite=True, **numbers | own)


def posterior_samples(mean: Array, cov: Array, n: int, seed: int | None) -> Array:
    """Draw `n` functions with these moments at M points: (n, M, outputs).

    The square root of the covariance is computed from its eigenvalues, because it is singular near the training points.
    """
    xp = namespace(cov)
    values, Q = xp.linalg.eigh(cov)
    z = np.random.default_rng(seed).standard_normal((n, *mean.shape))
    return mean + (Q * xp.sqrt(xp.maximum(values, 0.0))) @ xp.asarray(z)


def _checked_noise(xp: Any, noise: Array | None, n: int, common: Noise) -> Array:
    """Check the extra noise of single points; it may be negative as long as its sum with `common` is not."""
    if noise is None:
        return xp.zeros(n)
    least = 0.0 if isinstance(common, str) else -float(common) * (1.0 + 1e-12)
    return checked_numbers(xp, noise, "the noise of single points", (n,), f"({n},)", least)
