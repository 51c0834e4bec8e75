"""The network of an estimator that was given none: by the rule for all machines, or by what fits into a budget here."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral
from typing import Any

from cnngp.common.arrays import DataError
from cnngp.common.checks import is_number
from cnngp.kernel.kernel import Kernel
from cnngp.matrix.speed import expected_seconds
from cnngp.network.choice import Choice, Option, choose
from cnngp.network.layers import Network

# An option that would take so many times the budget at the rate of the quickest one is not even timed, because that
# takes long itself. Rates differ by far less, but cheap networks may be slow for their number of covariances.
_HOPELESS = 100.0


def check_budget(budget: Any, network: Any, X: Any) -> None:
    if budget is None:
        return
    if not is_number(budget, least=0.0) or budget == 0:
        raise ValueError(f"budget={budget!r}: expected the seconds that kernels may take, more than 0")
    if network is not None and network != "auto":
        raise ValueError("budget= chooses a network, and one was given; leave out one of them")
    if X is None:
        raise DataError("budget= chooses a network for images; give X, or leave it out where only K is given")


def chosen_network(
    images: Any, inducing: Any, budget: float | None, kernel_of: Callable[[Network], Kernel], stacklevel: int = 4
) -> Choice:
    """The network for a fit of training images (N, C, …), all of them compared or each with the inducing ones."""
    n = int(images.shape[0])
    pairs = compared_pairs(n, inducing)
    choice = choose(tuple(images.shape[1:]), n, pairs)
    return choice if budget is None else within_budget(choice, images, pairs, budget, kernel_of, stacklevel + 1)


def compared_pairs(n: int, inducing: Any) -> int:
    """Pairs of images that a fit of n images compares: all of them, or each with the inducing ones."""
    if inducing is None:
        return n * (n - 1) // 2
    return n * (int(inducing) if isinstance(inducing, Integral) else len(inducing))


def within_budget(
    choice: Choice, images: Any, pairs: int, budget: float, kernel_of: Callable[[Network], Kernel], stacklevel: int = 2
) -> Choice:
    """The most accurate option whose `pairs` take no more than `budget` seconds here, timed on a few of them."""

    def seconds(option: Option) -> float:
        return expected_seconds(kernel_of(option.network), images, pairs)

    *dearer, quickest = choice.among
    least = seconds(quickest)
    rate = quickest.elements / least if least > 0.0 else 0.0
    found, taken = quickest, least
    for option in dearer:
        if rate and option.elements > _HOPELESS * rate * budget:
            continue
        needed = seconds(option)
        if needed <= budget:
            found, taken = option, needed
            break
    if taken <= budget:
        return replace(choice, option=found, reason=f"the best whose kernels take at most {budget:g} s on this machine")
    shown = f"{taken:.0f}" if taken >= 10.0 else f"{taken:.2g}"
    warnings.warn(
        f"budget={budget:g}: even the quickest network, {found.name}, takes about {shown} s here. It is used all the "
        "same; fewer images or a GPU would take less time",
        UserWarning,
        stacklevel=stacklevel,
    )
    return replace(choice, option=found, reason=f"the quickest, whose kernels take more than {budget:g} s here")
