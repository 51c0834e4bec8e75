"""Covariances of different locations: which displacements a network needs, and what a linear layer does to each.

Pooling needs K(p, q) for locations p of the one image and q of the other. For one displacement d = q − p, the map
p ↦ K(p, p + d) is called a *sheet*. A filter reads both images at the same offset, and a nonlinearity reads one pair of
locations, so both act on each sheet alone; only pools mix sheets. A network therefore needs known sheets of each layer,
and they are found from the output backwards: a Dense layer needs d = 0, a stride multiplies, a pool widens the set by
its size, a global pool asks for every displacement. (The case of strides alone is in Garriga-Alonso and van der Wilk,
UAI 2021.)

A sheet is held on its overlap, the locations p for which p and p + d are both inside. Everything is separable: an axis
at a time, as plain integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from itertools import islice, product
from typing import ParamSpec

from .geometry import AxisSum, SizeError, Window

Displacement = tuple[int, ...]
P = ParamSpec("P")
_SHORT = 64  # longer axes take memory that is given back


def overlap(size: int, d: int) -> tuple[int, int]:
    """Where the locations p with p and p + d inside an axis begin, and how many there are."""
    return max(0, -d), max(0, size - abs(d))


@dataclass(frozen=True)
class Piece:
    """What one sheet of the input gives to one sheet of the output, along one axis.

    `sums` counts from the beginning of the two overlaps; the result is multiplied by `weight`.
    """

    d: int
    sums: AxisSum
    weight: float = 1.0


@dataclass(frozen=True)
class AxisMap:
    """A linear layer along one axis: `pieces(D)` says which sheets of the input make the sheet D of its output."""

    size: int
    out_size: int
    pieces: Callable[[int], tuple[Piece, ...]]


def _remembered(make: Callable[P, AxisMap]) -> Callable[P, AxisMap]:
    """Maps of short axes are made once: a network repeats its layers, and a choice compares many of one size."""
    kept = lru_cache(maxsize=256)(make)

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> AxisMap:
        is_short = all(a <= _SHORT for a in args if isinstance(a, int))
        return kept(*args, **kwargs) if is_short else make(*args, **kwargs)  # type: ignore[arg-type]

    return made


@_remembered
def convolution(window: Window, size: int) -> AxisMap:
    return _tied(size, window.output_size(size), tuple(window.places(t, size) for t in range(window.kernel)))


@_remembered
def transposed_convolution(window: Window, size: int, out_size: int) -> AxisMap:
    """The adjoint of `convolution(window, out_size)`: output μ adds the inputs m whose window reads μ."""
    taps = []
    for t in reversed(range(window.kernel)):  # so that the inputs of an output are in rising order
        tap: list[int | None] = [None] * out_size
        for m in range(size):
            mu = m * window.stride - window.before + t * window.dilation
            if 0 <= mu < out_size:
                tap[mu] = m
        taps.append(tuple(tap))
    return _tied(size, out_size, tuple(taps))


@_remembered
def dense(size: int) -> AxisMap:
    """Every location has weights of its own, so only equal locations count."""
    return _tied(size, 1, tuple((p,) for p in range(size)))


def _tied(size: int, out_size: int, taps: tuple[tuple[int | None, ...], ...]) -> AxisMap:
    """Output P adds the inputs taps[t][P] with the weight t; a weight is shared by the locations P and Q = P + D."""

    @cache
    def pieces(D: int) -> tuple[Piece, ...]:
        first, n = overlap(out_size, D)
        rows: dict[int, list[list[int]]] = {0: [[] for _ in range(n)]} if D == 0 else {}
        for i, P in enumerate(range(first, first + n)):
            for tap in taps:
                p, q = tap[P], tap[P + D]
                if p is not None and q is not None:
                    if q - p not in rows:
                        rows[q - p] = [[] for _ in range(n)]
                    rows[q - p][i].append(p - overlap(size, q - p)[0])
        return tuple(Piece(d, AxisSum(size - abs(d), tuple(map(tuple, row)))) for d, row in sorted(rows.items()))

    return AxisMap(size, out_size, pieces)


@_remembered
def pool(window: Window, size: int, count_include_pad: bool = True) -> AxisMap:
    """Output P averages its window; any two of the locations in the windows of P and Q count."""
    out_size = window.output_size(size)
    starts = [P * window.stride - window.before for P in range(out_size)]
    inside = [(max(0, start), min(size, start + window.kernel)) for start in starts]

    @cache
    def pieces(D: int) -> tuple[Piece, ...]:
        first, n = overlap(out_size, D)
        rows: dict[tuple[int, float], list[tuple[int, ...]]] = {}
        for i, P in enumerate(range(first, first + n)):
            (low, high), (low2, high2) = inside[P], inside[P + D]
            weight = 1.0 if count_include_pad else window.kernel**2 / ((high - low) * (high2 - low2))
            for d in range(low2 - high + 1, high2 - low):
                begin = overlap(size, d)[0]
                if (d, weight) not in rows:
                    rows[d, weight] = [()] * n
                rows[d, weight][i] = tuple(range(max(low, low2 - d) - begin, min(high, high2 - d) - begin))
        return tuple(Piece(d, AxisSum(size - abs(d), tuple(row)), w) for (d, w), row in sorted(rows.items()))

    return AxisMap(size, out_size, pieces)


def global_pool(size: int) -> AxisMap:
    return pool(Window(size, 1, 1, 0, 0, "zeros"), size)


# More sheets than this, or sums of sheets, would take minutes to plan, and hours for a few pairs.
MOST_SHEETS, MOST_SUMS = 60_000, 1_000_000


def needed(axes: Iterable[AxisMap], wanted: frozenset[Displacement]) -> frozenset[Displacement]:
    """The sheets of a layer's input that the wanted sheets of its output are made of."""
    maps = tuple(axes)
    found: set[Displacement] = set()
    for D in wanted:
        along = [{piece.d for piece in axis.pieces(x)} for axis, x in zip(maps, D, strict=True)]
        found.update(islice(product(*along), MOST_SHEETS + 1))
        if len(found) > MOST_SHEETS:
            raise SizeError(
                f"needs the covariances of more than {MOST_SHEETS:,} displacements between locations; "
                "use strides or smaller pools before it, or smaller images"
            )
    if sum(math.prod(len(axis.pieces(x)) for axis, x in zip(maps, D, strict=True)) for D in wanted) > MOST_SUMS:
        raise SizeError(
            f"adds up covariances in more than {MOST_SUMS:,} parts; use larger strides or smaller windows, "
            "count_include_pad=True where it is False, or smaller images"
        )
    return frozenset(found)


def in_order(displacements: Iterable[Displacement]) -> list[Displacement]:
    """The order in which sheets are computed: the diagonal first, because its variances are what the others read."""
    return sorted(displacements, key=lambda d: (any(d), d))
