"""The kernel for pairs of images, in the working precision: a block of threads for each pair of a phase (source.py)."""

from __future__ import annotations

from ..math import Constants, pair_back
from .parts import Memory, simple_steps, sums
from .walk import BACK, OPERATION, TO_PIXELS, BackWalk


def pairs_kernel(walk: BackWalk, memory: Memory, threads: int) -> str:
    program, layout = walk.program, walk.layout
    c = Constants("(real)x.unit", "(real)x.alpha", "(real)x.beta", "op.even", "op.odd", "op.shifts")
    cases, backs = walk.pair_formulas("op.first + at", "op.second + at"), []
    tables = [f"{t} + op.offset + op.{o} + at" for t, o in (("t1", "first"), ("t2", "second"))]
    for k, (layer, _) in enumerate(walk.layers):
        backs.append(
            f"""\
            case {k}: for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const int at = place(op, e);
                const real K = mem[op.src + e];
                const Parts b = {pair_back(layer, c, tables, "op.plane")};
                way_back(op, x, way, b, e, at, mem, mine, theirs, value, extra);
            }} break;
"""
        )

    def pixel(row: str, where: str) -> str:
        return f"{row}[(long long)c * {layout.input.plane} + op.{where} + at]"

    product = f"fma({pixel('t1', 'first')}, {pixel('t2', 'second')}, f)"
    to_pixels = f"""\
 else if (way.kind == {TO_PIXELS}) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const int at = place(op, e);
                const real g = mem[op.dst + e];
                for (int c = 0; c < {program.channels}; c++) {{
                    mine[way.shares + c * {layout.input.plane} + op.first + at] += g * {pixel("t2", "second")};
                    theirs[way.shares + c * {layout.input.plane} + op.second + at] += g * {pixel("t1", "first")};
                }}
            }}
        }}"""
    return f"""
{walk.known_passes()}// What comes back to a nonlinearity at element e goes three ways: to K, and to both variances.
__device__ __forceinline__ void way_back(const Op& op, const Numbers& x, const Way& way, const Parts b, int e, int at,
                                         real* mem, real* mine, real* theirs, real& value, real& extra)
{{
    const real h = mem[way.times + e], t = (real)x.scale * h;
    value = fma(h, b.value, value);
    extra = fma(h, b.extra, extra);
    if (way.writes) mem[op.dst + e] = x.keep == 0.0 ? t * b.slope : fma(t, b.slope, mem[op.dst + e]);
    mine[way.shares + op.first + at] += t * b.first;
    theirs[way.shares + op.second + at] += t * b.second;
}}
// A phase of n x m pairs with their weights: of two sets i + phase = j or the other way round, of one set
// i + j = phase, each modulo the number of images. Sums of the pair that stands at r in the phase are added to row r of
// `all_sums`.
extern "C" __global__ void __launch_bounds__({threads})
pairs(const real* __restrict__ first, const real* __restrict__ second, const real* __restrict__ weights, int n, int m,
      int phase, int one_set, real* shares1, real* shares2, double* __restrict__ all_sums, char* __restrict__ scratch,
      const int* __restrict__ plan, const double* __restrict__ numbers, const int* __restrict__ ways)
{{
    __shared__ real all_parts[2][64];
    {memory.text}
    const int count = one_set ? n : min(n, m);
    for (int r = blockIdx.x; r < count; r += gridDim.x) {{
    long long i = r, j = r;
    if (one_set) j = phase >= r ? phase - r : phase - r + n;
    else if (n <= m) j = r + phase < m ? r + phase : r + phase - m;
    else i = r + phase < n ? r + phase : r + phase - n;
    if (one_set && j <= i) continue;
    const real weight = weights[i * m + j];
    if (weight == 0) continue;
    const real* t1 = first + i * {layout.row};
    const real* t2 = second + j * {layout.row};
    real* mine = shares1 + i * {walk.entries};
    real* theirs = shares2 + j * {walk.entries};
    for (int s = threadIdx.x; s < {walk.slots}; s += blockDim.x) sums[s] = 0.0;
    if (threadIdx.x == 0) mem[{walk.seed}] = weight;
    __syncthreads();
    for (int k = 0; k < {len(walk.ways)}; k++) {{
        const Way way = ((const Way*)ways)[k];
        if (way.kind == {OPERATION}) {{
{walk.operation("real", cases, product, "run_known(op.pass + s, ")}
        continue;
        }}
        const Op op = ((const Op*)plan)[k];
        const Numbers x = ((const Numbers*)numbers)[k];
        real value = 0, extra = 0;
{simple_steps("real")} else if (way.kind == {BACK}) {{
            switch (op.formula) {{
{"".join(backs)}            }}
        }}{to_pixels if walk.to_images else ""}
{sums("real")}    }}
    __syncthreads();
    for (int s = threadIdx.x; s < {walk.slots}; s += blockDim.x)
        all_sums[(long long)r * {walk.slots} + s] += sums[s];
    __syncthreads();
    }}
}}
"""
