"""What stands in a program for each nonlinearity: its formula, in one table.

A map is held in a unit: true K = unit · K. A nonlinearity becomes V = factor · f(K), where f belongs to a family that
every engine has a formula for, and the constants are moved into the factor, which is the unit of what comes out:

    RELU       f = R = 2A                                   ReLU
    RELU_LIKE  f = α·R + β·K = K + α(R − K), α + β = 1      LeakyReLU, Abs
    ERF        f = asin(2K/√((1 + 2K₁)(1 + 2K₂)))
    STEP       f = π − θ, and 0 where either variance is 0
    RBF        f = e^{K − (K₁ + K₂)/2}, of 2γ·K             Rbf
    SIN, COS, GELU, SERIES: f = V                           SERIES is an Elementwise's

The slope of f is what the tangent kernel multiplies with, and gradients too. It is f' = ∂f/∂K with both in the units of
their maps, so that V̇ = E[φ'φ'] = ∂V/∂K = (factor/unit) · f'. With cos θ = K/√(K₁K₂), and K, K₁, K₂ the true ones:

    RELU       f' = (π − θ)/π                               at correlation one 1
    RELU_LIKE  f' = α(π − θ)/π + β                          1
    ERF        f' = unit · 2/√((1 + 2K₁)(1 + 2K₂) − 4K²)    unit · 2/√(1 + 4K₁)
    SIN        f' = unit · ½(e^{K−m} + e^{−K−m})            unit · ½(1 + e^{−2K₁}), m = (K₁ + K₂)/2
    COS        f' = unit · ½(e^{K−m} − e^{−K−m})            unit · ½(1 − e^{−2K₁})
    RBF        f' = 2γ · unit · f                           2γ · unit
    GELU       f' = unit · (¼ + (asin r + (r/q)((3 + K₁ + K₂) + r²/q²)/P)/2π)
               with P = (1 + K₁)(1 + K₂), r = K/√P, q² = 1 − r² = (1 + K₁ + K₂ + K₁K₂ − K²)/P
    SERIES     f' = ρ'ρ'' Σ_j k A_j A'_j ρ^(k−1), ρ = Kρ'ρ'' with ρ' = 1/√K₁ and ρ'' = 1/√K₂ in units of the map
    STEP       none: E[φ'φ'] is infinite

Of the ReLU's families f' is any finite number where a variance is 0: there Θ is 0 too. Near correlation one f' has the
slope of a square root: θ ≈ √(2(1 − cos θ)), so that rounding cos θ by δ moves f' by √(2δ)/π (docs/mathematics.md).

Engines look formulas up by family (engines/cpu/rows/, engines/cuda/math.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from cnngp.network.functions import Function, second_moment, values_at
from cnngp.network.layers import GELU, Abs, Cos, Elementwise, Erf, LeakyReLU, Nonlinearity, Rbf, ReLU, Sin, Step

from .units import log2


class Family(Enum):
    """Nonlinearities with one formula for f."""

    RELU = auto()
    RELU_LIKE = auto()
    ERF = auto()
    STEP = auto()
    SIN = auto()
    COS = auto()
    RBF = auto()
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
    slope_level: Callable[[float], float] = field(kw_only=True)
    """log₂ of the V̇ to expect where the variance is 2^level."""
    no_slope: str = ""
    """Why there is no V̇, where there is none."""
    no_gradient: str = ""
    """Why K has no gradient, where it has none."""
    alpha: float = 1.0
    beta: float = 0.0
    """1 − α, so that f(K₁) = K₁ at correlation one, as of the ReLU."""
    homogeneous: bool = False
    """Whether f follows the unit of K, so that no scale is out of reach."""
    argument: float = 1.0
    """f takes argument · K: a factor that the unit of K can hold, so that no engine knows of it."""
    exponential: bool = False
    """Whether f is of e^K: then the digits of K before the point are lost from V."""


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
                slope_level=lambda level: log2(square / 2.0),
                homogeneous=True,
            )
        case LeakyReLU():
            # α + β = 1: what float32 makes of them cancels at correlation one, where layers would add it up.
            a, own = layer.slope, (1.0 + layer.slope * layer.slope) / 2.0
            return Formula(
                Family.RELU_LIKE,
                factor=lambda unit: unit * own,
                level=lambda level: level + log2(own),
                sign="of K" if a >= 0.0 else "any",
                slope_level=lambda level: log2(own),
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
                slope_level=lambda level: 0.0,
                alpha=2.0,
                beta=-1.0,
                homogeneous=True,
            )
        case Erf():
            return Formula(
                Family.ERF,
                factor=lambda unit: 2.0 / math.pi,
                level=_erf_level,
                sign="of K",
                slope_level=lambda level: -0.5 * log2(1.0 + 4.0 * 2.0 ** min(level, 1000.0)),
            )
        case Step():
            return Formula(
                Family.STEP,
                factor=lambda unit: 1.0 / (2.0 * math.pi),
                level=lambda level: -1.0,
                sign="nonnegative",
                slope_level=lambda level: math.inf,
                no_slope="Step() has no tangent kernel: its slope is zero almost everywhere and infinite at 0, so "
                "E[φ'φ'] does not exist; use Erf() or another smooth function, or kind='nngp'",
                no_gradient="Step() has no gradient: its kernel has an infinite slope where two patches are alike; use "
                "Erf() or another smooth function",
            )
        case Sin():
            return Formula(
                Family.SIN,
                factor=lambda unit: 1.0,
                level=lambda level: min(level, -1.0),
                sign="of K",
                slope_level=lambda level: -1.0,
                exponential=True,
            )
        case Cos():
            return Formula(
                Family.COS,
                factor=lambda unit: 1.0,
                level=lambda level: -1.0,
                sign="nonnegative",
                slope_level=lambda level: min(level, -1.0),
                exponential=True,
            )
        case Rbf():
            twice = 2.0 * layer.gamma
            return Formula(
                Family.RBF,
                factor=lambda unit: 1.0,
                level=lambda level: 0.0,
                sign="nonnegative",
                slope_level=lambda level: log2(twice),
                argument=twice,
                exponential=True,
            )
        case GELU():
            return Formula(
                Family.GELU,
                factor=lambda unit: 1.0,
                level=lambda level: level - 1.0,
                sign="of K",
                slope_level=lambda level: -1.0,
            )
        case Elementwise():
            return Formula(
                Family.SERIES,
                factor=lambda unit: 1.0,
                level=lambda level: log2(second_moment(layer.fn, 2.0 ** (min(level, 200.0) / 2.0))),
                sign="any",
                slope_level=lambda level: log2(second_moment(_slope(layer.fn), 2.0 ** (min(level, 200.0) / 2.0))),
            )
        case _:
            raise NotImplementedError(f"{layer!r} has no row in the table of formulas")


def _slope(fn: Function) -> Function:
    """fn', roughly."""
    return lambda x: (values_at(fn, x + 1e-4) - values_at(fn, x - 1e-4)) / 2e-4


def _erf_level(level: float) -> float:
    K = 2.0 ** min(level, 100.0)
    return log2(2.0 / math.pi * math.asin(2.0 * K / (1.0 + 2.0 * K)))
