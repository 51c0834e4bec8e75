"""Hyperparameter learning before a fit: L-BFGS over the logarithms of a network's variances, in groups, and of the
noise, from a few starts.

If the amplitude is fitted, the loss does not depend on a factor of the whole kernel. A ReLU network has many such
factors: every weight_var without biases, and, layer by layer, a bias with the weights around it. So the search is
restricted to the directions that remain without them (`Problem.free_directions`).
"""

from __future__ import annotations

import contextlib
import math
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cnngp.common import memory
from cnngp.common.progress import progress_bar
from cnngp.gp.checks import MatrixError, check_targets
from cnngp.gp.objectives import Judged, MeansLoss, Rule, judged, minimised
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import Network, NetworkError
from cnngp.network.serialize import from_json

from .request import Learning

Array = NDArray[Any]
Values = Mapping[str, float]

# Search range of the logarithm of the noise over the mean k(x, x). Below, it has no effect in float32; the upper bound
# is that of `noise="ml"`, at which targets are nothing but noise.
_BOUNDS = (math.log(1e-6), math.log(1e6))
# Largest distance of a search from its start, and standard deviation of later starts, in logarithms.
_FAR, _AWAY = math.log(1000.0), 1.0
# Start value of a bias of 0, relative to its layer's weight_var times the images' mean square.
_OPENED = 0.1
# Smaller components of a direction count as 0.
_STILL = 1e-6
# Relative decrease of the loss that is not worth another step.
_TOLERANCE = 1e-5
# Penalty, added to the best loss, for a network beyond the limits of the engine or the layers: the search turns back.
_TOO_FAR = 10.0
# Significant digits of learned numbers: more than matter, and few enough to be the same from run to run.
_DIGITS = 4
# Number of images for finding directions, and the relative change of the kernel's shape from which a direction counts.
# It is small because with far too large biases the images determine only a small part of the kernel.
_IMAGES = 8
_LEAST = {"float64": 1e-9, "float32": 2e-4}


@dataclass(frozen=True)
class Change:
    """Change of a group of variances by a common factor; `before` and `after` are their geometric means.

    A bias of 0, which no factor can change, is first given a positive value; its `before` is 0.
    """

    name: str
    places: int
    before: float
    after: float


