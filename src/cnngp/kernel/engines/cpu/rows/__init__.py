"""The function of each nonlinearity on a row of a map.

    values.py       f(K) for pairs
    slopes.py       f'(K) times another map, for tangent kernels
    series.py       both for an Elementwise
    variances.py    both for images with themselves, which also make the tables
    elementary.py   functions of vectors that they share

The first two serve images with themselves at two different places as well.
"""

from __future__ import annotations

from collections.abc import Callable

from ..plan import COS, ERF, GELU_ACT, RBF, RELU, RELU_FAMILY, SERIES, SIN, SLOPE, STEP
from .series import series_row, series_slope_row
from .slopes import erf_slope_row, gelu_slope_row, rbf_slope_row, relu_slope_row, sin_cos_slope_row
from .values import erf_row, gelu_row, rbf_row, relu_family_row, relu_row, sin_cos_row, step_row
from .variances import other_variances, relu_variances, slope_variances


def pair_rows(both: bool) -> dict[int, Callable[..., None]]:
    return {
        RELU: relu_row(both),
        RELU_FAMILY: relu_family_row(both),
        ERF: erf_row(both),
        STEP: step_row(both),
        SIN: sin_cos_row(both),
        COS: sin_cos_row(both),
        RBF: rbf_row(both),
        GELU_ACT: gelu_row(both),
        SERIES: series_row(both),
    }


def slope_rows(both: bool) -> dict[int, Callable[..., None]]:
    return {
        SLOPE + RELU: relu_slope_row(both),
        SLOPE + RELU_FAMILY: relu_slope_row(both),
        SLOPE + ERF: erf_slope_row(both),
        SLOPE + SIN: sin_cos_slope_row(both),
        SLOPE + COS: sin_cos_slope_row(both),
        SLOPE + RBF: rbf_slope_row(both),
        SLOPE + GELU_ACT: gelu_slope_row(both),
        SLOPE + SERIES: series_slope_row(both),
    }


# For pairs, for images with themselves at two different places, and for the variances, where the places are the same.
PAIR_ROWS, SELF_ROWS = pair_rows(both=False), pair_rows(both=True)
VARIANCE_ROWS: dict[int, Callable[..., None]] = dict.fromkeys(PAIR_ROWS, other_variances) | {
    RELU: relu_variances,
    RELU_FAMILY: relu_variances,
}
PAIR_SLOPES, SELF_SLOPES = slope_rows(both=False), slope_rows(both=True)
VARIANCE_SLOPES: dict[int, Callable[..., None]] = dict.fromkeys(PAIR_SLOPES, slope_variances)
