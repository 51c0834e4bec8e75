"""The kernels for an image with itself, in float64: `tables` goes forwards, `selves` forwards and backwards.

At equal places the maps are the variances, and there the shares that they got from pairs, and from two places of the
image under a pool, join the way back.
"""

from __future__ import annotations

import math

from cnngp.network.layers import Elementwise

from .parts import Memory, simple_steps, sums
from .walk import BACK, OPERATION, TO_PIXELS, BackWalk


def own_walk(walk: BackWalk) -> str:
    """An image with itself: steps forwards, which leave its table, and as many of the way back as are asked for."""
    cases = []
    for k, (layer, _) in enumerate(walk.layers):
        own = "own + owns[op.site]"
        value = f"exact::nonlinearity_{k}(K, op, x, {own}, sizes[op.site], at, peaks + op.site, panels)"
        if isinstance(layer, Elementwise):
            behind = f"{own} + (1 + op.even + op.odd) * sizes[op.site] + op.first + at"
            series = (
                f"exact::series_behind(sqrt(x.unit * K), panels + op.series, {behind}, sizes[op.site], op.even, op.odd)"
            )
            value = f"({value}) + (op.still ? {series} : 0.0)"
        cases.append(value)
    pixel = [
        f"(double)image[(long long)c * {math.prod(walk.program.shape)} + op.{w} + at]" for w in ("first", "second")
    ]
    layers = range(len(walk.layers))
    stills = "".join(f"                case {k}: s = exact::still_{k}(K, op, x, panels); break;\n" for k in layers)
    backs = "".join(
        f"                case {k}: b = exact::back_{k}(K, op, x, mine, other, whole); break;\n" for k in layers
    )
    sites = walk.program.activations
    owns = ", ".join(str(walk.own[a.site]) for a in sites) or "0"
    sizes = ", ".join(str(a.size) for a in sites) or "0"
    count = math.prod(walk.program.shape)
    to_pixels = f"""\
 else if (way.kind == {TO_PIXELS}) {{
            // Places of the first image, then those of the second, which is the same one.
            for (int turn = 0; turn < 2; turn++) {{
                for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                    const int at = place(op, e), here = (turn ? op.second : op.first) + at;
                    const int there = (turn ? op.first : op.second) + at;
                    for (int c = 0; c < {walk.program.channels}; c++)
                        given[way.shares + c * {count} + here] += mem[op.dst + e] * (double)image[c * {count} + there];
                }}
                __syncthreads();
            }}
        }}"""
    return f"""
__device__ const int owns[] = {{{owns}}}, sizes[] = {{{sizes}}};
__device__ void own_walk(int steps, const real* image, double* mem, double* own, double* given, double* sums,
                         double* peaks, const double* panels, const int* plan, const double* numbers, const int* ways)
{{
    __shared__ double all_parts[2][64];
    for (int k = 0; k < steps; k++) {{
        const Way way = ((const Way*)ways)[k];
        if (way.kind == {OPERATION}) {{
{walk.operation("double", cases, f"fma({pixel[0]}, {pixel[1]}, f)")}
        continue;
        }}
        const Op op = ((const Op*)plan)[k];
        const Numbers x = ((const Numbers*)numbers)[k];
        double value = 0.0, extra = 0.0;
{simple_steps("double")} else if (way.kind == {BACK} && op.still) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const double K = mem[op.src + e], h = mem[way.times + e];
                exact::Still s = {{}};
                switch (op.formula) {{
{stills}                }}
                value = fma(h, s.value, value);
                extra = fma(h, s.extra, extra);
                const double g = x.scale * h * s.slope + s.factor * given[way.shares + op.first + place(op, e)];
                if (way.writes) mem[op.dst + e] = x.keep == 0.0 ? g : g + mem[op.dst + e];
            }}
        }} else if (way.kind == {BACK}) {{
            const double* table = own + owns[op.site];
            const int whole = sizes[op.site];
            double* seconds = mem + {walk.size - 2 * walk.temporary};
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const int at = place(op, e);
                const double K = mem[op.src + e], h = mem[way.times + e], t = x.scale * h;
                const double *mine = table + op.first + at, *other = table + op.second + at;
                exact::Parts b = {{}};
                switch (op.formula) {{
{backs}                }}
                value = fma(h, b.value, value);
                extra = fma(h, b.extra, extra);
                if (way.writes) mem[op.dst + e] = x.keep == 0.0 ? t * b.slope : fma(t, b.slope, mem[op.dst + e]);
                given[way.shares + op.first + at] += t * b.first;
                seconds[e] = t * b.second;
            }}
            __syncthreads();  // a place that is first of one element is second of another
            for (int e = threadIdx.x; e < op.size; e += blockDim.x)
                given[way.shares + op.second + place(op, e)] += seconds[e];
        }}{to_pixels if walk.to_images else ""}
{sums("double")}    }}
    __syncthreads();
}}
"""


