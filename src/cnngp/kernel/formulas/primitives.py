"""The functions that formulas are written in, beside + − · /. Operands are whatever the engine computes with.

On the CPU Numba compiles formulas: there an operand is a vector of pairs, or a float64 number of an image with itself,
and engines/cpu/rows/elementary.py says what each function becomes. On a card an operand is an `Operand` that writes
itself as CUDA text. Python's own numbers stay numbers, so that a formula can be tried by hand.
"""

from __future__ import annotations

import math
from typing import Any

PI = math.pi


class Operand:
    """Something that notes what is done to it; `applied` gives the result of a function or of an operator."""

    def applied(self, function: str, *args: Any) -> Any:
        raise NotImplementedError

    def __add__(self, other: Any) -> Any:
        return self.applied("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return self.applied("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return self.applied("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.applied("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.applied("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.applied("*", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.applied("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.applied("/", other, self)

    def __neg__(self) -> Any:
        return self.applied("-", 0.0, self)


def _apply(function: str, plain: Any, *args: Any) -> Any:
    for x in args:
        if isinstance(x, Operand):
            return x.applied(function, *args)
    return plain(*args)


# ---- of vectors and of numbers -------------------------------------------------------------------------------------


def sqrt(x: Any) -> Any:
    return _apply("sqrt", math.sqrt, x)


def maximum(a: Any, b: Any) -> Any:
    return _apply("maximum", max, a, b)


def where_less(a: Any, b: Any, yes: Any, no: Any) -> Any:
    """yes where a < b, else no."""
    return _apply("where_less", lambda a, b, yes, no: yes if a < b else no, a, b, yes, no)


# ---- of vectors: the formulas of pairs -----------------------------------------------------------------------------


def absolute(x: Any) -> Any:
    return _apply("absolute", abs, x)


def positive(x: Any) -> Any:
    """max(x, 0)."""
    return _apply("positive", lambda x: max(x, 0.0), x)


def copysign(size: Any, sign: Any) -> Any:
    return _apply("copysign", math.copysign, size, sign)


def fma(a: Any, b: Any, c: Any) -> Any:
    """a · b + c with one rounding."""
    return _apply("fma", lambda a, b, c: a * b + c, a, b, c)


def negated_fma(a: Any, b: Any, c: Any) -> Any:
    """c − a · b with one rounding."""
    return _apply("negated_fma", lambda a, b, c: c - a * b, a, b, c)


def turn(v: Any) -> Any:
    """acos(1 − v) for v in 0 … 1."""
    return _apply("turn", lambda v: math.acos(1.0 - v), v)


def asin(x: Any, v: Any) -> Any:
    """asin(x) with v = max(1 − |x|, 0), which decides near ±1."""
    return _apply("asin", lambda x, v: math.copysign(math.asin(1.0 - v), x), x, v)


def exp_negative(x: Any) -> Any:
    """e^x for x ≤ 0."""
    return _apply("exp_negative", math.exp, x)


def one_minus_exp(y: Any) -> Any:
    """1 − e^(−y) for y ≥ 0."""
    return _apply("one_minus_exp", lambda y: -math.expm1(-y), y)


def relu_g(u: Any) -> Any:
    """(R/p − cos θ)/(u·√u) for an acute θ, u = 1 − cos θ: a polynomial (engines/polynomials.py)."""
    return _apply("relu_g", _relu_g, u)


def relu_h(u: Any) -> Any:
    """θ/(π√u) for an acute θ: a polynomial."""
    return _apply("relu_h", lambda u: math.acos(1.0 - u) / (PI * math.sqrt(u)) if u > 0.0 else math.sqrt(2.0) / PI, u)


def _relu_g(u: float) -> float:
    c = 1.0 - u
    return (math.sqrt(u * (2.0 - u)) - math.acos(c) * c) / (PI * u**1.5) if u > 0.0 else math.sqrt(8.0) / (3.0 * PI)


# ---- of numbers: an image with itself ------------------------------------------------------------------------------


def exp(x: Any) -> Any:
    return _apply("exp", math.exp, x)


def expm1(x: Any) -> Any:
    return _apply("expm1", math.expm1, x)


def atan2(y: Any, x: Any) -> Any:
    return _apply("atan2", math.atan2, y, x)


def power(x: Any, exponent: float) -> Any:
    return _apply("power", pow, x, exponent)
