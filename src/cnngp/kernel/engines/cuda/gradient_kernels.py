"""The kernels of a gradient as CUDA text, beside `tables` (walk_kernels.py).

    pairs        a block of threads for each pair: forwards and backwards, in the working precision
    self_pairs   an image with itself, forwards and backwards, in float64: from the shares of its variances to the sums

A pair adds to sums over all pairs, and to the shares of its two images' variances. So that no two blocks add to the
same image at a time, a launch of `pairs` takes pairs in which every image stands once at most: a `phase`. An image's
shares are added up in the order of the phases, and so are the sums, of which every pair of a phase has its own. That
makes results the same in every run, on any number of blocks.

An image meets itself at equal places, where the maps are the variances and join what they got from pairs, and below a
pool at two places.
"""

from __future__ import annotations

from .kernel_frame import Launch
from .math import Constants, back_formulas, pair_back, still_back, still_formulas
from .program_data import BACKWARD, TO_PIXELS, TOTAL, BackwardData, ProgramData
from .program_walk import (
    OWN_CONSTANTS,
    Memory,
    known_passes,
    own_formulas,
    own_product,
    pair_formulas,
    pair_product,
    threads,
    walk,
)

MOST_THREADS = 512
PARTS = 2 * 64 * 8  # bytes of shared memory that the sums of warps take beside the maps, at most

SUMS = """\
// The sum of a number over the block, for thread 0 to read behind the next barrier.
template <class R> __device__ __forceinline__ void leave_sum(R value, R* parts)
{
    for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(ALL, value, d);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
}
template <class R> __device__ __forceinline__ double collected(const R* parts)
{
    double total = 0.0;
    for (int w = 0; w < blockDim.x / 32; w++) total += (double)parts[w];
    return total;
}
"""


def exact_formulas(data: ProgramData) -> str:
    """The backward formulas in float64, for an image with itself."""
    layers = [layer for layer, _ in data.layers]
    found = [back_formulas("double", layers)] if data.moving else []
    found.append(still_formulas(layers))
    for k, layer in enumerate(layers):
        found.append(f"""\
__device__ Still still_{k}(double K, const Op& op, const Numbers& x, const double* panels)
{{
    return {still_back(layer, OWN_CONSTANTS)};
}}
""")
        if data.moving:
            found.append(f"""\
__device__ Parts backward_{k}(double K, const Op& op, const Numbers& x, const double* mine, const double* other)
{{
    return {pair_back(layer, OWN_CONSTANTS, ["mine", "other"], "op.whole")};
}}
""")
    return "".join(found)


def _steps(real: str, branches: str) -> str:
    """The backward steps: two that are the same for pairs and for images with themselves, `branches`, and the sums."""
    return f"""\
        {real} value = 0, extra = 0;
        if (op.kind == {TOTAL}) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) value += mem[op.src + e];
        }} else if (op.kind == {BACKWARD} && op.formula < 0) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const {real} h = mem[op.times + e], t = ({real})x.scale * h;
                value = fma(h, mem[op.src + e], value);
                if (op.writes) mem[op.dst + e] = x.keep == 0.0 ? t : t + mem[op.dst + e];
            }}
        }}{branches}
        {real}* parts = all_parts[k % 2];  // those of the step before may still be read
        if (op.slot >= 0) leave_sum(value, parts);
        if (op.extra_slot >= 0) leave_sum(extra, parts + 32);
        __syncthreads();
        if (threadIdx.x == 0) {{
            if (op.slot >= 0) sums[op.slot] += collected(parts);
            if (op.extra_slot >= 0) sums[op.extra_slot] += collected(parts + 32);
        }}
"""


