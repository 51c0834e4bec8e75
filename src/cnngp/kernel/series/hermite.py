"""The Hermite series of a function, made once, and the check of its reach. The mathematics is in tables.py."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from cnngp.network.functions import Function, function_name, value_hash
from cnngp.network.layers import NetworkError

from .tables import PRECISION, Series, build


def series(fn: Function, dtype: DTypeLike = np.float32) -> Series:
    """The Hermite series of a function, good to 1e-8 for float32 and 1e-13 for float64.

    >>> 280 < series("tanh").largest_s ** 2 < 290  # the largest variance
    True
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
        f"Elementwise({function_name(series.fn)}) meets a variance of {worst**2:.4g}, but its Hermite series is "
        f"good to {series.tolerance:g} only up to {series.largest_s**2:.4g}; {fix}",
        place,
    )
