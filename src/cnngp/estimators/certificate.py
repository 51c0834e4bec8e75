"""Certificate of a fit: its measured accuracy, and a verdict on what can be trusted."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.gp.posterior import Posterior
from cnngp.kernel.check import FAR, compare, is_affordable
from cnngp.kernel.kernel import Kernel

from .kernels import RecipeKernel

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_STANDARD_ERRORS = 2.0
_LEAST = 1e-12  # smallest probability in a logarithm
# Excess error of inducing images over the exact GP, in percentage points, that needs no warning.
_NEAR = 0.3
# Bound of `kernel_error` for a given matrix, which may come from another library with its own rounding.
_GIVEN_BOUND = 1e-5


@dataclass(frozen=True)
class FitReport:
    """Measurements of a fit. Eigenvalues are those of K + noise·I in the kernel's units, before the amplitude."""

    images: int
    engine: str
    kernel_seconds: float
    solve_seconds: float
    residual: float
    smallest_eigenvalue: tuple[float, float]
    """A lower bound, 1/tr K⁻¹, and an upper bound, the Rayleigh quotient of an inverse iteration."""
    largest_variance: float
    noise: float
    jitter: float
    amplitude: float
    kernel_error: float | None = None
    """Largest |K − R|/max|R| on `pairs_checked` pairs, with R the float64 reference; None for a given matrix."""
    pairs_checked: int = 0
    method: str = "cholesky"
    """Solver: "cholesky", "cg", or "inducing" for the approximation."""
    compile_seconds: float = 0.0
    """Time of compiling the kernel or loading compiled code; not in `kernel_seconds`."""
    kernel_bound: float = _GIVEN_BOUND
    """Part of `kernel_error` that rounding explains, on these images and with this network."""
    check: str | None = None
    """Result of the kernel's self-check on two images against the reference; None for a given matrix."""
    excess: float | None = None
    """With inducing images: estimated error rate above that of the exact GP of all images, from a comparison of both on
    a part of them; None if not measured."""
    excess_uncertainty: float | None = None
    """Standard error of `excess`."""
    spread: float | None = None
    """Variation between images: the mean of the matrix's diagonal minus the mean of all its entries."""
    choice: str | None = None
    """Chosen recipe, the reason, and the cost of a better one; None for a given network."""
    guessing: tuple[float, float] | None = None
    """Leave-one-out error rate of a classifier that is not clearly better than guessing, and the error rate of always
    predicting the most frequent class; None for a better one."""
    repeated: int = 0
    """Number of images that equal an earlier one; they are left out together with it."""
    no_better: tuple[float, float] | None = None
    """Leave-one-out root mean square error of a regressor that is not clearly better than the mean of all targets, and
    that of the mean; None for a better one."""

    @property
    def sensitivity(self) -> float | None:
        """‖E‖/λ_min for an error matrix E with independent entries, ‖E‖ ≈ 2√N·error·max K: the relative change of the
        solution in the worst direction."""
        if self.kernel_error is None or self.method == "inducing":
            return None
        return 2.0 * math.sqrt(self.images) * self.kernel_error * self.largest_variance / self.smallest_eigenvalue[1]

    @property
    def movement(self) -> float | None:
        """Expected relative change of the solution for the same E, whose entries are independent of the targets.

        E‖K⁻¹Eα‖² = error²·‖K⁻¹‖_F²·‖α‖² and ‖K⁻¹‖_F² ≤ tr K⁻¹/λ_min. Predictions change less: fits in float32 and
        in float64 differed by at most a tenth of this wherever both were made (docs/classification.md).
        """
        if self.kernel_error is None or self.method == "inducing":
            return None
        low, high = self.smallest_eigenvalue
        if self.method == "cg":  # its lower bound is the noise, and for the trace only the bound N/λ_min is known
            low = high / self.images
        return self.kernel_error * self.largest_variance / math.sqrt(low * high)

    @property
    def compiling(self) -> str | None:
        """Compile time as text, or None if it was negligible."""
        return f"{self.compile_seconds:.2f} s" if self.compile_seconds > 0.5 else None

    @property
    def worrying(self) -> bool:
        """True if the verdict says that something cannot be trusted."""
        return bool(self._worries or self._off)

    @property
    def verdict(self) -> str:
        """Verdict on what can be trusted: all problems found, or one sentence if there are none."""
        return f"{' '.join(self._worries) or self._trusted} {self._off}".rstrip()

    @property
    def _off(self) -> str:
        """Sentence for a kernel error larger than rounding explains but not so large that nothing can be trusted."""
        error = self.kernel_error or 0.0
        if not self.kernel_bound < error <= max(1e-3, FAR * self.kernel_bound):
            return ""
        return f"Entries are off by {error:.0e} of the largest, where rounding explains {self.kernel_bound:.0e}."

    @property
    def _worries(self) -> list[str]:
        """Problems found: a model no better than guessing, an inaccurate kernel, solve or eigenvalue."""
        found = []
        if self.guessing is not None:
            wrong, guess = self.guessing
            found.append(
                f"{'Not clearly' if wrong < guess else 'No'} better than guessing: leave-one-out is wrong on "
                f"{100 * wrong:.0f} % of the images, and always naming the commonest class would be on "
                f"{100 * guess:.0f} %. Check the labels, or try more or larger pictures, or another network."
            )
        if self.no_better is not None:
            error, spread = self.no_better
            found.append(
                f"{'Not clearly' if error < spread else 'No'} better than the mean of all targets: leave-one-out is "
                f"off by {error:.3g}, root mean square, and the mean would be by {spread:.3g}. Check the targets, or "
                "try more images or another network."
            )
        error, far = self.kernel_error or 0.0, max(1e-3, FAR * self.kernel_bound)
        blur, off = self.largest_variance * max(self.jitter, error), f"entries are off by {error:.0e} of the largest"
        if not error <= far:
            found.append(f"The matrix is not this network's kernel on these images: {off}; trust nothing.")
        elif self.residual > 1e-6:
            found.append(
                f"The linear system is solved to {self.residual:.0e} only: trust nothing finer than that, and add "
                "noise or remove repeated images."
            )
        elif self.method != "inducing" and self.spread is not None and self.spread < 10.0 * blur:
            found.append(
                f"The kernel hardly tells these images apart: they differ by {self.spread:.0e} on average, and rounding"
                f" and jitter are {blur:.0e}; trust nothing, and use dtype='float64' or another network."
            )
        elif self.jitter == 0 and (self.sensitivity or 0.0) >= 1.0:
            found.append(
                "The kernel's rounding is larger than the smallest eigenvalue: leave-one-out, variances and likelihood "
                "are not reliable; use dtype='float64' or some noise."
            )
        return found

    @property
    def _trusted(self) -> str:
        added = f"{self.jitter:.0e} of its mean variance added as noise"
        if self.method == "inducing":
            most = None if self.excess is None else 100 * (self.excess + 2.0 * (self.excess_uncertainty or 0.0))
            above = "How far its error is from that of the exact process was not measured."
            if most is not None and self.excess is not None and most <= _NEAR:
                above = f"Its error is within {most:.2f} points of the exact process's."
            elif most is not None and self.excess is not None:
                above = (
                    f"Warning: its error may be up to {most:.1f} points above that of the exact process of all images "
                    f"(about {100 * self.excess:.1f}); more inducing images come closer."
                )
            return (
                f"This is the approximation through inducing images{f', with {added}' if self.jitter > 0 else ''}; its "
                f"likelihood and variances are its own and not those of the exact process. {above}"
            )
        if self.jitter > 0:
            return (
                f"The matrix was singular, so this is the process with {added}: classes and means hold, variances near "
                "the training images do not."
            )
        if self.movement is None:
            return "The algebra is exact to float64 rounding; how exact the matrix is was not measured."
        if self.movement < 0.1:
            moved = "less than 0.1 %" if self.movement < 1e-3 else f"about {100 * self.movement:.1g} %"
            return (
                "Classes, probabilities, means and variances are those of the exact kernel: its rounding moves the "
                f"solution by {moved}."
            )
        return (
            "Classes and means can be trusted; rounding in the kernel may move variances and the likelihood by up to "
            f"{100 * self.movement:.0f} %, so use dtype='float64' if you rely on these."
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}

    def rows(self) -> list[tuple[str, str]]:
        """Names and values for display, without the verdict."""
        low, high = self.smallest_eigenvalue
        checked = "not checked (the reference is slow)" if self.check is not None else "not checked (given matrix)"
        if self.kernel_error is not None:
            checked = f"{self.kernel_error:.1e} on {self.pairs_checked} pairs against float64"
        twins = f"{self.repeated:,} of {self.images:,} images, left out together with their twins"
        found = [
            ("network", self.choice),
            ("engine", self.engine),
            ("repeated", twins if self.repeated else None),
            ("kernel error", checked),
            ("residual of the solve", f"{self.residual:.1e}"),
            ("smallest eigenvalue", f"{low:.1e} … {high:.1e} (largest variance {self.largest_variance:.2g})"),
            ("noise, jitter", f"{self.noise:g}, {self.jitter:g}"),
            ("amplitude", f"{self.amplitude:.4g}"),
        ]
        return [(name, value) for name, value in found if value is not None]

    def __str__(self) -> str:
        return "\n".join(f"{name:<22} {value}" for name, value in self.rows()) + f"\n{self.verdict}"


