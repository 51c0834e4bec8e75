"""How long a kernel will take, shown before the work begins: a network with pools may cost a thousand times another."""

from __future__ import annotations

from typing import Any

from cnngp.common.progress import duration, progress_bar

from .output import say, warn

_WORTH_MEASURING = 10**12
"""Operations from which a few pairs are worth timing first: about half a minute on two cores."""
_LONG = 3600.0


def tell_cost(kernel: Any, X: Any, pairs: int) -> None:
    """Time a few pairs and say how long all of them will take, unless that is clearly short."""
    from cnngp.matrix.tile_size import expected_seconds

    if kernel.network.shapes(X.shape[1:]).cost * pairs < _WORTH_MEASURING:
        return
    with progress_bar(1, "timing a few pairs", "run", delay=0.0):
        seconds = expected_seconds(kernel, X, pairs)
    say("expected time", f"about {duration(seconds)} for the kernels of {pairs:,} pairs, timed on a few")
    warn_if_long(seconds)


def warn_if_long(seconds: float) -> None:
    if seconds > _LONG:
        warn(
            f"the kernel takes about {duration(seconds)} here, more than an hour; use fewer images (--train), a "
            "network that shrinks before its pools (`cnngp networks NAME` shows the cost of each layer) or a GPU"
        )
