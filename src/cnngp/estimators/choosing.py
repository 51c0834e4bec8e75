"""Choosing a recipe by leave-one-out with successive halving: all rows of a table on a few images, the better half on
twice as many, and so on.

Rows are compared by their small networks, and by larger ones once there are no more images or they cost too much. The
best row is fitted with its largest affordable network, and two or three of the best are summed if that is clearly
better. The comparison is the same on every machine: costs are counted in covariances (`elements_of`), not in seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cnngp.common.progress import progress_bar
from cnngp.gp.leave_one_out import names_of
from cnngp.kernel.kernel import Kernel
from cnngp.network.names import AN_IMAGE, IN_ALL

from .candidates import Codes, Compared, Sizes, Tried, candidates, clear, left_out, summed
from .kernels import kernel_of
from .labels import Targets
from .recipe import Recipe
from .training_images import Images, balanced, in_turn

Array = NDArray[Any]
Floats = NDArray[np.float64]

Effort = Literal["quick", "normal", "best"]
EFFORTS: dict[Effort, float] = {"quick": 0.1, "normal": 1.0, "best": 10.0}
"""Limit of a fit's cost, as a multiple of the usual one (`network.names`)."""
_PART = 0.5
"""Limit of the first round of the choice, and of all others together, as a part of the cost of the default fit."""
Tell = Callable[[str, Any], None] | None
"""Callback with the name of a stage and a value known at that stage."""
_AT_LEAST, _FIRST_ROUND = 3e9, 2e10
"""Covariances, times the multiple of the effort, that later rounds and the first one may always take, even if the fit
itself costs less: a few seconds."""

FEWEST = 20
"""Smallest number of images for a comparison; with fewer, leave-one-out is too uncertain and the default is used."""
_FIRST = (64, 200)  # smallest and largest number of images in the first round
# Candidates are dropped to afford this many images in the first round: with fewer, they hardly differ on ten classes.
_TELLING = 150
_GROWTH = 2
# Part of the remaining covariances that a round may take, unless it is the first one on all images.
_SHARE = 0.5
# Estimated time to judge the later rounds, of fewer recipes on more images, in multiples of the first round's.
_LATER = 3.0
_FINALISTS = 3
# Number of images on which the sizes of a row, and the weights of a sum, are compared.
_SOME = 400
_WEIGHTS = {2: ((1, 3), (1, 1), (3, 1)), 3: ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))}


@dataclass(frozen=True)
class Expected:
    """Estimated remaining seconds, at the rate of the first round."""

    choosing: float
    a_pair: float
    """Seconds per pair of images in a fit with the default recipe, and in predictions."""


@dataclass(frozen=True)
class Choice:
    """Chosen recipe, the recipes that it was compared with, and what more effort would try."""

    recipe: Recipe
    name: str
    images: int
    """Number of images in the last comparison; 0 without a comparison."""
    effort: Effort = "normal"
    compared: tuple[Compared, ...] = field(default=(), repr=False)
    """The chosen one, the others of the last round, best first, and those that were dropped earlier."""
    gain: float = 0.0
    """Gain over the default in nats per image."""
    elements: int = 0
    """Number of covariances per pair of images."""
    dearest: tuple[str, int] | None = None
    """The costliest network of its row that effort="best" would use, and its covariances per pair."""
    relatives: bool = False
    """True if smaller networks of the same row were compared instead of the chosen network."""

    def __str__(self) -> str:
        return f"{self.name}, {self.reason}; {self.better()}"

    @property
    def reason(self) -> str:
        if not self.compared:
            return "the usual one for images of this size and number"
        best, *others = self.compared
        smaller = " of smaller relatives" if self.relatives else ""
        where = f"by leave-one-out{smaller} on {self.images:,} images: {best.loss:.3f} nats an image"
        beside = ", ".join(map(str, others[:3]))
        if best.loss > others[0].loss:
            return f"the usual one; none of {len(others)} others is clearly better {where}, beside {beside}"
        return f"the best of {len(self.compared)} {where}, then {beside}"

    def better(self) -> str:
        """Describe what more effort would try."""
        if self.effort == "best":
            return "no more is tried than with effort='best'; `cnngp search --space pooled` can look for more"
        more = "effort='best' (--effort best) compares on more pairs"
        if self.dearest is None:
            return more
        name, elements = self.dearest
        return f"{more}, and takes up to {name} at {elements / max(1, self.elements):.1f} times the kernels"

    def as_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        tried = [{"name": c.name, "loss": c.loss, "images": c.images} for c in self.compared]
        return {"name": self.name, "effort": self.effort, "images": self.images, "gain": self.gain, "compared": tried}


