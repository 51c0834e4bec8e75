"""The certificate of a fit: what was measured about it, and one sentence on what can be trusted."""

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
_LEAST = 1e-12  # of a probability, of which a logarithm is taken
# How many points more errors through inducing images than of the exact process need no warning.
_NEAR = 0.3
# Of `kernel_error`: a matrix that was given may come from another library, with roundings of its own.
_GIVEN_BOUND = 1e-5


@dataclass(frozen=True)
class FitReport:
    """Eigenvalues are of K + noise·I in the kernel's units, before the amplitude."""

    images: int
    engine: str
    kernel_seconds: float
    solve_seconds: float
    residual: float
    smallest_eigenvalue: tuple[float, float]
    """A lower bound, 1/tr K⁻¹, and an upper one, the Rayleigh quotient of an inverse iteration."""
    largest_variance: float
    noise: float
    jitter: float
    amplitude: float
    kernel_error: float | None = None
    """Largest |K − R|/max|R| on `pairs_checked` pairs, with R the float64 reference; None for a given matrix."""
    pairs_checked: int = 0
    method: str = "cholesky"
    """How the system was solved: "cholesky", "cg", or "inducing" for the approximation."""
    compile_seconds: float = 0.0
    """Of compiling the kernel, or of loading what was compiled before; not in `kernel_seconds`."""
    kernel_bound: float = _GIVEN_BOUND
    """What rounding explains of `kernel_error`, on these images and by this network."""
    check: str | None = None
    """What the kernel found when it compared two images with the reference before it began; None for a given matrix."""
    excess: float | None = None
    """Through inducing images: by how much the share of wrong classes is above that of the exact process of all images,
    as both found on a part of them; None where that was not measured."""
    excess_uncertainty: float | None = None
    """The standard error of `excess`."""
    spread: float | None = None
    """By how much images differ: the mean of the matrix's diagonal less the mean of all its entries."""
    choice: str | None = None
    """Of a network that was not given: which, why, and what a better one would take; None for a given one."""
    guessing: tuple[float, float] | None = None
    """Of a classifier that is no better than guessing, by leave-one-out: the shares of images that it gets wrong, and
    that always naming the commonest class would."""
    repeated: int = 0
    """Images that are there a second time or more; they are left out together with the first."""
    no_better: tuple[float, float] | None = None
    """Of a regressor that is not clearly better than the mean of all targets, by leave-one-out: its root mean square
    error, and that of the mean."""

    @property
    def sensitivity(self) -> float | None:
        """‖E‖/λ_min for an error matrix E of independent entries, ‖E‖ ≈ 2√N·error·max K: the change of the solution
        in the direction that suffers most."""
        if self.kernel_error is None or self.method == "inducing":
            return None
        return 2.0 * math.sqrt(self.images) * self.kernel_error * self.largest_variance / self.smallest_eigenvalue[1]

    @property
    def movement(self) -> float | None:
        """The expected relative change of the solution for the same E, whose entries know nothing of the targets.

        E‖K⁻¹Eα‖² = error²·‖K⁻¹‖_F²·‖α‖² and ‖K⁻¹‖_F² ≤ tr K⁻¹/λ_min. Predictions move by less: fits in float32 and
        in float64 differed by a tenth of this or less wherever both were made (docs/classification.md).
        """
        if self.kernel_error is None or self.method == "inducing":
            return None
        low, high = self.smallest_eigenvalue
        if self.method == "cg":  # its lower bound is the noise, and of the trace only N/λ_min is known
            low = high / self.images
        return self.kernel_error * self.largest_variance / math.sqrt(low * high)

    @property
    def compiling(self) -> str | None:
        """The time of compiling for people, None where nobody waited for it."""
        return f"{self.compile_seconds:.2f} s" if self.compile_seconds > 0.5 else None

    @property
    def worrying(self) -> bool:
        """Whether the verdict says that something cannot be trusted."""
        return bool(self._worries or self._off)

    @property
    def verdict(self) -> str:
        """What can be trusted: all that is worrying, or one sentence where nothing is."""
        return f"{' '.join(self._worries) or self._trusted} {self._off}".rstrip()

    @property
    def _off(self) -> str:
        """That the kernel is further off than rounding explains, where it is not so far off that nothing holds."""
        error = self.kernel_error or 0.0
        if not self.kernel_bound < error <= max(1e-3, FAR * self.kernel_bound):
            return ""
        return f"Entries are off by {error:.0e} of the largest, where rounding explains {self.kernel_bound:.0e}."

    @property
    def _worries(self) -> list[str]:
        """Whether the model is better than nothing, whether its numbers are right, and how exact the kernel is."""
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
        """Names and values for people, without the verdict."""
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
    """What a report says of a posterior."""
    numbers = {name: getattr(gp, name) for name in ("largest_variance", "noise", "jitter", "amplitude")}
    return asdict(gp.solved()) | numbers


def checked_sample(kernel: RecipeKernel, X: NDArray[Any], K: Any, given: bool, images: int = 4) -> dict[str, Any]:
    """Of a report, what is known of the entries of a matrix: pairs of a few images spread over the set, compared with
    the reference; of a tangent kernel also the two images that are most alike, because rounding does most to those.

    Where that would take too long, and of kernels that are sums or averages, what each network's kernel found on two
    images, or parts of them, before it began.
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
    """The two images of the largest correlation, for a tangent kernel in memory; of a store one would read all."""
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


# ---- better than nothing ---------------------------------------------------------------------------------------------
# Judged by leave-one-out, image by image: by the probability of the label beside the share of its class, and by errors
# beside those of always naming the commonest class. Either is enough: probabilities tell more where one class is rare,
# and errors where a few images are confidently wrong. Better is what is so by twice the standard error.


def errors_if_guessing(
    probability: Floats, wrong: Mask, yes: Mask, several: bool, groups: NDArray[np.intp] | None = None
) -> tuple[float, float] | None:
    """The shares of images that leave-one-out and the commonest class get wrong, where the first knows no better.

    `probability` and `yes`, whether the label holds, are (images, classes); of `several` labels an image each is a
    choice of its own. Images of one of the `groups` are alike, and count as one observation. None where leave-one-out
    does better, or cannot be right because no class has two images.
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
    """Root mean square `errors` of leave-one-out, (images, outputs), and those of the mean of all other targets, where
    the first are not clearly smaller.
    """
    n = len(targets)
    if n < 2:
        return None
    of_mean = (targets - targets.mean(0)) * (n / (n - 1.0))
    if not of_mean.any() or is_positive((of_mean**2 - errors**2).mean(1), groups):
        return None
    return math.sqrt(float((errors**2).mean())), math.sqrt(float((of_mean**2).mean()))


def is_positive(difference: Floats, groups: NDArray[np.intp] | None) -> bool:
    """Whether the mean is above 0 by more than chance explains, from deviations that are summed over each group."""
    mean = float(difference.mean())
    deviations = difference - mean
    if groups is not None:
        deviations = np.bincount(np.unique(groups, return_inverse=True)[1], deviations).astype(np.float64)
    n = len(deviations)
    error = math.sqrt(float((deviations**2).sum()) * n / max(n - 1, 1)) / len(difference)
    return mean > _STANDARD_ERRORS * error + _LEAST
