"""The kernels that walk through a program: a block of threads owns one image, or one pair of images, at a time.

    tables       single images: the variance recursion, for every program
    pairs        pairs, if no faster kernel fits, and for the programs of gradients
    phase        a gradient's pairs, forwards and backwards, in the working precision
    self_pairs   a gradient's images with themselves, in float64: from the shares of their variances to the sums

A pair of a gradient adds to sums over all pairs, and to the shares of its two images' variances. So that no two blocks
add to the same image at once, a launch takes pairs in which every image occurs at most once: a `phase`. An image's
shares are added in the order of the phases, and so are the sums, of which every pair of a phase has its own. So the
results are the same in every run, on any number of blocks.

An image is paired with itself at equal locations, where the maps are the variances and receive the shares from pairs,
and with pools also at two different locations.
"""

from __future__ import annotations

from ..kernel_frame import THETA_ARGUMENTS, Launch, TableLayout, stores
from .program_data import BACKWARD, TO_PIXELS, TOTAL, ProgramData
from .program_walk import GIVEN_TEXT, memory, walk


def tables_kernel(data: ProgramData, shared_limit: int) -> tuple[str, Launch]:
    """Write `tables`: X (N, channels, locations) → table rows, largest variances, K(x, x) and Θ(x, x)."""
    place, launch = memory(data, "double", shared_limit, own=True)
    results = "".join(
        f"\n        if (threadIdx.x == 0) diagonal[{k} * (long long)n + i] = numbers[{data.units_at + k}] * mem[{end}];"
        for k, end in enumerate(data.ends)
    )
    text = f"""
{_copy_planes(data.layout)}
extern "C" __global__ void tables(const real* __restrict__ X, real* __restrict__ rows, double* __restrict__ all_peaks,
                                  double* __restrict__ diagonal, int n, {GIVEN_TEXT})
{{
    {place}
    for (int i = blockIdx.x; i < n; i += gridDim.x) {{
        const real* image = X + (long long)i * {data.pixels};
        real* row = rows + (long long)i * {data.layout.row};
        double* peaks = all_peaks + (long long)i * {data.sites};
{walk(data, "double", data.forwards, own=True)}{results}
        const Copy* copies = (const Copy*)(program + {data.copies_at});
        copy_planes(row, image, copies[0]);
        for (int k = 1; k <= {len(data.program.activations)}; k++)
            copy_planes(row, own + copies[k].source, copies[k]);
        __syncthreads();
    }}
}}
"""
    return text, launch


def _copy_planes(layout: TableLayout) -> str:
    """Write the function that copies planes of numbers to a table row."""
    v = layout.vector
    slot = f"(r / {v} * copy.pitch + c) * {v} + r % {v}" if v > 1 else "at"
    fold = ""
    if layout.fold:
        fold = "\n        if (copy.pitch < copy.width) { r = 2 * r + c % 2; c /= 2; }  // a lane holds two columns"
    again = ""
    if layout.second:
        # If maps have fewer rows than the shifts, the missing ones are read but not used.
        cycle = "".join(f"height == {n} ? {c} : " for n, c in layout.cycles.items()) + "height"
        r = f"(g % groups * {v} + g / groups + k) % cycle"
        again = f"""
    // The second image's: once for each remainder of a shift by {v}, so that any {v} rows are read at once.
    const int height = copy.size / copy.width, cycle = {cycle};
    const int groups = (cycle - 1) / {v} + (height + {v - 1}) / {v}, whole = {v} * groups * copy.width * {v};
    for (int e = threadIdx.x; e < copy.planes * whole; e += blockDim.x) {{
        const int p = e / whole, at = e - p * whole, k = at % {v}, c = at / {v} % copy.width;
        const int g = at / ({v} * copy.width), r = {f"min({r}, height - 1)" if layout.cycles else r};
        row[copy.twice + e] = (real)from[p * copy.size + r * copy.width + c];
    }}"""
    return f"""\
// Planes of numbers into a table row: where the first image's are read, and where the second's are.
template <class R> __device__ void copy_planes(real* row, const R* from, const Copy copy)
{{
    for (int e = threadIdx.x; e < copy.planes * copy.size; e += blockDim.x) {{
        const int p = e / copy.size, at = e - p * copy.size;
        int r = at / copy.width, c = at - r * copy.width;{fold}
        row[copy.offset + p * copy.plane + {slot}] = (real)from[e];
    }}{again}
}}"""