def choose(
    images: Images,
    targets: Targets,
    make: Callable[..., Kernel],
    pairs: int,
    effort: Effort = "normal",
    groups: Codes = None,
    among: Sequence[Sizes] | None = None,
    compare: bool = True,
    preparation: Any = None,
    tell: Tell = None,
) -> Choice:
    """Choose the recipe for a fit with this number of `pairs` of images; images of one of the `groups` belong together.

    `make(network, symmetry)` makes kernels. If `compare` is False, the first row is taken; with a `preparation`, all
    candidates use it. `tell` is called with "choosing" and the number of rows, and after the first round with
    "expected" and an `Expected`.
    """
    few = images.at(slice(0, min(len(images), 200)))
    table = candidates(few, preparation=preparation) if among is None else list(among)
    limit = min(AN_IMAGE * len(images), IN_ALL) * EFFORTS[effort]
    rows = [sizes for row in table if (sizes := tuple(c for c in row if c.elements * pairs <= limit))]
    rows = rows or [(min((row[0] for row in table), key=lambda c: c.elements),)]
    usual = rows[0][-1]
    choice = Choice(Recipe((usual.term,)), str(usual), 0, effort, elements=usual.elements)
    order = _order(targets, groups)
    if compare and len(order) >= FEWEST:
        allowance = max(_PART * usual.elements * pairs, _AT_LEAST * EFFORTS[effort])
        first, rows = _first(rows, len(order), max(allowance, _FIRST_ROUND * EFFORTS[effort]))
        if len(rows) > 1:
            if tell is not None:
                tell("choosing", len(rows))
            tried = [Tried(row, lambda r, few: kernel_of(r, few, make, scaled=False), images.dtype) for row in rows]
            search = _Search(tried, images, targets, groups, order, allowance)
            choice = search.run(choice, first, limit / max(1, pairs), tell)
    if effort == "best":
        return choice
    # The costliest network of the chosen row that effort="best" would use and this effort does not.
    chosen, most = replace(choice.recipe.main, weight=1.0), limit * EFFORTS["best"] / EFFORTS[effort]
    here = next((row for row in table if any(c.term == chosen for c in row)), ())
    dearer = [c for c in here if limit < c.elements * max(1, pairs) <= most]
    return replace(choice, dearest=(str(dearer[-1]), dearer[-1].elements)) if dearer else choice


def _order(targets: Targets, groups: Codes) -> NDArray[np.intp]:
    """Order all images so that the first ones are balanced between classes and come from as many groups as possible."""
    order = balanced(targets.Y, len(targets.Y), 0, shuffled=True)
    names = names_of(groups)
    return order if names is None else order[in_turn(np.unique(names[order], return_inverse=True)[1])]


def _first(rows: Sequence[Sizes], images: int, most: float) -> tuple[int, list[Sizes]]:
    """Return the number of images and the rows of the first round: as many rows, in order, as `most` covariances allow
    on `_TELLING` images.
    """
    room = most / (min(_TELLING, images) ** 2 / 2)
    kept, used = [rows[0]], float(rows[0][0].elements)
    for row in rows[1:]:
        if used + row[0].elements <= room:
            kept.append(row)
            used += row[0].elements
    least, largest = _FIRST
    return min(images, max(least, min(largest, int(math.sqrt(2 * most / used))))), kept