@dataclass(frozen=True)
class Learned:
    """Result of learning. Losses are in nats, smaller is better, on the `images` used for learning: the mean over all
    targets, or over the images if a classifier learns by leave-one-out.

    `before` is the loss of the given network with its best noise, so that the gain is due to the variances.
    """

    rule: str
    images: int
    network_before: Network
    network: Network
    before: float
    after: float
    noise_before: float | None
    noise: float | None
    """Variance of the noise over the mean k(x, x); None if the caller gave it as a number."""
    changes: tuple[Change, ...]
    left_out: tuple[str, ...]
    """Variances that only scale the kernel, as the amplitude already does."""
    path: tuple[tuple[int, float], ...]
    """Number of the start, and loss, of each matrix."""
    seconds: float
    interrupted: bool

    @property
    def matrices(self) -> str:
        """Number of computed matrices as text."""
        return f"{len(self.path):,} {'matrix' if len(self.path) == 1 else 'matrices'}"

    @property
    def found_nothing(self) -> bool:
        """True if no network is better in the displayed digits."""
        return f"{self.before:.4f}" == f"{self.after:.4f}"

    def __str__(self) -> str:
        what = "leave-one-out loss" if self.rule == "loo" else "−log likelihood"
        lines = [
            f"{what} {self.before:.4f} → {self.after:.4f} nats, on {self.images:,} images, "
            f"{self.matrices}, {self.seconds:.1f} s{', interrupted' if self.interrupted else ''}"
        ]
        if self.found_nothing:
            lines.append("nothing better was found than the network as it was given")
        lines += [f"{c.name} (× {c.places}) {c.before:.4g} → {c.after:.4g}" for c in self.changes]
        if self.noise is not None:
            lines.append(f"noise / mean k(x, x) {self.noise_before:.2g} → {self.noise:.2g}")
        if self.left_out:
            lines.append(f"left out, as they only scale the kernel: {', '.join(self.left_out)}")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON; `from_dict` reads them."""
        return asdict(self) | {name: getattr(self, name).to_json() for name in ("network_before", "network")}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        networks = {name: from_json(data[name]) for name in ("network_before", "network")}
        changes = tuple(Change(**change) for change in data["changes"])
        path = tuple((int(start), float(loss)) for start, loss in data["path"])
        return cls(**data | networks | {"changes": changes, "path": path, "left_out": tuple(data["left_out"])})


class Group(NamedTuple):
    """Parameters that change by a common factor."""

    name: str
    members: tuple[str, ...]

    def mean(self, values: Values) -> float:
        """Geometric mean, 0 if a member is 0."""
        each = [values[member] for member in self.members]
        return math.exp(sum(map(math.log, each)) / len(each)) if min(each) > 0.0 else 0.0


def groups_of(network: Network, values: Values, tied: bool) -> list[Group]:
    """Group the variances: if `tied`, by kind of layer, weights or biases, and inside or outside branches of sums.

    Gains of ReLUs are not learned, because the following weights have the same effect. A variance of 0 in a group with
    others stays 0.
    """
    found: dict[str, list[str]] = {}
    for name in values:
        place, _, parameter = name.rpartition(".")
        if parameter == "gain" or values[name] < 0.0:
            continue
        layer: Any = network
        for field, number in re.findall(r"(\w+)\[(\d+)\]", place):
            layer = getattr(layer, field)[int(number)]
        where = " in branches" if "branches[" in place else ""
        found.setdefault(f"{type(layer).__name__} {parameter}{where}" if tied else name, []).append(name)
    return [Group(name, tuple([m for m in members if values[m] > 0.0] or members)) for name, members in found.items()]


def moved(values: Values, groups: Sequence[Group], log_factors: Array) -> Values:
    """Return the values with each group multiplied by its factor."""
    changed = dict(values)
    for group, factor in zip(groups, np.exp(log_factors), strict=True):
        changed |= {member: float(values[member] * factor) for member in group.members}
    return changed


class Problem:
    """Learning problem: images, targets, and the loss of a network's variances.

    The noise is in units of the mean k(x, x), so that a factor of the kernel has no effect; a positive number from the
    caller is in the kernel's units and fixed.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Array,
        Y: NDArray[np.float64],
        rule: Rule,
        noise: Any,
        amplitude: Any,
        means_loss: MeansLoss | None,
    ) -> None:
        # Six matrices: K, its copy, the factor, the inverse, the gradient and a product.
        memory.require(6 * 8 * len(X) ** 2, f"learning on {len(X):,} images")
        self.kernel, self.X, self.rule, self.amplitude = kernel, X, rule, amplitude
        self.Y, self.means_loss = check_targets(np, Y, len(X)), means_loss
        # The search turns back if a gradient fails; a network without any gradient raises here.
        kernel.gradient(X[:1], None, np.zeros((1, 1)), progress=False)
        self.given_noise = None if isinstance(noise, str) or noise == 0 else float(noise)
        self.scale_counts = self.given_noise is not None or not isinstance(amplitude, str)
        """True if a factor of the kernel changes the loss."""

    def of(self, values: Values) -> Kernel:
        """Return the kernel of the network with other variances, without the self-check, as there are many of them."""
        return self.kernel.with_network(self.kernel.network.with_parameters(values), check=False)

    def matrix(self, kernel: Kernel) -> Array:
        """Compute K; on a GPU with the gradient engine, whose code need not be recompiled for other variances."""
        if kernel.device == "cuda":
            engine: Any = kernel.gradient_engine(self.X.shape[1:])
            K = engine.symmetric(self.X.reshape(*self.X.shape[:2], -1))
        else:
            K = kernel(self.X, progress=False)
        return np.asarray(K, dtype=np.float64)

    def judge(self, K: Array, log_noise: float) -> Judged:
        """Return the loss with its derivatives by the matrix, whose diagonal scales the noise, and by the log noise."""
        n, mean = len(K), float(K.diagonal().mean())
        noise = math.exp(log_noise) * mean if self.given_noise is None else self.given_noise
        found = judged(self.rule, K, self.Y, noise, self.amplitude, self.means_loss)
        if self.given_noise is not None:
            return found._replace(by_noise=0.0)
        by_matrix = found.by_matrix
        by_matrix[np.arange(n), np.arange(n)] += found.by_noise * noise / (mean * n)
        return Judged(found.loss, by_matrix, found.by_noise * noise)

    def slopes(self, kernel: Kernel, groups: Sequence[Group], by_matrix: Array, X: Array | None = None) -> Array:
        """Return Σ_ij by_matrix_ij ∂K_ij/∂log θ for the common factor θ of each group."""
        images = self.X if X is None else X
        values, slopes = kernel.network.parameters(), kernel.gradient(images, None, by_matrix, progress=False)
        return np.array([sum(values[member] * slopes[member] for member in group.members) for group in groups])

    def best_noise(self, K: Array) -> tuple[float, float]:
        """Return the best log noise for a matrix, and its loss."""
        if self.given_noise is not None:
            return 0.0, self.judge(K, 0.0).loss
        found = minimised(lambda g: self.judge(K, g).loss, *_BOUNDS, points=13, tolerance=0.05, inside=True)
        return found.at, found.loss

    def free_directions(self, values: Values, groups: Sequence[Group], dtype: str = "float64") -> Array:
        """Orthonormal basis (groups, directions) of the log factors that change more than the scale of the kernel, or
        that change it at all if the scale matters.

        A direction v only scales the kernel if Σ_g v_g ∂K/∂log θ_g is a multiple of K, so if its product with every W
        with ⟨W, K⟩ = 0 is 0; a few random W are tested. The basis is the same for all values, because the factors in
        which the kernel is homogeneous do not depend on the variances.
        """
        X = self.X[np.unique(np.linspace(0, len(self.X) - 1, _IMAGES).astype(int))]
        try:
            # On the CPU, which does not have to compile code for float64.
            network = self.kernel.network.with_parameters(values)
            kernel = Kernel(network, "cpu", dtype, self.kernel.threads, check=False)
            K = np.asarray(kernel(X, progress=False), dtype=np.float64)
        except NetworkError:  # the series of an Elementwise may be too long in float64 only
            if dtype == "float32":
                raise
            return self.free_directions(values, groups, "float32")
        size = float(np.linalg.norm(K))
        if size == 0.0 or not groups:  # blank images
            return np.empty((len(groups), 0))
        rng, slopes = np.random.default_rng(0), []
        for _ in range(len(groups) + 1):
            W = rng.standard_normal(K.shape)
            W -= 0.0 if self.scale_counts else (W * K).sum() / size**2 * K
            slopes.append(self.slopes(kernel, groups, W, X) / size)
        _, sizes, basis = np.linalg.svd(np.stack(slopes), full_matrices=False)
        return np.asarray(basis[sizes > _LEAST[dtype]].T)


