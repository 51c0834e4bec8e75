"""Nonlinearities in compiled code: the formulas of kernel/formulas at a place of a map, and loops along a row of it.

The functions that formulas are written in become operations on vectors, or on float64 numbers. A row function does
`lanes` pairs at a time: f(K), or f'(K) · (T + own · K) for Θ; and the same for images with themselves at one place, in
float64 and an image a lane, which makes the tables. Under a pool the variances also need images with themselves at two
places: there `both` tables are the lanes'. An activation's entries are channel after channel, TABLE_SIZE apart.
`work.py` says what a row function is given.
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


# ---- at a place, and along a row ------------------------------------------------------------------------------------

Row = Callable[..., None]


class Form(NamedTuple):
    """A nonlinearity at one location, as compiled functions of what `begin(w)` has made once for many of them.

    `own_at` and `at` are where the location's entries are in the tables; the rest is as in `Family`.
    """

    begin: Any
    value: Any
    slope: Any
    parts: Any
    still: Any


def form(code: int, both: bool) -> Form:
    """The form of a family by its number."""
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
    """T lies as far behind K as the plan says."""
    begin, _, slope, *_ = form(code, both)

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, c = w.m, lanes(w.m), begin(w)
        times, own = src + w.op[col.TIMES] * L, constant(m, w.numbers[col.OWN])
        for e in range(n):
            K = load(m, src + e * L)
            store(m, dst + e * L, slope(w, K, own_at + e, at + e, c) * fma(K, own, load(m, times + e * L)))

    return run


def variance_row(code: int, slopes: bool) -> Row:
    """f at correlation one; the image's numbers go to its table, the largest variance to the peaks.

    `slopes`: for gradients, which need more of an Elementwise. Formulas that take functions of the C library are
    computed a number at a time: an image has one row where a pair has thousands.
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
    """f' at correlation one. The image's table is not yet written, so all comes from K; where that is 0 so is Θ."""
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
    """`variance_row` and `variance_slope_row` of a family that takes the mean of K over all locations.

    The first row, which comes before all others, makes the table of the whole map.
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
