"""What a formula is to programs and engines: a `Family` of functions, and for each layer a `Formula`, its row.

A map is held in a unit: true K = unit · K. A nonlinearity becomes V = factor · f(K), where f belongs to a family, and
the constants are moved into the factor, which is the unit of what comes out. The slope of f is f' = ∂f/∂K, both in the
units of their maps, so that V̇ = E[φ'φ'] = ∂V/∂K = (factor/unit) · f'. The tangent kernel multiplies with it, and
gradients too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Literal

from cnngp.network.layers import Nonlinearity

from .primitives import sqrt, where_less


def only_unit(unit: Any, alpha: Any, beta: Any) -> Any:
    return (unit,)


def itself(K: Any, x: Any) -> Any:
    return K


def one(K: Any, x: Any) -> Any:
    return 1.0


def inverse_root(K: Any, smallest: Any) -> Any:
    """1/√K, and 0 where √K is not above `smallest`: there the correlation counts as 0."""
    s = sqrt(K)
    return where_less(smallest, s, 1.0 / s, 0.0)


@dataclass(frozen=True, eq=False)
class Family:
    """Nonlinearities with one formula f, as functions of operands (primitives.py).

    For pairs K is the covariance in buffer units, `a` and `b` are the numbers that the tables of the two images keep
    for the location (two each; where `entries` is one, the second is not used), and `c` is what `constants` made of the
    activation's unit, α and β:

        value(K, a, b, c)    f
        slope(K, a, b, c)    f'
        parts(K, a, b, c)    (f', what goes to the first variance and to the second, f or what its gradient's sums are
                             made of: `shares_of` in program/reverse.py): for gradients

    What goes to a variance lacks the factor that depends on that image alone: `still` has it. Of an image with itself,
    in float64, with x = (unit, α, smallest):

        table(K, x)            the two numbers that a table keeps
        diagonal(K, x)         f
        slope_diagonal(K, x)   f'
        still(K, x)            (df/dK, that factor, the two numbers of the sums)
        peak(K, x)             what the range check looks at: see `check_range`
    """

    name: str
    entries: int = 1
    value: Callable[..., Any] | None = None
    table: Callable[..., Any] | None = None
    diagonal: Callable[..., Any] = itself
    slope: Callable[..., Any] | None = None
    slope_diagonal: Callable[..., Any] | None = None
    parts: Callable[..., Any] | None = None
    still: Callable[..., Any] | None = None
    constants: Callable[..., Any] = only_unit
    peak: Callable[..., Any] = itself
    vectors: bool = False
    """Whether the functions of an image with itself need no more than vectors have."""
    whole: bool = False
    """Whether tables are made of the mean of K over all locations; on CPUs alone."""


@dataclass(frozen=True)
class Formula:
    """A layer's row in the table of formulas."""

    family: Family
    level: Callable[[float], float]
    """log₂ of the V to expect where the variance is 2^level."""
    slope_level: Callable[[float], float]
    """log₂ of the V̇ to expect there."""
    sign: Literal["nonnegative", "of K", "any"]
    """What is known of V's sign."""
    factor: Callable[[float], float] = lambda unit: 1.0
    """V = factor(unit) · f."""
    no_slope: str = ""
    """Why there is no V̇, where there is none."""
    no_gradient: str = ""
    """Why K has no gradient, where it has none."""
    alpha: float = 1.0
    beta: float = 0.0
    """Numbers of the layer that f takes. Of the ReLU's kind 1 − α, so that f(K₁) = K₁ at correlation one."""
    homogeneous: bool = False
    """Whether f follows the unit of K, so that no scale is out of reach."""
    argument: float = 1.0
    """f takes argument · K: a factor that the unit of K can hold, so that no engine knows of it."""
    degree: int = 1
    """Of a homogeneous f: how it grows with the scale of all variances."""
    exponential: bool = False
    """Whether f is of e^K: then the digits of K before the point are lost from V."""
    any_scale: bool = False
    """Whether f makes as much of a tiny variance as of a large one, so that all must be within reach."""
    blank_is_one: bool = False
    """Whether V is not 0 where the variance is: then one too small to hold is no matter."""


@singledispatch
def formula(layer: Nonlinearity) -> Formula:
    """The row of a nonlinearity, which its file registers."""
    raise NotImplementedError(f"no formula for {layer!r}")


def log2(x: float) -> float:
    return math.log2(x) if x > 0 else -math.inf
