"""What goes into the maps of a segment and what comes out of them, as CUDA text: products, pools, the weighted sum."""

from __future__ import annotations

from cnngp.kernel.program import Program

from ..layout import Map, TableLayout
from ..warp.plan import Stage
from .plan import Chain, Segment, targets
from .steps import SheetSteps, second_plane


class MapWriter(SheetSteps):
    """Writes for one segment after the other; `slots` is how many terms of a pooled sheet are kept apart."""

    def __init__(
        self, program: Program, chain: Chain, layout: TableLayout, dtype: str, second: dict[int, int], pixels: int
    ) -> None:
        super().__init__(dtype, layout, second)
        self.program, self.chain, self.pixels = program, chain, pixels
        self.slots = 1
        self.starts: list[int] = []
        """Where the pooled sheets behind each segment begin."""

    def table(self, prefix: str, kind: str, values: tuple[object, ...]) -> str:
        """The name of an array of constants."""
        inside = ", ".join(map(str, values))
        text = f"__device__ const {kind} NAME[{len(values)}] = {{{inside}}};"
        return self.define((prefix, kind, values), prefix, text)

    def product(self, m: Map) -> None:
        """K⁰ = Σ_c x_c(p) x'_c(p + d)."""
        site, v = self.layout.input, self.layout.vector
        _, h, w = m.shape
        self.per_row(h, f"m{m.name}[r] = {self.number(0.0)};")
        self.put(
            "#pragma unroll 1" if site.planes > 4 else "#pragma unroll",
            f"for (int c = 0; c < {site.planes}; c++) {{",
            "#pragma unroll",
            f"    for (int g = 0; g < {-(-h // v)}; g++) {{",
            f"        const vec a = __ldg(t1 + min(col, {w - 1}) + c * {site.plane // v} + g * {w}), b = __ldg(t2 + "
            f"{self.pixels // v} + c * {second_plane(h, w, v) // v} + gy_{h} * {w} + zc_{w} + g * {w});",
            "#pragma unroll",
            f"        for (int k = 0; k < {v}; k++)",
            f"            if ({v} * g + k < {h}) m{m.name}[{v} * g + k] = "
            f"fma(part(a, k), part(b, k), m{m.name}[{v} * g + k]);",
            "    }",
            "}",
        )

    def pooled(self, k: int, segment: Segment) -> None:
        """The sheet that the pool before this segment has left."""
        _, h, w = segment.start.shape
        at = f"(iy * {segment.columns.count} + ix) * {self.slots * h * w} + min(col, {w - 1})"
        self.put(f"const real* sheet = pool + {self.starts[k - 1]} + {at};")
        terms = " + ".join(f"sheet[{s * h * w} + r * {w}]" for s in range(self.slots))
        self.per_row(h, f"m{segment.start.name}[r] = {terms};")

    def pool(self, k: int, segment: Segment, stage: Stage) -> None:
        """Sums over 2 × 2 windows: even and odd rows to one coarse shift or to two, likewise columns."""
        coarse = self.chain.segments[k + 1]
        _, h, w = coarse.start.shape
        x = f"m{segment.end.name}"
        across = targets(segment.columns, coarse.columns, w)
        down = targets(segment.rows, coarse.rows, h)
        sheet = self.slots * h * w
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
        self.put(f"    real* dst = pool + {self.starts[k]} + max(to, 0) * {sheet}{slot} + min(col / 2, {w - 1});")
        table = self.table("row_target", "short", tuple(t for pair in down for t in pair))
        stride = coarse.columns.count * sheet

        add = [f"    if (stores) row[P * {w}] = old + y;"]
        if self.slots > 1:
            add = [f"    if (stores) row[P * {w}] = y;"]
        elif stage.pack > 1:  # maps side by side may add to the same sheet: they take turns
            add = [
                "#pragma unroll",
                f"    for (int turn = 0; turn < {stage.pack}; turn++) {{",
                f"        if (stores && lane / {stage.lanes} == turn) row[P * {w}] += y;",
                "        __syncwarp();",
                "    }",
            ]

        def rows(which: int, term: str, slot_y: int) -> list[str]:
            at = f"(long long){table}[2 * iy + {which}] * {stride}" + (
                f" + {slot_y * 3 * h * w}" if self.slots > 1 else ""
            )
            return [
                f"real* row = dst + {at};",
                "#pragma unroll",
                f"for (int P = 0; P < {h}; P++) {{",
                f"    const real v = {term};",
                *([f"    const real old = row[P * {w}];"] if self.slots == 1 and stage.pack == 1 else []),
                "    const real y = fma(other, __shfl_down_sync(ALL, v, 1), v);",
                *add,
                "}",
            ]

        self.depth += 1
        self.put(f"if (sy_{2 * h} % 2 == 0) {{")
        self.put(*("    " * (not line.startswith("#")) + line for line in rows(0, f"{x}[2 * P] + {x}[2 * P + 1]", 0)))
        self.put("} else {")
        for which in (0, 1):
            self.put(f"    if ({table}[2 * iy + {which}] >= 0) {{")
            lines = rows(which, f"{x}[2 * P + {which}]", 1 + which)
            self.put(*("        " * (not line.startswith("#")) + line for line in lines))
            self.put("    }")
        self.put("}")
        self.depth -= 1
        self.put("}")
        if self.slots == 1:
            self.put("__syncwarp();")

    def weighted(self, segment: Segment) -> None:
        m, zero = segment.end, self.number(0.0)
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
            self.put(f"if (live && col < {w}) total += s;")
        else:
            name = self.table("column_weight", "real", tuple(self.number(v) for item in columns for v in item))
            self.put(f"if (live && col < {w}) total = fma({name}[ix * {w} + col], s, total);")
        self.depth -= 1
        self.put("}")
