"""E[fn(u) fn(v)] for any function: the Hermite series of `Elementwise`, and how its tables are read.

An engine does what `evaluate` does once for each image and what `pair` does for each pair. The tables, the mathematics
and the error bound are in tables.py.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cnngp.network.functions import Function, function_name, value_hash
from cnngp.network.layers import NetworkError
from cnngp.network.walk import at

from .tables import FIRST_EXPONENT, PRECISION, Series, build

__all__ = ["Series", "check", "evaluate", "pair", "series"]

Array = NDArray[np.float64]


def series(fn: Function, dtype: DTypeLike = np.float32) -> Series:
    """The Hermite series of a function, good to 1e-8 for float32 and 1e-13 for float64.

    >>> round(float(pair(series("tanh"), 0.5, 0.5, 1.0)), 6)
    0.173516
    """
    size = np.dtype(dtype).itemsize
    values = "" if isinstance(fn, str) else value_hash(fn)
    return _cached(fn, size, values) if isinstance(fn, Hashable) else build(fn, PRECISION[size])


@lru_cache(maxsize=64)
def _cached(fn: Function, size: int, values: str) -> Series:
    """`values` tells a function from itself after it has changed, as one that reads a global may."""
    return build(fn, PRECISION[size])


def check(series: Series, s: ArrayLike, place: str = "") -> None:
    """Refuse standard deviations beyond the series, naming the layer's place and the variance."""
    worst = float(np.max(s, initial=0.0))
    if worst <= series.largest_s:
        return
    fix = "lower the weight_var before it or scale the images down"
    if series.tolerance < 1e-10:
        fix += ", or use dtype='float32', which goes further"
    raise NetworkError(
        at(
            place,
            f"Elementwise({function_name(series.fn)}) meets a variance of {worst**2:.4g}, but its Hermite series is "
            f"good to {series.tolerance:g} only up to {series.largest_s**2:.4g}; {fix}",
        )
    )


def evaluate(series: Series, s: ArrayLike) -> tuple[Array, Array]:
    """(rows, …) A_j(s) and (…) E[fn(s z)²]: what an engine does, in plain NumPy."""
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