class _Enough(Exception):
    """Signal that a start has used up its steps."""


class _Point(NamedTuple):
    values: Values
    log_noise: float
    loss: float


def learned(problem: Problem, asked: Learning, seed: int | None) -> Learned:
    """Find the best variances and noise; after a keyboard interrupt, return the best so far."""
    begun = time.perf_counter()
    network = problem.kernel.network
    given = network.parameters()
    groups = groups_of(network, given, asked.tied)
    rng = np.random.default_rng(seed)
    only_scale: list[set[str]] = []
    interrupted = False
    with progress_bar(asked.starts * asked.steps, "learn", "step") as bar:
        first = _Point(given, *problem.best_noise(problem.matrix(problem.kernel)))
        path = [(0, first)]
        try:
            for start in range(asked.starts):
                values = given if start == 0 else opened(problem, given, groups)
                active = [group for group in groups if any(values[member] for member in group.members)]
                basis = problem.free_directions(values, active)
                still = np.abs(basis).max(1, initial=0.0) < _STILL
                only_scale.append({g.name for g, at_rest in zip(active, still, strict=True) if at_rest})
                if start > 1 or (start == 1 and values == given):
                    values = moved(values, active, basis @ (basis.T @ rng.normal(0.0, _AWAY, len(active))))
                _descend(problem, path, bar, start, values, active, basis, asked.steps)
        except KeyboardInterrupt:
            interrupted = True
            warnings.warn(
                f"learning was interrupted after {len(path):,} matrices; the fit goes on with the best so far",
                UserWarning,
                stacklevel=6,  # the caller of an estimator's fit
            )
    best = _rounded(problem, _best(path), first)
    changes = [Change(g.name, len(g.members), g.mean(given), g.mean(best.values)) for g in groups]
    given_noise = problem.given_noise is not None
    return Learned(
        rule=problem.rule,
        images=len(problem.Y),
        network_before=network,
        network=network.with_parameters(best.values),
        before=first.loss,
        after=best.loss,
        noise_before=None if given_noise else math.exp(first.log_noise),
        noise=None if given_noise else math.exp(best.log_noise),
        changes=tuple(change for change in changes if change.before != change.after),
        left_out=tuple(sorted(set.intersection(*only_scale))) if only_scale else (),
        path=tuple((start, point.loss) for start, point in path),
        seconds=time.perf_counter() - begun,
        interrupted=interrupted,
    )


