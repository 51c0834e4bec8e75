"""Runs of shifts: the order in which a segment before a pool takes its shifts of the rows.

A pool of 2 × 2 adds the fine shifts 2D − 1 (its odd rows), 2D and 2D + 1 (its even rows) to the coarse shift D. A warp
that takes them one after the other adds them in registers, and stores once instead of three times. Such a *run* begins
at an even shift; where 2D − 1 is the end of another run, its rows come late and have a place of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

from .sheet_chain import Shifts, targets


@dataclass(frozen=True)
class Runs:
    """Run k has the items `starts[k]` up to `starts[k + 1]`.

    `own` and `after` say for each item where the sums go once its even rows are in, and once its odd rows are; −1 for
    nowhere. `late` are the coarse items that rows come to from another run.
    """

    starts: tuple[int, ...]
    own: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    @property
    def late(self) -> frozenset[int]:
        return frozenset(self.after) - {-1}


def runs(fine: Shifts, coarse: Shifts, size: int, count: int) -> Runs:
    """About `count` runs of the fine items, which are in the order of their shifts; `size` of the coarse map."""
    shifts = fine.at[fine.size]
    to = targets(fine, coarse, size)
    # A run may begin at an odd shift if its even rows go nowhere.
    begins = [k for k, s in enumerate(shifts) if k == 0 or s % 2 == 0 or to[k][0] < 0]
    starts = sorted({min(begins, key=lambda k: abs(k - len(shifts) * r / count)) for r in range(count)})
    bounds = (*starts, len(shifts))
    own, after = [], []
    for k, (s, (even, odd)) in enumerate(zip(shifts, to, strict=True)):
        follows = k + 1 not in bounds and shifts[k + 1] == (s + 1) % fine.size
        own.append(even if s % 2 else -1)
        after.append(odd if s % 2 and not follows else -1)
    return Runs(bounds, tuple(own), tuple(after))


def run_count(items: int, groups: int, warps: int) -> int:
    """Number of runs that lets `warps` warps end together: each of `groups` groups of columns takes all runs."""

    def last(count: int) -> float:
        return -(-groups * count // warps) * (-(-items // count) + 0.3)

    return min(range(1, max(2, items // 2 + 1)), key=last)
