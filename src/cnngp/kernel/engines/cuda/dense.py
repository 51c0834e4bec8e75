"""The pair kernel for inputs with one location: a matrix product of the features, then a scalar network.

Library matrix products choose their order of summation by the shape of the whole matrix; here K[i, j] must depend on
the two images alone, so the product is summed in a fixed order: channels in groups of `DEPTH`, then the groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cnngp.kernel.program import Program
from cnngp.kernel.series.packed import Rows
from cnngp.network.layers import Elementwise

from .block import Walk
from .layout import Step, TableLayout, in_registers
from .math import SERIES_FORMULAS, Constants, literal, pair_formula

TILE = 64
DEPTH = 16
SIDE = 16  # threads along a side of a block; each has a square of TILE / SIDE pairs


@dataclass(frozen=True)
class DenseKernel:
    """The text; a block of SIDE × SIDE threads computes TILE × TILE pairs."""

    text: str
    threads: int = SIDE * SIDE


def fits(program: Program) -> bool:
    return math.prod(program.shape) == 1 and all(math.prod(op.out_shape) == 1 for op in program.ops)


class _Tables(Protocol):
    """What is known of the images' table rows."""

    layout: TableLayout
    series: Mapping[int, Rows]
    shifts_at: dict[int, int]


def scalar_network(steps: Sequence[Step], walk: _Tables, dtype: str, unit: float, start: str = "K") -> str:
    """`network(K, t1, t2)`: steps on maps of one location, for two table rows; `start` is the first map's value."""
    names = {0, *(s.dst.name for s in steps)}
    lines = [f"    real {', '.join(f'm{n} = {start}' if n == 0 else f'm{n} = 0' for n in sorted(names))};"]
    for step in steps:
        op, a = step.op, step.activation
        value = f"m{step.src.name}"
        if a is not None:
            site = walk.layout.sites[a.site]
            places = [site.offset + p * site.plane for p in range(site.planes)]
            first, second = ([f"{t}[{at}]" for at in places] for t in ("t1", "t2"))
            constants = Constants.literals(a, dtype)
            if isinstance(a.layer, Elementwise):
                rows = walk.series[a.site]
                first, second = ([f"Terms{{{t} + {site.offset}, 1}}"] for t in ("t1", "t2"))
                at = str(walk.shifts_at[a.site])
                constants = replace(constants, even=str(rows.even), odd=str(rows.odd), shifts=at)
            value = pair_formula(a.layer, value, constants, first, second, step.src.nonneg)
        scale, bias, keep = (literal(x, dtype) for x in (op.scale, op.bias, op.keep))
        rest = bias if op.keep == 0.0 else f"fma({keep}, m{step.dst.name}, {bias})"
        layer = "" if a is None else f", {a.layer!r}"
        lines.append(f"    m{step.dst.name} = fma({scale}, {value}, {rest});  // {op.place or '(network)'}{layer}")
    end = steps[-1].dst.name if steps else 0
    return f"""\
__device__ __noinline__ real network(real K, const real* __restrict__ t1, const real* __restrict__ t2)
{{
{chr(10).join(lines)}
    return {literal(unit, dtype)} * m{end};
}}"""


def dense_kernel(walk: Walk, dtype: str) -> DenseKernel:
    program, layout = walk.program, walk.layout
    _, steps = in_registers(program)
    per = TILE // SIDE
    text = f"""{SERIES_FORMULAS if walk.series else ""}
{scalar_network(steps, walk, dtype, program.unit)}
extern "C" __global__ void __launch_bounds__({SIDE * SIDE})
pairs(const real* __restrict__ first, const real* __restrict__ second, real* __restrict__ out,
      real* __restrict__ mirror, int n, int m, long long ld, long long below)
{{
    __shared__ real x1[{DEPTH}][{TILE} + 1], x2[{DEPTH}][{TILE} + 1];
    const int wide = (m + {TILE - 1}) / {TILE};
    const int i0 = blockIdx.x / wide * {TILE}, j0 = blockIdx.x % wide * {TILE};
    if (j0 + {TILE - 1} < i0 + below) return;
    const int x = threadIdx.x % {SIDE}, y = threadIdx.x / {SIDE};
    real K[{per}][{per}];
#pragma unroll
    for (int a = 0; a < {per}; a++)
#pragma unroll
        for (int b = 0; b < {per}; b++) K[a][b] = 0;
    for (int c0 = 0; c0 < {program.channels}; c0 += {DEPTH}) {{
        for (int e = threadIdx.x; e < {DEPTH * TILE}; e += {SIDE * SIDE}) {{
            const int c = c0 + e % {DEPTH}, k = e / {DEPTH};
            x1[e % {DEPTH}][k] = c < {program.channels} ? first[(long long)min(i0 + k, n - 1) * {layout.row} + c] : 0;
            x2[e % {DEPTH}][k] = c < {program.channels} ? second[(long long)min(j0 + k, m - 1) * {layout.row} + c] : 0;
        }}
        __syncthreads();
        real part[{per}][{per}] = {{}};
#pragma unroll
        for (int c = 0; c < {DEPTH}; c++)
#pragma unroll
            for (int a = 0; a < {per}; a++)
#pragma unroll
                for (int b = 0; b < {per}; b++)
                    part[a][b] = fma(x1[c][y + {SIDE} * a], x2[c][x + {SIDE} * b], part[a][b]);
#pragma unroll
        for (int a = 0; a < {per}; a++)
#pragma unroll
            for (int b = 0; b < {per}; b++) K[a][b] += part[a][b];
        __syncthreads();
    }}
#pragma unroll
    for (int a = 0; a < {per}; a++)
#pragma unroll
        for (int b = 0; b < {per}; b++) {{
            const int i = i0 + y + {SIDE} * a, j = j0 + x + {SIDE} * b;
            if (i < n && j < m && j >= i + below) {{
                const real* t1 = first + (long long)i * {layout.row};
                const real* t2 = second + (long long)j * {layout.row};
                const real k = network(K[a][b], t1, t2);
                out[i * ld + j] = k;
                if (mirror) mirror[j * ld + i] = k;
            }}
        }}
}}
"""
    return DenseKernel(text)
