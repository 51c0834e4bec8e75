"""What the functions of kernel/formulas are to compiled code: operations on vectors, or on float64 numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

from numba.extending import overload, register_jitable

from cnngp.kernel.formulas import MODULES
from cnngp.kernel.formulas.primitives import PRIMITIVES
from cnngp.kernel.formulas.relu import relu_both as relu_both
from cnngp.kernel.formulas.relu import relu_value as relu_value

from .. import simd
from ..compiling import inlined
from ..simd import Vec, absolute, maximum, negated_fma, sqrt, where_less

LOG2_E = 1.0 / math.log(2.0)
# ln 2 in two parts: the first has few bits, so n · LN2_HIGH is exact.
LN2_HIGH = 0.693359375
LN2_LOW = math.log(2.0) - LN2_HIGH


@inlined
def turn(v: Any) -> Any:
    """acos(1 − v)."""
    return sqrt(v) * simd.acos_h(v)


@inlined
def asin(x: Any, v: Any) -> Any:
    """asin for |x| ≤ 1 with v = 1 − |x|: a series below 1/2, where relative accuracy counts, acos near 1."""
    size = absolute(x)
    far = negated_fma(sqrt(v), simd.acos_h(v), math.pi / 2.0)
    near = size * simd.asin_s(size * size)
    return simd.copysign(where_less(size, 0.5, near, far), x)


@inlined
def exp_negative(x: Any) -> Any:
    """e^x for x ≤ 0; below e^-80 the result is e^-80, far under any sum it enters."""
    x = maximum(x, -80.0)
    n = simd.nearest(x * LOG2_E)
    r = negated_fma(n, LN2_HIGH, x)
    r = negated_fma(n, LN2_LOW, r)
    return simd.exp_r(r) * simd.power_of_two(n)


@inlined
def one_minus_exp(y: Any) -> Any:
    """1 − e^(−y)."""
    return where_less(y, 0.7, y * simd.expm1_y(y), 1.0 - exp_negative(0.0 - y))


# What primitives become for numbers; those that are not here, and not in `simd` or above, are never asked for.
_OF_NUMBERS: dict[str, Any] = {
    "sqrt": math.sqrt,
    "maximum": inlined(lambda a, b: a if a > b else b),
    "where_less": inlined(lambda a, b, yes, no: yes if a < b else no),
    "exp": math.exp,
    "expm1": math.expm1,
    "atan2": math.atan2,
    "power": inlined(lambda x, exponent: x**exponent),
}


def _implement(primitive: Callable[..., Any], vector: Any, number: Any) -> None:
    """Compiled code calls one function where an argument is a vector, and the other where none is."""

    def choose(*types: Any) -> Any:
        f = vector if any(isinstance(t, Vec) for t in types) else number
        calls = {1: lambda a: f(a), 2: lambda a, b: f(a, b), 3: lambda a, b, c: f(a, b, c)}
        return None if f is None else calls.get(len(types), lambda a, b, c, d: f(a, b, c, d))

    overload(primitive, strict=False)(choose)


for _name, _primitive in PRIMITIVES.items():
    _implement(_primitive, globals().get(_name, getattr(simd, _name, None)), _OF_NUMBERS.get(_name))

_compiled = register_jitable(error_model="numpy", forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
for _module in MODULES:
    for _function in vars(_module).values():
        if isinstance(_function, FunctionType) and _function.__module__ == _module.__name__:
            _compiled(_function)