def _best(path: Sequence[tuple[int, _Point]]) -> _Point:
    return min((point for _, point in path), key=lambda point: point.loss)


def _descend(
    problem: Problem,
    path: list[tuple[int, _Point]],
    bar: Any,
    start: int,
    values: Values,
    groups: Sequence[Group],
    basis: Array,
    steps: int,
) -> None:
    """Run L-BFGS over coordinates along `basis` and, as the last one, log noise; add every point to `path`."""
    from scipy.optimize import minimize

    directions, learns_noise = basis.shape[1], problem.given_noise is None
    # The first step of L-BFGS is as long as the gradient, so the loss is scaled to give it length 1.
    asked, unit = 0, 1.0

    def loss(z: Array) -> tuple[float, Array]:
        nonlocal asked, unit
        if asked == steps:
            raise _Enough
        asked += 1
        log_noise = float(z[-1]) if learns_noise else path[0][1].log_noise
        here = moved(values, groups, basis @ z[:directions])
        try:
            kernel = problem.of(here)
            found = problem.judge(problem.matrix(kernel), log_noise)
            slopes = problem.slopes(kernel, groups, found.by_matrix) @ basis
        except (RangeError, NetworkError, MatrixError):  # invalid numbers, layer arguments or matrix
            return (_best(path).loss + _TOO_FAR) / unit, np.zeros_like(z)
        path.append((start, _Point(here, log_noise, found.loss)))
        bar.set_postfix_str(f"{_best(path).loss:.4f} nats", refresh=False)
        bar.update(1)
        gradient = np.append(slopes, [found.by_noise] * learns_noise)
        if asked == 1:
            unit = float(np.linalg.norm(gradient)) or 1.0
        return found.loss / unit, gradient / unit

    bounds = [(-_FAR, _FAR)] * directions + [_BOUNDS] * learns_noise
    if bounds:
        # If the scale is fixed and the kernel too small, noise would explain everything and the search would be stuck:
        # with noise of at most the kernel's size, the kernel grows first.
        log_noise = min(_best(path).log_noise, 0.0) if problem.scale_counts else _best(path).log_noise
        begin = np.append(np.zeros(directions), [log_noise] * learns_noise)
        with contextlib.suppress(_Enough):
            minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": _TOLERANCE})
    bar.update(steps - asked)


def opened(problem: Problem, values: Values, groups: Sequence[Group]) -> Values:
    """Return the values with a small positive one for each bias in groups that are all 0, which have no logarithm."""
    square = float(np.mean(np.square(problem.X, dtype=np.float64)))
    opened = dict(values)
    for member in (member for group in groups if not any(values[m] for m in group.members) for member in group.members):
        if member.endswith("bias_var"):
            opened[member] = _OPENED * (values[member.removesuffix("bias_var") + "weight_var"] or 1.0) * square
    return opened


def _rounded(problem: Problem, best: _Point, first: _Point) -> _Point:
    """Return the point rounded to a few digits with its loss, or the first one if nothing was gained."""
    if best is first:
        return first
    few = {n: v if v == first.values[n] else float(f"{v:.{_DIGITS}g}") for n, v in best.values.items()}
    log_noise = math.log(float(f"{math.exp(best.log_noise):.{_DIGITS}g}"))
    rounded = _Point(few, log_noise, problem.judge(problem.matrix(problem.of(few)), log_noise).loss)
    return rounded if rounded.loss < first.loss else first
