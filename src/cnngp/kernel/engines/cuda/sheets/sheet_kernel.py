"""The pair kernel for chains of segments and pools, as CUDA text.

`warps` warps own a pair of images. A task is a shift of the rows, or before a pool a run of them (shift_runs.py), with
as many shifts of the columns as lie side by side where maps are narrow; tasks go round the warps. A pool leaves its
sums in memory for the next segment:

    shared   one warp owns a pair, and adds to the few coarse sheets in its own shared memory
    global   many warps own a pair; the terms of a coarse sheet that come from different tasks each have a place of
             their own in global memory, so that nothing is added twice at a time, and the next segment sums them

The last segment's maps are summed with their weights; the scalar steps behind that are one thread's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from cnngp.kernel.program import Program

from ..dense_kernel import scalar_network
from ..kernel_frame import THETA_ARGUMENTS, stores
from ..program_data import ProgramData
from ..table_layout import TableLayout
from ..warp.warp_layout import LANES, Stage, parked, stages, width
from .sheet_chain import Chain, Segment
from .sheet_maps import SIDES, TOTALS, MapWriter
from .sheet_steps import second_groups, second_plane
from .shift_runs import run_count, runs

CONSTANT_MOST = 512  # vectors that a table of walls may take of the 64 kB of constant memory


@dataclass(frozen=True)
class SheetLaunch:
    """`warps` own a pair, `pairs` pairs are a block's, `resident` blocks a multiprocessor's.

    The second image's numbers for the first `held` segments are copied to shared memory: there a warp reads them from
    any column on at full speed, while from global memory it reads whole lines of the cache, mostly twice as many.
    """

    warps: int
    pairs: int
    resident: int
    held: int = 0


@dataclass(frozen=True)
class SheetKernel:
    """The text, its table rows of `row` entries, and how it is launched: bytes of shared and of global memory."""

    text: str
    threads: int
    pairs: int
    resident: int
    shared: int
    scratch: int


def second_offsets(program: Program, layout: TableLayout, cycles: dict[int, int]) -> tuple[dict[int, int], int, int]:
    """Places of each site's numbers for the second image in a table row, of its pixels, and the row's length."""
    end = layout.row
    pixels = end
    end += program.channels * second_plane(*program.shape[1:], layout.vector)
    found = {}
    for a in program.activations:
        found[a.site] = end
        end += layout.sites[a.site].planes * second_plane(*a.shape[1:], layout.vector, cycles.get(a.shape[1]))
    line = layout.align * layout.vector
    return found, pixels, -(-end // line) * line


class SheetWriter(MapWriter):
    """Writes the kernel of a chain."""

    def __init__(self, data: ProgramData, chain: Chain, dtype: str) -> None:
        program, layout = data.program, data.layout
        second, pixels, self.row = second_offsets(program, layout, chain.cycles)
        super().__init__(program, chain, layout, dtype, second, pixels)
        self.data = data
        self.plans = [_plan(s, s is chain.segments[-1]) for s in chain.segments]
        self.packs = [max(s.pack for s in plan) for plan in self.plans]
        self.groups = [-(-s.columns.count // pack) for s, pack in zip(chain.segments, self.packs, strict=True)]

    def held_entries(self, segments: int) -> int:
        """Number of entries of a table row, from the second image's pixels on, that the first segments read."""
        v, end = self.layout.vector, self.pixels
        if segments:
            end += self.program.channels * second_plane(*self.program.shape[1:], v)
        for step in (step for segment in self.chain.segments[:segments] for step in segment.steps):
            if (a := step.activation) is not None:
                planes = self.layout.sites[a.site].planes
                end = max(
                    end, self.second[a.site] + planes * second_plane(*a.shape[1:], v, self.cycles.get(a.shape[1]))
                )
        return end - self.pixels

    def kernel(self, launch: SheetLaunch) -> SheetKernel:
        chain, item = self.chain, 4 if self.dtype == "float" else 8
        self.slots = 1 if launch.warps == 1 else 2 * SIDES
        pooled = [len(s.registers.starts) * self.area(s) for s in chain.segments[1:]]
        self.starts = [sum(pooled[:k]) for k in range(len(pooled))]
        self.held = self.held_entries(launch.held)
        per_pair = -(-sum(pooled) // 4) * 4
        shared_pool = per_pair if self.slots == 1 else 0
        parks = [parked(plan, pack) for plan, pack in zip(self.plans, self.packs, strict=True)]
        park = max(size for _, size in parks)
        warps = launch.warps * launch.pairs
        self.warps = launch.warps
        self.runs = [
            runs(fine.rows, coarse.rows, coarse.start.shape[1], run_count(fine.rows.count, groups, launch.warps))
            for (fine, coarse), groups in zip(pairwise(chain.segments), self.groups, strict=False)
        ]
        self.depth += 1
        for k, segment in enumerate(chain.segments):
            self._segment(k, segment, parks[k][0])
        body = "\n".join(self.lines)
        start = [f"fma({self.number(chain.scales[0])}, K, {self.number(chain.bias)})"]
        start += [f"{self.number(scale)} * T" for scale in chain.scales[1:]]
        scalar = scalar_network(chain.tail, self.data, self.dtype, chain.units, start)
        totals = TOTALS[: len(chain.scales)]
        park_at = self.held + launch.pairs * shared_pool
        parts_at = park_at + warps * park
        shared = (parts_at + (warps * len(totals) if launch.warps > 1 else 0)) * item
        scratch = per_pair * item if self.slots > 1 else 0
        scratch = launch.pairs * -(-scratch // 256) * 256
        pool = (
            f"real* pool = (real*)(scratch + (long long)blockIdx.x * {scratch})"
            f" + mine * {scratch // launch.pairs // item};"
            if scratch
            else f"real* pool = (real*)dynamic_shared + {self.held} + mine * {shared_pool};"
        )
        # Blocks with memory of their own walk over the pairs; else there is a block for each.
        walks = "for (long long unit = blockIdx.x; unit < tall * m; unit += gridDim.x) {"
        loop, leave = (walks, "continue") if scratch else ("{ const long long unit = blockIdx.x;", "return")
        own = f"""const long long top = unit % tall * {launch.pairs}, j = unit / tall;
        if (j < top + below) {leave};
        const vec* t2 = (const vec*)(second + j * {self.row});"""
        if self.held:
            v = self.layout.vector
            own += f"""
        vec* table2 = dynamic_shared;
        for (int e = threadIdx.x; e < {self.held // v}; e += {LANES * warps}) table2[e] = t2[{self.pixels // v} + e];
        __syncthreads();"""
        if launch.warps > 1:  # warps wait for each other, so all of a block stay
            own += "\n        const long long i = min(top + mine, n - 1LL);"
        else:
            own += f"\n        const long long i = top + mine;\n        if (i >= n || j < i + below) {leave};"
        theta = THETA_ARGUMENTS * (len(totals) > 1)
        head = f"""
{scalar}
extern "C" __global__ void __launch_bounds__({LANES * warps}, {launch.resident})
pairs(const real* __restrict__ first, const real* __restrict__ second, real* __restrict__ out,
      real* __restrict__ mirror, int n, int m, long long ld, long long below{theta}, char* __restrict__ scratch)
{{
    extern __shared__ vec dynamic_shared[];
    const int lane = threadIdx.x % {LANES}, warp = __shfl_sync(ALL, (int)threadIdx.x / {LANES}, 0);
    const int among = warp % {launch.warps}, mine = warp / {launch.warps};
    {pool}
    real* park = (real*)dynamic_shared + {park_at} + warp * {park};
    const long long tall = (n + {launch.pairs - 1}) / {launch.pairs};
    {loop}
        {own}
        const vec* t1 = (const vec*)(first + i * {self.row});
        real {", ".join(f"{total} = {self.number(0.0)}" for total in totals)};
"""
        text = "\n".join(self.definitions) + head + body + self._end(launch, warps, parts_at)
        return SheetKernel(text, LANES * warps, launch.pairs, launch.resident, shared, scratch)

    def _end(self, launch: SheetLaunch, warps: int, at: int) -> str:
        zero, totals = self.number(0.0), TOTALS[: len(self.chain.scales)]
        whole, gather = "", ""
        for k, total in enumerate(totals):
            whole += f"\n        for (int o = 16; o > 0; o /= 2) {total} += __shfl_xor_sync(ALL, {total}, o);"
            gather += f"""
        real* parts{k or ""} = (real*)dynamic_shared + {at + k * warps};
        if (lane == 0) parts{k or ""}[warp] = {total};
        __syncthreads();
        {total} = {zero};
        for (int k = 0; k < {launch.warps}; k++) {total} += parts{k or ""}[warp - among + k];"""
        ready = "lane == 0"
        if launch.warps > 1:
            ready = "lane == 0 && among == 0 && i == top + mine && j >= i + below"
        else:
            gather = ""
        sync = "__syncthreads();" if launch.warps > 1 else "__syncwarp();"
        rows = f"first + i * {self.row}, second + j * {self.row}"
        result = f"            const real K = network(total, {rows});"
        if len(totals) > 1:
            result = f"            real T;\n            const real K = network(total, {rows}, {totals[1]}, T);"
        return f"""{whole}{gather}
        if ({ready}) {{
{result}
{stores("K", len(totals) > 1, " " * 12)}
        }}
        {sync}
    }}
}}
"""

    def _walls(self, size: int, shifts: tuple[int, ...]) -> str:
        """For each item a factor for each row: 0 where the wall is in front of it."""
        v = self.layout.vector
        rows = [[0 if r == size - s else 1 for r in range(-(-size // v) * v)] for s in shifts]
        groups = [row[g : g + v] for row in rows for g in range(0, len(row), v)]
        inside = ", ".join("{" + ", ".join(map(str, group)) + "}" for group in groups)
        space = "__constant__" if len(groups) <= CONSTANT_MOST else "__device__ const"
        text = f"{space} vec NAME[{len(groups)}] = {{{inside}}};"
        return self.define(("walls", size, shifts), "walls_at", text)

    def _segment(self, k: int, segment: Segment, parks: list[dict[int, int]]) -> None:
        self.segment = segment
        rows, groups = segment.rows, self.groups[k]
        self.put("", f"// ==== segment {k + 1} of {len(self.plans)}: {rows.count} x {segment.columns.count} shifts")
        last = k + 1 == len(self.plans)
        if not last and self.slots == 1:
            following = self.chain.segments[k + 1]
            count = len(following.registers.starts) * self.area(following)
            self.put(
                f"for (int e = lane; e < {count}; e += {LANES}) pool[{self.starts[k]} + e] = {self.number(0.0)};",
                "__syncwarp();",
            )
        tasks = groups * (rows.count if last else self.runs[k].count)
        self.put("#pragma unroll 1", f"for (int task = among; task < {tasks}; task += {self.warps}) {{")
        self.depth += 1
        if last:
            self.put(f"const int iy = task / {groups}, group = task - iy * {groups};")
            self._shift(k, segment, parks)
        else:
            h, items = self.chain.segments[k + 1].start.shape[1], "int iy = 0; iy < " + str(rows.count)
            names = [f"sums{which or ''}" for which, _ in enumerate(segment.registers.ends)]
            arrays = ", ".join(f"{name}[{h}]" for name in names)
            self.put(f"const int run = task / {groups}, group = task - run * {groups};", f"real {arrays};")
            if self.runs[k].count > 1:  # broadcast, so that the compiler knows that a warp stays together
                starts = self.table("run", "short", self.runs[k].starts)
                self.put(f"const int end = __shfl_sync(ALL, (int){starts}[run + 1], 0);")
                items = f"int iy = __shfl_sync(ALL, (int){starts}[run], 0); iy < end"
            for name in names:
                self.per_row(h, f"{name}[r] = {self.number(0.0)};")
            self.put("#pragma unroll 1", f"for ({items}; iy++) {{")
            self.depth += 1
            self._shift(k, segment, parks)
            self.depth -= 1
            self.put("}")
        self.depth -= 1
        self.put("}")
        if not last:
            self.put("__syncwarp();" if self.slots == 1 else "__syncthreads();")

    def _shift(self, k: int, segment: Segment, parks: list[dict[int, int]]) -> None:
        """One shift of the rows, `iy`, with the shifts of the columns in `group`."""
        v = self.layout.vector
        for size, shift in sorted(segment.rows.at.items()):
            groups_of = tuple(s % v * second_groups(size, v, segment.rows.cycle(size)) + s // v for s in shift)
            self.put(
                f"const int sy_{size} = {self.table('row_shift', 'short', shift)}[iy];",
                f"const int gy_{size} = {self.table('row_group', 'short', groups_of)}[iy];",
                f"const vec* walls_{size} = {self._walls(size, shift)} + iy * {-(-size // v)};",
            )
        for s, stage in enumerate(self.plans[k]):
            self._stage(k, segment, s, stage, parks)

    def _stage(self, k: int, segment: Segment, s: int, stage: Stage, parks: list[dict[int, int]]) -> None:
        plan, pack, lanes = self.plans[k], self.packs[k], stage.lanes
        maps = [*stage.live_in, *(part.dst for x in stage.steps for part in x.both)]
        self.put("", f"// ---- stage {s + 1} of {len(plan)}: {stage.pack} side by side, up to {width(maps)} wide")
        count = segment.columns.count
        if stage.pack < pack:
            most = f"{pack}" if count % pack == 0 else f"min({pack}, {count} - group * {pack})"
            self.put("#pragma unroll 1", f"for (int q = 0; q < {most}; q += {stage.pack}) {{")
        else:
            self.put("{")
        self.depth += 1
        if stage.pack == pack:
            self.put("const int q = 0;")
        self.put(
            f"const int col = lane % {lanes}, place = q + lane / {lanes};",
            f"const int ix = min(group * {pack} + place, {count - 1});",
            f"const bool live = group * {pack} + place < {count};",
        )
        for size in sorted({m.shape[2] for m in maps}):
            table = self.table("column_shift", "short", segment.columns.at[size])
            self.put(
                f"const int sx_{size} = {table}[ix];",
                f"int zc_{size} = min(col, {size - 1}) + sx_{size};",
                f"if (zc_{size} >= {segment.columns.cycle(size)}) zc_{size} -= {segment.columns.cycle(size)};",
            )
            if segment.columns.cycle(size) > size:
                self.put(f"zc_{size} = min(zc_{size}, {size - 1});")
        for name in sorted({m.name for m in maps}):
            self.put(f"real m{name}[{max(m.shape[1] for m in maps if m.name == name)}];")
        if s > 0:
            for m in stage.live_in:
                _, h, w = m.shape
                # A place without a shift of its own reads what is there, not what nobody wrote.
                at = f"{parks[s - 1][m.name]} + (ix - group * {pack}) * {h * w} + min(col, {w - 1})"
                self.per_row(h, f"m{m.name}[r] = park[{at} + r * {w}];")
        elif k == 0:
            self.product(segment.start)
        else:
            self.pooled(k, segment)
        if len(plan) > 1 or not self.chained(stage):
            self.steps(stage)
        if s + 1 < len(plan):
            for m in stage.live_out:
                _, h, w = m.shape
                at = f"{parks[s][m.name]} + place * {h * w} + col"
                self.put(f"if (col < {w}) {{")
                self.depth += 1
                self.per_row(h, f"park[{at} + r * {w}] = m{m.name}[r];")
                self.depth -= 1
                self.put("}")
        elif k + 1 < len(self.plans):
            self.pool(k, segment, stage)
        else:
            self.weighted(segment)
        self.depth -= 1
        self.put("}")
        if len(plan) > 1:
            self.put("__syncwarp();")


def _plan(segment: Segment, last: bool) -> tuple[Stage, ...]:
    """The stages of a segment. Before a pool the last one must hold all maps at a time, because they are summed on."""
    plan = stages(segment.registers, 0)
    if last or plan[-1].pack == max(s.pack for s in plan):
        return plan
    return (Stage(min(s.pack for s in plan), segment.steps, segment.registers.starts, plan[-1].live_out),)
