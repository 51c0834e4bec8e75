"""The kernels that run any program with pools: a block of threads owns a pair, and walks through the program (walk.py).

The tables' kernel is also that of the faster way (kernel.py); it only leaves more in a table row there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cnngp.kernel.program import Program

from ..results import THETA_ARGUMENTS, results, theta_diagonal
from ..walk import SHARED_MOST, BlockKernel
from .walk import SheetWalk


def _threads(program: Program) -> int:
    most = max(math.prod(op.out_shape) for op in program.ops)
    return max(64, min(256, -(-most // 64) * 32))


def table_kernel(
    walk: SheetWalk,
    shared_limit: int,
    second: dict[int, int] | None,
    pixels: int,
    row: int,
    cycles: Mapping[int, int] | None = None,
) -> BlockKernel:
    """X (N, channels, locations) → table rows, the largest variance at each nonlinearity, and K(x, x).

    `second`: where a row keeps each site's numbers once more, for the second image (see steps.py), and `pixels`
    likewise; None where there is no such part. `cycles` are those of `Chain`.
    """
    program, layout = walk.program, walk.layout
    v = layout.vector
    cases = [
        f"exact::nonlinearity_{k}(K, op, x, own + owns[op.site], sizes[op.site], at, peaks + op.site, panels)"
        for k in range(len(walk.layers))
    ]
    count = math.prod(program.shape)

    def pixel(where: str) -> str:
        return f"image[(long long)c * {count} + op.{where} + at]"

    item = 8
    in_shared = walk.size * item <= min(SHARED_MOST, shared_limit)
    shared = walk.size * item if in_shared else 0
    scratch = -(-(walk.own_size * item + (0 if in_shared else walk.size * item)) // 256) * 256
    memory = (
        "extern __shared__ vec dynamic_shared[];\n    double* mem = (double*)dynamic_shared;"
        if in_shared
        else f"double* mem = own + {walk.own_size};"
    )
    sites = program.activations
    owns = ", ".join(str(walk.own[a.site]) for a in sites) or "0"
    sizes = ", ".join(str(a.size) for a in sites) or "0"
    copies = []
    for a in sites:
        site = layout.sites[a.site]
        at = 0 if second is None else second[a.site]
        copies.append(
            f"    copy_planes(row, own + {walk.own[a.site]}, {site.planes}, {a.size}, {a.shape[2]}, "
            f"{layout.pitch(a.shape[2])}, {site.offset}, {site.plane}, {at});"
        )
    again = ""
    if second is not None:
        # Where maps have fewer rows than the shifts, those that are missing are read but count nothing.
        cycle = "".join(f"height == {n} ? {c} : " for n, c in (cycles or {}).items()) + "height"
        cycle = f"({cycle})" if cycles else cycle
        r = f"(g % groups * {v} + g / groups + k) % {cycle}"
        r = f"min({r}, height - 1)" if cycles else r
        again = f"""
    // The second image's: once for each remainder of a shift by {v}, so that any {v} rows are read at once.
    const int height = size / width, groups = ({cycle} - 1) / {v} + (height + {v - 1}) / {v};
    const int whole = {v} * groups * width * {v};
    for (int e = threadIdx.x; e < planes * whole; e += blockDim.x) {{
        const int p = e / whole, at = e - p * whole, k = at % {v}, c = at / {v} % width, g = at / ({v} * width);
        const int r = {r};
        row[twice + e] = (real)from[p * size + r * width + c];
    }}"""
    slot = f"(r / {v} * pitch + c) * {v} + r % {v}" if v > 1 else "at"
    text = f"""
__device__ const int owns[] = {{{owns}}}, sizes[] = {{{sizes}}};
// Planes of `size` numbers into a table row: where the first image's are read, and where the second's are.
template <class R> __device__ void copy_planes(real* row, const R* from, int planes, int size, int width, int pitch,
                                               int offset, int plane, int twice)
{{
    for (int e = threadIdx.x; e < planes * size; e += blockDim.x) {{
        const int p = e / size, at = e - p * size, r = at / width, c = at - r * width;
        const real value = (real)from[e];
        row[offset + p * plane + {slot}] = value;
    }}{again}
}}
extern "C" __global__ void tables(const real* __restrict__ X, real* __restrict__ rows, double* __restrict__ all_peaks,
                                  double* __restrict__ diagonal, int n, char* __restrict__ scratch,
                                  const double* __restrict__ panels, const int* __restrict__ plan,
                                  const double* __restrict__ numbers)
{{
    double* own = (double*)(scratch + (long long)blockIdx.x * {scratch});
    {memory}
    for (int i = blockIdx.x; i < n; i += gridDim.x) {{
    const real* image = X + (long long)i * {program.channels * count};
    real* row = rows + (long long)i * {row};
    double* peaks = all_peaks + (long long)i * {max(len(sites), 1)};
{walk.walk("double", cases, f"fma((double){pixel('first')}, (double){pixel('second')}, f)")}
    if (threadIdx.x == 0) diagonal[i] = {program.unit!r} * mem[{walk.buffers[program.output]}];
{theta_diagonal(program, walk.buffers)}\
    copy_planes(row, image, {program.channels}, {count}, {program.shape[2]}, {layout.pitch(program.shape[2])},
                {layout.input.offset}, {layout.input.plane}, {pixels});
{chr(10).join(copies)}
    __syncthreads();
    }}
}}
"""
    return BlockKernel(text, _threads(program), shared, scratch)


def pair_kernel(walk: SheetWalk, dtype: str, shared_limit: int) -> BlockKernel:
    """K of every pair, one pair a block at a time."""
    program, layout = walk.program, walk.layout
    memory, shared, scratch = walk.memory(4 if dtype == "float" else 8, "real", shared_limit)
    cases = walk.pair_formulas("op.first + at", "op.second + at")

    def pixel(row: str, where: str) -> str:
        return f"{row}[(long long)c * {layout.input.plane} + op.{where} + at]"

    theta = THETA_ARGUMENTS * walk.tangents
    text = f"""
extern "C" __global__ void pairs(const real* __restrict__ first, const real* __restrict__ second,
                                 real* __restrict__ out, real* __restrict__ mirror, int n, int m, long long ld,
                                 long long below{theta}, char* __restrict__ scratch, const int* __restrict__ plan,
                                 const double* __restrict__ numbers)
{{
    {memory}
    for (long long pair = blockIdx.x; pair < (long long)n * m; pair += gridDim.x) {{
    const long long i = pair / m, j = pair % m;
    if (j < i + below) continue;
    const real* t1 = first + i * {layout.row};
    const real* t2 = second + j * {layout.row};
{walk.walk("real", cases, f"fma({pixel('t1', 'first')}, {pixel('t2', 'second')}, f)")}
    if (threadIdx.x == 0) {{
{results(program, walk.buffers)}
    }}
    __syncthreads();
    }}
}}
"""
    return BlockKernel(text, _threads(program), shared, scratch)
