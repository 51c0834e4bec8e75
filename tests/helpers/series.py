"""What an engine does with the tables of a Hermite series, in plain NumPy: per image, and per pair."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cnngp.kernel.series.packed import check
from cnngp.kernel.series.tables import FIRST_EXPONENT, Series

Array = NDArray[np.float64]


def evaluate(series: Series, s: ArrayLike) -> tuple[Array, Array]:
    """(rows, …) A_j(s) and (…) E[fn(s z)²]."""
    s = np.asarray(s, dtype=np.float64)
    check(series, s)
    p = np.where(s < series.edges[1], 0, np.frexp(s)[1] - FIRST_EXPONENT)
    p = np.minimum(p, len(series.edges) - 2)  # the right end of the last panel
    low, high = series.edges[p], series.edges[p + 1]
    t = (2.0 * s - low - high) / (high - low)
    power = np.where(p == 0, s**series.first_power, 1.0)
    a = _clenshaw(np.moveaxis(series.coefficients[p], (-1, -2), (0, 1)), t)
    return a * power, _clenshaw(np.moveaxis(series.second_moment[p], -1, 0), t) * power**2


def pair(series: Series, s1: ArrayLike, s2: ArrayLike, rho: ArrayLike) -> Array:
    """V = Σ_j A_j(s) A_j(s') ρ^k, by Horner's rule as an engine does it."""
    s1, s2, rho = np.broadcast_arrays(s1, s2, rho)
    products = evaluate(series, s1)[0] * evaluate(series, s2)[0]
    powers = [rho * rho]
    for _ in range(int(series.shifts.max(initial=0))):
        powers.append(powers[-1] * powers[-1])
    totals = [np.zeros(rho.shape), np.zeros(rho.shape)]
    for parity, rows in enumerate((range(series.even), range(series.even, len(products)))):
        for j in reversed(rows):
            step = series.shifts[j + 1] if j + 1 in rows else 0
            totals[parity] = totals[parity] * powers[step] + products[j]
    return np.asarray(totals[0] + rho * totals[1])


def _clenshaw(c: Array, t: Array) -> Array:
    """Σ_i c[i] T_i(t)."""
    b1 = b2 = np.zeros(c.shape[1:])
    for row in c[:0:-1]:
        b1, b2 = row + 2.0 * t * b1 - b2, b1
    return np.asarray(c[0] + t * b1 - b2)
