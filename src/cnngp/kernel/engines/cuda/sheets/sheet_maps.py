"""Inputs and outputs of a segment's maps as CUDA text: pools, and the weighted sum.

A segment before a pool takes its shifts of the rows in *runs*. A pool of 2 × 2 adds the fine shifts 2D − 1 (its odd
rows), 2D and 2D + 1 (its even rows) to the coarse shift D. A warp that takes them one after the other adds them in
registers, and stores once instead of three times. A run begins at an even shift; where 2D − 1 is the end of another
run, its rows come late and have a place of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cnngp.kernel.program import Program

from ..table_layout import TableLayout
from ..warp.warp_layout import Stage
from .sheet_chain import Chain, Segment, Shifts, targets
from .sheet_steps import SheetSteps

SIDES = 3  # terms of a pooled sheet along the columns: one even shift, and two odd ones with half of their places each
TOTALS = ("total", "total1")
"""The weighted sums, of K and of what is carried for Θ."""
SHORT = "__device__ const short"


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


class MapWriter(SheetSteps):
    """Writes for one segment after the other; `slots` is how many terms of a pooled sheet are kept apart."""

    def __init__(self, program: Program, chain: Chain, layout: TableLayout, dtype: str) -> None:
        super().__init__(dtype, layout, chain.cycles)
        self.program, self.chain = program, chain
        self.slots = 1
        self.runs: list[Runs] = []
        """Runs of the shifts of the rows in each segment before a pool."""
        self.starts: list[int] = []
        """First entries of the pooled sheets behind each segment."""

    def area(self, segment: Segment) -> int:
        """Entries of all sheets that the pool before a segment leaves of one map."""
        return self.slots * segment.rows.count * segment.columns.count * math.prod(segment.start.shape)

    def pooled(self, k: int, segment: Segment) -> None:
        """The sheets that the pool before this segment has left."""
        _, h, w = segment.start.shape
        late = self.runs[k - 1].late
        at = f"(iy * {segment.columns.count} + ix) * {self.slots * h * w} + min(col, {w - 1})"
        for which, m in enumerate(segment.registers.starts):
            sheet = f"sheet{which or ''}"
            self.put(f"const real* {sheet} = pool + {self.starts[k - 1] + which * self.area(segment)} + {at};")
            terms = [f"{sheet}[{s * h * w} + r * {w}]" for s in range(self.slots)]
            self.per_row(h, f"m{m.name}[r] = {' + '.join(terms[:SIDES])};")
            if self.slots > 1 and late:
                flags = tuple(int(t in late) for t in range(segment.rows.count))
                with self.block(f"if ({self.array('has_late', SHORT, flags)}[iy]) {{"):
                    self.per_row(h, f"m{m.name}[r] += {' + '.join(terms[SIDES:])};")

    def pool(self, k: int, segment: Segment, stage: Stage) -> None:
        """Sums over 2 × 2 windows: even and odd rows to one coarse shift or to two, likewise columns.

        The shifts 2D − 1, 2D and 2D + 1 of the rows, one after the other, are added in registers (`sums`) before they
        go to the sheets of D.
        """
        coarse = self.chain.segments[k + 1]
        _, h, w = coarse.start.shape
        across = targets(segment.columns, coarse.columns, w)
        column = self.array("column_target", SHORT, tuple(t for pair in across for t in pair))
        slot = f" + (both ? 0 : 1 + col % 2) * {h * w}" if self.slots > 1 else ""
        sheet = self.slots * h * w
        for which, end in enumerate(segment.registers.ends):
            x, sums = f"m{end.name}", f"sums{which or ''}"
            start = self.starts[k] + which * self.area(coarse)
            with self.block("{   // pool"):
                self.put(
                    f"const int to = {column}[2 * ix + col % 2];",
                    f"const bool both = sx_{2 * w} % 2 == 0;",
                    f"const bool stores = live && col < {2 * w} && to >= 0 && !(both && col % 2);",
                    f"const real other = both && col % 2 == 0 ? {self.number(1.0)} : {self.number(0.0)};",
                    f"real* dst = pool + {start} + max(to, 0) * {sheet}{slot} + min(col / 2, {w - 1});",
                )
                with self.block(f"if (sy_{2 * h} % 2 == 0) {{"):
                    self.per_row(h, f"{sums}[r] += {x}[2 * r] + {x}[2 * r + 1];")
                with self.block("else {"):
                    self.per_row(h, f"{sums}[r] += {x}[2 * r];")
                    self._flush(self.runs[k].own, 0, stage, coarse, sums)
                    self.per_row(h, f"{sums}[r] = {x}[2 * r + 1];")
                    if self.runs[k].late:
                        self._flush(self.runs[k].after, SIDES if self.slots > 1 else 0, stage, coarse, sums)
        if self.slots == 1:
            self.put("__syncwarp();")

    def _flush(self, target: tuple[int, ...], slot: int, stage: Stage, coarse: Segment, sums: str) -> None:
        """The sums go where `target` says for each shift of the rows, −1 for nowhere."""
        _, h, w = coarse.start.shape
        table = self.array("row_target", SHORT, target)
        stride = coarse.columns.count * self.slots * h * w
        alone = self.slots == 1 and stage.pack == 1
        put = [f"    if (stores) row[P * {w}] = {'old + ' * alone}y;"]
        if self.slots == 1 and not alone:  # maps side by side may add to the same sheet: they take turns
            put = [
                "#pragma unroll",
                f"    for (int turn = 0; turn < {stage.pack}; turn++) {{",
                f"        if (stores && lane / {stage.lanes} == turn) row[P * {w}] += y;",
                "        __syncwarp();",
                "    }",
            ]
        with self.block(f"if ({table}[iy] >= 0) {{"):
            self.put(
                f"real* row = dst + (long long){table}[iy] * {stride}{f' + {slot * h * w}' if slot else ''};",
                "#pragma unroll",
                f"for (int P = 0; P < {h}; P++) {{",
                *([f"    const real old = row[P * {w}];"] if alone else []),
                f"    const real y = fma(other, __shfl_down_sync(ALL, {sums}[P], 1), {sums}[P]);",
                *put,
                "}",
            )

    def weighted(self, segment: Segment) -> None:
        """The last segment's maps, summed with the weights that their places have."""
        rows, columns = self.chain.row_weights, self.chain.column_weights

        def weights(name: str, items: tuple[tuple[float, ...], ...]) -> str:
            return self.array(name, "__device__ const real", tuple(self.number(v) for item in items for v in item))

        for m, total in zip(segment.registers.ends, TOTALS, strict=False):
            _, h, w = m.shape
            row, added = f"s += m{m.name}[r];", f"{total} += s;"
            if set().union(*rows) != {1.0}:
                row = f"s = fma({weights('row_weight', rows)}[iy * {h} + r], m{m.name}[r], s);"
            if set().union(*columns) != {1.0}:
                added = f"{total} = fma({weights('column_weight', columns)}[ix * {w} + col], s, {total});"
            with self.block("{   // the weighted sum"):
                self.put(f"real s = {self.number(0.0)};")
                self.per_row(h, row)
                self.put(f"if (live && col < {w}) {added}")
