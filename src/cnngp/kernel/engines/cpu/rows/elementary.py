"""Functions of vectors that the formulas share: the ReLU's value and slope, arcsine, exponentials."""

from __future__ import annotations

import math
from typing import Any

from ..compiling import inlined
from ..simd import (
    absolute,
    acos_h,
    asin_s,
    constant,
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

PI = math.pi
LOG2_E = 1.0 / math.log(2.0)
# ln 2 in two parts: the first has few bits, so n · LN2_HIGH is exact.
LN2_HIGH = 0.693359375
LN2_LOW = math.log(2.0) - LN2_HIGH


@inlined
def relu_value(K: Any, p: Any, q: Any, one: Any) -> Any:
    """R = 2A = max(K, 0) + (p − |K|)·√u·g(u) with p = ss', q = 1/p, u = 1 − |K|q."""
    size = absolute(K)
    u = positive(negated_fma(size, q, one))
    return fma((p - size) * sqrt(u), relu_g(u), positive(K))


@inlined
def relu_excess(K: Any, p: Any, q: Any, one: Any) -> Any:
    """R − K = max(−K, 0) + (p − |K|)·√u·g(u), without a difference of two that are nearly alike."""
    size = absolute(K)
    u = positive(negated_fma(size, q, one))
    return fma((p - size) * sqrt(u), relu_g(u), size - positive(K))


@inlined
def relu_slope(K: Any, root: Any, u: Any, one: Any, zero: Any) -> Any:
    """(π − θ)/π with u = 1 − |cos θ| and its root."""
    angle = root * relu_h(u)
    return where_less(K, zero, angle, one - angle)


@inlined
def relu_both(K: Any, T: Any, p: Any, q: Any, mine: Any, one: Any, zero: Any) -> Any:
    """R, and its slope times T + own · K."""
    size = absolute(K)
    u = positive(negated_fma(size, q, one))
    root = sqrt(u)
    V = fma((p - size) * root, relu_g(u), positive(K))
    return V, relu_slope(K, root, u, one, zero) * fma(K, mine, T)


@inlined
def asin(m: Any, x: Any) -> Any:
    """asin for |x| ≤ 1: a series below 1/2, where relative accuracy counts, acos near 1."""
    return asin_of(m, x, positive(constant(m, 1.0) - absolute(x)))


@inlined
def asin_of(m: Any, x: Any, v: Any) -> Any:
    """asin with v = 1 − |x| given."""
    size = absolute(x)
    far = negated_fma(sqrt(v), acos_h(v), constant(m, PI / 2.0))
    near = size * asin_s(size * size)
    return copysign(where_less(size, constant(m, 0.5), near, far), x)


@inlined
def exp(m: Any, x: Any) -> Any:
    """e^x for x ≤ 0; below e^-80 the result is e^-80, far under any sum it enters."""
    x = maximum(x, constant(m, -80.0))
    n = nearest(x * constant(m, LOG2_E))
    r = negated_fma(n, constant(m, LN2_HIGH), x)
    r = negated_fma(n, constant(m, LN2_LOW), r)
    return exp_r(r) * power_of_two(n)


@inlined
def rise_and_fall(m: Any, K: Any, h: Any) -> Any:
    """½e^{|K|−h}, 2|K| and e^{−2|K|}, of which ½(e^{K−h} ∓ e^{−K−h}) are made."""
    size = absolute(K)
    # |K| ≤ h, but for rounding: of a large variance that would be a large exponent, so none is above 0.
    rise = constant(m, 0.5) * exp(m, constant(m, 0.0) - positive(h - size))
    y = size * constant(m, 2.0)
    return rise, y, exp(m, constant(m, 0.0) - y)


@inlined
def sine(m: Any, K: Any, rise: Any, y: Any, fall: Any) -> Any:
    """½(e^{K−h} − e^{−K−h}) through 1 − e^{−2|K|}."""
    below = where_less(y, constant(m, 0.7), y * expm1_y(y), constant(m, 1.0) - fall)
    return copysign(rise * below, K)


@inlined
def cosine(rise: Any, fall: Any) -> Any:
    """½(e^{K−h} + e^{−K−h})."""
    return fma(rise, fall, rise)


@inlined
def erf_root(m: Any, x: Any, t: Any, t2: Any, per_unit: Any) -> Any:
    """√(1 − x²), x = Ktt'; 1 − x² is at least a + b − ab, a = 1/(1 + 2K₁) = t²/(2 unit), because |K| ≤ √(K₁K₂).

    `per_unit` is 1/√(2 unit).
    """
    one, size = constant(m, 1.0), absolute(x)
    a, b = t * per_unit, t2 * per_unit
    a, b = a * a, b * b
    return sqrt(maximum((one - size) * (one + size), negated_fma(a, b, a + b)))
