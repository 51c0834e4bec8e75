"""Nonlinearities in compiled code: the formulas of kernel/formulas at one location, and loops along a row of a map.

The primitives of formulas become operations on vectors or on float64 numbers. A row function computes `lanes` pairs at
a time: f(K), or f'(K) · (T + own · K) for Θ. The variants for images with themselves at one location, in float64 with
one image per lane, also make the tables. With pools the variances also need images with themselves at two locations:
then `both` tables are those of the lanes. The entries of an activation are TABLE_SIZE apart. `work.py` defines the
arguments of a row function.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

from numba.extending import overload, register_jitable

from cnngp.kernel.formulas import FAMILIES, MODULES, Family
from cnngp.kernel.formulas.primitives import PRIMITIVES
from cnngp.kernel.formulas.relu import relu_both as relu_both
from cnngp.kernel.formulas.relu import relu_value as relu_value

from .. import columns as col
from .. import simd
from ..compiling import inlined
from ..simd import Vec, absolute, constant, constants, fma, lanes, load, maximum, negated_fma, sqrt, store, where_less
from ..work import entry, own_entry
from . import series

LOG2_E = 1.0 / math.log(2.0)
# ln 2 in two parts: the first has few bits, so n · LN2_HIGH is exact.
LN2_HIGH = 0.693359375
LN2_LOW = math.log(2.0) - LN2_HIGH


@inlined
def turn(v: Any) -> Any:
    """Return acos(1 − v)."""
    return sqrt(v) * simd.acos_h(v)


@inlined
def asin(x: Any, v: Any) -> Any:
    """asin for |x| ≤ 1 with v = 1 − |x|: a polynomial below 1/2, where relative accuracy matters, acos near 1."""
    size = absolute(x)
    far = negated_fma(sqrt(v), simd.acos_h(v), math.pi / 2.0)
    near = size * simd.asin_s(size * size)
    return simd.copysign(where_less(size, 0.5, near, far), x)


@inlined
def exp_negative(x: Any) -> Any:
    """Return e^x for x ≤ 0, but at least e^-80, which is negligible in every sum that it enters."""
    x = maximum(x, -80.0)
    n = simd.nearest(x * LOG2_E)
    r = negated_fma(n, LN2_HIGH, x)
    r = negated_fma(n, LN2_LOW, r)
    return simd.exp_r(r) * simd.power_of_two(n)


@inlined
def one_minus_exp(y: Any) -> Any:
    """Return 1 − e^(−y)."""
    return where_less(y, 0.7, y * simd.expm1_y(y), 1.0 - exp_negative(0.0 - y))


# Implementations of primitives for numbers. Primitives neither here nor in `simd` nor above are never used.
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
    """Let compiled code call `vector` if an argument is a vector, else `number`."""

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


# ---- at one location, and along a row -------------------------------------------------------------------------------

Row = Callable[..., None]


class Form(NamedTuple):
    """A nonlinearity at one location, as compiled functions of the result of `begin(w)`, computed once for many.

    `own_at` and `at` are the offsets of the location's entries in the tables; the rest is as in `Family`.
    """

    begin: Any
    value: Any
    slope: Any
    parts: Any
    still: Any


def form(code: int, both: bool) -> Form:
    """Return the form of a family, by its number."""
    return Form(*series.form(both)) if code == col.SERIES else closed_form(FAMILIES[code - 1], both)


def closed_form(family: Family, both: bool) -> Form:
    still_of, constants_of, last = family.still, family.constants, family.entries - 1

    @inlined
    def begin(w: Any) -> Any:
        numbers = w.numbers
        c = constants(w.m, constants_of(numbers[col.UNIT], numbers[col.ALPHA], numbers[col.BETA]))
        return c, w.op[col.TABLE_SIZE] * last

    def of_pair(formula: Any) -> Any:
        @inlined
        def at_place(w: Any, K: Any, own_at: int, at: int, c: Any) -> Any:
            a = own_entry(w, own_at, both), own_entry(w, own_at + c[1], both)
            return formula(K, a, (entry(w, at), entry(w, at + c[1])), c[0])

        return at_place

    @inlined
    def still(w: Any, K: float, at: int, h: float, share: float) -> Any:
        x = w.numbers[col.UNIT], w.numbers[col.ALPHA], w.numbers[col.SMALLEST]
        slope, factor, value, extra = still_of(K, x)  # type: ignore[misc]
        return w.numbers[col.SCALE] * h * slope + factor * share, value, extra

    return Form(begin, of_pair(family.value), of_pair(family.slope), of_pair(family.parts), still)


def value_row(code: int, both: bool) -> Row:
    begin, value, *_ = form(code, both)

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, c = w.m, lanes(w.m), begin(w)
        for e in range(n):
            store(m, dst + e * L, value(w, load(m, src + e * L), own_at + e, at + e, c))

    return run


def slope_row(code: int, both: bool) -> Row:
    """Row function of f'(K) · (T + own · K); the plan's TIMES is the distance from K to T."""
    begin, _, slope, *_ = form(code, both)

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, c = w.m, lanes(w.m), begin(w)
        times, own = src + w.op[col.TIMES] * L, constant(m, w.numbers[col.OWN])
        for e in range(n):
            K = load(m, src + e * L)
            store(m, dst + e * L, slope(w, K, own_at + e, at + e, c) * fma(K, own, load(m, times + e * L)))

    return run


def variance_row(code: int, slopes: bool) -> Row:
    """Row function of f at correlation one; also writes the image's table entries and the largest variance.

    `slopes`: for gradients, which need more entries of an Elementwise. Formulas that use functions of the C library are
    computed one number at a time, because an image has one row where its pairs have thousands.
    """
    if code == col.SERIES:
        return series.variance_row(slopes)
    family = FAMILIES[code - 1]
    if family.whole:
        return _whole_row(family, False)
    table, diagonal, peak, two = family.table, family.diagonal, family.peak, family.entries == 2

    def in_vectors(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
        m, peaks, L = w.m, w.own, lanes(w.m)
        size, peak_at = w.op[col.TABLE_SIZE], w.op[col.SITE] * L
        x = constants(m, (w.numbers[col.UNIT], w.numbers[col.ALPHA], w.numbers[col.SMALLEST]))
        top = load(peaks, peak_at)
        for e in range(n):
            K = load(m, src + e * L)
            top = maximum(top, peak(K, x))
            first, second = table(K, x)  # type: ignore[misc]
            store(w.table, (at + e) * L, first)
            if two:
                store(w.table, (at + size + e) * L, second)
            store(m, dst + e * L, diagonal(K, x))
        store(peaks, peak_at, top)

    def by_numbers(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
        m, peaks, L = w.m, w.own, lanes(w.m)
        peak_at, far = w.op[col.SITE] * L, w.op[col.TABLE_SIZE] * L
        x = w.numbers[col.UNIT], w.numbers[col.ALPHA], w.numbers[col.SMALLEST]
        for e in range(n * L):
            K = m[src + e]
            peaks[peak_at + e % L] = max(peaks[peak_at + e % L], peak(K, x))
            first, second = table(K, x)  # type: ignore[misc]
            w.table[at * L + e] = first
            if two:
                w.table[at * L + far + e] = second
            m[dst + e] = diagonal(K, x)

    return in_vectors if family.vectors else by_numbers


def variance_slope_row(code: int) -> Row:
    """Row function of f' at correlation one, from K because the table is not yet written; where K is 0, Θ is 0."""
    if code == col.SERIES:
        return series.variance_slope_row
    if FAMILIES[code - 1].whole:
        return _whole_row(FAMILIES[code - 1], True)
    slope_diagonal = FAMILIES[code - 1].slope_diagonal

    def run(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
        m, L, own = w.m, lanes(w.m), w.numbers[col.OWN]
        times = src + w.op[col.TIMES] * L
        x = w.numbers[col.UNIT], w.numbers[col.ALPHA], w.numbers[col.SMALLEST]
        for e in range(n * L):
            K = m[src + e]
            m[dst + e] = slope_diagonal(K, x) * (m[times + e] + own * K)  # type: ignore[misc]

    return run


def _whole_row(family: Family, slopes: bool) -> Row:
    """`variance_row` and `variance_slope_row` for a family that uses the mean of K over all locations.

    The first row, which runs before all others, makes the table of the whole map.
    """
    table, peak = family.table, family.peak

    @inlined
    def make_table(w: Any, src: int, at: int) -> None:
        m, op, L = w.m, w.op, lanes(w.m)
        size, total = op[col.TABLE_SIZE], constant(m, 0.0)
        for e in range(0, size * L, L):
            total = total + load(m, src + e)
        mean = total / constant(m, float(size))
        x = constants(m, (w.numbers[col.UNIT], w.numbers[col.ALPHA], w.numbers[col.SMALLEST]))
        store(w.own, op[col.SITE] * L, maximum(load(w.own, op[col.SITE] * L), peak(mean, x)))
        for e in range(size):
            store(w.table, (at + e) * L, table(mean, x)[0])  # type: ignore[misc]

    def run(w: Any, src: int, dst: int, n: int, unused: int, at: int) -> None:
        m, L, own = w.m, lanes(w.m), constant(w.m, w.numbers[col.OWN])
        times = src + w.op[col.TIMES] * L
        if at == w.op[col.TABLE]:
            make_table(w, src, at)
        for e in range(n):
            t, K = load(w.table, (at + e) * L), load(m, src + e * L)
            store(m, dst + e * L, t * t * (fma(own, K, load(m, times + e * L)) if slopes else K))

    return run
