"""The kernels for any shape: a block of threads owns an image pair, or one image when it makes the tables.

The program is data that the block walks through (walk.py), so code size and compile time do not grow with depth. The
tables' kernel runs the same walk in float64 on one image: the variance recursion, which also gives the exact diagonal.
"""

from __future__ import annotations

import math

from cnngp.kernel.program import Program

from ..math import Constants, diagonal_formula, entries, peak_of, slope_diagonal
from ..results import THETA_ARGUMENTS, results, theta_diagonal
from ..walk import PEAK, BlockKernel
from .walk import Walk


def _threads(program: Program) -> int:
    most = max(math.prod(shape) for shape in [program.shape, *(op.out_shape for op in program.ops)])
    return max(64, min(256, -(-most // 64) * 32))


def table_kernel(walk: Walk, dtype: str, shared_limit: int) -> BlockKernel:
    """X (N, channels, locations) → table rows, the largest variance at each nonlinearity, and K(x, x)."""
    program, layout = walk.program, walk.layout
    constants = Constants("op.unit", "op.alpha", "op.beta", "op.even", "op.odd", "op.shifts")
    v = layout.vector
    formulas = []
    for layer, slope in walk.layers:
        if slope:
            formulas.append(slope_diagonal(layer, "K", constants))
            continue
        stores = " ".join(
            f"row[op.offset + {p} * op.plane + slot(e, op.width)] = (real)({text});"
            for p, text in enumerate(entries(layer, "K", constants))
        )
        formulas.append(
            f"[&] {{ {stores} peak(peaks + op.site, {peak_of(layer, 'K', constants)}); "
            f"return {diagonal_formula(layer, 'K', constants)}; }}()"
        )
    memory, shared, scratch = walk.memory(8, "double", shared_limit)
    slot = f"(r / {v} * width + c) * {v} + r % {v}" if v > 1 else "e"
    fold = f"if (width >= {layout.fold} && width % 2 == 0) {{ r = 2 * r + c % 2; c /= 2; width /= 2; }}"
    count = math.prod(program.shape)
    assert program.input is not None
    begin = walk.buffers[program.input]
    text = f"""
// Where element e of a map stands in its plane of a table row.
__device__ __forceinline__ int slot(int e, int width)
{{
    int r = e / width, c = e % width;
    {fold if layout.fold else ""}
    return {slot};
}}
{PEAK}\
extern "C" __global__ void tables(const real* __restrict__ X, real* __restrict__ rows, double* __restrict__ all_peaks,
                                  double* __restrict__ diagonal, int n, char* __restrict__ scratch,
                                  const double* __restrict__ panels)
{{
    {memory}
    for (int i = blockIdx.x; i < n; i += gridDim.x) {{
    const real* x = X + (long long)i * {program.channels * count};
    real* row = rows + (long long)i * {layout.row};
    double* peaks = all_peaks + (long long)i * {max(len(program.activations), 1)};
    for (int e = threadIdx.x; e < {count}; e += blockDim.x) {{
        double sum = 0.0;
        for (int c = 0; c < {program.channels}; c++) {{
            const real value = x[(long long)c * {count} + e];
            row[(long long)c * {layout.input.plane} + slot(e, {program.shape[2]})] = value;
            sum += (double)value * (double)value;
        }}
        mem[{begin} + e] = sum;
    }}
    __syncthreads();
{walk.body("double", formulas)}
    if (threadIdx.x == 0) diagonal[i] = {program.unit!r} * mem[{walk.buffers[program.output]}];
{theta_diagonal(program, walk.buffers)}    __syncthreads();
    }}
}}
"""
    return BlockKernel(text, _threads(program), shared, scratch)


def pair_kernel(walk: Walk, dtype: str, shared_limit: int) -> BlockKernel:
    """K of every pair, one pair a block at a time."""
    program, layout = walk.program, walk.layout
    memory, shared, scratch = walk.memory(4 if dtype == "float" else 8, "real", shared_limit)
    assert program.input is not None
    count = math.prod(program.shape)
    text = f"""
extern "C" __global__ void pairs(const real* __restrict__ first, const real* __restrict__ second,
                                 real* __restrict__ out, real* __restrict__ mirror, int n, int m, long long ld,
                                 long long below{THETA_ARGUMENTS * walk.tangents}, char* __restrict__ scratch)
{{
    {memory}
    for (long long pair = blockIdx.x; pair < (long long)n * m; pair += gridDim.x) {{
    const long long i = pair / m, j = pair % m;
    if (j < i + below) continue;
    const real* t1 = first + i * {layout.row};
    const real* t2 = second + j * {layout.row};
    for (int e = threadIdx.x; e < {count}; e += blockDim.x) {{
        real sum = 0;
        for (int c = 0; c < {program.channels}; c++) {{
            const long long at = (long long)c * {layout.input.plane} + e;
            sum = fma(t1[at], t2[at], sum);
        }}
        mem[{walk.buffers[program.input]} + e] = sum;
    }}
    __syncthreads();
{walk.body("real", walk.pair_formulas("e", "e"))}
    if (threadIdx.x == 0) {{
{results(program, walk.buffers)}
    }}
    __syncthreads();
    }}
}}
"""
    return BlockKernel(text, _threads(program), shared, scratch)
