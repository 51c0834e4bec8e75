"""Box sums in few steps: additions that outputs share down the rows, and windows in two levels across the columns.

Pure functions of the sums, with no CUDA text in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from cnngp.network.geometry import AxisSum


@dataclass(frozen=True)
class Additions:
    """Sums of rows written as few additions: `partial[k]` = (a, b) defines symbol `first + k` as a + b.

    `outputs[m]` are the symbols whose sum is output m; symbols below `first` are the inputs themselves.
    """

    first: int
    partial: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int, ...], ...]


def additions(sums: AxisSum) -> Additions:
    """Greedy sharing of neighbouring terms: a window of 3 takes 1.4 additions an output, one of 7 takes 2.0."""
    outputs = [list(row) for row in sums.sources]
    partial: list[tuple[int, int]] = []
    while True:
        seen: Counter[tuple[int, int]] = Counter()
        for row in outputs:
            seen.update(set(pairwise(row)))
        if not seen:
            break
        pair, count = max(seen.items(), key=lambda item: (item[1], [-x for x in item[0]]))
        if count < 2:
            break
        symbol = sums.size + len(partial)
        partial.append(pair)
        for row in outputs:
            i = 0
            while i < len(row) - 1:
                if (row[i], row[i + 1]) == pair:
                    row[i : i + 2] = [symbol]
                i += 1
    return Additions(sums.size, tuple(partial), tuple(map(tuple, outputs)))


@dataclass(frozen=True)
class TwoLevel:
    """A window summed in two levels: `inner` offsets first, then that sum at `blocks` and the value at `singles`."""

    inner: tuple[int, ...]
    blocks: tuple[int, ...]
    singles: tuple[int, ...]

    @property
    def shuffles(self) -> int:
        return sum(d != 0 for d in (*self.inner, *self.blocks, *self.singles))


def two_level(offsets: Sequence[int]) -> TwoLevel:
    """The window −3 … 3 as {−1, 0, 1} at −2 and 2 and the middle: 4 shuffles instead of 6."""
    best = TwoLevel((0,), (), tuple(offsets))
    steps = {b - a for a, b in pairwise(offsets)}
    if len(steps) != 1:
        return best
    d = steps.pop()
    n = len(offsets)
    for size in range(2, n // 2 + 1):
        for before in range(size):
            inner = tuple(d * (k - before) for k in range(size))
            # cover[k]: the cheapest way to cover the first k offsets with blocks and singles
            cover: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = [(0, (), ())]
            for k in range(1, n + 1):
                cost, blocks, singles = cover[k - 1]
                at = offsets[k - 1]
                options = [(cost + (at != 0), blocks, (*singles, at))]
                if k >= size:
                    cost, blocks, singles = cover[k - size]
                    at = offsets[k - size] + before * d
                    options.append((cost + (at != 0), (*blocks, at), singles))
                cover.append(min(options, key=lambda o: (o[0], len(o[1]) + len(o[2]))))
            candidate = TwoLevel(inner, cover[n][1], cover[n][2])
            if candidate.shuffles < best.shuffles:
                best = candidate
    return best
