"""Inputs and outputs of a segment's maps as CUDA text: products, pools, the weighted sum."""

from __future__ import annotations

import math

from cnngp.kernel.program import Program

from ..registers import Map
from ..table_layout import TableLayout
from ..warp.warp_layout import Stage
from .sheet_chain import Chain, Segment, targets
from .sheet_steps import SheetSteps, loaded, second_plane
from .shift_runs import Runs

SIDES = 3  # terms of a pooled sheet along the columns: one even shift, and two odd ones with half of their places each


TOTALS = ("total", "total1")
"""The weighted sums, of K and of what is carried for Θ."""


class MapWriter(SheetSteps):
    """Writes for one segment after the other; `slots` is how many terms of a pooled sheet are kept apart."""

    def __init__(
        self, program: Program, chain: Chain, layout: TableLayout, dtype: str, second: dict[int, int], pixels: int
    ) -> None:
        super().__init__(dtype, layout, second, pixels, chain.cycles)
        self.program, self.chain = program, chain
        self.slots = 1
        self.runs: list[Runs] = []
        """Runs of the shifts of the rows in each segment before a pool."""
        self.starts: list[int] = []
        """First entries of the pooled sheets behind each segment."""

    def table(self, prefix: str, kind: str, values: tuple[object, ...]) -> str:
        """The name of an array of constants."""
        inside = ", ".join(map(str, values))
        text = f"__device__ const {kind} NAME[{len(values)}] = {{{inside}}};"
        return self.define((prefix, kind, values), prefix, text)

    def product(self, m: Map) -> None:
        """K⁰ = Σ_c x_c(p) x'_c(p + d)."""
        site, v = self.layout.input, self.layout.vector
        _, h, w = m.shape
        pitch, second = self.layout.pitch(w), self.second_at(self.pixels)
        second += f" + c * {second_plane(h, w, v) // v} + gy_{h} * {w} + zc_{w} + g * {w}"
        self.per_row(h, f"m{m.name}[r] = {self.number(0.0)};")
        self.put(
            "#pragma unroll 1" if site.planes > 4 else "#pragma unroll",
            f"for (int c = 0; c < {site.planes}; c++) {{",
            "#pragma unroll",
            f"    for (int g = 0; g < {-(-h // v)}; g++) {{",
            f"        const vec a = __ldg(t1 + min(col, {w - 1}) + c * {site.plane // v} + g * {pitch}), "
            f"b = {loaded(second, self.is_held(self.pixels))};",
            "#pragma unroll",
            f"        for (int k = 0; k < {v}; k++)",
            f"            if ({v} * g + k < {h}) m{m.name}[{v} * g + k] = "
            f"fma(part(a, k), part(b, k), m{m.name}[{v} * g + k]);",
            "    }",
            "}",
        )

    def area(self, segment: Segment) -> int:
        """Entries of all sheets that the pool before a segment leaves of one map."""
        return self.slots * segment.rows.count * segment.columns.count * math.prod(segment.start.shape)

    def pooled(self, k: int, segment: Segment) -> None:
        """The sheets that the pool before this segment has left."""
        for which, m in enumerate(segment.registers.starts):
            self._pooled(k, segment, which, f"m{m.name}")

    def _pooled(self, k: int, segment: Segment, which: int, name: str) -> None:
        _, h, w = segment.start.shape
        at = f"(iy * {segment.columns.count} + ix) * {self.slots * h * w} + min(col, {w - 1})"
        sheet = f"sheet{which or ''}"
        self.put(f"const real* {sheet} = pool + {self.starts[k - 1] + which * self.area(segment)} + {at};")

        def terms(slots: range) -> str:
            return " + ".join(f"{sheet}[{s * h * w} + r * {w}]" for s in slots)

        self.per_row(h, f"{name}[r] = {terms(range(min(self.slots, SIDES)))};")
        late = self.runs[k - 1].late
        if self.slots > 1 and late:
            flags = tuple(int(t in late) for t in range(segment.rows.count))
            self.put(f"if ({self.table('has_late', 'short', flags)}[iy]) {{")
            self.depth += 1
            self.per_row(h, f"{name}[r] += {terms(range(SIDES, 2 * SIDES))};")
            self.depth -= 1
            self.put("}")

    def pool(self, k: int, segment: Segment, stage: Stage) -> None:
        """Sums over 2 × 2 windows: even and odd rows to one coarse shift or to two, likewise columns.

        The shifts 2D − 1, 2D and 2D + 1 of the rows, one after the other, are added in registers (`sums`) before they
        go to the sheets of D.
        """
        for which, end in enumerate(segment.registers.ends):
            self._pool(k, segment, stage, which, f"m{end.name}")
        if self.slots == 1:
            self.put("__syncwarp();")

    def _pool(self, k: int, segment: Segment, stage: Stage, which: int, x: str) -> None:
        coarse, sums = self.chain.segments[k + 1], f"sums{which or ''}"
        _, h, w = coarse.start.shape
        across = targets(segment.columns, coarse.columns, w)
        zero, one = self.number(0.0), self.number(1.0)
        self.put(
            "{   // pool",
            f"    const int to = {self.table('column_target', 'short', tuple(t for pair in across for t in pair))}"
            "[2 * ix + col % 2];",
            f"    const bool both = sx_{2 * w} % 2 == 0;",
            f"    const bool stores = live && col < {2 * w} && to >= 0 && !(both && col % 2);",
            f"    const real other = both && col % 2 == 0 ? {one} : {zero};",
        )
        slot = f" + (both ? 0 : 1 + col % 2) * {h * w}" if self.slots > 1 else ""
        sheet = self.slots * h * w
        start = self.starts[k] + which * self.area(coarse)
        self.put(f"    real* dst = pool + {start} + max(to, 0) * {sheet}{slot} + min(col / 2, {w - 1});")
        self.depth += 1
        self.put(f"if (sy_{2 * h} % 2 == 0) {{")
        self.depth += 1
        self.per_row(h, f"{sums}[r] += {x}[2 * r] + {x}[2 * r + 1];")
        self.depth -= 1
        self.put("} else {")
        self.depth += 1
        self.per_row(h, f"{sums}[r] += {x}[2 * r];")
        self._flush(self.runs[k].own, 0, stage, coarse, sums)
        self.per_row(h, f"{sums}[r] = {x}[2 * r + 1];")
        if self.runs[k].late:
            self._flush(self.runs[k].after, SIDES if self.slots > 1 else 0, stage, coarse, sums)
        self.depth -= 1
        self.put("}")
        self.depth -= 1
        self.put("}")

    def _flush(self, target: tuple[int, ...], slot: int, stage: Stage, coarse: Segment, sums: str) -> None:
        """The sums go where `target` says for each shift of the rows, −1 for nowhere."""
        _, h, w = coarse.start.shape
        table = self.table("row_target", "short", target)
        stride = coarse.columns.count * self.slots * h * w
        put = [f"    if (stores) row[P * {w}] = y;"]
        if self.slots == 1 and stage.pack == 1:
            put = [f"    if (stores) row[P * {w}] = old + y;"]
        elif self.slots == 1:  # maps side by side may add to the same sheet: they take turns
            put = [
                "#pragma unroll",
                f"    for (int turn = 0; turn < {stage.pack}; turn++) {{",
                f"        if (stores && lane / {stage.lanes} == turn) row[P * {w}] += y;",
                "        __syncwarp();",
                "    }",
            ]
        self.put(f"if ({table}[iy] >= 0) {{")
        self.depth += 1
        self.put(
            f"real* row = dst + (long long){table}[iy] * {stride}{f' + {slot * h * w}' if slot else ''};",
            "#pragma unroll",
            f"for (int P = 0; P < {h}; P++) {{",
            *([f"    const real old = row[P * {w}];"] if self.slots == 1 and stage.pack == 1 else []),
            f"    const real y = fma(other, __shfl_down_sync(ALL, {sums}[P], 1), {sums}[P]);",
            *put,
            "}",
        )
        self.depth -= 1
        self.put("}")

    def weighted(self, segment: Segment) -> None:
        for m, total in zip(segment.registers.ends, TOTALS, strict=False):
            self._weighted(m, total)

    def _weighted(self, m: Map, total: str) -> None:
        zero = self.number(0.0)
        _, h, w = m.shape
        self.put("{   // the weighted sum", f"    real s = {zero};")
        self.depth += 1
        rows, columns = self.chain.row_weights, self.chain.column_weights
        if set().union(*rows) == {1.0}:
            self.per_row(h, f"s += m{m.name}[r];")
        else:
            name = self.table("row_weight", "real", tuple(self.number(v) for item in rows for v in item))
            self.per_row(h, f"s = fma({name}[iy * {h} + r], m{m.name}[r], s);")
        if set().union(*columns) == {1.0}:
            self.put(f"if (live && col < {w}) {total} += s;")
        else:
            name = self.table("column_weight", "real", tuple(self.number(v) for item in columns for v in item))
            self.put(f"if (live && col < {w}) {total} = fma({name}[ix * {w} + col], s, {total});")
        self.depth -= 1
        self.put("}")