def pairs_kernel(data: ProgramData, real: str, shared_limit: int) -> tuple[str, Launch]:
    """Write `pairs`: K and optionally Θ of every pair, one pair per block at a time."""
    units = data.units_at
    place, launch = memory(data, real, shared_limit)
    theta = ""
    if data.tangents:
        theta = f"\n            const real T = (real)numbers[{units + 1}] * mem[{data.ends[1]}];"
    text = f"""
extern "C" __global__ void pairs(const real* __restrict__ first, const real* __restrict__ second,
                                 real* __restrict__ out, real* __restrict__ mirror, int n, int m, long long ld,
                                 long long below{THETA_ARGUMENTS * data.tangents}, {GIVEN_TEXT})
{{
    {place}
    for (long long pair = blockIdx.x; pair < (long long)n * m; pair += gridDim.x) {{
        const long long i = pair / m, j = pair % m;
        if (j < i + below) continue;
        const real* t1 = first + i * {data.layout.row};
        const real* t2 = second + j * {data.layout.row};
{walk(data, real, data.forwards, own=False)}
        if (threadIdx.x == 0) {{
            const real K = (real)numbers[{units}] * mem[{data.ends[0]}];{theta}
{stores("K", data.tangents, " " * 12)}
        }}
        __syncthreads();
    }}
}}
"""
    return text, launch


def gradient_kernels(data: ProgramData, real: str, shared_limit: int) -> tuple[str, dict[str, Launch]]:
    """Write `phase` (∂L/∂variances and sums of a phase's pairs) and `self_pairs` (sums and pixels of single images)."""
    backward = data.backward
    assert backward is not None
    place, pairs = memory(data, real, shared_limit, gradient=True)
    own_place, self_pairs = memory(data, "double", shared_limit, own=True, gradient=True)
    left = f"""
        for (int e = threadIdx.x; e < {backward.pixels}; e += blockDim.x)
            pixels[(long long)i * {backward.pixels} + e] = given[{backward.variances} + e];"""
    text = f"""\
// The sum of a number over the block, for thread 0 to read behind the next barrier.
template <class R> __device__ __forceinline__ void leave_sum(R value, R* parts)
{{
    for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(ALL, value, d);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
}}
template <class R> __device__ __forceinline__ double collected(const R* parts)
{{
    double total = 0.0;
    for (int w = 0; w < blockDim.x / 32; w++) total += (double)parts[w];
    return total;
}}
// A phase of n x m pairs with their weights: of two sets i + number = j or the other way round, of one set
// i + j = number, each modulo the number of images. Sums of the pair that stands at r in the phase are added to row r
// of `all_sums`.
extern "C" __global__ void __launch_bounds__({pairs.threads})
phase(const real* __restrict__ first, const real* __restrict__ second, const real* __restrict__ weights, int n, int m,
      int number, int one_set, real* shares1, real* shares2, double* __restrict__ all_sums,
      {GIVEN_TEXT})
{{
    __shared__ real all_parts[2][64];
    {place}
    const int count = one_set ? n : min(n, m);
    for (int r = blockIdx.x; r < count; r += gridDim.x) {{
        long long i = r, j = r;
        if (one_set) j = number >= r ? number - r : number - r + n;
        else if (n <= m) j = r + number < m ? r + number : r + number - m;
        else i = r + number < n ? r + number : r + number - n;
        if (one_set && j <= i) continue;
        const real weight = weights[i * m + j];
        if (weight == 0) continue;
        const real* t1 = first + i * {data.layout.row};
        const real* t2 = second + j * {data.layout.row};
        real* mine = shares1 + i * {backward.entries};
        real* theirs = shares2 + j * {backward.entries};
        for (int s = threadIdx.x; s < {backward.slots}; s += blockDim.x) sums[s] = 0.0;
        if (threadIdx.x == 0) mem[{backward.seed}] = weight;
        __syncthreads();
{walk(data, real, len(data.ops), False, _backward(data, real, False))}
        __syncthreads();
        for (int s = threadIdx.x; s < {backward.slots}; s += blockDim.x)
            all_sums[(long long)r * {backward.slots} + s] += sums[s];
        __syncthreads();
    }}
}}

extern "C" __global__ void __launch_bounds__({self_pairs.threads})
self_pairs(const real* __restrict__ rows, const double* __restrict__ seeds, const real* __restrict__ shares,
           double* __restrict__ all_sums, double* __restrict__ pixels, double* __restrict__ all_peaks, int n,
           {GIVEN_TEXT})
{{
    __shared__ double all_parts[2][64];
    {own_place}
    double *mine = given, *theirs = given;
    for (int i = blockIdx.x; i < n; i += gridDim.x) {{
        const real* image = rows + (long long)i * {data.layout.row};  // a row begins with the pixels
        double* peaks = all_peaks + (long long)i * {data.sites};
        for (int e = threadIdx.x; e < {backward.entries}; e += blockDim.x)
            given[e] = (double)shares[(long long)i * {backward.entries} + e];
        for (int s = threadIdx.x; s < {backward.slots}; s += blockDim.x) sums[s] = 0.0;
        if (threadIdx.x == 0) mem[{backward.seed}] = seeds[i];
        __syncthreads();
{walk(data, "double", len(data.ops), True, _backward(data, "double", True))}
        __syncthreads();
        for (int s = threadIdx.x; s < {backward.slots}; s += blockDim.x)
            all_sums[(long long)i * {backward.slots} + s] = sums[s];{left * backward.to_images}
        __syncthreads();
    }}
}}
"""
    return text, {"phase": pairs, "self_pairs": self_pairs}


