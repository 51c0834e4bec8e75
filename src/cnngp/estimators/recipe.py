"""How images are prepared, and which relative of the chosen network takes them: by leave-one-out on some of the images.

A network that is right for digits may be wrong for photographs: the light of a scene, the colour of a wall or the place
of a thing can hide what matters. Or the light itself matters: without biases the output doubles where the light does,
and no level of it can be told from those on both sides. Or nothing is local, and a pool only blurs. So a few
preparations and relatives of the network are tried on a part of the images, with the quickest network of their family,
and judged by how likely each target is given all others. What is tried and how it is judged is the same on every
machine. What is usual is kept unless something else is better by more than a little, and by more than chance explains.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import CheckedImages, to_numpy
from cnngp.common.progress import progress_bar
from cnngp.datasets.preparation import PREPARATIONS, Preparation, prepare
from cnngp.gp.exact import ExactGP
from cnngp.kernel.kernel import Kernel
from cnngp.network.choice import Choice, Option, affordable, anywhere, biased, even, unpooled
from cnngp.network.layers import Network

Array = NDArray[Any]
Losses = NDArray[np.float64]
T = TypeVar("T")

JUDGED_ON = 200
"""Images that the choice is made on, all of them where there are fewer."""
_FEWEST = 20  # with fewer, leave-one-out says too little
# Of −2 log density a target: what another choice has to gain, as images that are alike make standard errors too small.
_WORTH = 0.05
_LARGEST = 1e12  # mean squares of pixels beyond this, or below its inverse, get no biases
_WORDS = {
    "contrast": "without the mean of each channel",
    "detail": "without a blurred copy of themselves",
    "edges": "with fine lines only",
}


@dataclass(frozen=True)
class Try:
    """A network, and how images are prepared for it."""

    option: Option
    preparation: Preparation


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
    biases = {preparation: bias_for(Z) for preparation, Z in seen.items()}
    matrices: dict[Try, Array] = {}

    def tried(tries: Iterable[Try], targets: Array) -> dict[Try, Losses]:
        tries = list(tries)
        for t in _shown([t for t in tries if t not in matrices]):
            matrices[t] = matrix_of(kernel_of(t.option.network), seen[t.preparation])
        return {t: left_out(matrices[t], targets) for t in tries}

    def either_way(tries: Iterable[Try], usual: Try) -> Try:
        """What is clearly best for the targets with and without their mean.

        Most targets of a class are −1, and biases explain that by themselves, of which no decision gets better.
        """
        found: Try = _clearly_best(tried(tries, Y - Y.mean(0)), usual)
        return usual if _clearly_best(tried((usual, found), Y), usual) == usual else found

    def each(option: Option, preparations: Iterable[Preparation]) -> list[Try]:
        return [Try(option, preparation) for preparation in preparations]

    def lifted(tries: Iterable[Try]) -> list[Try]:
        return [Try(biased(t.option, shape, b), t.preparation) for t in tries if (b := biases[t.preparation])]

    best = _clearly_best(tried(each(judge, PREPARATIONS), Y), Try(judge, "plain"))
    if judge in pooled:
        best = _clearly_best(tried([best, *each(even(judge, shape), PREPARATIONS)], Y), best)
    is_even, both = best.option != judge, tuple(dict.fromkeys(("plain", best.preparation)))
    unbiased = best
    best = either_way([best, *lifted(each(best.option, both))], best)
    bias = None if best == unbiased else biases[best.preparation]

    def relative(option: Option) -> Option:
        own = even(option, shape) if is_even and option in pooled else option
        return own if bias is None else biased(own, shape, bias)

    found, among = Try(relative(choice.option), best.preparation), tuple(map(relative, choice.among))
    if choice.option in pooled:
        other = anywhere(shape, is_even)
        other = other if bias is None else biased(other, shape, bias)
        whole = each(other, [best.preparation]) if affordable(other, images, pairs) else []
        found = _clearly_best(tried([found, *whole], Y), found)
    single = [t for o in unpooled(shape) if affordable(o, images, pairs) for t in each(o, both) if t != found]
    found = either_way([found, *single, *lifted(single)], found)
    if found == Try(choice.option, "plain"):
        return choice, "plain"
    if found.option not in among:
        among = (found.option, *(o for o in among if o.elements < found.option.elements))
    reason = _reason(choice.reason, found.preparation, len(X))
    return replace(choice, option=found.option, among=among, reason=reason), found.preparation


def bias_for(X: Array) -> float | None:
    """A variance for biases that are as large as the pixels: the power of ten that is nearest to their mean square.

    None where that is no number to reckon with, as of blank images. A factor of three either way hardly matters, and a
    power of ten keeps names short.

    >>> bias_for(np.full((2, 1, 3, 3), 0.5)), bias_for(np.full((2, 1, 3, 3), 128.0)), bias_for(np.zeros((2, 1, 3, 3)))
    (0.1, 10000.0, None)
    """
    square = float(np.square(X, dtype=np.float64).mean())
    return float(f"1e{round(math.log10(square))}") if 1.0 / _LARGEST < square < _LARGEST else None


def chosen_preparation(X: Array, Y: Array, kernel: Kernel) -> Preparation:
    """The preparation for a network that is given."""
    if X.ndim < 3 or len(X) < _FEWEST:
        return "plain"
    tried = {p: left_out(matrix_of(kernel, prepare(X, p)), Y) for p in _shown(PREPARATIONS)}
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


def matrix_of(kernel: Kernel, X: Array) -> Array:
    """The kernel of images with each other; zero for blank ones, of which biases alone would make a kernel."""
    if not X.any():
        return np.zeros((len(X), len(X)), kernel.dtype)
    return np.asarray(to_numpy(kernel(CheckedImages(X.astype(kernel.dtype)))))


def left_out(K: Array, Y: Array) -> Losses:
    """−2 log density of a target given all other images, the mean of each image's, at the noise that suits best."""
    rounding = float(np.finfo(K.dtype).eps)
    if not K.diagonal().any():
        return np.full(len(Y), math.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a choice that may not be taken; the fit warns of the one that is
        gp = ExactGP(K.astype(np.float64), Y, noise="loo", amplitude="loo", rounding=rounding)
    mean, variance = gp.leave_one_out()
    return np.asarray(((Y - mean) ** 2 / variance[:, None] + np.log(variance)[:, None]).mean(1))


def _clearly_best(tried: dict[Any, Losses], usual: Any) -> Any:
    """The one with the least loss; the usual one where the difference is small or within two standard errors."""
    best = min(tried, key=lambda name: float(tried[name].mean()))
    if not np.isfinite(tried[usual]).all():  # blank images have no kernel; where all are blank, best is the usual one
        return best
    gain = tried[usual] - tried[best]
    return best if gain.mean() > max(_WORTH, 2.0 * gain.std() / math.sqrt(len(gain))) else usual
