"""What a kernel will take, told before the work begins: a network with pools may cost a thousand times another."""

from __future__ import annotations

from typing import Any

from .output import say, warn

_WORTH_MEASURING = 10**12
"""Operations from which a quarter of a tile is worth timing first: about half a minute on two cores."""
_LONG = 3600.0


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def tell_cost(kernel: Any, X: Any, pairs: int) -> None:
    """Time a few pairs and say how long all of them will take; nothing where that is soon."""
    from cnngp.matrix.grid import default_tile
    from cnngp.matrix.images import ImageRows
    from cnngp.matrix.plan import measured_rate

    rows = ImageRows(X, kernel, "X")
    table = kernel.network.shapes(rows.image_shape)
    if table.cost * pairs < _WORTH_MEASURING:
        return
    side = default_tile(table.elements, kernel.device, (len(rows), len(rows)), True)[0] // 4
    seconds = pairs / measured_rate(rows, side)
    say("will take", f"about {duration(seconds)} for {pairs:,} pairs, measured on a few")
    warn_if_long(seconds)


def warn_if_long(seconds: float) -> None:
    if seconds > _LONG:
        warn(
            f"the kernel takes about {duration(seconds)} here, more than an hour; fewer images (--train), a network "
            "that shrinks before its pools (`cnngp networks NAME` shows what each layer costs) or a card take less"
        )
