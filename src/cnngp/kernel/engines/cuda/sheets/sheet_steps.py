"""CUDA text of the steps of a segment: those of the warp kernel, with walls in the sums and a shifted second image.

Names in the text, for a map of h × w locations: sy_h, the shift of the rows, is one number for the warp; sx_w, the
shift of the columns, may differ between maps that lie side by side. A lane reads `vector` rows of a column at once,
from any row on and without a wrap: the second image's numbers are in its table row once for each sy_h % vector, each
time with as many rows as the last shift needs. gy_h is the first group of rows to read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from cnngp.kernel.program import PIXELS, Program
from cnngp.network.geometry import AxisSum

from ..kernel_frame import TableLayout
from ..registers import Map, Step
from ..warp.box_sums import is_total, mask_of, shifted
from ..warp.warp_layout import Stage
from ..warp.warp_steps import StepWriter
from .sheet_chain import Chain, Runs, Segment, targets

SIDES = 3  # terms of a pooled sheet along the columns: one even shift, and two odd ones with half their locations each
TOTALS = ("total", "total1")
"""The weighted sums, of K and of the map propagated for Θ."""
SHORT = "__device__ const short"


def second_groups(h: int, vector: int, cycle: int | None = None) -> int:
    """Groups of rows in a plane of the second image, for each remainder of the shift; shifts are below `cycle`."""
    return ((cycle or h) - 1) // vector + -(-h // vector)


def second_plane(h: int, w: int, vector: int, cycle: int | None = None) -> int:
    """Number of entries of a plane of the second image."""
    return vector * second_groups(h, vector, cycle) * w * vector


def with_second(program: Program, layout: TableLayout, cycles: dict[int, int]) -> TableLayout:
    """Extend the layout of table rows by the numbers that are read for the second image."""
    v, found = layout.vector, {PIXELS: layout.row}
    end = layout.row + program.channels * second_plane(*program.shape[1:], v)
    for a in program.activations:
        found[a.site] = end
        end += layout.sites[a.site].planes * second_plane(*a.shape[1:], v, cycles.get(a.shape[1]))
    line = layout.align * v
    return replace(layout, second=found, cycles=cycles, row=-(-end // line) * line)


class SheetSteps(StepWriter):
    """Writes the steps of one segment after another, and their input and output: pools, and the weighted sum.

    A table row's second half begins at `pixels`; its first `held` numbers are in shared memory, at `table2`. `slots` is
    the number of terms of a pooled sheet that are stored separately.
    """

    early = False

    def __init__(self, program: Program, chain: Chain, layout: TableLayout, dtype: str) -> None:
        super().__init__(dtype, layout)
        self.program, self.chain, self.cycles = program, chain, layout.cycles
        self.pixels, self.held, self.slots = layout.second[PIXELS], 0, 1
        self.k = 0
        """Index of the segment being written."""
        self.runs: list[Runs] = []
        """Runs of row shifts in each segment before a pool."""
        self.starts: list[int] = []
        """First entries of the pooled sheets after each segment."""

    @property
    def segment(self) -> Segment:
        return self.chain.segments[self.k]

    def address(self, at: int) -> tuple[str, bool]:
        """Address of entry `at` of the second image's table row, and True if it is in shared memory."""
        v = self.layout.vector
        if at < self.pixels + self.held:
            return f"table2 + {(at - self.pixels) // v}", True
        return f"t2 + {at // v}", False

    def second(self, same: Sequence[Step], stride: int) -> tuple[str, int, bool]:
        sites = [s.curve.site for s in same]
        a = same[0].curve
        _, h, w = a.shape
        address, held = self.address(self.layout.second[a.site])
        if len(sites) > 1:
            moves = {self.layout.second[y] - self.layout.second[x] for x, y in pairwise(sites)}
            assert len(moves) == 1
            address += f" + b * {moves.pop() // self.layout.vector}"
        plane = second_plane(h, w, self.layout.vector, self.cycles.get(h))
        return f"{address} + gy_{h} * {w} + zc_{w}", plane, held

    def chained(self, stage: Stage) -> bool:
        """Write a stage of repeated [sums, nonlinearity] as one loop, if it has this form, which halves the code.

        Two repetitions make no loop: the first map may be negative, which takes one more instruction.
        """
        linear = [replace(s, op=replace(s.op, activation=None)) for s in stage.steps[:-1]]
        curved = list(stage.steps[1:])
        first, last = stage.steps[0], stage.steps[-1]
        ends = [(s.op.keep, s.op.scale, s.op.bias) for s in last.both]
        plain = last.op.sums is None and set(ends) == {(0.0, 1.0, 0.0)}
        if len(linear) < 2 or first.activation is not None or first.op.sums is None or not plain:
            return False
        if any(s.op.sums != first.op.sums or s.op.keep != 0.0 or s.src.name != s.dst.name for s in linear):
            return False
        if any(s.activation is None for s in curved) or len({(s.curve.layer, s.curve.shape) for s in curved}) > 1:
            return False
        both = _with_tangents(linear, curved)
        if both is None:
            return False
        linear, curved = both
        if len(curved) == 2:
            self._link(linear[:1], curved[:1], stage)
            self._link(linear[1:], curved[1:], stage)
            return True
        if any(s.factor != curved[1].factor for s in curved):  # all repetitions share code, so Θ starts from zeros
            other = curved[1].factor
            assert other is not None
            self.per_row(other.shape[1], f"m{other.name}[r] = {self.number(0.0)};")
            linear = [_beside(s, other, t) for s, t in zip(linear, [linear[1], *linear[1:]], strict=True)]
            curved = [replace(s, beside=s.beside and replace(s.beside, times=other)) for s in curved]
        with self.block("#pragma unroll 1", f"for (int b = 0; b < {len(curved)}; b++) {{"):
            self._link(linear, curved, stage)
        return True

    def _link(self, linear: list[Step], curved: list[Step], stage: Stage) -> None:
        carried = [s.src for s in linear[0].both]
        arrays, made = (tuple(f"m{m.name}" for m in maps) for maps in (carried, [s.dst for s in curved[0].both]))
        nonneg = all(s.src.nonneg for s in curved)
        same = [replace(s, src=replace(s.src, nonneg=nonneg)) for s in curved]
        sites = [self.layout.sites[s.curve.site].offset for s in curved]
        with self.block("{"):
            self.core(linear, stage, arrays, arrays, 0, None)
        with self.block("{"):
            self.activation(same, arrays, sites[1] - sites[0] if len(sites) > 1 else 0, "")
            for name, value in zip(made, ("V", "W"), strict=False):
                self.per_row(curved[0].op.shape[1], f"{name}[r] = {value}[r];")

    def down(self, sums: AxisSum, rows: str) -> list[str]:
        """Statements for sums down the rows that stop at the wall."""
        at = self.segment.rows.at
        if self.segment.rows.cycle(sums.out_size) > sums.out_size:
            return super().down(sums, rows)  # sums that cross the wall are not used
        walls = [(sums.size - a, sums.out_size - b) for a, b in zip(at[sums.size], at[sums.out_size], strict=True)]
        terms = [(m, p) for m, row in enumerate(sums.sources) for p in row]
        if all((p < wall) == (m < out) for wall, out in walls for m, p in terms):  # no sum crosses a wall
            return super().down(sums, rows)
        chains = _outwards(sums, walls)
        return self._compared(sums, rows) if chains is None else self._masked(sums, rows, chains)

    def _masked(self, sums: AxisSum, rows: str, chains: list[tuple[int, list[int], list[int]]]) -> list[str]:
        """Write each sum from its own row outwards, with a factor of zero where it would cross the wall."""
        n, v = sums.size, self.layout.vector
        groups = -(-n // v)
        body = [
            f"// Sums over {n} rows; walls[r] is 0 where a wall is in front of row r, else 1.",
            f"__device__ __forceinline__ void NAME(real (&S)[{sums.out_size}], const real* V, const vec* walls)",
            "{",
            *(f"    const vec w{g} = walls[{g}];" for g in range(groups)),
        ]

        for m, (own, before, behind) in enumerate(chains):
            value = f"V[{own}]"
            for places, shift in ((before, 1), (behind, 0)):
                text = ""
                for p in reversed(places):
                    edge = p + shift
                    factor = f"part(w{edge // v}, {edge % v})"
                    text = f"{factor} * V[{p}]" if not text else f"{factor} * (V[{p}] + {text})"
                if text:
                    value = f"{value} + {text}"
            body.append(f"    S[{m}] = {value};")
        name = self.define(("masked", sums), "walled", "\n".join([*body, "}"]))
        return [f"{name}(S, {rows}, walls_{n});"]

    def _compared(self, sums: AxisSum, rows: str) -> list[str]:
        """Write sums of any kind: a term counts if it is on its sum's side of the wall."""
        lines = []
        for m, row in enumerate(sums.sources):
            terms = [f"(({p} < wall) == ({m} < end) ? V[{p}] : {self.number(0.0)})" for p in row]
            lines.append(f"    S[{m}] = {' + '.join(terms) or self.number(0.0)};")
        head = f"__device__ __forceinline__ void NAME(real (&S)[{sums.out_size}], const real* V, int wall, int end)"
        name = self.define(("compared", sums), "walled", "\n".join([head, "{", *lines, "}"]))
        return [f"{name}(S, {rows}, {sums.size} - sy_{sums.size}, {sums.out_size} - sy_{sums.out_size});"]

    def column_sums(self, sums: AxisSum, stage: Stage, x: str) -> list[str]:
        """Sums along the width as without walls, but a term counts only on its own side: (column < wall) must agree."""
        zero, one = self.number(0.0), self.number(1.0)
        n, out = sums.size, sums.out_size
        window = sums.offsets(1)
        if is_total(sums) or window is None:
            return self.gathered(sums, 1, x, walls=True)
        lines = []
        for d in sorted(window, key=lambda d: (d != 0, d)):
            value = shifted(x, d)
            if d == 0 and n == out:
                lines.append(f"real x = {value};")
                continue
            mask = mask_of(d)
            inside = (
                f"col < {out} && (unsigned)(col + {d}) < {n}u && (col < {out} - sx_{out}) == (col + {d} < {n} - sx_{n})"
            )
            self.put(f"const real {mask} = {inside} ? {one} : {zero};")
            lines.append(f"x = fma({mask}, {value}, x);" if lines else f"real x = {mask} * {value};")
        return lines

    # ---- input and output of segments --------------------------------------------------------------------------------

    def area(self, segment: Segment) -> int:
        """Number of entries of all sheets of one map that the pool before a segment writes."""
        return self.slots * segment.rows.count * segment.columns.count * math.prod(segment.start.shape)

    def pooled(self) -> None:
        """Read the sheets that the pool before this segment has written."""
        k, segment = self.k, self.segment
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

    def pool(self, stage: Stage) -> None:
        """Sum over 2 × 2 windows: even and odd rows go to one coarse shift or to two, likewise columns.

        The row shifts 2D − 1, 2D and 2D + 1, one after the other, are added in registers (`sums`) before they are
        written to the sheets of D.
        """
        k, segment, coarse = self.k, self.segment, self.chain.segments[self.k + 1]
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
        """Write the sums to the sheet that `target` gives for each row shift, −1 for none."""
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

    def weighted(self) -> None:
        """Sum the last segment's maps with the weights of their locations."""
        rows, columns = self.chain.row_weights, self.chain.column_weights

        def weights(name: str, items: tuple[tuple[float, ...], ...]) -> str:
            return self.array(name, "__device__ const real", tuple(self.number(v) for item in items for v in item))

        for m, total in zip(self.segment.registers.ends, TOTALS, strict=False):
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


def _with_tangents(linear: list[Step], curved: list[Step]) -> tuple[list[Step], list[Step]] | None:
    """Add the steps for Θ to the sums and nonlinearities; None if the map for Θ is not always in one array.

    `linear` are steps without their nonlinearity; the sums beside them are over the map propagated for Θ.
    """
    if all(s.beside is None for s in (*linear, *curved)):
        return linear, curved
    others = {s.beside.dst for s in curved if s.beside is not None}
    if len(others) != 1 or any(s.beside is None for s in (*linear[1:], *curved)):
        return None
    other = others.pop()
    if any(s.factor not in (other, None) for s in (*linear, *curved)) or any(
        s.beside is not None and s.beside.op.keep != 0.0 for s in linear
    ):
        return None
    return [s if s.beside is None else _beside(s, other, s) for s in linear], curved


def _beside(step: Step, other: Map, like: Step) -> Step:
    """Add to a step the sums over the map `other` that `like` has beside it."""
    assert like.beside is not None
    op = replace(like.beside.op, activation=None, tangent=None)
    return replace(step, beside=replace(like.beside, op=op, src=other, times=None, dst=other))


def _outwards(sums: AxisSum, walls: Sequence[tuple[int, int]]) -> list[tuple[int, list[int], list[int]]] | None:
    """For each sum its own row, and the rows before and after it, nearest first; a wall cuts off the rows beyond it.

    None if the rows of a sum are not contiguous, or none of its rows is always on its side of the walls.
    """
    found = []
    for m, row in enumerate(sums.sources):
        if not row or list(row) != list(range(row[0], row[-1] + 1)):
            return None
        own = [p for p in row if all((p < wall) == (m < out) for wall, out in walls)]
        if not own:
            return None
        p = own[len(own) // 2]
        found.append((p, list(range(p - 1, row[0] - 1, -1)), list(range(p + 1, row[-1] + 1))))
    return found
