"""Elementwise: f = Σ_j A_j(s) A_j(s') ρ^k, the Hermite series of any function (kernel/series/).

    f' = ρ'ρ'' Σ_j k A_j A'_j ρ^(k−1), ρ = Kρ'ρ'' with ρ' = 1/√K₁ and ρ'' = 1/√K₂ in units of the map

The sums run over tables of variable length, so each engine has its own code for them: engines/cpu/rows/series.py and
engines/cuda/formula_text/device_functions.py.
"""

from __future__ import annotations

from cnngp.network.functions import Function, second_moment, values_at
from cnngp.network.layers import Elementwise

from .family import Family, Formula, formula, log2

SERIES = Family("series")


@formula.register
def _(layer: Elementwise) -> Formula:
    return Formula(
        SERIES,
        level=lambda level: log2(second_moment(layer.fn, 2.0 ** (min(level, 200.0) / 2.0))),
        sign="any",
        slope_level=lambda level: log2(second_moment(_slope(layer.fn), 2.0 ** (min(level, 200.0) / 2.0))),
    )


def _slope(fn: Function) -> Function:
    """Approximate derivative of fn."""
    return lambda x: (values_at(fn, x + 1e-4) - values_at(fn, x - 1e-4)) / 2e-4
