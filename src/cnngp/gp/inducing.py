"""Sparse GP regression with m inducing points, for any number of training points that are read once, in blocks.

The model is the subset of regressors, the functions that m points span: f(x) = φ(x)ᵀw with φ(x) = L⁻¹k(x), K_mm = LLᵀ,
w ~ N(0, a·I), y_i = f(x_i) + ε_i, ε_i ~ N(0, a·noise/ω_i), Ω = diag(ω):

    B = ΦᵀΩΦ,   w = (B + noise·I)⁻¹ΦᵀΩY,   mean φᵀw,   variance a(k(x, x) − φᵀφ + noise·φᵀ(B + noise·I)⁻¹φ)

The variance is that of the deterministic training conditional (DTC): k(x, x) − φᵀφ is the variance that the m points do
not explain. For a training point this residual u_i acts as noise: ω_i = 1/(1 + discount·u_i/s), with s the mean
k(x, x). With discount 0 all points count equally; with discount s/noise the noise is noise + u_i, which is FITC. FITC
would need a pass over all points for each noise tried; here a few discounts are summed in the same pass.

The sums are formed from L⁻¹K_mn instead of K_mn, because K_mn K_nm has the square of the condition number. No array is
larger than m × m; N × m is never stored.

Leave-one-out: with A = B + noise·I and H = ΦᵀA⁻¹Φ for points that are left out together, the blocks of the inverse of
the N × N matrix ΦᵀΦ + noise·Ω⁻¹ are (Ω − ΩHΩ)/noise, so by `leave_one_out.py`

    mean y − (I − HΩ)⁻¹(y − f),    variance of y: k(x, x) − φᵀφ + noise·(1 + [(I − HΩ)⁻¹H]_ii)

Inducing points among them are removed with their functions, because a new image has none; the weights of the other
points stay. With G = L⁻¹e for these, so that their weights β = Gᵀw are 0, S = GᵀA⁻¹G, C = GᵀA⁻¹Φ and p = Gᵀφ,

    f ← f − CᵀS⁻¹β,   H ← H − CᵀS⁻¹C,   φᵀφ ← φᵀφ − pᵀ(GᵀG)⁻¹p
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
from .leave_one_out import LeftOut, in_pieces, sets_left_out
from .linalg import Array, Factor, NotPositiveDefinite, blocks, factorised, namespace, warn_of_jitter
from .objectives import LOG_2PI, Loss, amplitude_of, minimised, twice_negative_log
from .posterior import Part, Posterior, Solved, relative_residual

# Number of training points whose features are kept for leave-one-out, which selects the noise and the temperature.
SAMPLE = 4096
# Search ranges of the noise: log₁₀, in units of the mean diagonal. Below 10⁻⁴ predictions no longer change, so that
# leave-one-out cannot distinguish noises.
_LIKELY_NOISE = (-8.0, 1.0)
_LOO_NOISE = (-4.0, 1.0)
_PANEL = 2048  # rows of B that are summed, and new points that are compared with the sample, at a time
_EQUAL = 1e-12  # largest squared distance of copies, relative to squared lengths
_LEAST = 1e-12  # keeps 1 − ωh above rounding
_SUMS = ("discount", "squares", "log_weights", "n")  # saved in files
_SAMPLE = ("features", "diagonal", "targets", "seen", "copies")


@dataclass
class Sums:
    """Sums over the points read so far: B = Σ ω φφᵀ (m, m), Σ ω φyᵀ (m, outputs), Σ ω‖y‖² and Σ log ω."""

    discount: float
    B: Array
    rhs: Array = None
    squares: float = 0.0
    log_weights: float = 0.0
    n: int = 0

    def weights(self, unknown: Array) -> Array:
        """Return ω = 1/(1 + discount·u), from u in units of the mean k(x, x)."""
        return 1.0 / (1.0 + self.discount * unknown)

    def add(self, Phi: Array, Y: Array, unknown: Array) -> None:
        """Add points with features `Phi` (m, M), targets `Y` (M, outputs) and u (M,), in B's upper triangle only."""
        if self.rhs is None:
            self.rhs = namespace(self.B).zeros((len(self.B), Y.shape[1]))
        if Y.shape[1] != self.rhs.shape[1]:
            raise MatrixError(f"the targets have {Y.shape[1]} outputs; the model has {self.rhs.shape[1]}")
        w = self.weights(unknown)
        weighted = Phi * w
        self.log_weights += float(namespace(w).log(w).sum())
        self.squares += float((w[:, None] * Y * Y).sum())
        for k in blocks(len(self.B), _PANEL):  # only on and above the diagonal
            self.B[k, k.start :] += weighted[k] @ Phi[k.start :].T
        self.rhs += weighted @ Y
        self.n += int(Y.shape[0])

    def factor(self, noise: float) -> Factor:
        """Factorise B + noise·I in the buffer of B; it is positive definite unless rounding swallows the noise."""
        try:
            return Factor.of(self.B, noise)
        except NotPositiveDefinite:
            least = 1e-13 * float(self.B.diagonal().max())
            raise MatrixError(
                f"noise={noise:g} is lost in float64 here; use {least:.0e} or more, or 0 to have it chosen"
            ) from None

    def twice_negative_log(self, factor: Factor, half: Array, rule: Any) -> float:
        """Return −2 log N(Y; 0, a(ΦΦᵀ + noise·Ω⁻¹)) without its constant, from `half`, L⁻¹ΦᵀΩY."""
        fit = max(self.squares - float((half * half).sum()), 0.0) / factor.shift
        log_determinant = factor.log_determinant() + (self.n - len(factor)) * math.log(factor.shift) - self.log_weights
        return twice_negative_log(fit, log_determinant, self.n, int(self.rhs.shape[1]), rule)


