"""The pair kernel for inputs with one location: a matrix product of the features, then a scalar network.

Library matrix products choose their order of summation by the shape of the whole matrix, but K[i, j] must depend on the
two images alone. So the product is summed in a fixed order: channels in groups of `DEPTH`, then the groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cnngp.kernel.program import Program
from cnngp.network.layers import Elementwise

from .formula_text.device_functions import text_of
from .formula_text.formula_writer import filled, literal, literals
from .kernel_frame import THETA_ARGUMENTS, Launch, stores
from .registers import Registers, Step, in_registers
from .walk.program_data import ProgramData

TILE = 64
DEPTH = 16
SIDE = 16  # threads along each side of a block; each computes a square of TILE / SIDE pairs


def fits(program: Program) -> bool:
    return math.prod(program.shape) == 1 and all(math.prod(op.out_shape) == 1 for op in program.ops)


def scalar_network(
    registers: Registers, data: ProgramData, dtype: str, units: Sequence[float], start: Sequence[str] = ("K",)
) -> str:
    """Write the function `network(K, t1, t2)`: steps on maps of one location, for two table rows.

    `start` are the values of the first maps: K, and optionally an argument `T`. `units` are those of K and optionally
    of Θ, which is then returned in an argument `theta`.
    """
    steps = registers.steps
    names = {*range(len(start)), *(s.dst.name for step in steps for s in step.both)}
    begin = {n: start[n] if n < len(start) else "0" for n in sorted(names)}
    lines = [f"    real {', '.join(f'm{n} = {value}' for n, value in begin.items())};"]
    for step in steps:
        pair = {s.dst.name: _scalar(s, data, dtype) for s in step.both}
        if len(pair) == 1:
            lines += [f"    m{name} = {value};" for name, value in pair.items()]
            continue
        values = ", ".join(f"v{name} = {value}" for name, value in pair.items())
        lines.append(f"    {{\n        const real {values};")
        lines.append("        " + " ".join(f"m{name} = v{name};" for name in pair) + "\n    }")
    K, *rest = (f"{literal(unit, dtype)} * m{m.name}" for unit, m in zip(units, registers.ends, strict=True))
    theta = "".join(f"    theta = {value};\n" for value in rest)
    return f"""\
__device__ __noinline__ real network(real K, const real* __restrict__ t1, const real* __restrict__ t2{
        ", real T" * (len(start) > 1)
    }{", real& theta" * (len(units) > 1)})
{{
{chr(10).join(lines)}
{theta}    return {K};
}}"""


def _scalar(step: Step, data: ProgramData, dtype: str) -> str:
    """Write keep · old + scale · f + bias as an expression."""
    op, a = step.op, step.activation
    value = f"m{step.src.name}"
    if a is not None:
        site = data.layout.sites[a.site]
        places = [site.offset + p * site.plane for p in range(site.planes)]
        first, second = ([f"{t}[{at}]" for at in places] for t in ("t1", "t2"))
        constants = literals(a, dtype)
        if isinstance(a.layer, Elementwise):
            rows = data.series[a.site]
            first, second = ([f"Terms{{{t} + {site.offset}, 1}}"] for t in ("t1", "t2"))
            constants |= {"even": str(rows.even), "odd": str(rows.odd), "shifts": str(data.shifts_at[a.site])}
        text = text_of(a.layer)
        value = filled(
            text.pair if op.tangent is None else text.slope, constants, value, first, second, step.src.nonneg
        )
    if op.tangent is not None:
        times = literal(0.0, dtype) if step.times is None else f"m{step.times.name}"
        value = f"({value}) * fma({literal(op.tangent.own, dtype)}, m{step.src.name}, {times})"
    scale, bias, keep = (literal(x, dtype) for x in (op.scale, op.bias, op.keep))
    rest = bias if op.keep == 0.0 else f"fma({keep}, m{step.dst.name}, {bias})"
    return f"fma({scale}, {value}, {rest})"


def dense_kernel(data: ProgramData, dtype: str) -> tuple[str, Launch]:
    """Write the kernel; a block of SIDE × SIDE threads computes TILE × TILE pairs."""
    program, layout = data.program, data.layout
    tangents = program.theta is not None
    units = (program.unit, program.theta_unit) if tangents else (program.unit,)
    per = TILE // SIDE
    theta = " " * 16 + "real T;\n" if tangents else ""
    text = f"""
{scalar_network(in_registers(program), data, dtype, units)}
extern "C" __global__ void __launch_bounds__({SIDE * SIDE})
pairs(const real* __restrict__ first, const real* __restrict__ second, real* __restrict__ out,
      real* __restrict__ mirror, int n, int m, long long ld, long long below{THETA_ARGUMENTS * tangents})
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
{theta}                const real k = network(K[a][b], t1, t2{", T" * tangents});
{stores("k", tangents, " " * 16)}
            }}
        }}
}}
"""
    return text, Launch(SIDE * SIDE, 0, rows=TILE, columns=TILE)
