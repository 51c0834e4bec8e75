"""How far a share that was counted may be from the true one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