def pairs_kernel(data: ProgramData, real: str, shared_limit: int) -> tuple[str, Launch]:
    """∂L/∂variances and sums of the pairs of a phase."""
    backward = _of(data)
    layers, block = [layer for layer, _ in data.layers], threads(data, MOST_THREADS)
    item = 4 if real == "float" else 8
    memory = Memory.of(data, "real", item, shared_limit - PARTS, sums=backward.slots)
    c = Constants("(real)x.unit", "(real)x.alpha", "(real)x.beta", "op.even", "op.odd", "op.shifts")
    tables = [f"{t} + op.offset + op.{o} + at" for t, o in (("t1", "first"), ("t2", "second"))]
    cases = "".join(
        f"""\
            case {k}: for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const int at = place(op, e);
                const real K = mem[op.src + e];
                const Parts b = {pair_back(layer, c, tables, "op.plane")};
                backward_step(op, x, b, e, at, mem, mine, theirs, value, extra);
            }} break;
"""
        for k, layer in enumerate(layers)
    )
    branches = (
        f" else if (op.kind == {BACKWARD}) {{\n            switch (op.formula) {{\n{cases}            }}\n        }}"
    )
    if backward.to_images:
        plane = data.layout.input.plane
        branches += f"""\
 else if (op.kind == {TO_PIXELS}) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const int at = place(op, e);
                const real g = mem[op.dst + e];
                for (int c = 0; c < {data.program.channels}; c++) {{
                    const long long one = (long long)c * {plane} + op.first + at;
                    const long long other = (long long)c * {plane} + op.second + at;
                    mine[op.shares + one] += g * t2[other];
                    theirs[op.shares + other] += g * t1[one];
                }}
            }}
        }}"""
    text = f"""
{back_formulas(real, layers)}\
{known_passes(data) * data.moving}\
// What comes back to a nonlinearity at element e goes three ways: to K, and to both variances.
__device__ __forceinline__ void backward_step(const Op& op, const Numbers& x, const Parts b, int e, int at, real* mem,
                                              real* mine, real* theirs, real& value, real& extra)
{{
    const real h = mem[op.times + e], t = (real)x.scale * h;
    value = fma(h, b.value, value);
    extra = fma(h, b.extra, extra);
    if (op.writes) mem[op.dst + e] = x.keep == 0.0 ? t * b.slope : fma(t, b.slope, mem[op.dst + e]);
    mine[op.shares + op.first + at] += t * b.first;
    theirs[op.shares + op.second + at] += t * b.second;
}}
// A phase of n x m pairs with their weights: of two sets i + phase = j or the other way round, of one set
// i + j = phase, each modulo the number of images. Sums of the pair that stands at r in the phase are added to row r of
// `all_sums`.
extern "C" __global__ void __launch_bounds__({block})
pairs(const real* __restrict__ first, const real* __restrict__ second, const real* __restrict__ weights, int n, int m,
      int phase, int one_set, real* shares1, real* shares2, double* __restrict__ all_sums, char* __restrict__ scratch,
      const int* __restrict__ program, const double* __restrict__ numbers)
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
        const real* t1 = first + i * {data.row};
        const real* t2 = second + j * {data.row};
        real* mine = shares1 + i * {backward.entries};
        real* theirs = shares2 + j * {backward.entries};
        for (int s = threadIdx.x; s < {backward.slots}; s += blockDim.x) sums[s] = 0.0;
        if (threadIdx.x == 0) mem[{backward.seed}] = weight;
        __syncthreads();
{walk(data, "real", len(data.ops), pair_formulas(data), pair_product(data), True, _steps("real", branches))}
        __syncthreads();
        for (int s = threadIdx.x; s < {backward.slots}; s += blockDim.x)
            all_sums[(long long)r * {backward.slots} + s] += sums[s];
        __syncthreads();
    }}
}}
"""
    return text, Launch(block, memory.shared, memory.scratch)


