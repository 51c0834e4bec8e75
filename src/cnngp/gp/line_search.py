"""The least value of a loss of one number: on a grid, then by Brent's method around the best point of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Found(NamedTuple):
    at: float
    loss: float
    at_end: bool
    """Whether the best point of the grid was its last."""


def minimised(
    loss: Callable[[float], float],
    low: float,
    high: float,
    *,
    points: int = 0,
    tolerance: float,
    as_good: float = 0.0,
    inside: bool = False,
) -> Found:
    """Where `loss` is least between `low` and `high`, to within `tolerance`; as a rule these are logarithms.

    Without `points` there is no grid, for a loss that is costly and has one valley. Of several points of the grid that
    are `as_good` as the best the first is refined. `inside` keeps what is found between `low` and `high` where the best
    point is the first or the last.

    >>> round(minimised(lambda x: (x - 0.3) ** 2, -2.0, 2.0, points=9, tolerance=1e-6).at, 3)
    0.3
    """
    from scipy.optimize import minimize_scalar

    bounds, at_end = (low, high), False
    if points:
        grid = np.linspace(low, high, points)
        losses = np.array([loss(float(g)) for g in grid])
        best, step = int(np.argmax(losses <= losses.min() + as_good)), float(grid[1] - grid[0])
        at_end = best == points - 1
        bounds = (float(grid[best]) - step, float(grid[best]) + step)
        if inside:
            bounds = (max(bounds[0], low), min(bounds[1], high))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": tolerance})
    return Found(float(found.x), float(found.fun), at_end)
