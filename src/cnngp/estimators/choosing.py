"""Choosing a recipe by leave-one-out: all candidates on a few images, the better half on twice as many, and so on.

What is compared, on how many images and how it is judged is the same on every machine: costs are counted in covariances
(`elements_of`), never in seconds. In the end two or three of the best are added up where that is clearly better.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.common.progress import progress_bar
from cnngp.datasets.preparation import as_preparation
from cnngp.gp.exact import ExactGP
from cnngp.gp.noise import chosen_noise
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import NetworkError
from cnngp.network.names import AN_IMAGE, IN_ALL

from .candidates import Candidate, candidates
from .kernels import kernel_of
from .labels import Targets
from .recipe import Recipe
from .training_images import Images, balanced

Array = NDArray[Any]
Floats = NDArray[np.float64]

Effort = Literal["quick", "normal", "best"]
EFFORTS: dict[Effort, float] = {"quick": 0.1, "normal": 1.0, "best": 10.0}
"""How much of the usual cost (`network.names`) a fit may take; its choice takes at most as much again."""
_PART = 0.5
"""Of what the dearest fit among them costs, the part that its choice may cost."""
Tell = Callable[[str, Any], None] | None
"""Called with the name of a stage, and what is known then."""
_AT_LEAST = 5e9
"""Covariances, times those of the effort, that a choice may take where the fit itself costs less: a few seconds."""

FEWEST = 20
"""With fewer images leave-one-out says too little, and what is usual is taken."""
_FIRST = (64, 200)  # images of the first round: no fewer, no more
# Images of the first round that are worth leaving candidates out for: with fewer, ten classes look alike to all.
_TELLING = 150
_GROWTH = 2
_FINALISTS = 3
# Nats an image that another choice has to gain over what is usual, and a sum over its best term.
_WORTH, _SUM_WORTH = 0.01, 0.01
_STANDARD_ERRORS = 2.0
# Images from whose eigenvalues the noise of a comparison is found; with more it is looked for beside that.
_DECOMPOSED = 800
# Images that are not compared in a round, from which preparations learn, at least where there are so many.
_LEARNED_FROM = 1000
_WEIGHTS = {2: ((1, 3), (1, 1), (3, 1)), 3: ((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2))}


@dataclass(frozen=True)
class Compared:
    """A recipe that was tried: its leave-one-out loss in nats an image, on so many images."""

    name: str
    loss: float
    images: int

    def __str__(self) -> str:
        return f"{self.name} {self.loss:.3f}"


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
    """The dearest candidate that effort="best" would try and this effort did not, and its covariances."""

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
        if not others:
            return f"the only one that is affordable: {loss} by leave-one-out on {self.images:,} images"
        where = f"by leave-one-out on {self.images:,} images: {loss}"
        if self.compared[0].loss > self.compared[1].loss:
            return f"the usual one; none of {len(self.compared) - 1} others is clearly better {where}, beside {others}"
        return f"the best of {len(self.compared)} {where}, then {others}"

    def better(self, seconds: float | None = None) -> str:
        """What more effort would take."""
        if self.effort == "best":
            return "no more is tried than with effort='best'; `cnngp search --space pooled` can look for more"
        if self.dearest is None:
            return "effort='best' (--effort best) compares on more pairs, also the recipes that were left out here"
        name, elements = self.dearest
        times = elements / max(1, self.elements)
        here = "" if seconds is None else f", about {seconds * times:.0f} s"
        dearer = f"effort='best' (--effort best) also tries dearer ones, up to {name}"
        return f"{dearer} at {times:.1f} times the kernels{here}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        tried = [{"name": c.name, "loss": c.loss, "images": c.images} for c in self.compared]
        return {"name": self.name, "effort": self.effort, "images": self.images, "gain": self.gain, "compared": tried}


@dataclass
class _Tried:
    """A candidate with its matrix so far, and the losses by it."""

    candidate: Candidate
    make: Callable[..., Kernel]
    images: Images
    K: Array | None = None
    losses: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def loss(self) -> float:
        return float(self.losses.mean()) if len(self.losses) else math.inf

    def said(self, images: int) -> Compared:
        return Compared(str(self.candidate), self.loss, images)

    @property
    def learns(self) -> bool:
        """Whether the preparation learns from images."""
        return as_preparation(self.candidate.term.preparation).learns

    def grow(self, X: Array, learned_from: Array) -> bool:
        """The matrix of all of X, of which it may hold that of the first ones; whether it could be computed."""
        done = 0 if self.K is None else len(self.K)
        term = replace(self.candidate.term, weight=1.0)
        few = Images(learned_from, self.images.dtype)
        try:
            kernel = kernel_of(Recipe((term,)), few, self.make, scaled=False)
            if done and not self.learns:
                old, new = X[:done], X[done:]
                cross = _matrix(kernel, new, old)
                self.K = np.block([[self.K, cross.T], [cross, _matrix(kernel, new)]])
            else:
                self.K = _matrix(kernel, X)
        except (RangeError, NetworkError):
            self.K = None
        return self.K is not None


def choose(
    images: Images,
    targets: Targets,
    make: Callable[..., Kernel],
    pairs: int,
    effort: Effort = "normal",
    groups: NDArray[np.intp] | None = None,
    among: Sequence[Candidate] | None = None,
    compare: bool = True,
    preparation: Any = None,
    tell: Tell = None,
) -> Choice:
    """The recipe for a fit that compares `pairs` of these images, of which `groups` belong together.

    `make(network, symmetry)` makes kernels. Where `compare` is False the first affordable candidate is taken; with a
    `preparation`, candidates are prepared in this way alone. `tell` is called with "choosing" and how many there are.
    """
    few = images.at(slice(0, min(len(images), 200)))
    table = candidates(few, preparation=preparation) if among is None else list(among)
    # A whitening of more pixels than images makes the training images unlike all others.
    table = [c for c in table if c.images_for(few.shape[1:]) <= len(images)] or table
    limit = min(AN_IMAGE * len(images), IN_ALL) * EFFORTS[effort]
    affordable = [c for c in table if c.elements * pairs <= limit] or [min(table, key=lambda c: c.elements)]
    usual = affordable[0]
    dearer = [c for c in table if limit < c.elements * pairs <= limit * EFFORTS["best"] / EFFORTS[effort]]
    dearest = max(dearer, key=lambda c: c.elements) if dearer else None
    more = None if dearest is None else (str(dearest), dearest.elements)
    found = Choice(Recipe((usual.term,)), str(usual), 0, effort, elements=usual.elements, dearest=more)
    order = balanced(targets.Y, len(targets.Y), 0, groups, shuffled=True)
    if not compare or len(affordable) == 1 or len(order) < FEWEST:
        return found
    dearest_fit = float(max(c.elements for c in affordable) * pairs)
    allowance = max(_PART * min(limit, dearest_fit), _AT_LEAST * EFFORTS[effort])
    tried = _within(affordable, len(order), allowance)
    if tell is not None:
        tell("choosing", len(tried))
    return _compared(found, tried, usual, images, targets, make, order, allowance)


def _within(affordable: Sequence[Candidate], images: int, allowance: float) -> list[Candidate]:
    """Those whose first round, on images that tell something, takes at most half of the allowance: the first ones of
    the table, without those that leave no room for others.
    """
    room = allowance / min(_TELLING, images) ** 2
    kept, used = [affordable[0]], float(affordable[0].elements)
    for candidate in affordable[1:]:
        if used + candidate.elements <= room:
            kept.append(candidate)
            used += candidate.elements
    return kept


def _compared(
    found: Choice,
    affordable: Sequence[Candidate],
    usual: Candidate,
    images: Images,
    targets: Targets,
    make: Callable[..., Kernel],
    order: NDArray[np.intp],
    allowance: float,
) -> Choice:
    alive = [_Tried(c, make, images) for c in affordable]
    left: list[Compared] = []
    least, most = _FIRST
    third = int(math.sqrt(allowance / (1.5 * sum(c.elements for c in affordable))))
    n = min(len(order), max(least, min(most, third)))
    spent = 0.0
    with progress_bar(2 * len(alive), "choosing a recipe", "try") as bar:
        while True:
            alive, judged = _round(alive, images, targets, order, n, bar)
            spent += sum(t.candidate.elements for t in alive) * n * n / 2
            keep = max(_FINALISTS, -(-len(alive) // 2))
            survivors = alive[:keep] + [t for t in alive[keep:] if t.candidate is usual]
            cost = sum(t.candidate.elements for t in survivors) / 2
            more = min(len(order), _GROWTH * n, int(math.sqrt(max(allowance - spent, 0.0) / cost)))
            if more < 1.2 * n:
                break
            left = [t.said(n) for t in alive if t not in survivors] + left
            alive, n = survivors, more
        best, gain = _better_than_usual(alive, usual)
        tried = tuple([t.said(n) for t in [best, *(t for t in alive if t is not best)]] + left)
        chosen = best.candidate
        found = replace(found, recipe=Recipe((chosen.term,)), name=str(chosen), elements=chosen.elements)
        found = replace(found, images=n, compared=tried, gain=gain)
        return _with_sum(found, best, alive[:_FINALISTS], targets.at(order[:n]), judged, bar)


def _round(
    alive: Sequence[_Tried], images: Images, targets: Targets, order: NDArray[np.intp], n: int, bar: Any
) -> tuple[list[_Tried], slice]:
    """All of them on the first n images in order, the best first; and which of these they are judged on.

    A preparation that was learned from the images which are then left out would be praised for it, so it learns from
    others: those that are not in this round, or the first half, and all are judged on the second.
    """
    rows = order[:n]
    X, here = images.at(rows), targets.at(rows)
    learned_from, judged = X, slice(0, n)
    if any(tried.learns for tried in alive):
        if len(order) - n >= n // 2:
            learned_from = images.at(order[n : n + max(n, _LEARNED_FROM)])
        else:
            learned_from, judged = X[: n // 2], slice(n // 2, n)
    for tried in alive:
        bar.set_postfix_str(f"{tried.candidate} on {n:,} images", refresh=False)
        tried.losses = np.full(n, math.inf)[judged]
        if tried.grow(X, learned_from):
            assert tried.K is not None
            tried.losses = left_out(tried.K, here)[judged]
        bar.update(1)
    return sorted(alive, key=lambda t: t.loss), judged


def _better_than_usual(alive: Sequence[_Tried], usual: Candidate) -> tuple[_Tried, float]:
    """The best one, and its gain; the usual one where the difference is small or may be chance."""
    best = alive[0]
    plain = next((t for t in alive if t.candidate is usual), None)
    if plain is None or not np.isfinite(plain.losses).all():
        return best, 0.0
    gain = plain.losses - best.losses
    if _clear(gain, _WORTH):
        return best, float(gain.mean())
    return plain, 0.0


def _clear(gain: Floats, worth: float) -> bool:
    return bool(gain.mean() > max(worth, _STANDARD_ERRORS * float(gain.std()) / math.sqrt(len(gain))))


def _with_sum(
    found: Choice,
    best: _Tried,
    finalists: Sequence[_Tried],
    targets: Targets,
    judged: slice,
    bar: Any,
) -> Choice:
    """The sum of two or three finalists where it is clearly better than the best of them."""
    known = [t for t in finalists if t.K is not None and float(t.K.diagonal().mean()) > 0.0]
    if best not in known:
        return found
    part = slice(
        max(0, len(targets.Y) - _DECOMPOSED), len(targets.Y)
    )  # weights are found on a part, and the sum is judged on all
    tries: list[tuple[float, tuple[_Tried, ...], tuple[int, ...]]] = []
    for count, weights in _WEIGHTS.items():
        for group in combinations(known, count):
            for w in weights:
                bar.set_postfix_str("sums", refresh=False)
                K = _sum([t.K[part, part] for t in group if t.K is not None], w)
                tries.append((float(left_out(K, targets.at(part)).mean()), group, w))
    if not tries:
        return found
    _, group, w = min(tries, key=lambda t: t[0])
    losses = left_out(_sum([t.K for t in group if t.K is not None], w), targets)[judged]
    gain = best.losses - losses
    if not _clear(gain, _SUM_WORTH):
        return found
    shares = [x / sum(w) for x in w]
    terms = tuple(replace(t.candidate.term, weight=x) for t, x in zip(group, shares, strict=True))
    name = " + ".join(f"{x:g} × ({t.candidate})" for t, x in zip(group, shares, strict=True))
    return replace(
        found,
        recipe=Recipe(terms),
        name=name,
        compared=(Compared(name, float(losses.mean()), len(losses)), *found.compared),
        gain=found.gain + float(gain.mean()),
        elements=sum(t.candidate.elements for t in group),
    )


def left_out(K: Array, targets: Targets) -> Floats:
    """The loss of every image by leave-one-out, times its weight, at the noise that suits best."""
    Y, weight = targets.Y, targets.weight
    rounding = float(np.finfo(K.dtype).eps)
    diagonal = float(K.diagonal().mean())
    if not diagonal > 0.0:
        return np.full(len(Y), math.inf)
    A = K.astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a choice that may not be taken; the fit warns of the one that is
        step = -(-len(Y) // _DECOMPOSED)
        some = None if weight is None else weight[::step]
        noise = chosen_noise(A[::step, ::step], Y[::step], "loo", "loo", rounding, weights=some)
        found: list[Floats] = []
        for factor in (1.0,) if step == 1 else (1.0, 0.3):  # more images need less
            gp = ExactGP(A, Y, noise=noise * factor, amplitude="loo", weights=weight)
            mean, variance = (to_numpy(a) for a in gp.leave_one_out().moments)
            found.append(targets.each(mean, variance, Y))
    losses = found if weight is None else [weight / weight.mean() * each for each in found]
    return min(losses, key=lambda each: float(each.mean()))


def _sum(matrices: Sequence[Array], weights: Sequence[int]) -> Array:
    scaled = (w / float(K.diagonal().mean()) * K.astype(np.float64) for w, K in zip(weights, matrices, strict=True))
    return np.asarray(sum(scaled), np.float32)


def _matrix(kernel: Any, X: Array, Z: Array | None = None) -> Array:
    """In host memory; zero for blank images, of which biases alone would make a kernel."""
    if not X.any():
        return np.zeros((len(X), len(X if Z is None else Z)), kernel.dtype)
    return np.asarray(to_numpy(kernel(X, Z, progress=False)))
