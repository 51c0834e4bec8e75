"""Pair formulas over one row of a map: f(K) for `lanes` pairs at a time.

Under a pool the variances need the pair formulas of an image with itself at two places: there `both` tables are the
lanes'. An activation's entries are channel after channel, `size` apart. `work.py` says what a row function is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..plan import ACT, ALPHA, SIN, TABLE_SIZE, UNIT
from ..simd import (
    absolute,
    acos_h,
    constant,
    fma,
    lanes,
    load,
    maximum,
    negated_fma,
    positive,
    sqrt,
    store,
    where_less,
)
from ..work import entry, entry_product, own_entry
from .elementary import PI, asin, asin_of, cosine, exp, relu_excess, relu_value, rise_and_fall, sine


def relu_row(both: bool) -> Callable[..., None]:
    """R; tables s and 1/s."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, size = w.m, lanes(w.m), w.op[TABLE_SIZE]
        one = constant(m, 1.0)
        for c in range(n):
            p = entry_product(w, own_at + c, at + c, both)
            q = entry_product(w, own_at + size + c, at + size + c, both)
            store(m, dst + c * L, relu_value(load(m, src + c * L), p, q, one))

    return run


def relu_family_row(both: bool) -> Callable[..., None]:
    """α·R + β·K = K + α(R − K), as α + β = 1: exactly K at correlation one, where R is K."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, size = w.m, lanes(w.m), w.op[TABLE_SIZE]
        one, alpha = constant(m, 1.0), constant(m, w.numbers[ALPHA])
        for c in range(n):
            K = load(m, src + c * L)
            p = entry_product(w, own_at + c, at + c, both)
            q = entry_product(w, own_at + size + c, at + size + c, both)
            store(m, dst + c * L, fma(relu_excess(K, p, q, one), alpha, K))

    return run


def erf_row(both: bool) -> Callable[..., None]:
    """asin(K t t') with t = √2/√(1 + 2K₁) in the table."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L = w.m, lanes(w.m)
        for c in range(n):
            t = entry_product(w, own_at + c, at + c, both)
            store(m, dst + c * L, asin(m, load(m, src + c * L) * t))

    return run


def step_row(both: bool) -> Callable[..., None]:
    """π − θ with cos θ = K r r', r = 1/√K₁ in the table; 0 where a variance, and with it r, is 0."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L = w.m, lanes(w.m)
        one, pi, zero = constant(m, 1.0), constant(m, PI), constant(m, 0.0)
        for c in range(n):
            q = entry_product(w, own_at + c, at + c, both)
            x = load(m, src + c * L) * q
            v = positive(one - absolute(x))
            theta = sqrt(v) * acos_h(v)
            store(m, dst + c * L, where_less(zero, q, where_less(x, zero, theta, pi - theta), zero))

    return run


def sin_cos_row(both: bool) -> Callable[..., None]:
    """½(e^{K−h−h'} ∓ e^{−K−h−h'}) with h = K₁/2 in the table."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L = w.m, lanes(w.m)
        unit = constant(m, w.numbers[UNIT])
        for c in range(n):
            K = load(m, src + c * L) * unit
            rise, y, fall = rise_and_fall(m, K, own_entry(w, own_at + c, both) + entry(w, at + c))
            if w.op[ACT] == SIN:
                store(m, dst + c * L, sine(m, K, rise, y, fall))
            else:
                store(m, dst + c * L, cosine(rise, fall))

    return run


def rbf_row(both: bool) -> Callable[..., None]:
    """e^{K−h−h'} with h = K₁/2 in the table: K − (h + h') with one rounding, and never above 0."""

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L = w.m, lanes(w.m)
        unit, zero = constant(m, w.numbers[UNIT]), constant(m, 0.0)
        for c in range(n):
            h = own_entry(w, own_at + c, both) + entry(w, at + c)
            x = positive(negated_fma(load(m, src + c * L), unit, h))
            store(m, dst + c * L, exp(m, zero - x))

    return run


def gelu_row(both: bool) -> Callable[..., None]:
    """K/4 + (K asin x + x² tt'/q + kk' q)/2π, t = 1/√(1 + K₁), k = K₁t, x = Ktt', q = √(1 − x²).

    The tables hold √unit · t and k. 1 − |x| ≥ tt', which rounding breaks where variances are large. asin x and q must
    both see the same 1 − |x|: what its error does to the one cancels what it does to the other.
    """

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, size = w.m, lanes(w.m), w.op[TABLE_SIZE]
        unit, per_unit = constant(m, w.numbers[UNIT]), constant(m, 1.0 / w.numbers[UNIT])
        one, quarter, scale = constant(m, 1.0), constant(m, 0.25), constant(m, 0.5 / PI)
        for c in range(n):
            K = load(m, src + c * L)
            tt = entry_product(w, own_at + c, at + c, both)
            kk = entry_product(w, own_at + size + c, at + size + c, both)
            x = K * tt
            K = K * unit
            tt = tt * per_unit
            wide = absolute(x)
            v = maximum(one - wide, tt)
            q = sqrt(v * (one + wide))
            inner = fma(K, asin_of(m, x, v), fma(kk, q, (x * x) * tt / q))
            store(m, dst + c * L, fma(inner, scale, K * quarter))

    return run
