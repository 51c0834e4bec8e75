"""The kernels that walk through a program: `tables` for images, and `pairs` where no faster kernel fits.

A block of threads owns an image, or a pair of images, at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

from .kernel_frame import THETA_ARGUMENTS, Launch, stores
from .program_data import ProgramData
from .program_walk import (
    Memory,
    known_passes,
    own_formulas,
    own_product,
    pair_formulas,
    pair_product,
    threads,
    walk,
)


def tables_kernel(data: ProgramData, shared_limit: int, cycles: Mapping[int, int] | None = None) -> tuple[str, Launch]:
    """X (N, channels, locations) → table rows, the largest variance at each nonlinearity, K(x, x) and Θ(x, x).

    The walk in float64 of an image with itself: the variance recursion. `cycles` are those of a `Chain` whose rows have
    a second part.
    """
    program, units = data.program, data.units_at
    memory = Memory.of_image(data, shared_limit)
    results = "".join(
        f"\n        if (threadIdx.x == 0) diagonal[{k} * (long long)n + i] = numbers[{units + k}] * mem[{end}];"
        for k, end in enumerate(data.ends)
    )
    text = f"""
{known_passes(data) * (not data.moving)}{_copy_planes(data, cycles)}
extern "C" __global__ void tables(const real* __restrict__ X, real* __restrict__ rows, double* __restrict__ all_peaks,
                                  double* __restrict__ diagonal, int n, char* __restrict__ scratch,
                                  const double* __restrict__ panels, const int* __restrict__ program,
                                  const double* __restrict__ numbers)
{{
    {memory.text}
    for (int i = blockIdx.x; i < n; i += gridDim.x) {{
        const real* image = X + (long long)i * {data.pixels};
        real* row = rows + (long long)i * {data.row};
        double* peaks = all_peaks + (long long)i * {data.sites};
{walk(data, "double", data.forwards, own_formulas(data), own_product(data), not data.moving)}{results}
        const Copy* copies = (const Copy*)(program + {data.copies_at});
        copy_planes(row, image, copies[0]);
        for (int k = 1; k < {1 + len(program.activations)}; k++) copy_planes(row, own + copies[k].source, copies[k]);
        __syncthreads();
    }}
}}
"""
    return text, Launch(threads(data), memory.shared, memory.scratch)


def _copy_planes(data: ProgramData, cycles: Mapping[int, int] | None) -> str:
    """The function that writes planes of numbers to a table row."""
    v = data.layout.vector
    slot = f"(r / {v} * copy.pitch + c) * {v} + r % {v}" if v > 1 else "at"
    fold = ""
    if data.layout.fold:
        fold = "\n        if (copy.pitch < copy.width) { r = 2 * r + c % 2; c /= 2; }  // a lane holds two columns"
    again = ""
    if cycles is not None:
        # Where maps have fewer rows than the shifts, those that are missing are read but count nothing.
        cycle = "".join(f"height == {n} ? {c} : " for n, c in cycles.items()) + "height"
        r = f"(g % groups * {v} + g / groups + k) % cycle"
        again = f"""
    // The second image's: once for each remainder of a shift by {v}, so that any {v} rows are read at once.
    const int height = copy.size / copy.width, cycle = {cycle};
    const int groups = (cycle - 1) / {v} + (height + {v - 1}) / {v}, whole = {v} * groups * copy.width * {v};
    for (int e = threadIdx.x; e < copy.planes * whole; e += blockDim.x) {{
        const int p = e / whole, at = e - p * whole, k = at % {v}, c = at / {v} % copy.width;
        const int g = at / ({v} * copy.width), r = {f"min({r}, height - 1)" if cycles else r};
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


def pairs_kernel(data: ProgramData, dtype: str, shared_limit: int) -> tuple[str, Launch]:
    """K, and perhaps Θ, of every pair, one pair a block at a time."""
    units = data.units_at
    memory = Memory.of(data, "real", 4 if dtype == "float" else 8, shared_limit)
    theta = ""
    if data.tangents:
        theta = f"\n            const real T = (real)numbers[{units + 1}] * mem[{data.ends[1]}];"
    text = f"""
{known_passes(data) * data.moving}\
extern "C" __global__ void pairs(const real* __restrict__ first, const real* __restrict__ second,
                                 real* __restrict__ out, real* __restrict__ mirror, int n, int m, long long ld,
                                 long long below{THETA_ARGUMENTS * data.tangents}, char* __restrict__ scratch,
                                 const int* __restrict__ program, const double* __restrict__ numbers)
{{
    {memory.text}
    for (long long pair = blockIdx.x; pair < (long long)n * m; pair += gridDim.x) {{
        const long long i = pair / m, j = pair % m;
        if (j < i + below) continue;
        const real* t1 = first + i * {data.row};
        const real* t2 = second + j * {data.row};
{walk(data, "real", data.forwards, pair_formulas(data), pair_product(data), True)}
        if (threadIdx.x == 0) {{
            const real K = (real)numbers[{units}] * mem[{data.ends[0]}];{theta}
{stores("K", data.tangents, " " * 12)}
        }}
        __syncthreads();
    }}
}}
"""
    return text, Launch(threads(data), memory.shared, memory.scratch)