def _backward(data: ProgramData, real: str, own: bool) -> str:
    """Write the backward steps of a pair or of an image with itself, and the sums."""
    assert data.backward is not None
    layers, branches = range(len(data.layers)), ""
    if own:
        cases = "".join(f"                case {k}: s = exact::still_{k}(K, op, x, panels); break;\n" for k in layers)
        branches += f"""\
 else if (op.kind == {BACKWARD} && op.still) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const double K = mem[op.src + e], h = mem[op.times + e];
                exact::Still s = {{}};
                switch (op.formula) {{
{cases}                }}
                value = fma(h, s.value, value);
                extra = fma(h, s.extra, extra);
                const double g = x.scale * h * s.slope + s.factor * given[op.shares + op.first + place(op, e)];
                if (op.writes) mem[op.dst + e] = x.keep == 0.0 ? g : g + mem[op.dst + e];
            }}
        }}"""
    if data.moving or not own:
        space = "exact::" * own
        first, second = ("own + op.own", "own + op.own") if own else ("t1 + op.offset", "t2 + op.offset")
        arguments = f"{first} + op.first + at, {second} + op.second + at, {'op.whole' if own else 'op.plane'}"
        cases = "".join(
            f"                case {k}: b = {space}parts_{k}(K, op, x, {arguments}); break;\n" for k in layers
        )
        later = f"""
            __syncthreads();  // a place that is first of one element is second of another
            for (int e = threadIdx.x; e < op.size; e += blockDim.x)
                theirs[op.shares + op.second + place(op, e)] += mem[{data.size - 2 * data.temporary} + e];"""
        to = f"mem[{data.size - 2 * data.temporary} + e] =" if own else "theirs[op.shares + op.second + at] +="
        branches += f"""\
 else if (op.kind == {BACKWARD}) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const int at = place(op, e);
                const {real} K = mem[op.src + e], h = mem[op.times + e], t = ({real})x.scale * h;
                {space}Parts b = {{}};
                switch (op.formula) {{
{cases}                }}
                value = fma(h, b.value, value);
                extra = fma(h, b.extra, extra);
                if (op.writes) mem[op.dst + e] = x.keep == 0.0 ? t * b.slope : fma(t, b.slope, mem[op.dst + e]);
                mine[op.shares + op.first + at] += t * b.first;
                {to} t * b.second;
            }}{later * own}
        }}"""
    if data.backward.to_images:
        images, plane = "image" if own else "(turn ? t1 : t2)", data.layout.input.plane
        branches += f"""\
 else if (op.kind == {TO_PIXELS}) {{
            // Pixels of the first image, then those of the second, which may be the same one.
            for (int turn = 0; turn < 2; turn++) {{
                {real}* to = (turn ? theirs : mine) + op.shares;
                for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                    const int at = place(op, e), here = (turn ? op.second : op.first) + at;
                    const int there = (turn ? op.first : op.second) + at;
                    for (long long c = 0; c < {data.program.channels * plane}; c += {plane})
                        to[c + here] += mem[op.dst + e] * ({real}){images}[c + there];
                }}
                __syncthreads();
            }}
        }}"""
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