def self_pairs_kernel(data: ProgramData, shared_limit: int) -> tuple[str, Launch]:
    """The sums of images with themselves, from what the variances got, and the gradients of their pixels."""
    backward, block = _of(data), threads(data, MOST_THREADS)
    memory = Memory.of_image(data, shared_limit - PARTS, backward.entries, backward.slots)
    left = f"""
        for (int e = threadIdx.x; e < {backward.pixels}; e += blockDim.x)
            pixels[(long long)i * {backward.pixels} + e] = given[{backward.variances} + e];"""
    body = walk(
        data,
        "double",
        len(data.ops),
        own_formulas(data),
        own_product(data),
        not data.moving,
        _steps("double", _own_branches(data)),
    )
    text = f"""
extern "C" __global__ void __launch_bounds__({block})
self_pairs(const real* __restrict__ X, const double* __restrict__ seeds, const real* __restrict__ shares,
           double* __restrict__ all_sums, double* __restrict__ pixels, double* __restrict__ all_peaks, int n,
           char* __restrict__ scratch, const double* __restrict__ panels, const int* __restrict__ program,
           const double* __restrict__ numbers)
{{
    __shared__ double all_parts[2][64];
    {memory.text}
    for (int i = blockIdx.x; i < n; i += gridDim.x) {{
        const real* image = X + (long long)i * {data.pixels};
        double* peaks = all_peaks + (long long)i * {data.sites};
        for (int e = threadIdx.x; e < {backward.entries}; e += blockDim.x)
            given[e] = (double)shares[(long long)i * {backward.entries} + e];
        for (int s = threadIdx.x; s < {backward.slots}; s += blockDim.x) sums[s] = 0.0;
        if (threadIdx.x == 0) mem[{backward.seed}] = seeds[i];
        __syncthreads();
{body}
        __syncthreads();
        for (int s = threadIdx.x; s < {backward.slots}; s += blockDim.x)
            all_sums[(long long)i * {backward.slots} + s] = sums[s];{left * backward.to_images}
        __syncthreads();
    }}
}}
"""
    return text, Launch(block, memory.shared, memory.scratch)


def _own_branches(data: ProgramData) -> str:
    """The backward steps of an image with itself: at equal places, at two places, and to the pixels."""
    layers = range(len(data.layers))
    stills = "".join(f"                case {k}: s = exact::still_{k}(K, op, x, panels); break;\n" for k in layers)
    found = f"""\
 else if (op.kind == {BACKWARD} && op.still) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const double K = mem[op.src + e], h = mem[op.times + e];
                exact::Still s = {{}};
                switch (op.formula) {{
{stills}                }}
                value = fma(h, s.value, value);
                extra = fma(h, s.extra, extra);
                const double g = x.scale * h * s.slope + s.factor * given[op.shares + op.first + place(op, e)];
                if (op.writes) mem[op.dst + e] = x.keep == 0.0 ? g : g + mem[op.dst + e];
            }}
        }}"""
    if data.moving:
        cases = "".join(
            f"                case {k}: b = exact::backward_{k}(K, op, x, mine, other); break;\n" for k in layers
        )
        found += f"""\
 else if (op.kind == {BACKWARD}) {{
            double* seconds = mem + {data.size - 2 * data.temporary};
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const int at = place(op, e);
                const double K = mem[op.src + e], h = mem[op.times + e], t = x.scale * h;
                const double *mine = own + op.own + op.first + at, *other = own + op.own + op.second + at;
                exact::Parts b = {{}};
                switch (op.formula) {{
{cases}                }}
                value = fma(h, b.value, value);
                extra = fma(h, b.extra, extra);
                if (op.writes) mem[op.dst + e] = x.keep == 0.0 ? t * b.slope : fma(t, b.slope, mem[op.dst + e]);
                given[op.shares + op.first + at] += t * b.first;
                seconds[e] = t * b.second;
            }}
            __syncthreads();  // a place that is first of one element is second of another
            for (int e = threadIdx.x; e < op.size; e += blockDim.x)
                given[op.shares + op.second + place(op, e)] += seconds[e];
        }}"""
    if _of(data).to_images:
        plane = data.layout.input.plane
        found += f"""\
 else if (op.kind == {TO_PIXELS}) {{
            // Places of the first image, then those of the second, which is the same one.
            for (int turn = 0; turn < 2; turn++) {{
                for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                    const int at = place(op, e), here = (turn ? op.second : op.first) + at;
                    const int there = (turn ? op.first : op.second) + at;
                    for (int c = 0; c < {data.program.channels}; c++)
                        given[op.shares + c * {plane} + here] += mem[op.dst + e] * (double)image[c * {plane} + there];
                }}
                __syncthreads();
            }}
        }}"""
    return found


def _of(data: ProgramData) -> BackwardData:
    assert data.backward is not None
    return data.backward