class Sample:
    """Training points that leave-one-out predicts.

    `own` is the number of each point among the inducing points, else −1; points of one of the `groups` are left out
    together, with None each alone. `features` (m, sample), k(x, x) and targets are set in the first pass over the data.
    """

    features: Array = None
    diagonal: Array
    targets: Array
    seen: Array
    """Mean target of each point and its copies, (sample, outputs)."""
    copies: Array
    """Number of times that each point has occurred, (sample,)."""

    def __init__(self, basis: Factor, own: Any, groups: Any = None) -> None:
        self.own, self.groups = np.asarray(own), None if groups is None else np.unique(groups, return_inverse=True)[1]
        if self.groups is not None and self.groups.shape != self.own.shape:
            raise MatrixError(f"groups of {self.groups.shape} points for a sample of {self.own.shape}")
        xp, inducing = namespace(basis.A), self.own >= 0
        units = xp.zeros((len(basis), int(inducing.sum())))
        units[xp.asarray(self.own[inducing]), xp.arange(int(inducing.sum()))] = 1.0
        self._G = basis.solve_lower(units) if inducing.any() else units
        self._together = []  # points (groups, size) and columns of G (groups, inducing points), one entry per shape
        column = np.cumsum(inducing) - 1
        together = np.arange(len(self.own)) if self.groups is None else self.groups
        for members, _ in in_pieces(sets_left_out(together)):
            counts = inducing[members].sum(1)
            for count in np.unique(counts):
                alike = members[counts == count]
                self._together.append((alike, column[alike[inducing[alike]]].reshape(len(alike), count)))

    def find_copies(self, Phi: Array, Y: Array, diagonal: Array) -> None:
        """Merge new points that repeat one of the sample with it: one point of more weight, with their mean target."""
        xp, kept = namespace(Phi), self.features
        size = (kept * kept).sum(0)[:, None]
        for k in blocks(int(Phi.shape[1]), _PANEL):
            apart = size + (Phi[:, k] * Phi[:, k]).sum(0) - 2.0 * kept.T @ Phi[:, k]
            same = (apart <= _EQUAL * size) & (xp.abs(self.diagonal[:, None] - diagonal[k]) <= 1e-6 * diagonal[k])
            copies = same.sum(1) + self.copies
            total = self.seen * self.copies[:, None] + same.astype(xp.float64) @ Y[k]
            self.seen, self.copies = total / copies[:, None], copies

    def left_out(self, weights: Array, factor: Factor, w: Array) -> LeftOut:
        """Leave-one-out residuals of the sample, from ω, the factor of A and the weights w of Φ."""
        xp = namespace(w)
        V, U = factor.solve_lower(self.features), factor.solve_lower(self._G) if self._G.shape[1] else self._G
        deviations, variances = xp.empty_like(self.targets), xp.empty_like(self.diagonal)
        weights = weights * self.copies
        for points, columns in self._together:
            at = xp.asarray(points)
            Phi, half = self.features.T[at], V.T[at]  # (groups, size, m)
            f, H, known = Phi @ w, half @ _turned(half), (Phi * Phi).sum(2)
            if columns.shape[1]:
                of = xp.asarray(columns)
                G, own = self._G.T[of], U.T[of]  # (groups, inducing points, m)
                C, p = own @ _turned(half), G @ _turned(Phi)
                S = own @ _turned(own)
                f, H = f - _turned(C) @ _solved(S, G @ w), H - _turned(C) @ _solved(S, C)
                known = known - (p * _solved(G @ _turned(G), p)).sum(1)
            root = xp.sqrt(weights[at])[:, :, None]
            # (I − HΩ)⁻¹ = Ω^−½ (I − Ω^½HΩ^½)⁻¹ Ω^½, the inverse of a symmetric matrix
            left = (1.0 + _LEAST) * xp.eye(at.shape[1]) - root * H * _turned(root)
            seen = self.seen[at]
            deviations[at] = self.targets[at] - seen + _solved(left, root * (seen - f)) / root
            spread = xp.maximum((_solved(left, root * H) / root).diagonal(axis1=1, axis2=2), 0.0)
            variances[at] = xp.maximum(self.diagonal[at] - known, 0.0) + factor.shift * (1.0 + spread)
        return LeftOut(deviations, variances, math.nan)


