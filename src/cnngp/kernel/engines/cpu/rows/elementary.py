"""What the functions of kernel/formulas are to compiled code: operations on vectors, or on float64 numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba.extending import overload, register_jitable

from cnngp.kernel.formulas import MODULES, primitives
from cnngp.kernel.formulas.relu import relu_both as relu_both
from cnngp.kernel.formulas.relu import relu_value as relu_value

from ..compiling import inlined
from ..simd import (
    Vec,
    absolute,
    acos_h,
    asin_s,
    copysign,
    exp_r,
    expm1_y,
    fma,
    maximum,
    nearest,
    negated_fma,
    positive,
    power_of_two,
    relu_g,
    relu_h,
    sqrt,
    where_less,
)

LOG2_E = 1.0 / math.log(2.0)
# ln 2 in two parts: the first has few bits, so n · LN2_HIGH is exact.
LN2_HIGH = 0.693359375
LN2_LOW = math.log(2.0) - LN2_HIGH


@inlined
def turn(v: Any) -> Any:
    """acos(1 − v)."""
    return sqrt(v) * acos_h(v)


@inlined
def asin(x: Any, v: Any) -> Any:
    """asin for |x| ≤ 1 with v = 1 − |x|: a series below 1/2, where relative accuracy counts, acos near 1."""
    size = absolute(x)
    far = negated_fma(sqrt(v), acos_h(v), math.pi / 2.0)
    near = size * asin_s(size * size)
    return copysign(where_less(size, 0.5, near, far), x)


@inlined
def exp_negative(x: Any) -> Any:
    """e^x for x ≤ 0; below e^-80 the result is e^-80, far under any sum it enters."""
    x = maximum(x, -80.0)
    n = nearest(x * LOG2_E)
    r = negated_fma(n, LN2_HIGH, x)
    r = negated_fma(n, LN2_LOW, r)
    return exp_r(r) * power_of_two(n)


@inlined
def one_minus_exp(y: Any) -> Any:
    """1 − e^(−y)."""
    return where_less(y, 0.7, y * expm1_y(y), 1.0 - exp_negative(0.0 - y))


@inlined
def _larger(a: float, b: float) -> float:
    return a if a > b else b


@inlined
def _chosen(a: float, b: float, yes: float, no: float) -> float:
    return yes if a < b else no


@inlined
def _power(x: float, exponent: float) -> float:
    return x**exponent  # type: ignore[no-any-return]


def _implement(primitive: Callable[..., Any], vector: Any, number: Any = None) -> None:
    """Compiled code calls one function where an argument is a vector, and the other where none is."""

    def choose(*types: Any) -> Any:
        f = vector if any(isinstance(t, Vec) for t in types) else number
        if f is None:
            return None
        match len(types):
            case 1:
                return lambda a: f(a)
            case 2:
                return lambda a, b: f(a, b)
            case 3:
                return lambda a, b, c: f(a, b, c)
        return lambda a, b, c, d: f(a, b, c, d)

    overload(primitive, strict=False)(choose)


for _primitive, _vector, _number in (
    (primitives.sqrt, sqrt, math.sqrt),
    (primitives.maximum, maximum, _larger),
    (primitives.where_less, where_less, _chosen),
    (primitives.absolute, absolute, None),
    (primitives.positive, positive, None),
    (primitives.copysign, copysign, None),
    (primitives.fma, fma, None),
    (primitives.negated_fma, negated_fma, None),
    (primitives.turn, turn, None),
    (primitives.asin, asin, None),
    (primitives.exp_negative, exp_negative, None),
    (primitives.one_minus_exp, one_minus_exp, None),
    (primitives.relu_g, relu_g, None),
    (primitives.relu_h, relu_h, None),
    (primitives.exp, None, math.exp),
    (primitives.expm1, None, math.expm1),
    (primitives.atan2, None, math.atan2),
    (primitives.power, None, _power),
):
    _implement(_primitive, _vector, _number)

_compiled = register_jitable(error_model="numpy", forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
for _module in MODULES:
    for _function in vars(_module).values():
        if isinstance(_function, FunctionType) and _function.__module__ == _module.__name__:
            _compiled(_function)