def tables_kernel(walk: BackWalk, memory: Memory, threads: int) -> str:
    return f"""
extern "C" __global__ void __launch_bounds__({threads})
tables(const real* __restrict__ X, real* __restrict__ rows, double* __restrict__ all_peaks, int n,
       char* __restrict__ scratch, const double* __restrict__ panels, const int* __restrict__ plan,
       const double* __restrict__ numbers, const int* __restrict__ ways)
{{
    {memory.text}
    for (int i = blockIdx.x; i < n; i += gridDim.x) {{
        const real* image = X + (long long)i * {walk.pixels};
        real* row = rows + (long long)i * {walk.layout.row};
        double* peaks = all_peaks + (long long)i * {max(1, len(walk.program.activations))};
        own_walk({walk.forwards}, image, mem, own, given, sums, peaks, panels, plan, numbers, ways);
        for (int e = threadIdx.x; e < {walk.pixels}; e += blockDim.x) row[e] = image[e];
        for (int e = threadIdx.x; e < {walk.own_size}; e += blockDim.x) row[{walk.pixels} + e] = (real)own[e];
        __syncthreads();
    }}
}}
"""


def selves_kernel(walk: BackWalk, memory: Memory, threads: int) -> str:
    left = f"""
        for (int e = threadIdx.x; e < {walk.pixels}; e += blockDim.x)
            pixels[(long long)i * {walk.pixels} + e] = given[{walk.variances} + e];"""
    return f"""
extern "C" __global__ void __launch_bounds__({threads})
selves(const real* __restrict__ X, const double* __restrict__ seeds, const real* __restrict__ shares,
       double* __restrict__ all_sums, double* __restrict__ pixels, double* __restrict__ all_peaks, int n,
       char* __restrict__ scratch, const double* __restrict__ panels, const int* __restrict__ plan,
       const double* __restrict__ numbers, const int* __restrict__ ways)
{{
    {memory.text}
    for (int i = blockIdx.x; i < n; i += gridDim.x) {{
        const real* image = X + (long long)i * {walk.pixels};
        double* peaks = all_peaks + (long long)i * {max(1, len(walk.program.activations))};
        for (int e = threadIdx.x; e < {walk.entries}; e += blockDim.x)
            given[e] = (double)shares[(long long)i * {walk.entries} + e];
        for (int s = threadIdx.x; s < {walk.slots}; s += blockDim.x) sums[s] = 0.0;
        if (threadIdx.x == 0) mem[{walk.seed}] = seeds[i];
        __syncthreads();
        own_walk({len(walk.ways)}, image, mem, own, given, sums, peaks, panels, plan, numbers, ways);
        for (int s = threadIdx.x; s < {walk.slots}; s += blockDim.x)
            all_sums[(long long)i * {walk.slots} + s] = sums[s];{left if walk.to_images else ""}
        __syncthreads();
    }}
}}
"""
