"""Pair formulas over one row of a map: f(K) for `lanes` pairs at a time, and the variance recursion's counterpart.

A lane is a pair (pair formulas) or an image (variance formulas). `own` is the table of the one row image, a number per
entry; `lane` is the table of the column images, a vector per entry. Under a pool the variances need the pair formulas
of an image with itself at two places: there `both` tables are the lanes'. An activation's entries are channel after
channel, `size` apart; `at` is the entry of the row's first location in the first channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cnngp.kernel.series.packed import EVEN, EXPONENT, HEAD, PANELS, POWER, ROWS, SECOND_WIDTH, WIDTH

from .compiling import inlined as inlined
from .plan import (
    ACT,
    ADD,
    AFFINE,
    ALPHA,
    BETA,
    COS,
    ERF,
    EVEN_TERMS,
    GELU_ACT,
    ODD_TERMS,
    RBF,
    RELU,
    RELU_FAMILY,
    SERIES,
    SERIES_AT,
    SHIFTS,
    SIN,
    SITE,
    SMALLEST,
    STEP,
    STORE,
    TABLE_SIZE,
    UNIT,
)
from .simd import (
    absolute,
    acos_h,
    asin_s,
    constant,
    copysign,
    exp_r,
    expm1_y,
    fma,
    lanes,
    load,
    maximum,
    nearest,
    negated_fma,
    positive,
    power_of_two,
    relu_g,
    shifted,
    splat,
    sqrt,
    store,
    where_less,
)

PI = math.pi
LOG2_E = 1.0 / math.log(2.0)
# ln 2 in two parts: the first has few bits, so n · LN2_HIGH is exact.
LN2_HIGH = 0.693359375
LN2_LOW = math.log(2.0) - LN2_HIGH


# The first vectors of a workspace, for `series_row`; behind them stands a row of zeros.
POWERS = 32


@inlined
def write(m: Any, at: int, r: Any, how: int, keep: Any, scale: Any, bias: Any) -> None:
    """dst ← keep · dst + scale · r + bias, in its cheapest form; with keep = 0 the old content is not read."""
    if how == STORE:
        store(m, at, r)
    elif how == AFFINE:
        store(m, at, fma(r, scale, bias))
    elif how == ADD:
        store(m, at, fma(r, scale, load(m, at)))
    else:
        store(m, at, fma(load(m, at), keep, fma(r, scale, bias)))


@inlined
def relu_value(K: Any, p: Any, q: Any, one: Any) -> Any:
    """R = 2A = max(K, 0) + (p − |K|)·√u·g(u) with p = ss', q = 1/p, u = 1 − |K|q."""
    size = absolute(K)
    u = positive(negated_fma(size, q, one))
    return fma((p - size) * sqrt(u), relu_g(u), positive(K))


@inlined
def own_entry(own: Any, lane: Any, at: int, both: bool) -> Any:
    """An entry of the row image's table for all lanes; where `both`, of each column image's own table."""
    return load(lane, at * lanes(lane)) if both else splat(own, at)


def relu_row(both: bool) -> Callable[..., None]:
    """R; tables s and 1/s."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        size = op[TABLE_SIZE]
        one = constant(m, 1.0)
        for c in range(n):
            K = load(m, src + c * L)
            p = own_entry(own, lane, own_at + c, both) * load(lane, (at + c) * L)
            q = own_entry(own, lane, own_at + size + c, both) * load(lane, (at + size + c) * L)
            store(m, dst + c * L, relu_value(K, p, q, one))

    return run


def relu_family_row(both: bool) -> Callable[..., None]:
    """α·R + β·K."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        size = op[TABLE_SIZE]
        one = constant(m, 1.0)
        alpha, beta = constant(m, numbers[ALPHA]), constant(m, numbers[BETA])
        for c in range(n):
            K = load(m, src + c * L)
            p = own_entry(own, lane, own_at + c, both) * load(lane, (at + c) * L)
            q = own_entry(own, lane, own_at + size + c, both) * load(lane, (at + size + c) * L)
            store(m, dst + c * L, fma(relu_value(K, p, q, one), alpha, K * beta))

    return run


