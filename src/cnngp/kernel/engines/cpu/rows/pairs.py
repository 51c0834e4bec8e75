"""A nonlinearity along one row of a map, for `lanes` pairs at a time: f(K), or f'(K) · (T + own · K) for Θ.

Under a pool the variances need the formulas of an image with itself at two places: there `both` tables are the lanes'.
An activation's entries are channel after channel, `size` apart. `work.py` says what a row function is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cnngp.kernel.formulas import Family

from ..plan import ALPHA, BETA, OWN, TABLE_SIZE, TIMES, UNIT
from ..simd import constant, constants, fma, lanes, load, store
from ..work import entry, own_entry


def value_row(family: Family, both: bool) -> Callable[..., None]:
    value, numbers, last = family.value, family.constants, family.entries - 1

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, far = w.m, lanes(w.m), w.op[TABLE_SIZE] * last
        c = constants(m, numbers(w.numbers[UNIT], w.numbers[ALPHA], w.numbers[BETA]))
        for e in range(n):
            a = own_entry(w, own_at + e, both), own_entry(w, own_at + far + e, both)
            b = entry(w, at + e), entry(w, at + far + e)
            store(m, dst + e * L, value(load(m, src + e * L), a, b, c))  # type: ignore[misc]

    return run


def slope_row(family: Family, both: bool) -> Callable[..., None]:
    """T lies as far behind K as the plan says."""
    slope, numbers, last = family.slope, family.constants, family.entries - 1

    def run(w: Any, src: int, dst: int, n: int, own_at: int, at: int) -> None:
        m, L, far = w.m, lanes(w.m), w.op[TABLE_SIZE] * last
        times, own = src + w.op[TIMES] * L, constant(m, w.numbers[OWN])
        c = constants(m, numbers(w.numbers[UNIT], w.numbers[ALPHA], w.numbers[BETA]))
        for e in range(n):
            a = own_entry(w, own_at + e, both), own_entry(w, own_at + far + e, both)
            b = entry(w, at + e), entry(w, at + far + e)
            K = load(m, src + e * L)
            store(m, dst + e * L, slope(K, a, b, c) * fma(K, own, load(m, times + e * L)))  # type: ignore[misc]

    return run
