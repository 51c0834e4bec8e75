"""The function of each nonlinearity on a row of a map: the formulas of kernel/formulas, compiled.

    elementary.py   what the functions that formulas are written in become
    pairs.py        f(K) for pairs, and f'(K) times another map, for tangent kernels
    variances.py    both for images with themselves, which also make the tables
    series.py       all of it for an Elementwise

The rows for pairs serve images with themselves at two different places as well.
"""

from __future__ import annotations

from collections.abc import Callable

from cnngp.kernel.formulas import FAMILIES

from ..plan import CODES, SERIES, SLOPE
from . import elementary as elementary
from .pairs import slope_row, value_row
from .series import series_row, series_slope_row
from .variances import series_variance_slopes, series_variances, variance_row, variance_slope_row

Rows = dict[int, Callable[..., None]]


def pair_rows(both: bool) -> Rows:
    return {CODES[f]: value_row(f, both) for f in FAMILIES if f.value} | {SERIES: series_row(both)}


def slope_rows(both: bool) -> Rows:
    return {SLOPE + CODES[f]: slope_row(f, both) for f in FAMILIES if f.slope} | {
        SLOPE + SERIES: series_slope_row(both)
    }


# For pairs, for images with themselves at two different places, and for the variances, where the places are the same.
PAIR_ROWS, SELF_ROWS = pair_rows(both=False), pair_rows(both=True)
VARIANCE_ROWS: Rows = {CODES[f]: variance_row(f) for f in FAMILIES if f.value} | {SERIES: series_variances}
PAIR_SLOPES, SELF_SLOPES = slope_rows(both=False), slope_rows(both=True)
VARIANCE_SLOPES: Rows = {SLOPE + CODES[f]: variance_slope_row(f) for f in FAMILIES if f.slope} | {
    SLOPE + SERIES: series_variance_slopes
}
