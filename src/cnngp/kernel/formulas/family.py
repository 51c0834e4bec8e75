"""Interface of a formula to programs and engines: a `Family` of functions, and a `Formula` for each layer.

Each map has a unit: true K = unit · K. A nonlinearity becomes V = factor · f(K), where f belongs to a family and the
constants are moved into the factor, which is the unit of the result. The slope of f is f' = ∂f/∂K, both in the units of
their maps, so that V̇ = E[φ'φ'] = ∂V/∂K = (factor/unit) · f'. The tangent kernel and gradients multiply by it.
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
    """Return 1/√K, and 0 where √K ≤ `smallest`: there the correlation counts as 0."""
    s = sqrt(K)
    return where_less(smallest, s, 1.0 / s, 0.0)


@dataclass(frozen=True, eq=False)
class Family:
    """Nonlinearities with a common formula f, as functions of operands (primitives.py).

    For pairs, K is the covariance in buffer units, `a` and `b` are the entries of the two images' tables for the
    location (two each; if `entries` is one, the second is not used), and `c` is the result of `constants` for the
    activation's unit, α and β:

        value(K, a, b, c)    f
        slope(K, a, b, c)    f'
        parts(K, a, b, c)    for gradients: (f', the derivative by the first variance and by the second, and two numbers
                             for the sums of parameter gradients, of which the first is f in most families: see
                             `shares_of` in program/reverse.py)

    The derivatives by variances lack a factor that depends on that image alone, which `still` returns. For an image
    with itself, in float64, with x = (unit, α, smallest):

        table(K, x)            the two entries of a table
        diagonal(K, x)         f
        slope_diagonal(K, x)   f'
        still(K, x)            (df/dK, that factor, the two numbers of the sums)
        peak(K, x)             the number that the range check uses: see `check_range`
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
    """True if the functions of an image with itself use only primitives that vectors have."""
    whole: bool = False
    """True if tables are made from the mean of K over all locations; CPU only."""


@dataclass(frozen=True)
class Formula:
    """The formula of one layer: its family, its constants, and properties that programs and checks need."""

    family: Family
    level: Callable[[float], float]
    """Typical log₂ V for a variance of 2^level."""
    slope_level: Callable[[float], float]
    """Typical log₂ V̇ for that variance."""
    sign: Literal["nonnegative", "of K", "any"]
    """Known sign of V."""
    factor: Callable[[float], float] = lambda unit: 1.0
    """V = factor(unit) · f."""
    no_slope: str = ""
    """Reason why there is no V̇, or empty."""
    no_gradient: str = ""
    """Reason why K has no gradient, or empty."""
    alpha: float = 1.0
    beta: float = 0.0
    """Parameters α and β of f. For RELU_LIKE β = 1 − α, so that f(K₁) = K₁ at correlation one."""
    homogeneous: bool = False
    """True if f scales with the unit of K, so that any scale is possible."""
    argument: float = 1.0
    """f takes argument · K: a factor that the unit of K absorbs, so that no engine needs it."""
    degree: int = 1
    """Degree of a homogeneous f in the scale of all variances."""
    exponential: bool = False
    """True if f is a function of e^K: as many digits as K has before the point are lost from V."""
    any_scale: bool = False
    """True if f depends on a tiny variance as much as on a large one, so that all must be within range."""
    blank_is_one: bool = False
    """True if V is not 0 for a variance of 0: then a variance too small to represent does no harm."""


@singledispatch
def formula(layer: Nonlinearity) -> Formula:
    """Return the formula of a nonlinearity, which its file registers."""
    raise NotImplementedError(f"no formula for {layer!r}")


def log2(x: float) -> float:
    return math.log2(x) if x > 0 else -math.inf
