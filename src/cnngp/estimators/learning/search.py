"""The search: L-BFGS along the logarithms of groups of variances and of the noise, from a few starts."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cnngp.common.progress import progress_bar
from cnngp.gp.checks import MatrixError
from cnngp.kernel.engines.base import RangeError
from cnngp.network.layers import NetworkError

from .groups import Group, Values, free_directions, groups_of, moved
from .options import Learning
from .problem import BOUNDS, Problem
from .result import Change, Learned, counted_matrices

Array = NDArray[Any]

# How far a search may go from its start, in logarithms, and how far from the given network later starts are.
_FAR, _AWAY = math.log(1000.0), 1.0
# A bias of 0 is opened at this part of what its layer's weights make of the images' mean square.
_OPENED = 0.1
# A direction has no part of a group below that.
_STILL = 1e-6
# Part of the loss that is not worth another step.
_TOLERANCE = 1e-5
# What a network counts that goes further than the engine or the layers allow: the search turns back from it.
_TOO_FAR = 10.0
# Learned numbers have so many digits: more than matter, and few enough to be the same from run to run.
_DIGITS = 4


class _Enough(Exception):
    """A start has had its steps."""


class _Point(NamedTuple):
    values: Values
    log_noise: float
    loss: float


class _Path:
    """Every matrix that was asked for, and the best point so far."""

    def __init__(self, bar: Any, first: _Point) -> None:
        self.bar, self.best, self.steps = bar, first, [(0, first.loss)]

    def add(self, start: int, point: _Point) -> None:
        self.steps.append((start, point.loss))
        if point.loss < self.best.loss:
            self.best = point
        self.bar.set_postfix_str(f"{self.best.loss:.4f} nats", refresh=False)
        self.bar.update(1)


def learned(problem: Problem, asked: Learning, seed: int | None) -> Learned:
    """The best variances and noise that were found; interrupted from the keyboard, the best so far."""
    begun = time.perf_counter()
    network = problem.kernel.network
    given = network.parameters()
    groups = groups_of(network, given, asked.tied)
    rng = np.random.default_rng(seed)
    only_scale: list[set[str]] = []
    interrupted = False
    with progress_bar(asked.starts * asked.steps, "learn", "step") as bar:
        first = _Point(given, *problem.best_noise(problem.matrix(problem.kernel)))
        path = _Path(bar, first)
        try:
            for start in range(asked.starts):
                values = given if start == 0 else opened(problem, given, groups)
                active = [group for group in groups if not group.is_zero(values)]
                basis = _directions(problem, values, active)
                still = np.abs(basis).max(1, initial=0.0) < _STILL
                only_scale.append({g.name for g, at_rest in zip(active, still, strict=True) if at_rest})
                if start > 1 or (start == 1 and values == given):
                    values = moved(values, active, basis @ rng.normal(0.0, _AWAY, basis.shape[1]))
                _descend(problem, path, start, values, active, basis, asked.steps)
        except KeyboardInterrupt:
            interrupted = True
            warnings.warn(
                f"learning was interrupted after {counted_matrices(len(path.steps))}; the fit goes on with the best so "
                "far",
                UserWarning,
                stacklevel=6,  # whoever called an estimator's fit
            )
    best = _rounded(problem, path.best, first)
    changes = [Change(g.name, len(g.members), g.mean(given), g.mean(best.values)) for g in groups]
    noises = None if problem.given_noise is not None else (math.exp(first.log_noise), math.exp(best.log_noise))
    return Learned(
        rule=problem.rule,
        images=len(problem.Y),
        network_before=network,
        network=network.with_parameters(best.values),
        before=first.loss,
        after=best.loss,
        noise_before=None if noises is None else noises[0],
        noise=None if noises is None else noises[1],
        changes=tuple(change for change in changes if change.before != change.after),
        left_out=tuple(sorted(set.intersection(*only_scale))) if only_scale else (),
        path=tuple(path.steps),
        seconds=time.perf_counter() - begun,
        interrupted=interrupted,
    )


def _directions(problem: Problem, values: Values, groups: Sequence[Group]) -> Array:
    network = problem.kernel.network.with_parameters(values)
    try:
        return free_directions(problem.of(network, "float64"), problem.X, values, groups, problem.scale_counts)
    except NetworkError:  # the series of an Elementwise can be too long for float64 only
        return free_directions(problem.of(network), problem.X, values, groups, problem.scale_counts)


def _descend(
    problem: Problem,
    path: _Path,
    start: int,
    values: Values,
    groups: Sequence[Group],
    basis: Array,
    steps: int,
) -> None:
    """L-BFGS over coordinates along `basis`, and log noise as the last one."""
    from scipy.optimize import minimize

    network, directions = problem.kernel.network, basis.shape[1]
    learns_noise = problem.given_noise is None
    # L-BFGS begins with a step as long as the gradient: the unit of the loss is the one in which that is 1.
    asked, unit = 0, 1.0

    def loss(z: Array) -> tuple[float, Array]:
        nonlocal asked, unit
        if asked == steps:
            raise _Enough
        asked += 1
        log_noise = float(z[-1]) if learns_noise else path.best.log_noise
        here = moved(values, groups, basis @ z[:directions])
        try:
            kernel = problem.of(network.with_parameters(here))
            found = problem.judge(problem.matrix(kernel), log_noise)
            slopes = problem.slopes(kernel, groups, found.by_matrix) @ basis
        except (RangeError, NetworkError, MatrixError):  # of the numbers, the layers' arguments, the matrix
            return (path.best.loss + _TOO_FAR) / unit, np.zeros_like(z)
        path.add(start, _Point(here, log_noise, found.loss))
        gradient = np.append(slopes, [found.by_noise] * learns_noise)
        if asked == 1:
            unit = float(np.linalg.norm(gradient)) or 1.0
        return found.loss / unit, gradient / unit

    bounds = [(-_FAR, _FAR)] * directions + [BOUNDS] * learns_noise
    if bounds:
        # Where the amplitude is given, a kernel that is too small leaves everything to the noise, and there a search
        # would stay: with noise of its own size, the kernel grows first.
        log_noise = min(path.best.log_noise, 0.0) if problem.scale_counts else path.best.log_noise
        begin = np.append(np.zeros(directions), [log_noise] * learns_noise)
        with contextlib.suppress(_Enough):
            minimize(loss, begin, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": _TOLERANCE})
    path.bar.update(steps - asked)


def opened(problem: Problem, values: Values, groups: Sequence[Group]) -> Values:
    """Groups of biases that are all 0, where logarithms end, with a small positive value each."""
    square = float(np.mean(np.square(problem.X, dtype=np.float64)))
    opened = dict(values)
    for group in groups:
        if group.is_zero(values):
            for member in (m for m in group.members if m.endswith("bias_var")):
                opened[member] = _OPENED * (values[member.removesuffix("bias_var") + "weight_var"] or 1.0) * square
    return opened


def _rounded(problem: Problem, best: _Point, first: _Point) -> _Point:
    """The point in a few digits, and its loss; the first one where nothing was gained."""
    if best is first:
        return first
    values = {
        name: value if value == first.values[name] else float(f"{value:.{_DIGITS}g}")
        for name, value in best.values.items()
    }
    log_noise = math.log(float(f"{math.exp(best.log_noise):.{_DIGITS}g}"))
    K = problem.matrix(problem.of(problem.kernel.network.with_parameters(values)))
    rounded = _Point(values, log_noise, problem.judge(K, log_noise).loss)
    return rounded if rounded.loss < first.loss else first