@inlined
def asin(m: Any, x: Any) -> Any:
    """asin for |x| ≤ 1: a series below 1/2, where relative accuracy counts, acos near 1."""
    size = absolute(x)
    v = positive(constant(m, 1.0) - size)
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


def erf_row(both: bool) -> Callable[..., None]:
    """asin(K t t') with t = √2/√(1 + 2K₁) in the table."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        for c in range(n):
            t = own_entry(own, lane, own_at + c, both) * load(lane, (at + c) * L)
            store(m, dst + c * L, asin(m, load(m, src + c * L) * t))

    return run


def step_row(both: bool) -> Callable[..., None]:
    """π − θ with cos θ = K r r', r = 1/√K₁ in the table; 0 where a variance, and with it r, is 0."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        one, pi, zero = constant(m, 1.0), constant(m, PI), constant(m, 0.0)
        for c in range(n):
            q = own_entry(own, lane, own_at + c, both) * load(lane, (at + c) * L)
            x = load(m, src + c * L) * q
            v = positive(one - absolute(x))
            theta = sqrt(v) * acos_h(v)
            store(m, dst + c * L, where_less(zero, q, where_less(x, zero, theta, pi - theta), zero))

    return run


def sin_cos_row(both: bool) -> Callable[..., None]:
    """½(e^{K−h−h'} ∓ e^{−K−h−h'}) with h = K₁/2 in the table; the difference through 1 − e^{−2|K|}."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        unit, half, two, one = constant(m, numbers[UNIT]), constant(m, 0.5), constant(m, 2.0), constant(m, 1.0)
        for c in range(n):
            K = load(m, src + c * L) * unit
            size = absolute(K)
            h = own_entry(own, lane, own_at + c, both) + load(lane, (at + c) * L)
            rise = half * exp(m, size - h)
            y = size * two
            fall = exp(m, constant(m, 0.0) - y)
            if op[ACT] == SIN:
                below = where_less(y, constant(m, 0.7), y * expm1_y(y), one - fall)
                store(m, dst + c * L, copysign(rise * below, K))
            else:
                store(m, dst + c * L, fma(rise, fall, rise))

    return run


def rbf_row(both: bool) -> Callable[..., None]:
    """e^{K−h−h'} with h = K₁/2 in the table: K − (h + h') with one rounding, and never above 0."""

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        unit, zero = constant(m, numbers[UNIT]), constant(m, 0.0)
        for c in range(n):
            h = own_entry(own, lane, own_at + c, both) + load(lane, (at + c) * L)
            x = positive(negated_fma(load(m, src + c * L), unit, h))
            store(m, dst + c * L, exp(m, zero - x))

    return run


def gelu_row(both: bool) -> Callable[..., None]:
    """K/4 + (K asin x + x² tt'/q + kk' q)/2π, t = 1/√(1 + K₁), k = K₁t, x = Ktt', q = √(1 − x²) ≥ √(tt').

    The tables hold √unit · t and k.
    """

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        size = op[TABLE_SIZE]
        unit, per_unit = constant(m, numbers[UNIT]), constant(m, 1.0 / numbers[UNIT])
        one, quarter, scale = constant(m, 1.0), constant(m, 0.25), constant(m, 0.5 / PI)
        for c in range(n):
            K = load(m, src + c * L)
            tt = own_entry(own, lane, own_at + c, both) * load(lane, (at + c) * L)
            kk = own_entry(own, lane, own_at + size + c, both) * load(lane, (at + size + c) * L)
            x = K * tt
            K = K * unit
            tt = tt * per_unit
            wide = absolute(x)
            q = sqrt(maximum((one - wide) * (one + wide), tt))
            inner = fma(K, asin(m, x), fma(kk, q, (x * x) * tt / q))
            store(m, dst + c * L, fma(inner, scale, K * quarter))

    return run


def series_row(both: bool) -> Callable[..., None]:
    """Σ_j A_j A'_j ρ^k by Horner's rule in ρ², even rows then odd; tables r = 1/√K₁ for ρ = K r r', then the A_j.

    Rows may step over powers: the first POWERS vectors of the workspace hold ρ^(2·2^b).
    """

    def run(
        m: Any, src: int, dst: int, n: int, own: Any, own_at: int, lane: Any, at: int, op: Any, numbers: Any, taps: Any,
        panels: Any,
    ) -> None:  # fmt: skip
        L = lanes(m)
        size = op[TABLE_SIZE]
        even, odd, shifts = op[EVEN_TERMS], op[ODD_TERMS], shifted(taps, op[SHIFTS])
        one = constant(m, 1.0)
        top = 0
        for j in range(even + odd):
            top = max(top, shifts[j])
        for c in range(n):
            rho = load(m, src + c * L) * (own_entry(own, lane, own_at + c, both) * load(lane, (at + c) * L))
            wide = absolute(rho)
            rho = copysign(where_less(wide, one, wide, one), rho)
            power = rho * rho
            for b in range(top + 1):
                store(m, b * L, power)
                power = power * power
            sums = constant(m, 0.0)
            for j in range(even + odd - 1, even - 1, -1):
                shift = (j + 1) * size + c
                step = shifts[j + 1] if j + 1 < even + odd else 0
                sums = fma(
                    sums, load(m, step * L), own_entry(own, lane, own_at + shift, both) * load(lane, (at + shift) * L)
                )
            total = constant(m, 0.0)
            for j in range(even - 1, -1, -1):
                shift = (j + 1) * size + c
                step = shifts[j + 1] if j + 1 < even else 0
                total = fma(
                    total, load(m, step * L), own_entry(own, lane, own_at + shift, both) * load(lane, (at + shift) * L)
                )
            store(m, dst + c * L, fma(sums, rho, total))

    return run


def relu_variances(
    m: Any, src: int, dst: int, n: int, peaks: Any, unused: int, table: Any, at: int, op: Any, numbers: Any, taps: Any,
    panels: Any,
) -> None:  # fmt: skip
    """√K and 1/√K into the table, (α + β)·K onwards. Below `SMALLEST` 1/√K is 0: there the correlation counts as 0."""
    L = lanes(m)
    size, peak_at = op[TABLE_SIZE], op[SITE] * L
    zero, one, least = constant(m, 0.0), constant(m, 1.0), constant(m, numbers[SMALLEST])
    factor = constant(m, numbers[ALPHA] + numbers[BETA])
    peak = load(peaks, peak_at)
    for c in range(n):
        K = load(m, src + c * L)
        s = sqrt(K)
        peak = maximum(peak, K)
        store(table, (at + c) * L, s)
        store(table, (at + size + c) * L, where_less(least, s, one / s, zero))
        store(m, dst + c * L, factor * K)
    store(peaks, peak_at, peak)


@inlined
def inverse_root(K: float, smallest: float) -> float:
    s = math.sqrt(K)
    return 1.0 / s if s > smallest else 0.0


def other_variances(
    m: Any, src: int, dst: int, n: int, peaks: Any, unused: int, table: Any, at: int, op: Any, numbers: Any, taps: Any,
    panels: Any,
) -> None:  # fmt: skip
    """The nonlinearities that are not of the ReLU's family: f at correlation one, table entries and peaks likewise."""
    L = lanes(m)
    act, size, peak_at, smallest = op[ACT], op[TABLE_SIZE], op[SITE] * L, numbers[SMALLEST]
    even, odd, packed = op[EVEN_TERMS], op[ODD_TERMS], shifted(panels, op[SERIES_AT])
    unit = numbers[UNIT]
    far = size * L
    for e in range(n * L):
        K = m[src + e]
        extreme = max(K, 1.0 / K) if act == STEP and K > 0.0 else K  # see `check_range`
        peaks[peak_at + e % L] = max(peaks[peak_at + e % L], extreme)
        entry = at * L + e
        true = unit * K
        if act == ERF:
            table[entry] = math.sqrt(2.0 * unit / (1.0 + 2.0 * true))
            m[dst + e] = math.atan2(2.0 * true, math.sqrt(1.0 + 4.0 * true))  # asin(2K/(1 + 2K)), exact for large K
        elif act == STEP:
            table[entry] = inverse_root(K, smallest)
            m[dst + e] = PI if K > 0.0 else 0.0
        elif act == SIN:
            table[entry] = 0.5 * true
            m[dst + e] = -0.5 * math.expm1(-2.0 * true)
        elif act == COS:
            table[entry] = 0.5 * true
            m[dst + e] = 0.5 + 0.5 * math.exp(-2.0 * true)
        elif act == RBF:
            table[entry] = 0.5 * true
            m[dst + e] = 1.0
        elif act == GELU_ACT:
            t2 = 1.0 / (1.0 + true)
            x = true * t2
            q = math.sqrt(1.0 + 2.0 * true) * t2
            angle = math.atan2(true, math.sqrt(1.0 + 2.0 * true))  # asin x, exact for large K
            table[entry] = math.sqrt(unit * t2)
            table[entry + far] = true * math.sqrt(t2)
            m[dst + e] = 0.25 * true + (true * angle + x * x * t2 / q + true * x * q) / (2.0 * PI)
        elif act == SERIES:
            table[entry] = inverse_root(K, smallest)
            m[dst + e] = series_entries(math.sqrt(true), table, entry + far, far, even, odd, packed)


