"""The pair kernel for chains of segments and pools, as CUDA text.

`warps` warps own a pair of images. A task is a shift of the rows with as many shifts of the columns as lie side by side
where maps are narrow; tasks go round the warps. A pool leaves its sums in memory for the next segment:

    shared   one warp owns a pair, and adds to the few coarse sheets in its own shared memory
    global   many warps own a pair; the nine terms of a coarse sheet each have a place of their own in global memory, so
             that nothing is added twice at a time, and the next segment sums them when it reads

The last segment's maps are summed with their weights; the scalar steps behind that are one thread's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cnngp.kernel.program import Program

from ..dense import scalar_network
from ..layout import TableLayout
from ..warp.plan import LANES, Stage, stages, width
from .maps import MapWriter
from .plan import Chain, Segment
from .steps import second_groups, second_plane
from .walk import SheetWalk


@dataclass(frozen=True)
class SheetLaunch:
    """`warps` own a pair, `pairs` pairs are a block's, `resident` blocks a multiprocessor's."""

    warps: int
    pairs: int
    resident: int


@dataclass(frozen=True)
class SheetKernel:
    """The text, its table rows of `row` entries, and how it is launched: bytes of shared and of global memory."""

    text: str
    threads: int
    pairs: int
    resident: int
    shared: int
    scratch: int


def second_offsets(program: Program, layout: TableLayout) -> tuple[dict[int, int], int, int]:
    """Where a table row keeps each site's numbers for the second image, where its pixels, and the row's length."""
    end = layout.row
    pixels = end
    end += program.channels * second_plane(*program.shape[1:], layout.vector)
    found = {}
    for a in program.activations:
        found[a.site] = end
        end += layout.sites[a.site].planes * second_plane(*a.shape[1:], layout.vector)
    return found, pixels, end


class SheetWriter(MapWriter):
    """Writes the kernel of a chain."""

    def __init__(self, walk: SheetWalk, chain: Chain, dtype: str) -> None:
        program, layout = walk.program, walk.layout
        second, pixels, self.row = second_offsets(program, layout)
        super().__init__(program, chain, layout, dtype, second, pixels)
        self.walk = walk
        self.plans = [stages(s.start, s.steps, 0) for s in chain.segments]
        self.packs = [max(s.pack for s in plan) for plan in self.plans]

    def kernel(self, launch: SheetLaunch) -> SheetKernel:
        chain, item = self.chain, 4 if self.dtype == "float" else 8
        self.slots = 1 if launch.warps == 1 else 9
        pooled = [self.slots * s.rows.count * s.columns.count * math.prod(s.start.shape) for s in chain.segments[1:]]
        self.starts = [sum(pooled[:k]) for k in range(len(pooled))]
        per_pair = -(-sum(pooled) // 4) * 4
        shared_pool = per_pair if self.slots == 1 else 0
        parks = [self._parks(plan, pack) for plan, pack in zip(self.plans, self.packs, strict=True)]
        park = max(size for _, size in parks)
        warps = launch.warps * launch.pairs
        self.warps = launch.warps
        self.depth += 1
        for k, segment in enumerate(chain.segments):
            self._segment(k, segment, parks[k][0])
        body = "\n".join(self.lines)
        start = f"fma({self.number(chain.scale)}, K, {self.number(chain.bias)})"
        scalar = scalar_network(chain.tail, self.walk, self.dtype, chain.unit, start)
        shared = (launch.pairs * shared_pool + warps * park + (warps if launch.warps > 1 else 0)) * item
        scratch = per_pair * item if self.slots > 1 else 0
        pool = (
            f"real* pool = (real*)(scratch + (long long)blockIdx.x * {-(-scratch // 256) * 256});"
            if scratch
            else f"real* pool = (real*)dynamic_shared + mine * {shared_pool};"
        )
        # Blocks with memory of their own walk over the pairs; else there is a block for each.
        walks = "for (long long unit = blockIdx.x; unit < tall * m; unit += gridDim.x) {"
        loop, leave = (walks, "continue") if scratch else ("{ const long long unit = blockIdx.x;", "return")
        head = f"""
{scalar}
extern "C" __global__ void __launch_bounds__({LANES * warps}, {launch.resident})
pairs(const real* __restrict__ first, const real* __restrict__ second, real* __restrict__ out,
      real* __restrict__ mirror, int n, int m, long long ld, long long below, char* __restrict__ scratch)
{{
    extern __shared__ vec dynamic_shared[];
    const int lane = threadIdx.x % {LANES}, warp = __shfl_sync(ALL, (int)threadIdx.x / {LANES}, 0);
    const int among = warp % {launch.warps}, mine = warp / {launch.warps};
    {pool}
    real* park = (real*)dynamic_shared + {launch.pairs * shared_pool} + warp * {park};
    const long long tall = (n + {launch.pairs - 1}) / {launch.pairs};
    {loop}
        const long long i = unit % tall * {launch.pairs} + mine, j = unit / tall;
        if (i >= n || j < i + below) {leave};
        const vec* t1 = (const vec*)(first + i * {self.row});
        const vec* t2 = (const vec*)(second + j * {self.row});
        real total = {self.number(0.0)};
"""
        text = (
            "\n".join(self.definitions)
            + head
            + body
            + self._end(launch, warps, launch.pairs * shared_pool + warps * park)
        )
        return SheetKernel(text, LANES * warps, launch.pairs, launch.resident, shared, -(-scratch // 256) * 256)

    def _end(self, launch: SheetLaunch, warps: int, at: int) -> str:
        gather = ""
        if launch.warps > 1:
            gather = f"""
        real* parts = (real*)dynamic_shared + {at};
        if (lane == 0) parts[warp] = total;
        __syncthreads();
        total = {self.number(0.0)};
        for (int k = 0; k < {launch.warps}; k++) total += parts[k];"""
        ready = "threadIdx.x == 0" if launch.warps > 1 else "lane == 0"
        sync = "__syncthreads();" if launch.warps > 1 else "__syncwarp();"
        return f"""
        for (int o = 16; o > 0; o /= 2) total += __shfl_xor_sync(ALL, total, o);{gather}
        if ({ready}) {{
            const real K = network(total, first + i * {self.row}, second + j * {self.row});
            out[i * ld + j] = K;
            if (mirror) mirror[j * ld + i] = K;
        }}
        {sync}
    }}
}}
"""

    def _parks(self, plan: tuple[Stage, ...], pack: int) -> tuple[list[dict[int, int]], int]:
        """Where each stage of a segment leaves its maps: even stages from 0 on, odd ones behind them."""
        sizes = [pack * sum(math.prod(m.shape) for m in s.live_out) for s in plan[:-1]]
        even = max(sizes[0::2], default=0)
        parks: list[dict[int, int]] = []
        for k, stage in enumerate(plan[:-1]):
            at = even if k % 2 else 0
            places = {}
            for m in stage.live_out:
                places[m.name] = at
                at += pack * math.prod(m.shape)
            parks.append(places)
        return parks, -(-(even + max(sizes[1::2], default=0)) // 4) * 4

    def _walls(self, size: int, shifts: tuple[int, ...]) -> str:
        """For each item a factor for each row: 0 where the wall is in front of it."""
        v = self.layout.vector
        rows = [[0 if r == size - s else 1 for r in range(-(-size // v) * v)] for s in shifts]
        groups = [row[g : g + v] for row in rows for g in range(0, len(row), v)]
        inside = ", ".join("{" + ", ".join(map(str, group)) + "}" for group in groups)
        text = f"__device__ const vec NAME[{len(groups)}] = {{{inside}}};"
        return self.define(("walls", size, shifts), "walls_at", text)

    def _segment(self, k: int, segment: Segment, parks: list[dict[int, int]]) -> None:
        self.segment = segment
        plan, pack = self.plans[k], self.packs[k]
        rows, columns = segment.rows, segment.columns
        groups = -(-columns.count // pack)
        self.put("", f"// ==== segment {k + 1} of {len(self.plans)}: {rows.count} x {columns.count} shifts")
        last = k + 1 == len(self.plans)
        if not last and self.slots == 1:
            following = self.chain.segments[k + 1]
            count = following.rows.count * following.columns.count * math.prod(following.start.shape)
            self.put(
                f"for (int e = lane; e < {count}; e += {LANES}) pool[{self.starts[k]} + e] = {self.number(0.0)};",
                "__syncwarp();",
            )
        self.put("#pragma unroll 1", f"for (int task = among; task < {rows.count * groups}; task += {self.warps}) {{")
        self.depth += 1
        self.put(f"const int iy = task / {groups}, group = task - iy * {groups};")
        for size, shift in sorted(rows.at.items()):
            v = self.layout.vector
            groups_of = tuple(s % v * second_groups(size, v) + s // v for s in shift)
            self.put(
                f"const int sy_{size} = {self.table('row_shift', 'short', shift)}[iy];",
                f"const int gy_{size} = {self.table('row_group', 'short', groups_of)}[iy];",
                f"const vec* walls_{size} = {self._walls(size, shift)} + iy * {-(-size // v)};",
            )
        for s, stage in enumerate(plan):
            self._stage(k, segment, s, stage, parks)
        self.depth -= 1
        self.put("}")
        if not last:
            self.put("__syncwarp();" if self.slots == 1 else "__syncthreads();")

    def _stage(self, k: int, segment: Segment, s: int, stage: Stage, parks: list[dict[int, int]]) -> None:
        plan, pack, lanes = self.plans[k], self.packs[k], stage.lanes
        maps = [*stage.live_in, *(x.dst for x in stage.steps)]
        self.put("", f"// ---- stage {s + 1} of {len(plan)}: {stage.pack} side by side, up to {width(maps)} wide")
        if stage.pack < pack:
            self.put("#pragma unroll 1", f"for (int q = 0; q < {pack}; q += {stage.pack}) {{")
        else:
            self.put("{")
        self.depth += 1
        if stage.pack == pack:
            self.put("const int q = 0;")
        count = segment.columns.count
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
                f"if (zc_{size} >= {size}) zc_{size} -= {size};",
            )
        for name in sorted({m.name for m in maps}):
            self.put(f"real m{name}[{max(m.shape[1] for m in maps if m.name == name)}];")
        if s > 0:
            for m in stage.live_in:
                _, h, w = m.shape
                at = f"{parks[s - 1][m.name]} + place * {h * w} + min(col, {w - 1})"
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
