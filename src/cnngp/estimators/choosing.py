"""Choosing a recipe by leave-one-out: the rows of a table on a few images, the better half on twice as many, and so on.

Rows are compared by their small networks, and by larger ones when all images are compared. The best row is then fitted
with its largest affordable network, and two or three of the best are added up where that is clearly better. What is
compared, on how many images and how it is judged is the same on every machine: costs are counted in covariances
(`elements_of`), never in seconds.
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

from .candidates import Sizes, candidates
from .comparing import Codes, Compared, Tried, clear, left_out, summed
from .kernels import kernel_of
from .labels import Targets
from .recipe import Recipe
from .training_images import Images, balanced

Array = NDArray[Any]
Floats = NDArray[np.float64]

Effort = Literal["quick", "normal", "best"]
EFFORTS: dict[Effort, float] = {"quick": 0.1, "normal": 1.0, "best": 10.0}
"""How much of the usual cost (`network.names`) a fit may take."""
_PART = 0.5
"""Of what the usual fit costs, the part that the first round of its choice may cost, and all others together."""
Tell = Callable[[str, Any], None] | None
"""Called with the name of a stage, and what is known then."""
_AT_LEAST, _FIRST_ROUND = 3e9, 2e10
"""Covariances, times those of the effort, that later rounds, and the first one, may take where the fit itself costs
less: a few seconds."""

FEWEST = 20
"""With fewer images leave-one-out says too little, and what is usual is taken."""
_FIRST = (64, 200)  # images of the first round: no fewer, no more
# Images of the first round that are worth leaving candidates out for: with fewer, ten classes look alike to all.
_TELLING = 150
_GROWTH = 2
# Of the covariances that are left, the part that a round may take that is not the first on all images.
_SHARE = 0.5
# Later rounds, of fewer recipes on more images, are judged in about as many times the seconds of the first.
_LATER = 3.0
_FINALISTS = 3
# Images on which the sizes of a row, and the weights of a sum, are compared.
_SOME = 400
_WEIGHTS = {2: ((1, 3), (1, 1), (3, 1)), 3: ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))}


@dataclass(frozen=True)
class Expected:
    """Seconds that are still to come, at the rate of the first round."""

    choosing: float
    a_pair: float
    """Of a fit with what is usual, and of predictions."""


@dataclass(frozen=True)
class Choice:
    """What was chosen, what it was compared with, and what more effort could find."""

    recipe: Recipe
    name: str
    images: int
    """How many images the last comparison was made on; 0 where none was made."""
    effort: Effort = "normal"
    compared: tuple[Compared, ...] = field(default=(), repr=False)
    """The chosen one, the others of the last round, the best first, and those that left earlier."""
    gain: float = 0.0
    """Nats an image by which it is better than what is usual."""
    elements: int = 0
    """Covariances for a pair of images."""
    dearest: tuple[str, int] | None = None
    """The dearest relative of it that effort="best" would take, and its covariances."""
    relatives: bool = False
    """Whether smaller relatives of the chosen network were compared, and not itself."""

    def __str__(self) -> str:
        return self.text()

    def text(self, seconds: float | None = None) -> str:
        """One or two sentences; `seconds` is how long the kernels took, if they were computed."""
        took = "" if seconds is None else f"; its kernels took {seconds:.1f} s here"
        return f"{self.name}, {self.reason}{took}; {self.better(seconds)}"

    @property
    def reason(self) -> str:
        if not self.compared:
            return "the usual one for images of this size and number"
        loss, others = f"{self.compared[0].loss:.3f} nats an image", ", ".join(map(str, self.compared[1:4]))
        smaller = " of smaller relatives" if self.relatives else ""
        where = f"by leave-one-out{smaller} on {self.images:,} images: {loss}"
        if self.compared[0].loss > self.compared[1].loss:
            return f"the usual one; none of {len(self.compared) - 1} others is clearly better {where}, beside {others}"
        return f"the best of {len(self.compared)} {where}, then {others}"

    def better(self, seconds: float | None = None) -> str:
        """What more effort would take."""
        if self.effort == "best":
            return "no more is tried than with effort='best'; `cnngp search --space pooled` can look for more"
        if self.dearest is None:
            return "effort='best' (--effort best) compares on more pairs"
        name, elements = self.dearest
        times = elements / max(1, self.elements)
        here = "" if seconds is None else f", about {seconds * times:.0f} s"
        more = "effort='best' (--effort best) compares on more pairs, and takes up to"
        return f"{more} {name} at {times:.1f} times the kernels{here}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
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
    """The recipe for a fit that compares `pairs` of these images, of which `groups` belong together.

    `make(network, symmetry)` makes kernels. Where `compare` is False the first row is taken; with a `preparation`,
    candidates are prepared in this way alone. `tell` is called with "choosing" and how many rows are compared, and
    after the first round with "expected" and an `Expected`.
    """
    few = images.at(slice(0, min(len(images), 200)))
    table = candidates(few, preparation=preparation) if among is None else list(among)
    limit = min(AN_IMAGE * len(images), IN_ALL) * EFFORTS[effort]
    affordable = [sizes for row in table if (sizes := tuple(c for c in row if c.elements * pairs <= limit))]
    rows = affordable or [(min((row[0] for row in table), key=lambda c: c.elements),)]
    choice = Choice(Recipe((rows[0][-1].term,)), str(rows[0][-1]), 0, effort, elements=rows[0][-1].elements)
    order = _order(targets, groups)
    allowance = max(_PART * rows[0][-1].elements * pairs, _AT_LEAST * EFFORTS[effort])
    if compare and len(order) >= FEWEST:
        first, rows = _first(rows, len(order), max(allowance, _FIRST_ROUND * EFFORTS[effort]))
        if len(rows) > 1:
            if tell is not None:
                tell("choosing", len(rows))
            tried = [Tried(row, lambda r, few: kernel_of(r, few, make, scaled=False), images.dtype) for row in rows]
            search = _Search(tried, images, targets, groups, order, allowance)
            choice = search.run(choice, first, limit / max(1, pairs), tell)
    return choice if effort == "best" else replace(choice, dearest=_dearer(table, choice, limit / max(1, pairs)))


def _order(targets: Targets, groups: Codes) -> NDArray[np.intp]:
    """All rows, of which the first ones are balanced between classes, and of as many groups as can be."""
    order = balanced(targets.Y, len(targets.Y), 0, shuffled=True)
    if (names := names_of(groups)) is None:
        return order
    turn = np.empty(len(order), np.intp)  # which image of its group each one is
    _, codes = np.unique(names[order], return_inverse=True)
    for code in range(codes.max() + 1):
        turn[codes == code] = np.arange((codes == code).sum())
    return order[np.argsort(turn, kind="stable")]


def _first(rows: Sequence[Sizes], images: int, most: float) -> tuple[int, list[Sizes]]:
    """How many images the first round has, and its rows: for `most` covariances, all but those that leave no room for
    others on images that tell something.
    """
    room = most / (min(_TELLING, images) ** 2 / 2)
    kept, used = [rows[0]], float(rows[0][0].elements)
    for row in rows[1:]:
        if used + row[0].elements <= room:
            kept.append(row)
            used += row[0].elements
    least, largest = _FIRST
    return min(images, max(least, min(largest, int(math.sqrt(2 * most / used))))), kept


def _dearer(table: Sequence[Sizes], choice: Choice, limit: float) -> tuple[str, int] | None:
    """The dearest relative of what was chosen that effort="best" would take and this effort does not."""
    chosen = replace(choice.recipe.main, weight=1.0)
    here = next((row for row in table if any(c.term == chosen for c in row)), ())
    most = limit * EFFORTS["best"] / EFFORTS[choice.effort]
    found = [c for c in here if limit < c.elements <= most]
    return (str(found[-1]), found[-1].elements) if found else None


@dataclass
class _Search:
    """Rounds of comparisons, for fewer and fewer rows: on more images, or on all with larger networks."""

    alive: list[Tried]
    images: Images
    targets: Targets
    groups: Codes
    order: NDArray[np.intp]
    left: float
    """Covariances that may still be computed, after the first round."""
    rate: float = 1.0
    """Covariances a second, of what was quickest so far."""
    judging: float = 0.0
    """Seconds that went into other things than covariances."""
    gone: list[Compared] = field(default_factory=list)

    def run(self, choice: Choice, n: int, most: float, tell: Tell) -> Choice:
        """The choice among all rows; `most` is how many covariances a pair of the fit may take."""
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
            best, gain = _better_than_usual(self.alive, usual, self._about(self.alive[0].images)[1])
            compared = tuple([t.said() for t in [best, *(t for t in self.alive if t is not best)]] + self.gone)
            relatives = self._enlarged(best, bar)
            chosen, n = best.candidate, compared[0].images
            choice = replace(choice, recipe=Recipe((chosen.term,)), name=str(chosen), elements=chosen.elements)
            choice = replace(choice, images=n, compared=compared, gain=gain, relatives=relatives)
            return _with_sum(choice, best, self.alive[:_FINALISTS], *self._about(n), most, bar)

    def _about(self, n: int) -> tuple[Targets, Codes]:
        """Targets and groups of the first n images in order."""
        rows = self.order[:n]
        return self.targets.at(rows), None if self.groups is None else self.groups[rows]

    def _round(self, n: int, sizes: Sequence[int], bar: Any) -> None:
        """All rows on the first n images in order, in these sizes; the best first."""
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
        """Covariances of all rounds to come, if rows leave in the order in which they are."""
        rows = [replace(t) for t in self.alive]
        twin = replace(self, alive=rows)
        while (following := twin._next(rows[0])) is not None:
            images, sizes = following
            for tried, size in zip(twin.alive, sizes, strict=True):
                twin.left -= tried.cost(images, size)
                tried.at, tried.images = size, images
        return self.left - twin.left

    def _next(self, usual: Tried) -> tuple[int, list[int]] | None:
        """Images and sizes of the next round, which is for the better half of the rows, or for as many as can be paid
        for; None where that are too few.
        """
        n, half = self.alive[0].images, max(_FINALISTS, -(-len(self.alive) // 2))
        more = min(_GROWTH * n, len(self.order))
        for larger in (False, True):
            for keep in range(half, _FINALISTS - 1, -1):
                survivors = [t for i, t in enumerate(self.alive) if i < keep or t is usual]
                sizes = [t.larger if larger else t.at for t in survivors]
                images = n if larger else more
                changes = images > n or sizes != [t.at for t in survivors]
                cost = sum(t.cost(images, size) for t, size in zip(survivors, sizes, strict=True))
                if changes and cost <= (1.0 if images == len(self.order) > n else _SHARE) * self.left:
                    self.gone = [t.said() for t in self.alive if t not in survivors] + self.gone
                    self.alive = survivors
                    return images, sizes
        return None

    def _enlarged(self, best: Tried, bar: Any) -> bool:
        """Give the best row its largest size, if that is no worse than the compared one on as many images as what is
        left allows; whether its smaller relatives alone were compared on all of them.
        """
        last = len(best.sizes) - 1
        if best.at == last or best.K is None or not np.isfinite(best.losses).all():
            return False
        n = min(best.images, _SOME, int(math.sqrt(max(0.0, 2 * self.left / best.sizes[last].elements))))
        if n >= min(best.images, _FIRST[0]):
            large, (few, groups) = replace(best, at=last, K=None), self._about(n)
            bar.set_postfix_str(f"{large.candidate} on {n:,} images", refresh=False)
            large.judge(self.images.at(self.order[:n]), few, groups, last)
            if clear(large.losses - left_out(best.K[:n, :n], few, groups), groups):
                return False
        best.at = last
        return True


def _better_than_usual(alive: Sequence[Tried], usual: Tried, groups: Codes) -> tuple[Tried, float]:
    """The best one, and its gain; the usual one where the difference is small or may be chance."""
    best = alive[0]
    if not np.isfinite(usual.losses).all():
        return best, 0.0
    gain = usual.losses - best.losses
    return (best, float(gain.mean())) if clear(gain, groups) else (usual, 0.0)


def _with_sum(
    choice: Choice, best: Tried, finalists: Sequence[Tried], targets: Targets, groups: Codes, most: float, bar: Any
) -> Choice:
    """The sum of two or three finalists where it is clearly better than the best of them, and costs no more than
    `most` covariances a pair. Weights are found on a part of the images, and the sum is judged on all.
    """
    known = [t for t in finalists if t.K is not None and float(t.K.diagonal().mean()) > 0.0]
    if best not in known:
        return choice
    part = slice(max(0, len(targets.Y) - _SOME), len(targets.Y))
    tries: list[tuple[float, tuple[Tried, ...], tuple[int, ...]]] = []
    bar.set_postfix_str("sums", refresh=False)
    for count, weights in _WEIGHTS.items():
        for group in combinations(known, count):
            if best in group and sum(t.candidate.elements for t in group) <= most:
                for w in weights:
                    K = summed([t.K[part, part] for t in group if t.K is not None], w)
                    some = None if groups is None else groups[part]
                    tries.append((float(left_out(K, targets.at(part), some).mean()), group, w))
    if not tries:
        return choice
    _, group, w = min(tries, key=lambda t: t[0])
    losses = left_out(summed([t.K for t in group if t.K is not None], w), targets, groups)
    gain = best.losses - losses
    if not clear(gain, groups):
        return choice
    shares = [x / sum(w) for x in w]
    terms = tuple(replace(t.candidate.term, weight=x) for t, x in zip(group, shares, strict=True))
    name = " + ".join(f"{x:g} × ({t.candidate})" for t, x in zip(group, shares, strict=True))
    return replace(
        choice,
        recipe=Recipe(terms),
        name=name,
        compared=(Compared(name, float(losses.mean()), len(losses)), *choice.compared),
        gain=choice.gain + float(gain.mean()),
        elements=sum(t.candidate.elements for t in group),
    )
