"""How far a share that was counted may be from the true one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .tables import percent

Floats = NDArray[np.float64]


def wilson(share: Floats, count: NDArray[Any], z: float = 1.96) -> tuple[Floats, Floats]:
    """Wilson's interval of a share of `count` images, by default of 95 %: wide where there are few, never without it.

    >>> low, high = wilson(np.array([0.5]), np.array([100]))
    >>> low.round(3), high.round(3)
    (array([0.404]), array([0.596]))
    """
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return np.minimum(centre - half, share), np.maximum(centre + half, share)


# Below so many images the digits of a share mean little, and its interval is told beside it.
_FEW = 1000


def share_for_people(share: float, count: int) -> tuple[str, str]:
    """A share of `count` images in as many digits as it has, and a remark on how sure it is where there are few.

    >>> share_for_people(13 / 24, 24)
    ('54 %', '13 of 24, likely 35 % to 72 %')
    >>> share_for_people(0.0084, 10_000)
    ('0.84 %', '')
    """
    if not count:
        return "not known", ""
    digits = 2 if count >= _FEW else 1 if count >= _FEW / 10 else 0
    if count >= _FEW:
        return percent(share, digits), ""
    low, high = (float(bound) for bound in wilson(np.float64(share), np.float64(count)))  # type: ignore[arg-type]
    remark = f"{round(share * count)} of {count}, likely {percent(low, digits)} to {percent(high, digits)}"
    return percent(share, digits), remark
