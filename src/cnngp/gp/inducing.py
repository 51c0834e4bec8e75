"""Regression through m inducing points, over any number of training points that are seen once, a block at a time.

The functions are those that m points span (subset of regressors), f(x) = φ(x)ᵀw with φ(x) = L⁻¹k(x), K_mm = LLᵀ,
w ~ N(0, a·I), y_i = f(x_i) + ε_i, ε_i ~ N(0, a·noise/ω_i), Ω = diag(ω):

    B = ΦᵀΩΦ,   w = (B + noise·I)⁻¹ΦᵀΩY,   mean φᵀw,   variance a(k(x, x) − φᵀφ + noise·φᵀ(B + noise·I)⁻¹φ)

The variance is that of the deterministic training conditional (DTC): k(x, x) − φᵀφ is what the m points cannot say
about x, without which the model would be most certain where it knows least. To a model of m functions the same
u_i = k(x_i, x_i) − φᵀφ of a training point is noise: ω_i = 1/(1 + discount·u_i/s), s the mean k(x, x). With discount 0
all points count alike; with discount s/noise the noise is noise + u_i, which is FITC. FITC itself would need a pass
over all points for each noise that is tried; here a few discounts are summed side by side, and the noise is free.

The sums are formed of L⁻¹K_mn and not of K_mn: K_mn K_nm has the square of the condition number, and dividing by L
afterwards would leave nothing of its small eigenvalues. Nothing here is larger than m × m; N × m is never held.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cnngp.common import files
from cnngp.common.arrays import to_numpy

from .checks import MatrixError, check_amplitude, check_noise, check_targets, check_test, float64_buffer
from .exact import Amplitude, Noise
from .inducing_left_out import InducingLeftOut
from .linalg import Array, Factor, NotPositiveDefinite, blocks, factorised, namespace, warn_of_jitter
from .line_search import minimised
from .noise import Loss
from .objectives import LOG_2PI, amplitude_of, twice_negative_log
from .posterior import LeaveOneOut, NewPoints, Part, Posterior, Solved

# Training points whose features are kept for leave-one-out, which chooses noise and temperature.
SAMPLE = 4096
# The powers of ten, times the mean diagonal, between which noise is sought. Below 10⁻⁴ predictions no longer change,
# and leave-one-out cannot tell one noise from another.
_LIKELY_NOISE = (-8.0, 1.0)
_LOO_NOISE = (-4.0, 1.0)
_PANEL = 2048  # rows of B that are summed, and new points that are looked for in the sample, at a time
_EQUAL = 1e-12  # of squared lengths: features further apart belong to other points
_NUMBERS = ("discount", "squares", "log_weights", "n")  # of the sums, in files


@dataclass
class Sums:
    """B = Σ ω φφᵀ (m, m), Σ ω φyᵀ (m, outputs), Σ ω‖y‖² and Σ log ω of the points so far."""

    discount: float
    B: Array
    rhs: Array = None
    squares: float = 0.0
    log_weights: float = 0.0
    n: int = 0

    def weights(self, unknown: Array) -> Array:
        """ω = 1/(1 + discount·u), from u in units of the mean k(x, x)."""
        return 1.0 / (1.0 + self.discount * unknown)

    def add(self, Phi: Array, Y: Array, unknown: Array) -> None:
        """Points with features `Phi` (m, M), targets `Y` (M, outputs) and u (M,). `mirror` has to follow."""
        if self.rhs is None:
            self.rhs = namespace(self.B).zeros((len(self.B), Y.shape[1]))
        if Y.shape[1] != self.rhs.shape[1]:
            raise MatrixError(f"the targets have {Y.shape[1]} outputs; the model has {self.rhs.shape[1]}")
        w = self.weights(unknown)
        weighted = Phi * w
        self.log_weights += float(namespace(w).log(w).sum())
        self.squares += float((w[:, None] * Y * Y).sum())
        for k in blocks(len(self.B), _PANEL):  # only what is on or above the diagonal
            self.B[k, k.start :] += weighted[k] @ Phi[k.start :].T
        self.rhs += weighted @ Y
        self.n += int(Y.shape[0])

    def mirror(self) -> None:
        """The lower triangle of B from the upper one."""
        xp = namespace(self.B)
        for k in blocks(len(self.B), _PANEL):
            upper = xp.triu(self.B[k, k], 1)
            self.B[k, k] = upper + upper.T + xp.diag(self.B[k, k].diagonal())
            self.B[k.stop :, k] = self.B[k, k.stop :].T


class InducingGP(Posterior):
    """The posterior through m inducing points with kernel matrix `K_mm` (m, m), given blocks of training points.

    `parts` gives (rows, K(rows, inducing), Y(rows), k(x, x)) for all N points, in order. `sample` are the points,
    sorted, that `leave_one_out` predicts; `own` says which of them are inducing points (their number, else −1), whose
    own function is left out with them, as an image that was never seen has none; `groups` says which of them are left
    out together, and a group that is in the sample is in it with all its training points. `noise` is a variance, "ml",
    or "loo" or 0 for the one with the least leave-one-out `loss`, by default the squared error: m points do not
    interpolate N, so without noise there is no model. Of several `discounts` the best is taken, by likelihood where the
    noise is "ml", else by leave-one-out. The `amplitude` "ml" is that of the leave-one-out predictions.

    >>> import numpy as np
    >>> K, Y = np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([[1.0], [-1.0]])
    >>> gp = InducingGP(K, [(slice(0, 2), K, Y, np.ones(2))], np.arange(2), noise=1.0)
    >>> gp.mean(np.array([[1.0, 0.5]])).round(6)
    array([[0.333333]])
    """

    kind = "inducing"

    def __init__(
        self,
        K_mm: Array,
        parts: Iterable[Part],
        sample: Any,
        *,
        noise: Noise = 0.0,
        amplitude: Amplitude = "ml",
        discounts: Sequence[float] = (0.0,),
        own: Any = None,
        groups: Any = None,
        loss: Loss | None = None,
        overwrite: bool = False,
    ) -> None:
        check_noise(noise)
        check_amplitude(amplitude)
        A = float64_buffer(K_mm, overwrite)
        self.basis, self.jitter = factorised(A, 0.0)
        if self.jitter:
            warn_of_jitter(self.basis, self.jitter, stacklevel=8)
        self.loo_rows = np.asarray(sample)
        self._without = InducingLeftOut(self.basis, np.full(len(self.loo_rows), -1) if own is None else own, groups)
        self._kept: Array = None  # features of the sample, (m, sample)
        sums = [Sums(discount, namespace(A).zeros(A.shape)) for discount in discounts]
        self._accumulate(sums, parts)
        # The likelihood knows nothing of what the inducing points miss, which is most of the variance; leave-one-out
        # predictions do.
        self._amplitude_rule: Any = "loo" if amplitude == "ml" else amplitude
        self._choose(sums, noise, loss or (lambda mean, targets: float(((mean - targets) ** 2).mean())))
        self._condition()

    # ---- sums ----------------------------------------------------------------------------------------------------

    def _accumulate(self, sums: Sequence[Sums], parts: Iterable[Part]) -> None:
        """Add every point to all `sums`; in the first pass, which finds nothing kept, keep the sample's features."""
        xp = namespace(self.basis.A)
        kept: list[tuple[Array, ...]] = []
        for rows, K_bm, Y, diagonal in parts:
            Phi = self.features(K_bm)
            Y = check_targets(xp, Y, int(Phi.shape[1]))
            diagonal = xp.asarray(diagonal, dtype=xp.float64)
            unknown = self._unknown(Phi, diagonal)
            for one in sums:
                one.add(Phi, Y, unknown)
            if self._kept is None:
                inside = np.flatnonzero((self.loo_rows >= rows.start) & (self.loo_rows < rows.stop))
                at = xp.asarray(self.loo_rows[inside] - rows.start)
                kept.append((Phi[:, at].T, Y[at], diagonal[at]))
            else:
                self._find_copies(Phi, Y, diagonal)
        for one in sums:
            one.mirror()
        if self._kept is None:
            features, self.loo_targets, self._diagonal = (xp.concatenate(a) for a in zip(*kept, strict=True))
            self._kept = features.T
            self._seen, self._copies = self.loo_targets, xp.ones(len(self.loo_rows))

    def _find_copies(self, Phi: Array, Y: Array, diagonal: Array) -> None:
        """Points of the sample that are there again are left out with their copies: as one of more weight, whose target
        is their mean.
        """
        xp, kept = namespace(Phi), self._kept
        size = (kept * kept).sum(0)[:, None]
        for k in blocks(int(Phi.shape[1]), _PANEL):
            apart = size + (Phi[:, k] * Phi[:, k]).sum(0) - 2.0 * kept.T @ Phi[:, k]
            same = (apart <= _EQUAL * size) & (xp.abs(self._diagonal[:, None] - diagonal[k]) <= 1e-6 * diagonal[k])
            copies = same.sum(1) + self._copies
            total = self._seen * self._copies[:, None] + same.astype(xp.float64) @ Y[k]
            self._seen, self._copies = total / copies[:, None], copies

    def _unknown(self, Phi: Array, diagonal: Array) -> Array:
        """What the inducing points cannot say about points with features `Phi`, in units of their own mean k(x, x)."""
        return namespace(Phi).maximum(diagonal - (Phi * Phi).sum(0), 0.0) / float(self.basis.diagonal.mean())

    def _choose(self, sums: Sequence[Sums], noise: Noise, judge: Loss) -> None:
        """The sums and the noise to go on with."""
        scale = float(self.basis.diagonal.mean())

        def loss_of(one: Sums, shift: float) -> float:
            factor = _factor(one.B, shift)
            if noise == "ml":
                fit = _fit(one, shift, factor.solve_lower(one.rhs))
                log_determinant, outputs = _log_determinant(one, factor), int(one.rhs.shape[1])
                value = twice_negative_log(fit, log_determinant, one.n, outputs, self._amplitude_rule)
            else:
                mean, _ = self._left_out(one, factor, factor.solve(one.rhs))
                value = judge(to_numpy(mean), to_numpy(self.loo_targets))
            factor.restore()
            return value

        def best(one: Sums) -> tuple[float, float]:
            """The least loss, and its noise."""
            if noise not in ("ml", "loo", 0.0):
                return (loss_of(one, float(noise)) if len(sums) > 1 else 0.0), float(noise)
            bounds = _LIKELY_NOISE if noise == "ml" else _LOO_NOISE
            # A factor of B is a third of m³ operations, an eigendecomposition tens.
            found = minimised(lambda x: loss_of(one, scale * 10.0**x), *bounds, tolerance=0.1)
            return found.loss, float(scale * 10.0**found.at)

        found = [(*best(one), one) for one in sums]
        _, self.noise, self._sums = min(found, key=lambda f: f[0])

    def features(self, K_test: Array) -> Array:
        """φ = L⁻¹k of each row, (M, m) → (m, M)."""
        return self.basis.solve_lower(check_test(namespace(self.basis.A), K_test, self.points).T)

    def add(self, parts: Iterable[Part]) -> None:
        """Condition on more points, with K(new, inducing) in blocks. The noise and the sample stay."""
        # On copies until all is done: kernels take long, and what fails or is stopped must leave the model as it was.
        grown, sums = copy.copy(self), copy.copy(self._sums)
        sums.B = Factor(self.factor.A.copy(), self.factor.diagonal, self.factor.shift).restore()
        sums.rhs = sums.rhs.copy()
        grown._sums = sums
        grown._accumulate([sums], parts)
        grown._condition()
        self.__dict__.update(grown.__dict__)

    def grow(self, new: NewPoints) -> None:
        if len(new.new_outputs):
            raise MatrixError(
                "a model through inducing images does not keep the other images, so it cannot take a new class; fit "
                "again"
            )
        self.add(new.parts())

    # ---- posterior -----------------------------------------------------------------------------------------------

    def _condition(self) -> None:
        self.factor = _factor(self._sums.B, self.noise)
        self._half = self.factor.solve_lower(self._sums.rhs)
        self.w = self.factor.solve_upper(self._half)
        self.alpha = self.basis.solve_upper(self.w)
        self.largest_variance = float(self.variances.max())
        mean, variance = self._predicted = self._left_out(self._sums, self.factor, self.w)
        fit = float(((self.loo_targets - mean) ** 2 / variance[:, None]).sum())
        self.amplitude = amplitude_of(fit, self.loo_targets.size, self._amplitude_rule)

    def _left_out(self, sums: Sums, factor: Factor, w: Array) -> tuple[Array, Array]:
        """Mean and variance of y at the sample, without amplitude."""
        weights = self._copies * sums.weights(self._unknown(self._kept, self._diagonal))
        return self._without.predict(self._kept, self._diagonal, self._seen, weights, factor, w)

    @property
    def points(self) -> int:
        return len(self.basis)

    @property
    def variances(self) -> Array:
        return self.basis.diagonal

    @property
    def n(self) -> int:
        return self._sums.n

    @property
    def discount(self) -> float:
        return self._sums.discount

    @property
    def log_marginal_likelihood(self) -> float:
        """Of the approximation: Σ_c log N(y_c; 0, a(ΦΦᵀ + noise·Ω⁻¹))."""
        n, outputs = self.n, int(self._sums.rhs.shape[1])
        fit, log_determinant = _fit(self._sums, self.noise, self._half), _log_determinant(self._sums, self.factor)
        return -0.5 * (twice_negative_log(fit, log_determinant, n, outputs, self.amplitude) + n * outputs * LOG_2PI)

    def variance(self, K_test: Array, diagonal: Array) -> Array:
        Phi = self.features(K_test)
        xp = namespace(Phi)
        V = self.factor.solve_lower(Phi)
        unknown = xp.maximum(xp.asarray(diagonal, dtype=xp.float64) - (Phi * Phi).sum(0), 0.0)
        return self.amplitude * (unknown + self.noise * (V * V).sum(0))

    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        Phi = self.features(K_test)
        xp = namespace(Phi)
        V = self.factor.solve_lower(Phi)
        return self.amplitude * (xp.asarray(K_test_test, dtype=xp.float64) - Phi.T @ Phi + self.noise * V.T @ V)

    def leave_one_out(self) -> LeaveOneOut:
        """What the other N − 1 points predict for y at each point of the sample, through the other inducing points."""
        mean, variance = self._predicted
        return LeaveOneOut(mean, self.amplitude * variance, self.loo_targets, self.loo_rows, self._without.groups)

    def solved(self) -> Solved:
        """Of (B + noise·I)w = ΦᵀΩY, whose smallest eigenvalue is between the noise and the smallest diagonal entry."""
        xp, rhs = namespace(self.w), self._sums.rhs
        scale = float(xp.linalg.norm(rhs))
        off = float(xp.linalg.norm(self.factor.multiply(self.w) - rhs))
        high = float(self.factor.diagonal.min()) + self.noise
        return Solved(off / scale if scale > 0.0 else 0.0, (self.noise, high))

    # ---- files ---------------------------------------------------------------------------------------------------

    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        numbers = {"noise": self.noise, "jitter": self.jitter, "amplitude_rule": self._amplitude_rule}
        numbers |= {name: getattr(self._sums, name) for name in _NUMBERS}
        arrays = {"rhs": self._sums.rhs, "kept": self._kept, "kept_diagonal": self._diagonal}
        arrays |= {"loo_rows": self.loo_rows, "loo_targets": self.loo_targets, "own": self._without.own}
        arrays |= {"seen": self._seen, "copies": self._copies}
        arrays |= {} if self._without.groups is None else {"loo_groups": self._without.groups}
        # K_mm and B stand above the diagonals of the factors.
        arrays["K"] = files.packed(to_numpy(self.basis.A), to_numpy(self.basis.diagonal), dtype)
        arrays["B"] = files.packed(to_numpy(self.factor.A), to_numpy(self.factor.diagonal), "float64")
        return numbers, arrays

    @classmethod
    def restored(cls, numbers: dict[str, Any], arrays: dict[str, Array], xp: Any) -> InducingGP:
        m = len(arrays["rhs"])
        K_mm, B = (xp.asarray(files.unpacked(arrays[name], m)) for name in ("K", "B"))
        gp = cls.__new__(cls)
        gp.basis, gp.jitter = factorised(K_mm, 0.0, numbers["jitter"])
        gp.noise, gp._amplitude_rule = float(numbers["noise"]), numbers["amplitude_rule"]
        gp._sums = Sums(B=B, rhs=xp.asarray(arrays["rhs"]), **{name: numbers[name] for name in _NUMBERS})
        gp._kept, gp._diagonal, gp.loo_targets, gp._seen, gp._copies = (
            xp.asarray(arrays[name]) for name in ("kept", "kept_diagonal", "loo_targets", "seen", "copies")
        )
        gp._without = InducingLeftOut(gp.basis, arrays["own"], arrays.get("loo_groups"))
        gp.loo_rows = np.asarray(arrays["loo_rows"])
        gp._condition()
        return gp


def _fit(sums: Sums, noise: float, half: Array) -> float:
    """Σ_c y_cᵀ(ΦΦᵀ + noise·Ω⁻¹)⁻¹y_c."""
    return max(sums.squares - float((half * half).sum()), 0.0) / noise


def _log_determinant(sums: Sums, factor: Factor) -> float:
    """log |ΦΦᵀ + noise·Ω⁻¹|, N × N."""
    return factor.log_determinant() + (sums.n - len(factor)) * math.log(factor.shift) - sums.log_weights


def _factor(B: Array, noise: float) -> Factor:
    """B is a sum of squares, so B + noise·I is positive definite, unless rounding swallows the noise."""
    try:
        return Factor.of(B, noise)
    except NotPositiveDefinite:
        least = 1e-13 * float(B.diagonal().max())
        raise MatrixError(
            f"noise={noise:g} is lost in float64 here; use {least:.0e} or more, or 0 to have it chosen"
        ) from None
