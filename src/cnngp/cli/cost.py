"""How long a kernel will take, shown before the work begins: a network with pools may cost a thousand times another."""

from __future__ import annotations

from typing import Any

from cnngp.common.progress import progress_bar
from cnngp.network.choice import Choice, choose

from .common import warnings_as_lines
from .output import say, warn

_WORTH_MEASURING = 10**12
"""Operations from which a few pairs are worth timing first: about half a minute on two cores."""
_LONG = 3600.0


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def tell_cost(kernel: Any, X: Any, pairs: int) -> None:
    """Time a few pairs and say how long all of them will take, unless that is clearly short."""
    if kernel.network.shapes(X.shape[1:]).cost * pairs >= _WORTH_MEASURING:
        _tell_seconds(_timed(kernel, X, pairs), pairs)


def _timed(kernel: Any, X: Any, pairs: int) -> float:
    """How long all pairs will take. Compiling and timing may take seconds themselves, so a bar says what goes on."""
    from cnngp.matrix.speed import expected_seconds

    with progress_bar(1, "timing a few pairs", "run", delay=0.0):
        return expected_seconds(kernel, X, pairs)


def _tell_seconds(seconds: float, pairs: int, besides: str = "") -> None:
    say("expected time", f"about {duration(seconds)} for the kernels of {pairs:,} pairs, timed on a few{besides}")
    warn_if_long(seconds)


def choose_for(X: Any, pairs: int, given: Any, budget: float | None, engine: tuple[Any, ...]) -> Choice | None:
    """The network for training images X, where none was `given`; all `pairs` have to fit into a budget."""
    from cnngp.estimators.budget import check_budget, within_budget
    from cnngp.kernel.kernel import Kernel

    check_budget(budget, given, X)
    if given is not None:
        return None
    choice = choose(X.shape[1:], len(X))
    if budget is None:
        return choice
    with warnings_as_lines():
        return within_budget(choice, X, pairs, budget, lambda net: Kernel(net, *engine))


def tell_choice(choice: Choice, kernel: Any, X: Any, pairs: int, data: str = "") -> None:
    """Say what was chosen and why, what it takes here, and what the options next to it would take.

    `data` are the options that name the images, for a command to copy.
    """
    seconds = _timed(kernel, X, pairs)
    say("choice", f"{choice.option.name}, {choice.reason}")
    _tell_seconds(seconds, pairs, "; choosing a preparation, compiling and the report come on top")
    for word, option in (("better", choice.better), ("quicker", choice.quicker)):
        if option is not None:
            there = seconds * option.elements / max(1, choice.option.elements)
            say(word, f"--network {option.name}: about {duration(there)}")
    if choice.better is None:
        say("better", f"none is known for this size; `cnngp search --space pooled{data}` can look for one")


def warn_if_long(seconds: float) -> None:
    if seconds > _LONG:
        warn(
            f"the kernel takes about {duration(seconds)} here, more than an hour; use fewer images (--train), a "
            "network that shrinks before its pools (`cnngp networks NAME` shows the cost of each layer) or a GPU"
        )