def measured(gp: Posterior) -> dict[str, Any]:
    """Fields of a report that come from the posterior."""
    numbers = {name: getattr(gp, name) for name in ("largest_variance", "noise", "jitter", "amplitude")}
    return asdict(gp.solved()) | numbers


def checked_sample(kernel: RecipeKernel, X: NDArray[Any], K: Any, given: bool, images: int = 4) -> dict[str, Any]:
    """Fields of a report on the accuracy of a matrix: pairs of a few images spread over the set, compared with the
    reference; for a tangent kernel also the two most similar images, for which rounding is worst.

    If that would take too long, and for sums or averages of kernels, the result of each kernel's self-check on two
    images, or crops of them.
    """
    shapes = [t.preparation.output_shape(X.shape[1:]) for t in kernel.terms]
    found = [{} if given else _by_verdict(t.kernel, shape) for t, shape in zip(kernel.terms, shapes, strict=True)]
    first = kernel.terms[0]
    own = first.kernel
    if not kernel.single or first.term.symmetry is not None or not is_affordable(own.network, tuple(shapes[0])):
        return max(found, key=lambda c: c.get("kernel_error", 0.0) / c.get("kernel_bound", _GIVEN_BOUND))
    rows = np.unique([*np.linspace(0, len(X) - 1, images).round().astype(int), *_nearest(own, K)])
    sample = np.array([[float(K[int(i), int(j)]) for j in rows] for i in rows])
    compared = compare(own.network, np.asarray(first.images(X[rows]).array), sample, np.dtype(own.dtype), own.kind)
    known: dict[str, Any] = {"kernel_error": 0.0}
    if compared is not None:
        bound = max(compared.bound, _GIVEN_BOUND) if given else compared.bound
        known = {"kernel_error": compared.error, "kernel_bound": bound}
    return found[0] | known | {"pairs_checked": len(rows) * (len(rows) + 1) // 2}


def _by_verdict(kernel: Kernel, shape: tuple[int, ...]) -> dict[str, Any]:
    verdict = kernel.verdict(shape)
    if verdict is None:
        return {"check": "none: nothing had to be computed" if kernel.check else "none: Kernel(…, check=False)"}
    known = {"kernel_error": verdict.error, "kernel_bound": verdict.bound, "pairs_checked": 3}
    return {"check": str(verdict)} | (known if verdict.error is not None else {})


def _nearest(kernel: Kernel, K: Any) -> tuple[int, ...]:
    """Return the two images with the largest correlation, for a tangent kernel in memory (not a store: it is slow)."""
    if kernel.kind != "ntk" or not isinstance(K, np.ndarray) or len(K) < 2:
        return ()
    sizes = np.sqrt(np.maximum(K.diagonal(), 0.0))
    scale = np.divide(1.0, sizes, out=np.zeros_like(sizes), where=sizes > 0)
    best: tuple[float, int, int] = (-math.inf, 0, 1)
    for i, row in enumerate(K):
        c = row * scale[i] * scale
        c[i] = -math.inf
        best = max(best, (float(c.max()), i, int(c.argmax())))
    return best[1:]


# ---- comparison with guessing ----------------------------------------------------------------------------------------
# Leave-one-out predictions are compared image by image with guessing, in two ways: the probability of the label against
# the share of its class, and the errors against those of always predicting the most frequent class. Either is enough:
# probabilities tell more if one class is rare, errors if a few images are confidently wrong. A model is better if the
# mean difference is more than two standard errors.


def errors_if_guessing(
    probability: Floats, wrong: Mask, yes: Mask, several: bool, groups: NDArray[np.intp] | None = None
) -> tuple[float, float] | None:
    """Error rates of leave-one-out and of always predicting the most frequent class, if the first is no better.

    `probability` and `yes`, a mask of the labels that hold, are (images, classes); with `several` labels per image each
    is a separate decision. Images of one of the `groups` count as one observation. None if leave-one-out is better, or
    cannot be right because no class has two images.
    """
    if len(yes) < 2 or (not several and (yes.sum(0) <= 1).all()):
        return None
    share = yes.mean(0)
    commonest = share > 0.5 if several else np.arange(len(share)) == share.argmax()
    guess_wrong = (yes != commonest).any(1)
    of_truth = (np.where(yes, P, 1.0 - P if several else 1.0) for P in (probability, share))
    logs, guess_logs = (np.log(np.maximum(P, _LEAST)).sum(1) for P in of_truth)
    if is_positive(logs - guess_logs, groups) or is_positive(guess_wrong.astype(np.float64) - wrong, groups):
        return None
    return float(wrong.mean()), float(guess_wrong.mean())


def error_beside_mean(
    errors: Floats, targets: Floats, groups: NDArray[np.intp] | None = None
) -> tuple[float, float] | None:
    """Root mean square of the leave-one-out `errors` (images, outputs) and of the errors of the mean of all other
    targets, or None if the first are clearly smaller or the targets are constant.
    """
    n = len(targets)
    if n < 2:
        return None
    of_mean = (targets - targets.mean(0)) * (n / (n - 1.0))
    if not of_mean.any() or is_positive((of_mean**2 - errors**2).mean(1), groups):
        return None
    return math.sqrt(float((errors**2).mean())), math.sqrt(float((of_mean**2).mean()))


def is_positive(difference: Floats, groups: NDArray[np.intp] | None) -> bool:
    """True if the mean is above 0 by more than chance explains, with deviations summed over each group."""
    mean = float(difference.mean())
    deviations = difference - mean
    if groups is not None:
        deviations = np.bincount(np.unique(groups, return_inverse=True)[1], deviations).astype(np.float64)
    n = len(deviations)
    error = math.sqrt(float((deviations**2).sum()) * n / max(n - 1, 1)) / len(difference)
    return mean > _STANDARD_ERRORS * error + _LEAST