@dataclass
class _Search:
    """Successive halving: each round has fewer rows, on more images, or on the same images with larger networks."""

    alive: list[Tried]
    images: Images
    targets: Targets
    groups: Codes
    order: NDArray[np.intp]
    left: float
    """Remaining budget in covariances, after the first round."""
    rate: float = 1.0
    """Covariances per second, the highest rate so far."""
    judging: float = 0.0
    """Seconds spent on everything but covariances."""
    gone: list[Compared] = field(default_factory=list)

    def run(self, choice: Choice, n: int, most: float, tell: Tell) -> Choice:
        """Choose among all rows; `most` is the limit of covariances per pair in the fit."""
        usual = self.alive[0]
        later = self.left
        with progress_bar(None, "choosing a recipe", "try") as bar:
            self._round(n, [t.at for t in self.alive], bar)
            self.left = later
            if tell is not None:
                rest = self._expected()
                choosing = rest / self.rate + (_LATER * self.judging if rest > 0 else 0.0)
                tell("expected", Expected(choosing, usual.sizes[-1].elements / self.rate))
            while (following := self._next(usual)) is not None:
                self._round(*following, bar)
            best, gain = self.alive[0], np.zeros(1)
            if np.isfinite(usual.losses).all():  # the default is kept if the difference is small or may be chance
                gain = usual.losses - best.losses
                if not clear(gain, self._about(best.images)[1]):
                    best, gain = usual, np.zeros(1)
            compared = tuple([t.said() for t in [best, *(t for t in self.alive if t is not best)]] + self.gone)
            choice = replace(choice, images=compared[0].images, compared=compared, gain=float(gain.mean()))
            fitted = self._enlarged(best, bar)
            chosen = fitted.candidate
            choice = replace(choice, recipe=Recipe((chosen.term,)), name=str(chosen), elements=chosen.elements)
            return self._with_sum(replace(choice, relatives=fitted is not best), best, fitted, most, bar)

    def _about(self, n: int) -> tuple[Targets, Codes]:
        """Targets and groups of the first n images in order."""
        rows = self.order[:n]
        return self.targets.at(rows), None if self.groups is None else self.groups[rows]

    def _round(self, n: int, sizes: Sequence[int], bar: Any) -> None:
        """Judge all rows in these sizes on the first n images in order, and sort them, best first."""
        X, (targets, groups) = self.images.at(self.order[:n]), self._about(n)
        for tried, size in zip(self.alive, sizes, strict=True):
            bar.set_postfix_str(f"{tried.sizes[size]} on {n:,} images", refresh=False)
            cost, begun = tried.cost(n, size), time.perf_counter()
            tried.judge(X, targets, groups, size)
            self.left -= cost
            self.rate = max(self.rate, cost / tried.computing)
            self.judging += time.perf_counter() - begun - tried.computing
            bar.update(1)
        self.alive.sort(key=lambda t: t.loss)

    def _expected(self) -> float:
        """Number of covariances in all later rounds, if rows are dropped in their present order."""
        rows = [replace(t) for t in self.alive]
        twin = replace(self, alive=rows)
        while (following := twin._next(rows[0])) is not None:
            images, sizes = following
            for tried, size in zip(twin.alive, sizes, strict=True):
                twin.left -= tried.cost(images, size)
                tried.at, tried.images = size, images
        return self.left - twin.left

    def _next(self, usual: Tried) -> tuple[int, list[int]] | None:
        """Return images and sizes of the next round, for the better half of the rows or as many as the budget allows;
        None if these are too few.
        """
        n, half = self.alive[0].images, max(_FINALISTS, -(-len(self.alive) // 2))
        more = min(_GROWTH * n, len(self.order))
        for larger in (False, True):
            for keep in range(half, _FINALISTS - 1, -1):
                survivors = [t for i, t in enumerate(self.alive) if i < keep or t is usual]
                sizes = [min(t.at + larger, len(t.sizes) - 1) for t in survivors]
                images = n if larger else more
                changes = images > n or sizes != [t.at for t in survivors]
                cost = sum(t.cost(images, size) for t, size in zip(survivors, sizes, strict=True))
                if changes and cost <= (1.0 if images == len(self.order) > n else _SHARE) * self.left:
                    self.gone = [t.said() for t in self.alive if t not in survivors] + self.gone
                    self.alive = survivors
                    return images, sizes
        return None

    def _enlarged(self, best: Tried, bar: Any) -> Tried:
        """Return the best row in its largest size, or in its compared size if that is clearly better on as many images
        as the budget allows. The largest size has no matrix if these are too few to compare.
        """
        last = len(best.sizes) - 1
        if best.at == last or best.K is None or not np.isfinite(best.losses).all():
            return best
        large = replace(best, at=last, K=None)
        n = min(best.images, _SOME, int(math.sqrt(max(0.0, 2 * self.left / large.candidate.elements))))
        if n >= min(best.images, _FIRST[0]):
            few, groups = self._about(n)
            bar.set_postfix_str(f"{large.candidate} on {n:,} images", refresh=False)
            large.judge(self.images.at(self.order[:n]), few, groups, last)
            if clear(large.losses - left_out(best.K[:n, :n], few, groups), groups):
                return best
        return large

    def _with_sum(self, choice: Choice, best: Tried, fitted: Tried, most: float, bar: Any) -> Choice:
        """Replace the choice by a sum of two or three finalists, with at most `most` covariances per pair, if that is
        clearly better than the `fitted` one. Weights are selected on a part of the images on which the terms have
        matrices, and the sum is judged on all of these.
        """
        finalists = [fitted if t is best else t for t in self.alive[:_FINALISTS]]
        n = fitted.images
        matrices = {id(t): t.K[:n, :n] for t in finalists if t.K is not None and float(t.K.diagonal().mean()) > 0.0}
        known = [t for t in finalists if id(t) in matrices]
        targets, groups = self._about(n)
        part = slice(max(0, n - _SOME), n)
        some, of_part = None if groups is None else groups[part], targets.at(part)
        tries: list[tuple[float, tuple[Tried, ...], tuple[int, ...]]] = []
        bar.set_postfix_str("sums", refresh=False)
        for count, weights in _WEIGHTS.items():
            for group in combinations(known, count):
                if fitted in group and sum(t.candidate.elements for t in group) <= most:
                    for w in weights:
                        K = summed([matrices[id(t)][part, part] for t in group], w)
                        tries.append((float(left_out(K, of_part, some).mean()), group, w))
        if not tries:
            return choice
        _, group, w = min(tries, key=lambda t: t[0])
        losses = left_out(summed([matrices[id(t)] for t in group], w), targets, groups)
        gain = fitted.losses - losses
        if not clear(gain, groups):
            return choice
        shares = [x / sum(w) for x in w]
        name = " + ".join(f"{x:g} × ({t.candidate})" for t, x in zip(group, shares, strict=True))
        return replace(
            choice,
            recipe=Recipe(tuple(replace(t.candidate.term, weight=x) for t, x in zip(group, shares, strict=True))),
            name=name,
            images=n,
            relatives=False,
            compared=(Compared(name, float(losses.mean()), n), fitted.said(), *choice.compared[1:]),
            gain=choice.gain + float(gain.mean()),
            elements=sum(t.candidate.elements for t in group),
        )
