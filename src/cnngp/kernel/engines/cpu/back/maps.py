"""The way back through a nonlinearity, over a whole map: g ← g + t · ∂f/∂K with t = scale · times, for `lanes` pairs.

f reads three numbers, K and the two images' variances, so t goes three ways. What goes to a variance is added to its
image's shares, without the factors that depend on that image alone: `still` multiplies by them later, once an image.

    RELU       ∂R/∂K = (π − θ)/π,           ∂R/∂K₁ = sin θ · s'            · (1/s)/2π
    ERF        tt'/√(1 − x²), x = Ktt',     x/√(1 − x²)                    · −t²/2
    SIN, COS   unit · (cos, sin),           f                              · −unit/2
    RBF        unit · f,                    f                              · −unit/2
    GELU       as below,                    q k'(k + 2t) − (x²/q)(…)       · unit · t²/4π

Where a variance is 0 the two images count as equal (network/adjoint.py says why). Maps, tables and arguments are those
of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..compiling import inlined
from ..plan import (
    A0,
    ACT,
    ADDRESSES,
    ALPHA,
    B0,
    BACK_TIMES,
    BASE,
    BETA,
    C0,
    CHANNELS,
    COS,
    DST,
    ERF,
    GELU_ACT,
    KEEP,
    OWN_AT,
    OWN_SHARES,
    OWN_TABLE,
    RBF,
    RELU,
    RELU_FAMILY,
    SCALE,
    SHARES,
    SIN,
    SLOT,
    SRC,
    TABLE,
    TABLE_SIZE,
    UNIT,
    WRITES,
)
from ..rows.elementary import PI, asin, cosine, erf_root, exp, rise_and_fall, sine
from ..simd import (
    absolute,
    acos_h,
    add_at,
    address,
    address_like,
    constant,
    fma,
    lane_sum,
    lanes,
    load,
    maximum,
    negated_fma,
    positive,
    sqrt,
    store,
    where_less,
)
from ..work import entry as entry_at
from ..work import entry_of_row, own_entry


@inlined
def relu_parts(m: Any, K: Any, a: Any, a2: Any, b: Any, b2: Any, op: Any, numbers: Any) -> Any:
    """(∂f/∂K, to the first variance, to the second, what the two sums add up)."""
    zero, one, two, per_pi = constant(m, 0.0), constant(m, 1.0), constant(m, 2.0), constant(m, 1.0 / PI)
    q = a2 * b2
    u = where_less(zero, q, positive(negated_fma(absolute(K), q, one)), zero)
    root = sqrt(u)
    angle = root * acos_h(u) * per_pi
    slope = where_less(K, zero, angle, one - angle)
    sine = root * sqrt(two - u)
    return slope, sine * b, sine * a, fma(slope, K, sine * (a * b) * per_pi), zero


@inlined
def relu_family_parts(m: Any, K: Any, a: Any, a2: Any, b: Any, b2: Any, op: Any, numbers: Any) -> Any:
    slope, first, second, R, _ = relu_parts(m, K, a, a2, b, b2, op, numbers)
    alpha, beta = constant(m, numbers[ALPHA]), constant(m, numbers[BETA])
    return fma(slope, alpha, beta), first * alpha, second * alpha, R, K


@inlined
def erf_parts(m: Any, K: Any, a: Any, a2: Any, b: Any, b2: Any, op: Any, numbers: Any) -> Any:
    x = K * (a * b)
    root = erf_root(m, x, a, b, constant(m, (2.0 * numbers[UNIT]) ** -0.5))
    share = x / root
    return a * b / root, share, share, asin(m, x), constant(m, 0.0)


@inlined
def sin_cos_parts(m: Any, K: Any, a: Any, a2: Any, b: Any, b2: Any, op: Any, numbers: Any) -> Any:
    unit = constant(m, numbers[UNIT])
    true = K * unit
    rise, y, fall = rise_and_fall(m, true, a + b)
    s, c = sine(m, true, rise, y, fall), cosine(rise, fall)
    if op[ACT] == SIN:
        return unit * c, s, s, s, constant(m, 0.0)
    return unit * s, c, c, c, constant(m, 0.0)


@inlined
def rbf_parts(m: Any, K: Any, a: Any, a2: Any, b: Any, b2: Any, op: Any, numbers: Any) -> Any:
    unit, zero = constant(m, numbers[UNIT]), constant(m, 0.0)
    x = zero - positive(negated_fma(K, unit, a + b))
    f = exp(m, x)
    return unit * f, f, f, f, f * x


@inlined
def gelu_parts(m: Any, K: Any, a: Any, k: Any, b: Any, k2: Any, op: Any, numbers: Any) -> Any:
    """With t = 1/√(1 + K₁), k = K₁t and their tables √unit · t and k."""
    unit, root_unit = constant(m, numbers[UNIT]), constant(m, numbers[UNIT] ** -0.5)
    one, two, four = constant(m, 1.0), constant(m, 2.0), constant(m, 4.0)
    quarter, per_two_pi = constant(m, 0.25), constant(m, 0.5 / PI)
    x = K * (a * b)
    true = K * unit
    t, t2 = a * root_unit, b * root_unit
    c, d = t * t, t2 * t2
    size = absolute(x)
    q = sqrt(maximum((one - size) * (one + size), negated_fma(c, d, c + d)))
    tt = t * t2
    angle = asin(m, x)
    ratio = x / q
    square = ratio * ratio
    slope = fma(fma(ratio, fma(c * d, one + square, c + d), angle), per_two_pi, quarter)
    common = x * ratio * fma(tt, four + square, fma(k, t2, k2 * t))
    first = fma(q * k2, fma(two, t, k), constant(m, 0.0) - common)
    second = fma(q * k, fma(two, t2, k2), constant(m, 0.0) - common)
    value = fma(fma(true, angle, fma(k * k2, q, x * ratio * tt)), per_two_pi, true * quarter)
    return unit * slope, first, second, value, constant(m, 0.0)


def back(parts: Any, entries: int, both: bool) -> Callable[..., None]:
    """The operation for pairs; where `both`, for images with themselves at two places."""

    def run(w: Any) -> None:
        m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
        n, far = op[C0], op[TABLE_SIZE] * (entries - 1)
        zero, scale = constant(m, 0.0), constant(m, numbers[SCALE])
        begun, writes, slot = numbers[KEEP] != 0.0, op[WRITES], op[SLOT]
        known = op[ADDRESSES]
        sums, own_shares = address(frame[known]), address_like(m, frame[known + 1])
        for r in range(op[A0] * op[B0]):
            entry = entry_of_row(op, r)
            src = frame[BASE] + (op[SRC] + r * n) * L
            times = frame[BASE] + (op[BACK_TIMES] + r * n) * L
            dst = frame[BASE] + (op[DST] + r * n) * L
            mine, at = frame[OWN_AT] + op[OWN_TABLE] + entry, op[TABLE] + entry
            my_share, share = op[OWN_SHARES] + entry, frame[known + 2] + (op[SHARES] + entry) * L
            value = extra = zero
            for c in range(n):
                K, h = load(m, src + c * L), load(m, times + c * L)
                slope, first, second, f, f2 = parts(
                    m, K, own_entry(w, mine + c, both), own_entry(w, mine + far + c, both), entry_at(w, at + c),
                    entry_at(w, at + far + c), op, numbers,
                )  # fmt: skip
                value, extra = fma(h, f, value), fma(h, f2, extra)
                t = h * scale
                if writes:
                    if begun:
                        store(m, dst + c * L, fma(t, slope, load(m, dst + c * L)))
                    else:
                        store(m, dst + c * L, t * slope)
                o = share + c * L
                store(m, o, fma(t, second, load(m, o)))
                if both:
                    o = frame[known + 2] + (my_share + c) * L
                    store(m, o, fma(t, first, load(m, o)))
                else:
                    add_at(own_shares, my_share + c, lane_sum(t * first))
            sums[slot] += lane_sum(value)
            sums[slot + 1] += lane_sum(extra)

    return run


def still(w: Any) -> None:
    """The same for an image with itself at one place, where K is the variance: dV/dK, and what its shares have become.

    In float64, an image a lane.
    """
    m, table, op, numbers, frame, L = w.m, w.table, w.op, w.numbers, w.frame, lanes(w.m)
    n, size, act, unit = op[C0], op[TABLE_SIZE] * L, op[ACT], numbers[UNIT]
    scale, keep = numbers[SCALE], numbers[KEEP]
    known, slot = op[ADDRESSES], op[SLOT]
    sums = address(frame[known])
    for r in range(op[A0] * op[B0]):
        entry = entry_of_row(op, r)
        src = frame[BASE] + (op[SRC] + r * n) * L
        times = frame[BASE] + (op[BACK_TIMES] + r * n) * L
        dst = frame[BASE] + (op[DST] + r * n) * L
        at, share = (op[TABLE] + entry) * L, frame[known + 2] + (op[SHARES] + entry) * L
        for e in range(n * L):
            K, h = m[src + e], m[times + e]
            true = unit * K
            factor = slope = value = extra = 0.0
            if act in (RELU, RELU_FAMILY):
                slope, value, extra = 1.0, K, K
                factor = table[at + size + e] / (2.0 * PI)
            elif act == ERF:
                value = math.atan2(2.0 * true, math.sqrt(1.0 + 4.0 * true))
                slope = 2.0 * unit / ((1.0 + 2.0 * true) * math.sqrt(1.0 + 4.0 * true))
                factor = -0.5 * table[at + e] ** 2
            elif act == SIN:
                value, slope, factor = -0.5 * math.expm1(-2.0 * true), unit * math.exp(-2.0 * true), -0.5 * unit
            elif act == COS:
                value, slope, factor = 0.5 + 0.5 * math.exp(-2.0 * true), -unit * math.exp(-2.0 * true), -0.5 * unit
            elif act == RBF:
                value, factor = 1.0, -0.5 * unit
            elif act == GELU_ACT:
                t2 = 1.0 / (1.0 + true)
                x = true * t2
                q = math.sqrt(1.0 + 2.0 * true) * t2
                angle = math.atan2(true, math.sqrt(1.0 + 2.0 * true))
                value = 0.25 * true + (true * angle + x * x * t2 / q + true * x * q) / (2.0 * PI)
                ratio = x / q
                by_covariance = 0.25 + (angle + ratio * t2 * (2.0 + t2 + t2 * ratio * ratio)) / (2.0 * PI)
                inner = q * x * (2.0 + true) - ratio * x * t2 * (4.0 + 2.0 * true + ratio * ratio)
                slope = unit * (by_covariance + inner * t2 / (2.0 * PI))
                factor = unit * t2 / (4.0 * PI)
            sums[slot] += h * value
            sums[slot + 1] += h * extra
            if op[WRITES]:
                total = scale * h * slope + factor * m[share + e]
                m[dst + e] = total + m[dst + e] if keep != 0.0 else total


def dot(w: Any) -> None:
    """The way back where there is no nonlinearity."""
    m, op, numbers, frame, L = w.m, w.op, w.numbers, w.frame, lanes(w.m)
    scale, total = constant(m, numbers[SCALE]), constant(m, 0.0)
    n = op[C0]
    sums = address(frame[op[ADDRESSES]])
    for r in range(op[A0] * op[B0]):
        src = frame[BASE] + (op[SRC] + r * n) * L
        times = frame[BASE] + (op[BACK_TIMES] + r * n) * L
        dst = frame[BASE] + (op[DST] + r * n) * L
        total = constant(m, 0.0)
        for c in range(0, n * L, L):
            h = load(m, times + c)
            total = fma(h, load(m, src + c), total)
            if op[WRITES]:
                t = h * scale
                store(m, dst + c, t + load(m, dst + c) if numbers[KEEP] != 0.0 else t)
        sums[op[SLOT]] += lane_sum(total)


def total(w: Any) -> None:
    """The sum over a map."""
    m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
    n = op[C0]
    sums = address(frame[op[ADDRESSES]])
    for r in range(op[A0] * op[B0]):
        src = frame[BASE] + (op[SRC] + r * n) * L
        row = constant(m, 0.0)
        for c in range(0, n * L, L):
            row = row + load(m, src + c)
        sums[op[SLOT]] += lane_sum(row)


def pixels(both: bool) -> Callable[..., None]:
    """From the product of two images to their pixels, whose gradients stand behind the shares of their variances."""

    def run(w: Any) -> None:
        m, op, frame, L = w.m, w.op, w.frame, lanes(w.m)
        n, size = op[C0], op[TABLE_SIZE]
        known = op[ADDRESSES]
        own_shares = address_like(m, frame[known + 1])
        for r in range(op[A0] * op[B0]):
            entry = entry_of_row(op, r)
            g_at = frame[BASE] + (op[DST] + r * n) * L
            for c in range(n):
                g = load(m, g_at + c * L)
                mine, at = op[OWN_TABLE] + entry + c, op[TABLE] + entry + c
                for _ in range(op[CHANNELS]):
                    first, second = own_entry(w, frame[OWN_AT] + mine, both), entry_at(w, at)
                    o = frame[known + 2] + (op[SHARES] + at) * L
                    store(m, o, fma(g, first, load(m, o)))
                    if both:
                        o = frame[known + 2] + (op[SHARES] + mine) * L
                        store(m, o, fma(g, second, load(m, o)))
                    else:
                        add_at(own_shares, op[SHARES] + mine, lane_sum(g * second))
                    mine += size
                    at += size

    return run


_PARTS: dict[int, tuple[Any, int]] = {
    RELU: (relu_parts, 2),
    RELU_FAMILY: (relu_family_parts, 2),
    ERF: (erf_parts, 1),
    SIN: (sin_cos_parts, 1),
    COS: (sin_cos_parts, 1),
    RBF: (rbf_parts, 1),
    GELU_ACT: (gelu_parts, 2),
}
PAIR_BACKS = {act: back(parts, entries, both=False) for act, (parts, entries) in _PARTS.items()}
SELF_BACKS = {act: back(parts, entries, both=True) for act, (parts, entries) in _PARTS.items()}
pair_pixels, self_pixels = pixels(both=False), pixels(both=True)
