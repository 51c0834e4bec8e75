"""Hermite series of functions, each computed once (mathematics: tables.py), the check of their range, and the tables of
a program's `Elementwise` in the form that the interpreter reads: packed flat, with rows chosen by the data.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from cnngp.network.functions import Function, function_name, value_hash
from cnngp.network.layers import Elementwise, NetworkError

from ..program import Activation, Program
from .tables import FIRST_EXPONENT, PRECISION, Series, build

# Header of a packed series: panels, rows, coefficients per row, coefficients of the second moment, power of s on the
# first panel, first odd row, exponent of the first panel.
PANELS, ROWS, WIDTH, SECOND_WIDTH, POWER, EVEN, EXPONENT, HEAD = range(8)


def series(fn: Function, dtype: DTypeLike = np.float32) -> Series:
    """Hermite series of a function, accurate to 1e-8 for float32 and 1e-13 for float64.

    >>> 280 < series("tanh").largest_s ** 2 < 290  # the largest variance
    True
    """
    size = np.dtype(dtype).itemsize
    values = "" if isinstance(fn, str) else value_hash(fn)
    return _cached(fn, size, values) if isinstance(fn, Hashable) else build(fn, PRECISION[size])


@lru_cache(maxsize=64)
def _cached(fn: Function, size: int, values: str) -> Series:
    """`values` is part of the key because a function may change, for example if it reads a global variable."""
    return build(fn, PRECISION[size])


def check(series: Series, s: ArrayLike, place: str = "") -> None:
    """Raise `NetworkError`, with the layer's place and the variance, for standard deviations beyond the series."""
    worst = float(np.max(s, initial=0.0))
    if worst <= series.largest_s:
        return
    fix = "lower the weight_var before it or scale the images down"
    if series.tolerance < 1e-10:
        fix += ", or use dtype='float32', which goes further"
    raise NetworkError(
        f"Elementwise({function_name(series.fn)}) meets a variance of {worst**2:.4g}, but its Hermite series is "
        f"good to {series.tolerance:g} only up to {series.largest_s**2:.4g}; {fix}",
        place,
    )


@dataclass(frozen=True)
class Rows:
    """Rows of one series that given data needs: the first ones of each parity, and the steps of Horner's rule.

    `every` has the steps of all even and all odd rows of the series, independent of the data.
    """

    at: int
    even: int
    odd: int
    shifts: tuple[int, ...]
    every: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def count(self) -> int:
        return self.even + self.odd


class SeriesTables:
    """The packed series of a program's `Elementwise` sites."""

    def __init__(self, program: Program, dtype: np.dtype[Any]) -> None:
        self.all_rows = program.input is None or program.kind == "ntk"
        self.sites = [a for a in program.activations if isinstance(a.layer, Elementwise)]
        self._series: dict[int, Series] = {}
        self._at: dict[int, int] = {}
        packed: list[NDArray[np.float64]] = []
        seen: dict[int, int] = {}
        for a in self.sites:
            assert isinstance(a.layer, Elementwise)
            try:
                s = self._series[a.site] = series(a.layer.fn, dtype)
            except NetworkError as error:
                raise NetworkError(str(error), a.place) from None
            if id(s) not in seen:
                seen[id(s)] = sum(map(len, packed))
                packed.append(_pack(s))
            self._at[a.site] = seen[id(s)]
        self.panels: NDArray[np.float64] = np.concatenate(packed) if packed else np.zeros(1)

    def check(self, a: Activation, peak: float) -> None:
        """Raise `NetworkError` for a variance, in buffer units, beyond the range of an Elementwise's series."""
        if a.site in self._series:
            check(self._series[a.site], float(np.sqrt(a.unit * peak)), a.place)

    def rows(self, peaks: NDArray[np.float64] | None) -> dict[int, Rows]:
        """Rows that each site needs for images whose largest variances are `peaks` (activations,), in buffer units.

        Further rows are zero and would give the same bits. `peaks=None` is for the diagonal alone, which needs no rows,
        except with pools, where covariances between locations of one image enter it, and for a tangent kernel, whose
        slopes are sums over the rows: these need all.
        """
        chosen = {}
        for a in self.sites:
            s = self._series[a.site]
            even, odd = (s.even, s.coefficients.shape[1] - s.even) if self.all_rows else (0, 0)
            if peaks is not None:
                self.check(a, float(peaks[a.site]))
                largest = float(np.sqrt(a.unit * peaks[a.site]))
                panels = np.searchsorted(s.edges[1:-1], largest, side="right") + 1
                even, odd = (int(n) for n in s.terms_needed[:panels].max(axis=0))
            every = tuple(map(int, s.shifts[: s.even])), tuple(map(int, s.shifts[s.even :]))
            shifts = every[0][:even] + every[1][:odd]
            chosen[a.site] = Rows(self._at[a.site], even, odd, shifts, every)
        return chosen


def _pack(s: Series) -> NDArray[np.float64]:
    panels, rows, width = s.coefficients.shape
    head = [panels, rows, width, s.second_moment.shape[1], s.first_power, s.even, FIRST_EXPONENT]
    return np.concatenate([head, s.edges, s.coefficients.ravel(), s.second_moment.ravel()]).astype(np.float64)