def _turned(A: Array) -> Array:
    return A.transpose(0, 2, 1)


def _solved(A: Array, B: Array) -> Array:
    """Return A⁻¹B for small symmetric matrices; a row of zeros, from a point without information, gives 0."""
    xp = namespace(A)
    empty = A.diagonal(axis1=1, axis2=2) <= 0.0
    return xp.linalg.solve(A + empty[:, :, None] * xp.eye(A.shape[1]), B)


class InducingGP(Posterior):
    """Posterior through m inducing points with kernel matrix `K_mm` (m, m), given blocks of training points.

    `parts` yields (rows, K(rows, inducing), Y(rows), k(x, x)) for all N points, in order. `sample` are the sorted rows
    that leave-one-out predicts, with their `own` and `groups` as in `Sample`; it must hold all training points of each
    of its groups. `noise` is a variance, "ml", or "loo" or 0 for the one that minimises the leave-one-out `loss`, by
    default the squared error: m points do not interpolate N, so the model needs noise. The best of several `discounts`
    is chosen by likelihood if the noise is "ml", else by leave-one-out. The `amplitude` "ml" is that of the
    leave-one-out predictions.

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
            warn_of_jitter(len(A), self.jitter, self.basis.diagonal, stacklevel=8)
        self.loo_rows = np.asarray(sample)
        self._sample = Sample(self.basis, np.full(len(self.loo_rows), -1) if own is None else own, groups)
        sums = [Sums(discount, namespace(A).zeros(A.shape)) for discount in discounts]
        self._accumulate(sums, parts)
        # The likelihood ignores the variance that the inducing points do not explain, which is most of it;
        # leave-one-out predictions include it.
        self._amplitude_rule: Any = "loo" if amplitude == "ml" else amplitude
        self._choose(sums, noise, loss or (lambda mean, targets: float(((mean - targets) ** 2).mean())))
        self._condition()

    def _accumulate(self, sums: Sequence[Sums], parts: Iterable[Part]) -> None:
        """Add every point to all `sums`; in the first pass keep the sample's features."""
        xp, sample = namespace(self.basis.A), self._sample
        kept: list[tuple[Array, ...]] = []
        for rows, K_bm, Y, diagonal in parts:
            Phi = self.features(K_bm)
            Y = check_targets(xp, Y, int(Phi.shape[1]))
            diagonal = xp.asarray(diagonal, dtype=xp.float64)
            unknown = self._unknown(Phi, diagonal)
            for one in sums:
                one.add(Phi, Y, unknown)
            if sample.features is None:
                inside = np.flatnonzero((self.loo_rows >= rows.start) & (self.loo_rows < rows.stop))
                at = xp.asarray(self.loo_rows[inside] - rows.start)
                kept.append((Phi[:, at].T, Y[at], diagonal[at]))
            else:
                sample.find_copies(Phi, Y, diagonal)
        for one in sums:  # fill B below the diagonal
            Factor(one.B, one.B.diagonal().copy(), 0.0).restore()
        if sample.features is None:
            features, sample.targets, sample.diagonal = (xp.concatenate(a) for a in zip(*kept, strict=True))
            sample.features = features.T
            sample.seen, sample.copies = sample.targets, xp.ones(len(self.loo_rows))

    def _unknown(self, Phi: Array, diagonal: Array) -> Array:
        """Variance of points not explained by the inducing points, in units of the latter's mean k(x, x)."""
        return namespace(Phi).maximum(diagonal - (Phi * Phi).sum(0), 0.0) / float(self.basis.diagonal.mean())

    def _left_out(self, sums: Sums, factor: Factor, w: Array) -> LeftOut:
        weights = sums.weights(self._unknown(self._sample.features, self._sample.diagonal))
        return self._sample.left_out(weights, factor, w)

    def _choose(self, several: Sequence[Sums], noise: Noise, judge: Loss) -> None:
        """Choose the sums (the discount) and the noise."""
        scale, targets = float(self.basis.diagonal.mean()), self._sample.targets

        def loss_of(sums: Sums, shift: float) -> float:
            factor = sums.factor(shift)
            if noise == "ml":
                value = sums.twice_negative_log(factor, factor.solve_lower(sums.rhs), self._amplitude_rule)
            else:
                left = self._left_out(sums, factor, factor.solve(sums.rhs))
                value = judge(to_numpy(targets - left.deviations), to_numpy(targets))
            factor.restore()
            return value

        def best(sums: Sums) -> tuple[float, float]:
            """Return the smallest loss and its noise."""
            if noise not in ("ml", "loo", 0.0):
                return (loss_of(sums, float(noise)) if len(several) > 1 else 0.0), float(noise)
            bounds = _LIKELY_NOISE if noise == "ml" else _LOO_NOISE
            # Factorising B takes m³/3 operations, an eigendecomposition tens of m³.
            found = minimised(lambda x: loss_of(sums, scale * 10.0**x), *bounds, tolerance=0.1)
            return found.loss, float(scale * 10.0**found.at)

        _, self.noise, self._sums = min(((*best(sums), sums) for sums in several), key=lambda found: found[0])

    def features(self, K_test: Array) -> Array:
        """Return φ = L⁻¹k for each row, (M, m) → (m, M)."""
        return self.basis.solve_lower(check_test(namespace(self.basis.A), K_test, len(self.basis)).T)

    def add(self, parts: Iterable[Part]) -> None:
        """Condition on more points, with K(new, inducing) in blocks. The noise and the sample stay the same."""
        # Works on copies to the end: kernels take long, and a failure or an interrupt must leave the model as it was.
        grown, sums = copy.copy(self), copy.copy(self._sums)
        sums.B = Factor(self.factor.A.copy(), self.factor.diagonal, self.factor.shift).restore()
        sums.rhs = sums.rhs.copy()
        grown._sums, grown._sample = sums, copy.copy(self._sample)
        grown._accumulate([sums], parts)
        grown._condition()
        self.__dict__.update(grown.__dict__)

    # ---- posterior -----------------------------------------------------------------------------------------------

    def _condition(self) -> None:
        self.factor = self._sums.factor(self.noise)
        self._half = self.factor.solve_lower(self._sums.rhs)
        self.w = self.factor.solve_upper(self._half)
        self.alpha = self.basis.solve_upper(self.w)
        self.variances, self.largest_variance = self.basis.diagonal, float(self.basis.diagonal.max())
        self.left = self._left_out(self._sums, self.factor, self.w)
        self.loo_targets, self.groups = self._sample.targets, self._sample.groups
        self.amplitude = amplitude_of(self.left.one_by_one, self.loo_targets.size, self._amplitude_rule)

    @property
    def discount(self) -> float:
        return self._sums.discount

    @property
    def log_marginal_likelihood(self) -> float:
        """Log marginal likelihood of the approximation: Σ_c log N(y_c; 0, a(ΦΦᵀ + noise·Ω⁻¹))."""
        targets = self._sums.n * int(self._sums.rhs.shape[1])
        return -0.5 * (self._sums.twice_negative_log(self.factor, self._half, self.amplitude) + targets * LOG_2PI)

    def variance(self, K_test: Array, diagonal: Array) -> Array:
        Phi = self.features(K_test)
        xp = namespace(Phi)
        V = self.factor.solve_lower(Phi)
        unknown = xp.maximum(xp.asarray(diagonal, dtype=xp.float64) - (Phi * Phi).sum(0), 0.0)
        return self.amplitude * (unknown + self.noise * (V * V).sum(0))

    def covariance(self, K_test: Array, K_test_test: Array) -> Array:
        Phi = self.features(K_test)
        V = self.factor.solve_lower(Phi)
        prior = namespace(Phi).asarray(K_test_test, dtype=np.float64)
        return self.amplitude * (prior - Phi.T @ Phi + self.noise * V.T @ V)

    def solved(self) -> Solved:
        """Accuracy of (B + noise·I)w = ΦᵀΩY; λ_min is between the noise and the smallest diagonal entry."""
        high = float(self.factor.diagonal.min()) + self.noise
        return Solved(relative_residual(self.factor.multiply(self.w), self._sums.rhs), (self.noise, high))

    # ---- files ---------------------------------------------------------------------------------------------------

    def state(self, dtype: str) -> tuple[dict[str, Any], dict[str, Array]]:
        numbers = {"noise": self.noise, "jitter": self.jitter, "amplitude_rule": self._amplitude_rule}
        numbers |= {name: getattr(self._sums, name) for name in _SUMS}
        arrays = {f"sample_{name}": getattr(self._sample, name) for name in _SAMPLE}
        arrays |= {"rhs": self._sums.rhs, "loo_rows": self.loo_rows, "own": self._sample.own}
        arrays |= {} if self.groups is None else {"loo_groups": self.groups}
        # K_mm and B are kept above the diagonals of the factors.
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
        gp._sums = Sums(B=B, rhs=xp.asarray(arrays["rhs"]), **{name: numbers[name] for name in _SUMS})
        gp.loo_rows = np.asarray(arrays["loo_rows"])
        gp._sample = Sample(gp.basis, arrays["own"], arrays.get("loo_groups"))
        gp._sample.__dict__.update({name: xp.asarray(arrays[f"sample_{name}"]) for name in _SAMPLE})
        gp._condition()
        return gp
