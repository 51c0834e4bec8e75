"""The pair kernel for chains of segments and pools, as CUDA text.

`warps` warps own a pair of images. A task is a shift of the rows, or before a pool a run of them (sheet_chain.py), with
as many shifts of the columns as narrow maps allow side by side; tasks are distributed cyclically to the warps. A pool
leaves its sums in memory for the next segment:

    shared   one warp owns a pair, and adds to the few coarse sheets in its own shared memory
    global   several warps own a pair; the terms of a coarse sheet from different tasks are stored separately in global
             memory, so that no two warps add to the same place at once, and the next segment sums them

The last segment's maps are summed with their weights; one thread runs the scalar steps that follow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ..dense_kernel import scalar_network
from ..kernel_frame import THETA_ARGUMENTS, Launch, stores
from ..registers import Map
from ..walk.program_data import ProgramData
from ..warp.warp_kernel import live_words
from ..warp.warp_layout import LANES, Stage, parked, stages
from .sheet_chain import Chain, run_count, runs
from .sheet_steps import SHORT, SIDES, TOTALS, SheetSteps, second_groups, second_plane

LINE = 128  # bytes of a cache line, to which the first image's rows are aligned
CACHED = 160 * 1024  # bytes of table rows that stay in a multiprocessor's L1 cache
HELD_MOST = 200 * 1024  # bytes of the second image's tables that leave enough of the L1 cache for the first image's
OWN_MOST = 3072  # largest number of entries of a pair's pooled sheets that a warp keeps in its shared memory
CONSTANT_MOST = 512  # largest number of vectors of a table of walls in the 64 kB of constant memory


class SheetLaunch(NamedTuple):
    """Launch shape: `warps` per pair, `pairs` per block, `resident` blocks per multiprocessor.

    The second image's numbers for the first `held` segments are copied to shared memory: there a warp reads them from
    any column on at full speed, while from global memory it reads whole cache lines, mostly twice as many.
    """

    warps: int
    pairs: int
    resident: int
    held: int = 0


def fits(chain: Chain, dtype: str) -> bool:
    """True if maps are narrow enough for a warp and few enough for its registers."""
    for segment in chain.segments:
        maps = [segment.start, *(s.dst for s in segment.steps)]
        if max(m.shape[2] for m in maps) > LANES or live_words(segment.registers, dtype) > 136:
            return False
    return True


def launch(writer: SheetWriter) -> SheetLaunch:
    """Choose the launch shape, as measured (docs/gpu.md): a warp per pair with few pooled sheets, else a block."""
    chain, program = writer.chain, writer.program
    pooled = sum(s.rows.count * s.columns.count * math.prod(s.start.shape) for s in chain.segments[1:])
    shifts = chain.segments[0].rows.count * chain.segments[0].columns.count
    wide = writer.dtype == "double" or max(live_words(s.registers, writer.dtype) for s in chain.segments) > 64
    # The map for Θ takes as many registers again: 12 warps per multiprocessor were faster than 16.
    warps = 16 if program.theta is None else 12
    if shifts <= 100 and pooled <= OWN_MOST:
        if wide:
            return SheetLaunch(1, 8, 1)
        if len(program.activations) <= 8:
            return SheetLaunch(1, 4, 4)
        if len(chain.segments) > 1:
            return SheetLaunch(1, 16, 1)
        # With many layers, the tables of as many pairs as there are warps do not fit into the L1 cache.
        tasks = chain.segments[0].rows.count * writer.groups[0]
        own = max(k for k in range(1, 9) if tasks % k == 0)
        return SheetLaunch(own, warps // own, 1)
    if wide:
        return SheetLaunch(8, 1, 1)
    if writer.held_entries(1) * 4 <= HELD_MOST and program.theta is None:  # not measured with Θ
        return SheetLaunch(16, 1, 1, 1)
    # As many blocks as have their rows in the L1 cache together: planes of one image, and twice those of the other.
    planes = [program.channels * math.prod(program.shape), *(a.size for a in program.activations)]
    blocks = next((k for k in (4, 2) if k * 3 * 4 * sum(planes) <= CACHED), 1)
    return SheetLaunch(warps // blocks, 1, blocks)


def sheet_kernel(
    data: ProgramData, chain: Chain, dtype: str, shared_limit: int, shape: tuple[int, int, int, int] | None = None
) -> tuple[str, Launch]:
    """Write the kernel with its default launch shape, reduced if a block would exceed its shared memory."""
    chosen = launch(SheetWriter(data, chain, dtype)) if shape is None else SheetLaunch(*shape)
    while True:
        text, made = SheetWriter(data, chain, dtype).kernel(chosen)
        if made.shared <= shared_limit or shape is not None:
            return text, made
        if chosen.held:
            chosen = chosen._replace(held=0)
        elif chosen.pairs > 1:
            chosen = chosen._replace(pairs=chosen.pairs // 2)
        elif chosen.warps > 2:
            chosen = chosen._replace(warps=chosen.warps // 2)
        else:
            return text, made


class SheetWriter(SheetSteps):
    """Writes the kernel of a chain."""

    def __init__(self, data: ProgramData, chain: Chain, dtype: str) -> None:
        super().__init__(data.program, chain, data.layout, dtype)
        self.data, self.row = data, data.layout.row
        self.plans = [stages(s.registers, 0) for s in chain.segments]
        for k, (plan, segment) in enumerate(zip(self.plans[:-1], chain.segments, strict=False)):
            # Before a pool the last stage must hold all maps at once, because they are summed further.
            if plan[-1].pack < max(s.pack for s in plan):
                whole = segment.steps, segment.registers.starts, plan[-1].live_out
                self.plans[k] = (Stage(min(s.pack for s in plan), *whole),)
        self.packs = [max(s.pack for s in plan) for plan in self.plans]
        self.groups = [-(-s.columns.count // pack) for s, pack in zip(chain.segments, self.packs, strict=True)]
        self.parks = [parked(plan, pack) for plan, pack in zip(self.plans, self.packs, strict=True)]

    def held_entries(self, segments: int) -> int:
        """Number of entries of a table row, counted from the second image's pixels, that the first segments read."""
        v, end = self.layout.vector, self.pixels
        if segments:
            end += self.program.channels * second_plane(*self.program.shape[1:], v)
        for step in (step for segment in self.chain.segments[:segments] for step in segment.steps):
            if (a := step.activation) is not None:
                plane = second_plane(*a.shape[1:], v, self.cycles.get(a.shape[1]))
                end = max(end, self.layout.second[a.site] + self.layout.sites[a.site].planes * plane)
        return end - self.pixels

    def kernel(self, launch: SheetLaunch) -> tuple[str, Launch]:
        chain, item = self.chain, 4 if self.dtype == "float" else 8
        self.slots = 1 if launch.warps == 1 else 2 * SIDES
        pooled = [len(s.registers.starts) * self.area(s) for s in chain.segments[1:]]
        self.starts = [sum(pooled[:k]) for k in range(len(pooled))]
        self.held = self.held_entries(launch.held)
        per_pair = -(-sum(pooled) // 4) * 4
        shared_pool = per_pair if self.slots == 1 else 0
        park = max(size for _, size in self.parks)
        warps = launch.warps * launch.pairs
        self.warps = launch.warps
        self.runs = [
            runs(fine.rows, coarse.rows, coarse.start.shape[1], run_count(fine.rows.count, groups, launch.warps))
            for (fine, coarse), groups in zip(pairwise(chain.segments), self.groups, strict=False)
        ]
        for self.k in range(len(chain.segments)):
            self._segment()
        start = [f"fma({self.number(chain.scales[0])}, K, {self.number(chain.bias)})"]
        start += [f"{self.number(scale)} * T" for scale in chain.scales[1:]]
        totals = TOTALS[: len(chain.scales)]
        park_at = self.held + launch.pairs * shared_pool
        parts_at = park_at + warps * park
        shared = (parts_at + (warps * len(totals) if launch.warps > 1 else 0)) * item
        scratch = launch.pairs * -(-(per_pair * item if self.slots > 1 else 0) // 256) * 256
        pool = f"real* pool = (real*)dynamic_shared + {self.held} + mine * {shared_pool};"
        # Blocks with scratch memory of their own loop over the pairs; otherwise there is a block for each.
        loop, leave = "{ const long long unit = blockIdx.x;", "return"
        if scratch:
            pool = f"real* pool = (real*)(scratch + (long long)blockIdx.x * {scratch})"
            pool += f" + mine * {scratch // launch.pairs // item};"
            loop = "for (long long unit = blockIdx.x; unit < tall * m; unit += gridDim.x) {"
            leave = "continue"
        own = f"""const long long top = unit % tall * {launch.pairs}, j = unit / tall;
        if (j < top + below) {leave};
        const vec* t2 = (const vec*)(second + j * {self.row});"""
        if self.held:
            v = self.layout.vector
            own += f"""
        vec* table2 = dynamic_shared;
        for (int e = threadIdx.x; e < {self.held // v}; e += {LANES * warps}) table2[e] = t2[{self.pixels // v} + e];
        __syncthreads();"""
        if launch.warps > 1:  # warps wait for each other, so none of a block may leave
            own += "\n        const long long i = min(top + mine, n - 1LL);"
        else:
            own += f"\n        const long long i = top + mine;\n        if (i >= n || j < i + below) {leave};"
        text = f"""\
{chr(10).join(self.definitions)}
{scalar_network(chain.tail, self.data, self.dtype, chain.units, start)}
extern "C" __global__ void __launch_bounds__({LANES * warps}, {launch.resident})
pairs(const real* __restrict__ first, const real* __restrict__ second, real* __restrict__ out,
      real* __restrict__ mirror, int n, int m, long long ld, long long below{THETA_ARGUMENTS * (len(totals) > 1)},
      char* __restrict__ scratch)
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
{chr(10).join(self.lines)}{self._end(launch, warps, parts_at)}"""
        resident = launch.resident if scratch else 0
        return text, Launch(LANES * warps, shared, scratch, launch.pairs, 1, resident, ("scratch",))

    def _end(self, launch: SheetLaunch, warps: int, at: int) -> str:
        """Write the sums over all lanes and warps of a pair, and the scalar steps."""
        totals, many = TOTALS[: len(self.chain.scales)], launch.warps > 1
        whole, gather = "", ""
        for k, total in enumerate(totals):
            whole += f"\n        for (int o = 16; o > 0; o /= 2) {total} += __shfl_xor_sync(ALL, {total}, o);"
            gather += f"""
        real* parts{k or ""} = (real*)dynamic_shared + {at + k * warps};
        if (lane == 0) parts{k or ""}[warp] = {total};
        __syncthreads();
        {total} = {self.number(0.0)};
        for (int k = 0; k < {launch.warps}; k++) {total} += parts{k or ""}[warp - among + k];"""
        rows = f"first + i * {self.row}, second + j * {self.row}"
        result = f"            const real K = network(total, {rows});"
        if len(totals) > 1:
            result = f"            real T;\n            const real K = network(total, {rows}, {totals[1]}, T);"
        return f"""{whole}{gather * many}
        if (lane == 0{" && among == 0 && i == top + mine && j >= i + below" * many}) {{
{result}
{stores("K", len(totals) > 1, " " * 12)}
        }}
        {"__syncthreads();" if many else "__syncwarp();"}
    }}
}}
"""

    def _walls(self, size: int, shifts: tuple[int, ...]) -> str:
        """Table of a factor for each item and row: 0 if the wall is in front of the row, else 1."""
        v = self.layout.vector
        rows = [[0 if r == size - s else 1 for r in range(-(-size // v) * v)] for s in shifts]
        groups = [f"{{{', '.join(map(str, row[g : g + v]))}}}" for row in rows for g in range(0, len(row), v)]
        space = "__constant__" if len(groups) <= CONSTANT_MOST else "__device__ const"
        return self.array("walls_at", f"{space} vec", tuple(groups))

    def _segment(self) -> None:
        k, segment = self.k, self.segment
        rows, groups, last = segment.rows, self.groups[k], k + 1 == len(self.plans)
        self.put("", f"// ==== segment {k + 1} of {len(self.plans)}: {rows.count} x {segment.columns.count} shifts")
        tasks = groups * (rows.count if last else self.runs[k].count)
        loop = "#pragma unroll 1", f"for (int task = among; task < {tasks}; task += {self.warps}) {{"
        if last:
            with self.block(*loop):
                self.put(f"const int iy = task / {groups}, group = task - iy * {groups};")
                self._shift()
            return
        if self.slots == 1:
            following = self.chain.segments[k + 1]
            count = len(following.registers.starts) * self.area(following)
            self.put(
                f"for (int e = lane; e < {count}; e += {LANES}) pool[{self.starts[k]} + e] = {self.number(0.0)};",
                "__syncwarp();",
            )
        with self.block(*loop):
            h = self.chain.segments[k + 1].start.shape[1]
            names = [f"sums{which or ''}" for which, _ in enumerate(segment.registers.ends)]
            self.put(
                f"const int run = task / {groups}, group = task - run * {groups};",
                f"real {', '.join(f'{name}[{h}]' for name in names)};",
            )
            items = f"int iy = 0; iy < {rows.count}"
            if self.runs[k].count > 1:  # broadcast, so that the compiler knows that a warp does not diverge
                starts = self.array("run", SHORT, self.runs[k].starts)
                self.put(f"const int end = __shfl_sync(ALL, (int){starts}[run + 1], 0);")
                items = f"int iy = __shfl_sync(ALL, (int){starts}[run], 0); iy < end"
            for name in names:
                self.per_row(h, f"{name}[r] = {self.number(0.0)};")
            with self.block("#pragma unroll 1", f"for ({items}; iy++) {{"):
                self._shift()
        self.put("__syncwarp();" if self.slots == 1 else "__syncthreads();")

    def _shift(self) -> None:
        """Write one shift of the rows, `iy`, with the shifts of the columns in `group`."""
        k, segment, v = self.k, self.segment, self.layout.vector
        for size, shift in sorted(segment.rows.at.items()):
            groups_of = tuple(s % v * second_groups(size, v, segment.rows.cycle(size)) + s // v for s in shift)
            self.put(
                f"const int sy_{size} = {self.array('row_shift', SHORT, shift)}[iy];",
                f"const int gy_{size} = {self.array('row_group', SHORT, groups_of)}[iy];",
                f"const vec* walls_{size} = {self._walls(size, shift)} + iy * {-(-size // v)};",
            )
        pack, count = self.packs[k], segment.columns.count
        most = f"{pack}" if count % pack == 0 else f"min({pack}, {count} - group * {pack})"
        # A position without a shift of its own reads memory that was written.
        self.stages(self.plans[k], self.parks[k][0], most, (f"(ix - group * {pack})", "place"))

    def names(self, stage: Stage, maps: Sequence[Map]) -> None:
        lanes, pack, columns = stage.lanes, self.packs[self.k], self.segment.columns
        self.put(
            f"const int col = lane % {lanes}, place = q + lane / {lanes};",
            f"const int ix = min(group * {pack} + place, {columns.count - 1});",
            f"const bool live = group * {pack} + place < {columns.count};",
        )
        for size in sorted({m.shape[2] for m in maps}):
            cycle = columns.cycle(size)
            self.put(
                f"const int sx_{size} = {self.array('column_shift', SHORT, columns.at[size])}[ix];",
                f"int zc_{size} = min(col, {size - 1}) + sx_{size};",
                f"if (zc_{size} >= {cycle}) zc_{size} -= {cycle};",
            )
            if cycle > size:
                self.put(f"zc_{size} = min(zc_{size}, {size - 1});")

    def first_maps(self) -> None:
        if self.k > 0:
            self.pooled()
            return
        start, v = self.segment.start, self.layout.vector
        _, h, w = start.shape
        second, held = self.address(self.pixels)
        self.product(start, f"{second} + c * {second_plane(h, w, v) // v} + gy_{h} * {w} + zc_{w} + g * {w}", held)

    def last_maps(self, stage: Stage) -> None:
        if self.k + 1 < len(self.plans):
            self.pool(stage)
        else:
            self.weighted()
