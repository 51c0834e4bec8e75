"""Functions in which formulas are written, besides + − · /. Operands are of the types with which an engine computes.

On the CPU Numba compiles formulas: an operand is a vector of pairs, or a float64 number of an image with itself, and
engines/cpu/rows/forms.py implements each function. For a GPU an operand is an `Operand` that writes itself as CUDA
text. Python's own numbers stay numbers, so that a formula can be tried by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

PI = math.pi


def _operator(symbol: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """Return the two methods of an operator, for an operand on its left and on its right."""
    return lambda a, b: a.applied(symbol, a, b), lambda a, b: a.applied(symbol, b, a)


class Operand:
    """A symbolic number that records operations; `applied` gives the result of a function or of an operator."""

    def applied(self, function: str, *args: Any) -> Any:
        raise NotImplementedError

    __add__, __radd__ = _operator("+")
    __sub__, __rsub__ = _operator("-")
    __mul__, __rmul__ = _operator("*")
    __truediv__, __rtruediv__ = _operator("/")

    def __neg__(self) -> Any:
        return self.applied("-", 0.0, self)


PRIMITIVES: dict[str, Callable[..., Any]] = {}


def _primitive(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        for x in args:
            if isinstance(x, Operand):
                return x.applied(name, *args)
        return plain(*args)

    PRIMITIVES[name] = apply
    return apply


def _relu_g(u: float) -> float:
    c = 1.0 - u
    return (math.sqrt(u * (2.0 - u)) - math.acos(c) * c) / (PI * u**1.5) if u > 0.0 else math.sqrt(8.0) / (3.0 * PI)


def _relu_h(u: float) -> float:
    return math.acos(1.0 - u) / (PI * math.sqrt(u)) if u > 0.0 else math.sqrt(2.0) / PI


# ---- for vectors and numbers ---------------------------------------------------------------------------------------

sqrt = _primitive("sqrt", math.sqrt)
maximum = _primitive("maximum", max)
where_less = _primitive("where_less", lambda a, b, yes, no: yes if a < b else no)
"""`yes` where a < b, else `no`."""

# ---- for vectors: the formulas of pairs ----------------------------------------------------------------------------

absolute = _primitive("absolute", abs)
positive = _primitive("positive", lambda x: max(x, 0.0))
copysign = _primitive("copysign", math.copysign)
"""The magnitude of one number with the sign of another."""
fma = _primitive("fma", lambda a, b, c: a * b + c)
"""a · b + c with one rounding."""
negated_fma = _primitive("negated_fma", lambda a, b, c: c - a * b)
"""c − a · b with one rounding."""
turn = _primitive("turn", lambda v: math.acos(1.0 - v))
"""acos(1 − v) for v in 0 … 1."""
asin = _primitive("asin", lambda x, v: math.copysign(math.asin(1.0 - v), x))
"""asin(x) with v = max(1 − |x|, 0), which decides near ±1."""
exp_negative = _primitive("exp_negative", math.exp)
"""e^x for x ≤ 0."""
one_minus_exp = _primitive("one_minus_exp", lambda y: -math.expm1(-y))
"""1 − e^(−y) for y ≥ 0."""
relu_g = _primitive("relu_g", _relu_g)
"""(R/p − cos θ)/(u·√u) for an acute θ, u = 1 − cos θ: a polynomial (engines/polynomials.py)."""
relu_h = _primitive("relu_h", _relu_h)
"""θ/(π√u) for an acute θ: a polynomial."""

# ---- for numbers: an image with itself -----------------------------------------------------------------------------

exp = _primitive("exp", math.exp)
expm1 = _primitive("expm1", math.expm1)
atan2 = _primitive("atan2", math.atan2)
power = _primitive("power", pow)
