"""How images are prepared, and which relative of the chosen network takes them: by leave-one-out on some of the images.

A network that is right for digits may be wrong for photographs: the light of a scene, the colour of a wall or the place
of a thing can hide what matters. So a few preparations and relatives of the network are tried on a part of the images,
with the quickest network of their family, and judged by how likely each target is given all others. What is tried and
how it is judged is the same on every machine. What is usual is kept unless something else is better by more than a
little, and by more than chance explains.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import CheckedImages, to_numpy
from cnngp.common.progress import progress_bar
from cnngp.datasets.preparation import PREPARATIONS, Preparation, prepare
from cnngp.gp.exact import ExactGP
from cnngp.kernel.kernel import Kernel
from cnngp.network.choice import Choice, Option, affordable, anywhere, even
from cnngp.network.layers import Network

Array = NDArray[Any]
Losses = NDArray[np.float64]
T = TypeVar("T")

JUDGED_ON = 200
"""Images that the choice is made on, all of them where there are fewer."""
_FEWEST = 20  # with fewer, leave-one-out says too little
# Of −2 log density a target: what another choice has to gain, as images that are alike make standard errors too small.
_WORTH = 0.05
_WORDS = {
    "contrast": "without the mean of each channel",
    "detail": "without a blurred copy of themselves",
    "edges": "with fine lines only",
}


def chosen_recipe(
    choice: Choice, X: Array, Y: Array, images: int, pairs: int, kernel_of: Callable[[Network], Kernel]
) -> tuple[Choice, Preparation]:
    """The preparation, and the network that suits best, for a fit of so many images and pairs, judged on images X."""
    if X.ndim < 3 or len(X) < _FEWEST:
        return choice, "plain"
    pooled = [option for option in choice.among if option.name.startswith("pooled_cnn")]
    shape = X.shape[1:]
    judge = pooled[-1] if choice.option in pooled else choice.option
    seen = {preparation: prepare(X, preparation) for preparation in PREPARATIONS}

    def tried(option: Option, is_even: bool) -> dict[tuple[Preparation, bool], Losses]:
        kernel = kernel_of(option.network)
        return {(p, is_even): left_out(kernel, seen[p], Y) for p in _shown(PREPARATIONS)}

    usual = tried(judge, False)
    best = _clearly_best(usual, ("plain", False))
    if judge in pooled:
        best = _clearly_best({best: usual[best]} | tried(even(judge, shape), True), best)
    preparation, is_even = best
    found, among = choice.option, choice.among
    if is_even:
        found, among = even(found, shape), tuple(even(o, shape) if o in pooled else o for o in among)
    if choice.option in pooled:
        other = anywhere(shape, is_even)
        if affordable(other, images, pairs):
            both = {o: left_out(kernel_of(o.network), seen[preparation], Y) for o in _shown((found, other))}
            if _clearly_best(both, found) is other:
                found, among = other, (other, *(o for o in among if o.elements < other.elements))
    if (found, preparation) == (choice.option, "plain"):
        return choice, preparation
    return replace(choice, option=found, among=among, reason=_reason(choice.reason, preparation, len(X))), preparation


def chosen_preparation(X: Array, Y: Array, kernel: Kernel) -> Preparation:
    """The preparation for a network that is given."""
    if X.ndim < 3 or len(X) < _FEWEST:
        return "plain"
    tried: dict[Preparation, Losses] = {p: left_out(kernel, prepare(X, p), Y) for p in _shown(PREPARATIONS)}
    found: Preparation = _clearly_best(tried, "plain")
    return found


def _shown(choices: Sequence[T]) -> Iterator[T]:
    """What is tried, one after the other, with a progress bar where it takes long."""
    with progress_bar(len(choices), "choosing a preparation", "try") as bar:
        for choice in choices:
            yield choice
            bar.update(1)


def _reason(reason: str, preparation: Preparation, images: int) -> str:
    look = "" if preparation == "plain" else f", prepared {_WORDS[preparation]} (preparation {preparation!r})"
    return f"{reason}{look}, by leave-one-out on {images:,} of them"


def left_out(kernel: Kernel, X: Array, Y: Array) -> Losses:
    """−2 log density of a target given all other images, the mean of each image's, at the noise that suits best."""
    K = to_numpy(kernel(CheckedImages(X.astype(kernel.dtype)))).astype(np.float64)
    rounding = float(np.finfo(kernel.dtype).eps)
    if not K.diagonal().any():
        return np.full(len(Y), math.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a choice that may not be taken; the fit warns of the one that is
        gp = ExactGP(K, Y, noise="loo", amplitude="loo", rounding=rounding)
    mean, variance = gp.leave_one_out()
    return np.asarray(((Y - mean) ** 2 / variance[:, None] + np.log(variance)[:, None]).mean(1))


def _clearly_best(tried: dict[Any, Losses], usual: Any) -> Any:
    """The one with the least loss; the usual one where the difference is small or within two standard errors."""
    best = min(tried, key=lambda name: float(tried[name].mean()))
    if not np.isfinite(tried[usual]).all():  # blank images have no kernel; where all are blank, best is the usual one
        return best
    gain = tried[usual] - tried[best]
    return best if gain.mean() > max(_WORTH, 2.0 * gain.std() / math.sqrt(len(gain))) else usual
