"""What stands in a program for each nonlinearity: its formula, in one table.

A map is held in a unit: true K = unit · K. A nonlinearity becomes V = factor · f(K), where f belongs to a family that
every engine has a formula for, and the constants are moved into the factor, which is the unit of what comes out:

    RELU       f = R = 2A                                   ReLU
    RELU_LIKE  f = α·R + β·K                                LeakyReLU, Abs
    ERF        f = asin(2K/√((1 + 2K₁)(1 + 2K₂)))
    STEP       f = π − θ, and 0 where either variance is 0
    SIN, COS, GELU, SERIES: f = V                           SERIES is an Elementwise's

Engines look formulas up by family (engines/cpu/rows.py, engines/cuda/math.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from cnngp.network.functions import second_moment
from cnngp.network.layers import GELU, Abs, Cos, Elementwise, Erf, LeakyReLU, Nonlinearity, ReLU, Sin, Step

from .units import log2


class Family(Enum):
    """Nonlinearities with one formula for f."""

    RELU = auto()
    RELU_LIKE = auto()
    ERF = auto()
    STEP = auto()
    SIN = auto()
    COS = auto()
    GELU = auto()
    SERIES = auto()


@dataclass(frozen=True)
class Formula:
    """A row of the table."""

    family: Family
    factor: Callable[[float], float]
    """V = factor(unit) · f."""
    level: Callable[[float], float]
    """log₂ of the V to expect where the variance is 2^level."""
    sign: Literal["nonnegative", "of K", "any"]
    """What is known of V's sign."""
    alpha: float = 1.0
    beta: float = 0.0
    homogeneous: bool = False
    """Whether f follows the unit of K, so that no scale is out of reach."""
    exponential: bool = False
    """Whether f is of e^K: then the digits of K before the point are lost from V."""

    @property
    def variance_factor(self) -> float:
        """(α + β), for the families of the ReLU: f(K₁) = (α + β) · K₁ at correlation one."""
        return self.alpha + self.beta


def formula(layer: Nonlinearity) -> Formula:
    """The row of a nonlinearity."""
    match layer:
        case ReLU():
            square = layer.gain * layer.gain  # infinite beyond the range, where ** would raise
            return Formula(
                Family.RELU,
                factor=lambda unit: square * unit / 2.0,
                level=lambda level: level + log2(square / 2.0),
                sign="nonnegative",
                homogeneous=True,
            )
        case LeakyReLU():
            a, own = layer.slope, _slope_unit(layer.slope)
            return Formula(
                Family.RELU_LIKE,
                factor=lambda unit: unit * own,
                level=lambda level: level + log2((1.0 + a * a) / 2.0),
                sign="of K" if a >= 0.0 else "any",
                alpha=(1.0 - a) * ((1.0 - a) / (2.0 * own)),
                beta=a / own,
                homogeneous=True,
            )
        case Abs():
            return Formula(
                Family.RELU_LIKE,
                factor=lambda unit: unit,
                level=lambda level: level,
                sign="nonnegative",
                alpha=2.0,
                beta=-1.0,
                homogeneous=True,
            )
        case Erf():
            return Formula(Family.ERF, factor=lambda unit: 2.0 / math.pi, level=_erf_level, sign="of K")
        case Step():
            return Formula(
                Family.STEP, factor=lambda unit: 1.0 / (2.0 * math.pi), level=lambda level: -1.0, sign="nonnegative"
            )
        case Sin():
            return Formula(Family.SIN, lambda unit: 1.0, lambda level: min(level, -1.0), "of K", exponential=True)
        case Cos():
            return Formula(Family.COS, lambda unit: 1.0, lambda level: -1.0, "nonnegative", exponential=True)
        case GELU():
            return Formula(Family.GELU, lambda unit: 1.0, lambda level: level - 1.0, "of K")
        case Elementwise():
            return Formula(
                Family.SERIES,
                factor=lambda unit: 1.0,
                level=lambda level: log2(second_moment(layer.fn, 2.0 ** (min(level, 200.0) / 2.0))),
                sign="any",
            )
        case _:
            raise NotImplementedError(f"{layer!r} has no row in the table of formulas")


def _slope_unit(slope: float) -> float:
    """What is taken out of α and β, into the unit: the power of two next to a², where that is far from one."""
    exponent = 2 * math.frexp(slope)[1]
    return math.ldexp(1.0, min(exponent, 1023)) if exponent > 24 else 1.0


def _erf_level(level: float) -> float:
    K = 2.0 ** min(level, 100.0)
    return log2(2.0 / math.pi * math.asin(2.0 * K / (1.0 + 2.0 * K)))
