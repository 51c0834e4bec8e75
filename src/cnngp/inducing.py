"""Regression through m inducing points, over any number of training points that are seen once, a block at a time.

The functions are those that m points span (subset of regressors), f(x) = φ(x)ᵀw with φ(x) = L⁻¹k(x), K_mm = LLᵀ,
w ~ N(0, a·I), y = f + ε, ε ~ N(0, a·noise):

    B = ΦᵀΦ,   w = (B + noise·I)⁻¹ΦᵀY,   mean φᵀw,   variance a(k(x, x) − φᵀφ + noise·φᵀ(B + noise·I)⁻¹φ)

The variance is that of the deterministic training conditional (DTC): k(x, x) − φᵀφ is what the m points cannot say
about x, without which the model would be most certain where it knows least. Means are the same in both. The sums are
formed of L⁻¹K_mn and not of K_mn: K_mn K_nm has the square of the condition number, and dividing by L afterwards would
leave nothing of its small eigenvalues. Nothing here is larger than m × m; N × m is never held.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .arrays import to_numpy
from .gp import (
    Amplitude,
    MatrixError,
    Noise,
    check_amplitude,
    check_noise,
    check_targets,
    check_test,
    factorised,
    float64_buffer,
    posterior_samples,
)
from .linalg import Array, Factor, blocks, namespace

# Training points whose features are kept for leave-one-out, which chooses noise and temperature.
SAMPLE = 2048
_PANEL = 2048
# The powers of ten, times the mean diagonal, between which noise is sought. Below 10⁻⁴ predictions no longer change,
# and leave-one-out cannot tell one noise from another.
_LIKELY_NOISE = (-8.0, 1.0)
_LOO_NOISE = (-4.0, 1.0)


class InducingGP:
    """The posterior through m inducing points with kernel matrix `K_mm` (m, m), given blocks of training points.

    `parts` gives (rows, K(rows, inducing), Y(rows)) for all N points, in order. `sample` are the points, sorted, that
    `leave_one_out` speaks of, and `diagonal` their k(x, x); `own` says which of them are inducing points (their number,
    else −1), whose own function is left out with them, as an image that was never seen has none. `noise` is a variance,
    "ml", or 0 for the one with the least leave-one-out `loss`, by default the squared error: m points do not
    interpolate N, so without noise there is no model. The `amplitude` "ml" is that of the leave-one-out predictions
    unless the noise is "ml" too.

    >>> import numpy as np
    >>> K = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> gp = InducingGP(K, [(slice(0, 2), K, np.array([[1.0], [-1.0]]))], np.arange(2), np.ones(2), noise=1.0)
    >>> gp.mean(np.array([[1.0, 0.5]])).round(6)
    array([[0.333333]])
    """

    def __init__(
        self,
        K_mm: Array,
        parts: Iterable[tuple[slice, Array, Array]],
        sample: Any,
        diagonal: Array,
        *,
        noise: Noise = 0.0,
        amplitude: Amplitude = "ml",
        own: Any = None,
        loss: Callable[[Any, Any], float] | None = None,
        overwrite: bool = False,
    ) -> None:
        check_noise(noise)
        check_amplitude(amplitude)
        A = float64_buffer(K_mm, overwrite)
        xp = namespace(A)
        self.basis, self.jitter = factorised(A, 0.0)
        m = len(self.basis)
        self.loo_rows = np.asarray(sample)
        self._diagonal = xp.asarray(diagonal, dtype=xp.float64)
        self._set_own(np.full(len(self.loo_rows), -1) if own is None else np.asarray(own))
        self._B = xp.zeros((m, m))
        self._rhs: Array = None  # ΦᵀY, (m, outputs)
        self._squares = 0.0  # ‖Y‖²
        self.n = 0
        self._accumulate(parts, first=True)
        self._mirror()
        # The likelihood takes what the inducing points miss for noise, so with a noise that it did not choose its
        # amplitude says nothing of the variances; leave-one-out predictions do.
        self._amplitude_rule = "loo" if amplitude == "ml" and noise != "ml" else amplitude
        if noise == "ml":
            self.noise = self._best_noise(self._likelihood_loss, _LIKELY_NOISE)
        else:
            chosen = loss or (lambda mean, targets: float(((mean - targets) ** 2).mean()))
            self.noise = float(noise) or self._best_noise(lambda factor: self._loo_loss(factor, chosen), _LOO_NOISE)
        self._condition()

    # ---- sums ----------------------------------------------------------------------------------------------------

    def _accumulate(self, parts: Iterable[tuple[slice, Array, Array]], first: bool = False) -> None:
        """Add φφᵀ and φyᵀ of every point; in the first pass the features of the sample are kept."""
        xp = namespace(self.basis.A)
        kept, targets = [], []
        for rows, K_bm, Y in parts:
            Phi = self.features(K_bm)
            Y = check_targets(xp, Y, int(Phi.shape[1]))
            if self._rhs is None:
                self._rhs = xp.zeros((len(self.basis), Y.shape[1]))
            if Y.shape[1] != self._rhs.shape[1]:
                raise MatrixError(f"the targets have {Y.shape[1]} outputs; the model has {self._rhs.shape[1]}")
            for k in blocks(len(self.basis), _PANEL):  # only what is on or above the diagonal
                self._B[k, k.start :] += Phi[k] @ Phi[k.start :].T
            self._rhs += Phi @ Y
            self._squares += float((Y * Y).sum())
            self.n += int(Y.shape[0])
            if first:
                inside = np.flatnonzero((self.loo_rows >= rows.start) & (self.loo_rows < rows.stop))
                at = xp.asarray(self.loo_rows[inside] - rows.start)
                kept.append(Phi[:, at])
                targets.append(Y[at])
        if first:
            self._kept, self.loo_targets = xp.concatenate(kept, axis=1), xp.concatenate(targets)

    def _mirror(self) -> None:
        xp = namespace(self._B)
        for k in blocks(len(self._B), _PANEL):
            upper = xp.triu(self._B[k, k], 1)
            self._B[k, k] = upper + upper.T + xp.diag(self._B[k, k].diagonal())
            self._B[k.stop :, k] = self._B[k, k.stop :].T

    def features(self, K_test: Array) -> Array:
        """φ = L⁻¹k of each row, (M, m) → (m, M)."""
        return self.basis.solve_lower(check_test(namespace(self.basis.A), K_test, self.points).T)

    def add(self, parts: Iterable[tuple[slice, Array, Array]]) -> None:
        """Condition on more points, with K(new, inducing) in blocks. The noise and the sample stay."""
        # On copies until all is done: kernels take long, and what fails or is stopped must leave the model as it was.
        grown = copy.copy(self)
        grown._B = Factor(self.factor.A.copy(), self.factor.diagonal, self.factor.shift).restore()
        grown._rhs = self._rhs.copy()
        grown._accumulate(parts)
        grown._mirror()
        grown._condition()
        self.__dict__.update(grown.__dict__)

    def set_noise(self, noise: float) -> None:
        """Another noise from the same sums: no kernel is computed, only a factor of m × m."""
        self._B, self.noise = self.factor.restore(), float(noise)
        self._condition()

    # ---- posterior -----------------------------------------------------------------------------------------------

    def _condition(self) -> None:
        self.factor = Factor.of(self._B, self.noise)  # B is a sum of squares, so it is positive definite
        self._half = self.factor.solve_lower(self._rhs)
        self.w = self.factor.solve_upper(self._half)
        self.beta = self.basis.solve_upper(self.w)
        """Weights of K(test, inducing): (m, outputs)."""
        match self._amplitude_rule:
            case "ml":
                amplitude = self._fit(self.noise, self._half) / (self.n * int(self._rhs.shape[1]))
            case "loo":
                mean, variance = self._left_out(self.factor, self.w, self.noise)
                amplitude = float(((self.loo_targets - mean) ** 2 / variance[:, None]).mean())
            case number:
                amplitude = float(number)
        self.amplitude = amplitude if amplitude > 0.0 else 1.0

    @property
    def points(self) -> int:
        return len(self.basis)

    @property
    def largest_variance(self) -> float:
        return float(self.basis.diagonal.max())

    @property
    def log_marginal_likelihood(self) -> float:
        """Of the approximation: Σ_c log N(y_c; 0, a(ΦΦᵀ + noise·I))."""
        outputs = int(self._rhs.shape[1])
        fit = self._fit(self.noise, self._half) / self.amplitude
        log_determinant = self._log_determinant(self.factor) + self.n * math.log(self.amplitude)
        return float(-0.5 * (fit + outputs * (log_determinant + self.n * math.log(2.0 * math.pi))))

    def mean(self, K_test: Array) -> Array:
        """E[f] at M points from K(test, inducing), (M, m) → (M, outputs)."""
        return check_test(namespace(self.beta), K_test, self.points) @ self.beta

    def variance(self, K_test: Array, diagonal: Array) -> Array:
        """Var[f], shared by the outputs, (M, m) and k(x, x) (M,) → (M,)."""
        Phi = self.features(K_test)
        xp = namespace(Phi)
        V = self.factor.solve_lower(Phi)
        unknown = xp.maximum(xp.asarray(diagonal, dtype=xp.float64) - (Phi * Phi).sum(0), 0.0)
        return self.amplitude * (unknown + self.noise * (V * V).sum(0))

    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        """Cov[f] between M points, shared by the outputs, (M, m) and (M, M) → (M, M)."""
        Phi = self.features(K_test)
        xp = namespace(Phi)
        V = self.factor.solve_lower(Phi)
        return self.amplitude * (xp.asarray(K_test_test, dtype=xp.float64) - Phi.T @ Phi + self.noise * V.T @ V)

    def leave_one_out(self) -> tuple[Array, Array]:
        """What the other N − 1 points predict for y at each point of the sample, through the other inducing points."""
        mean, variance = self._left_out(self.factor, self.w, self.noise)
        return mean, self.amplitude * variance

    def sample(self, K_test: Array, K_test_test: Array, n: int, seed: int | None = None) -> Array:
        """`n` functions from the posterior at M points: (n, M, outputs)."""
        return posterior_samples(self.mean(K_test), self.covariance(K_test, K_test_test), n, seed)

    def residual(self) -> float:
        """‖(B + noise·I)w − ΦᵀY‖/‖ΦᵀY‖."""
        xp = namespace(self.w)
        scale = float(xp.linalg.norm(self._rhs))
        return float(xp.linalg.norm(self.factor.multiply(self.w) - self._rhs)) / scale if scale > 0 else 0.0

    def smallest_eigenvalue_bounds(self) -> tuple[float, float]:
        """Of B + noise·I: the noise, and the smallest diagonal entry."""
        return self.noise, float(self.factor.diagonal.min()) + self.noise

    # ---- files ---------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Numbers and arrays that `restored` makes the same model of. K_mm and B stand above the diagonals of `A`."""
        numbers = {
            "noise": self.noise,
            "jitter": self.jitter,
            "amplitude_rule": self._amplitude_rule,
            "squares": self._squares,
            "n": self.n,
        }
        arrays = {"rhs": self._rhs, "kept": self._kept, "kept_diagonal": self._diagonal}
        return numbers, arrays | {"loo_rows": self.loo_rows, "loo_targets": self.loo_targets, "own": self._own}

    @classmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any, K_mm: Array, B: Array) -> InducingGP:
        """`K_mm` and `B` are overwritten."""
        gp = cls.__new__(cls)
        gp.basis, gp.jitter = factorised(K_mm, 0.0, numbers["jitter"])
        gp.noise, gp.n = float(numbers["noise"]), int(numbers["n"])
        gp._amplitude_rule, gp._squares = numbers["amplitude_rule"], float(numbers["squares"])
        gp._B, gp._rhs, gp._kept = B, xp.asarray(arrays["rhs"]), xp.asarray(arrays["kept"])
        gp._diagonal = xp.asarray(arrays["kept_diagonal"])
        gp._set_own(arrays["own"])
        gp.loo_rows, gp.loo_targets = np.asarray(arrays["loo_rows"]), xp.asarray(arrays["loo_targets"])
        gp._condition()
        return gp

    # ---- leave-one-out and the noise -----------------------------------------------------------------------------

    def _set_own(self, own: Any) -> None:
        """g = L⁻¹e_i of the points of the sample that are inducing ones, zeros for the others: (m, sample)."""
        xp = namespace(self.basis.A)
        self._own = own
        units = xp.zeros((len(self.basis), len(own)))
        at = np.flatnonzero(own >= 0)
        units[xp.asarray(own[at]), xp.asarray(at)] = 1.0
        self._g = self.basis.solve_lower(units)

    def _left_out(self, factor: Factor, w: Array, noise: float) -> tuple[Array, Array]:
        """Mean (y_i − residual_i/(1 − h_i)) and variance of y without amplitude, at the sample.

        Without the function of z_i, that is with β_i = 0:  f_i ← f_i − c β_i/S,  h_i ← h_i − c²/S,  φᵀφ ← φᵀφ − 1/gᵀg
        with S = gᵀ(B + noise·I)⁻¹g, c = gᵀ(B + noise·I)⁻¹φ, β_i = gᵀw.
        """
        xp = namespace(w)
        V, U = factor.solve_lower(self._kept), factor.solve_lower(self._g)
        S, c, gg = (U * U).sum(0), (U * V).sum(0), (self._g * self._g).sum(0)
        c_S = c / xp.where(S > 0.0, S, 1.0)
        f = self._kept.T @ w - c_S[:, None] * (self._g.T @ w)
        left = xp.maximum(1.0 - (V * V).sum(0) + c * c_S, 1e-12)
        mean = self.loo_targets - (self.loo_targets - f) / left[:, None]
        known = (self._kept**2).sum(0) - xp.where(gg > 0.0, 1.0, 0.0) / xp.where(gg > 0.0, gg, 1.0)
        # noise·h/(1 − h) of the function, and the noise itself
        return mean, xp.maximum(self._diagonal - known, 0.0) + noise / left

    def _fit(self, noise: float, half: Array) -> float:
        """Σ_c y_cᵀ(ΦΦᵀ + noise·I)⁻¹y_c."""
        return max(self._squares - float((half * half).sum()), 0.0) / noise

    def _log_determinant(self, factor: Factor) -> float:
        """log |ΦΦᵀ + noise·I|, N × N."""
        return factor.log_determinant() + (self.n - len(factor)) * math.log(factor.shift)

    def _loo_loss(self, factor: Factor, loss: Callable[[Any, Any], float]) -> float:
        mean, _ = self._left_out(factor, factor.solve(self._rhs), factor.shift)
        return loss(to_numpy(mean), to_numpy(self.loo_targets))

    def _likelihood_loss(self, factor: Factor) -> float:
        outputs = int(self._rhs.shape[1])
        fit = self._fit(factor.shift, factor.solve_lower(self._rhs))
        rule = self._amplitude_rule
        a = fit / (self.n * outputs) if isinstance(rule, str) else float(rule)
        if a <= 0.0:
            return math.inf
        return fit / a + outputs * (self.n * math.log(a) + self._log_determinant(factor))

    def _best_noise(self, loss: Callable[[Factor], float], bounds: tuple[float, float]) -> float:
        """The noise with the least `loss`. A factorisation of B is a third of m³, an eigendecomposition tens of m³."""
        from scipy.optimize import minimize_scalar

        scale = float(self.basis.diagonal.mean())

        def at(log_noise: float) -> float:
            factor = Factor.of(self._B, scale * 10.0**log_noise)
            value = float(loss(factor))
            factor.restore()
            return value

        found = minimize_scalar(at, bounds=bounds, method="bounded", options={"xatol": 0.1})
        return float(scale * 10.0**found.x)