@inlined
def _chebyshev(c: Any, at: int, n: int, t: float) -> float:
    """Σ_i c[at + i] T_i(t) by Clenshaw's rule."""
    b1 = b2 = 0.0
    for i in range(n - 1, 0, -1):
        b1, b2 = c[at + i] + 2.0 * t * b1 - b2, b1
    return c[at] + t * b1 - b2  # type: ignore[no-any-return]


@inlined
def series_entries(s: float, table: Any, entry: int, far: int, even: int, odd: int, packed: Any) -> float:
    """A_j(s) into the table for the first `even` and `odd` rows; E[fn(sz)²] is returned. See `hermite.evaluate`."""
    panels, rows, width, width2 = int(packed[PANELS]), int(packed[ROWS]), int(packed[WIDTH]), int(packed[SECOND_WIDTH])
    edges = HEAD
    p = 0
    if s >= packed[edges + 1]:
        p = min(math.frexp(s)[1] - int(packed[EXPONENT]), panels - 1)
    low, high = packed[edges + p], packed[edges + p + 1]
    t = (2.0 * s - low - high) / (high - low)
    power = s if p == 0 and packed[POWER] == 1.0 else 1.0
    coefficients = edges + panels + 1
    for j in range(even + odd):
        row = j if j < even else int(packed[EVEN]) + j - even
        table[entry + j * far] = power * _chebyshev(packed, coefficients + (p * rows + row) * width, width, t)
    second = coefficients + panels * rows * width + p * width2
    return power * power * _chebyshev(packed, second, width2, t)  # type: ignore[no-any-return]


# The function of each nonlinearity on a row: for pairs, for images with themselves at two different places, and for
# the variances, where the places are the same.
def pair_rows(both: bool) -> dict[int, Callable[..., None]]:
    return {
        RELU: relu_row(both),
        RELU_FAMILY: relu_family_row(both),
        ERF: erf_row(both),
        STEP: step_row(both),
        SIN: sin_cos_row(both),
        COS: sin_cos_row(both),
        RBF: rbf_row(both),
        GELU_ACT: gelu_row(both),
        SERIES: series_row(both),
    }


PAIR_ROWS = pair_rows(both=False)
SELF_ROWS = pair_rows(both=True)
VARIANCE_ROWS: dict[int, Callable[..., None]] = dict.fromkeys(PAIR_ROWS, other_variances) | {
    RELU: relu_variances,
    RELU_FAMILY: relu_variances,
}
