"""The Hermite series of `Elementwise` as the interpreter reads them: tables packed flat, rows chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.network.layers import Elementwise, NetworkError

from ..program import Activation, Program
from .hermite import check, series
from .tables import FIRST_EXPONENT, Series

# The head of a packed series: panels, rows, coefficients a row, coefficients of the second moment, power of s on the
# first panel, first odd row, exponent of the first panel.
PANELS, ROWS, WIDTH, SECOND_WIDTH, POWER, EVEN, EXPONENT, HEAD = range(8)


@dataclass(frozen=True)
class Rows:
    """The rows of one series that some data needs: the first of each parity, and the steps of Horner's rule."""

    at: int
    even: int
    odd: int
    shifts: tuple[int, ...]

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
        """Refuse a variance, in buffer units, that the series of an Elementwise does not reach."""
        if a.site in self._series:
            check(self._series[a.site], float(np.sqrt(a.unit * peak)), a.place)

    def rows(self, peaks: NDArray[np.float64] | None) -> dict[int, Rows]:
        """What each site needs for images whose largest variances are `peaks` (activations,), in buffer units.

        Rows above those needed are zero, so more rows would give the same bits. None: the diagonal alone, which takes
        no row, or all of them under a pool, where the covariances of different locations of an image enter it, and for
        a tangent kernel, whose slopes are sums over them.
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
            shifts = (*s.shifts[:even], *s.shifts[s.even : s.even + odd])
            chosen[a.site] = Rows(self._at[a.site], even, odd, tuple(int(b) for b in shifts))
        return chosen


def _pack(s: Series) -> NDArray[np.float64]:
    panels, rows, width = s.coefficients.shape
    head = [panels, rows, width, s.second_moment.shape[1], s.first_power, s.even, FIRST_EXPONENT]
    return np.concatenate([head, s.edges, s.coefficients.ravel(), s.second_moment.ravel()]).astype(np.float64)
