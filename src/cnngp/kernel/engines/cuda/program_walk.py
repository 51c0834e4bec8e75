"""The walk of a block of threads through a program (program_data.py), as CUDA text.

It runs in the working precision on two images and in float64 on one image with itself: there, operations without
displacement give the variances, and leave in the image's own table what the others read. Maps lie in shared memory, or
in scratch memory of the block's own where they do not fit. Each operation takes its nonlinearity, then sums along one
axis after the other; between them results go to and fro between two maps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cnngp.kernel.program import NOTHING, PIXELS
from cnngp.network.layers import Elementwise, Nonlinearity

from .math import (
    Constants,
    diagonal_formula,
    entries,
    formulas,
    pair_formula,
    peak_of,
    planes,
    slope_diagonal,
    slope_formula,
)
from .program_data import OPERATION, Copy, OpInts, OpReals, Pass, ProgramData

SHARED_MOST = 100 * 1024  # bytes of shared memory a block takes at most, so that a multiprocessor has room for two

PEAK = """\
// Numbers that are not negative order like their bits, and a NaN is above them all.
__device__ __forceinline__ void peak(double* at, double K)
{
    if (!(K <= *(volatile double*)at)) atomicMax((unsigned long long*)at, (unsigned long long)__double_as_longlong(K));
}
"""

# Formulas in float64, whatever the working precision; they run once an image, so plain division and roots will do.
EXACT = """\
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / fmax(x, 2.3e-308); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ double clamp01(double x) { return fmin(fabs(x), 1.0); }
__device__ __forceinline__ double product(double s1, double s2) { return s1 * s2; }
"""

# Where element e of a sheet is in the map that it is part of.
PLACE = """\
    const int row = e / op.width, z = row / op.height;
    return z * op.table_plane + (row - z * op.height) * op.table_width + e - row * op.width;"""

# What an operation does with a result, and its sums along an axis of any size. `known_pass` is the same where the
# compiler knows the sizes: it divides by multiplying, and unrolls windows.
SUMS = """\
template <class R> __device__ __forceinline__ R combined(const Numbers& x, const R* old, R value)
{
    const R fresh = (R)x.scale * value + (R)x.bias;
    return x.keep == 0.0 ? fresh : (R)x.keep * *old + fresh;
}
template <class R>
__device__ void run_pass(R* to, const R* from, const Pass pass, const int* lists, const Numbers& x, bool last)
{
    for (int e = threadIdx.x; e < pass.results; e += blockDim.x) {
        const int rest = e / pass.inner, inner = e - rest * pass.inner;
        const int outer = rest / pass.out, at = rest - outer * pass.out;
        const R* line = from + (long long)outer * pass.size * pass.inner + inner;
        R sum = 0;
        if (pass.k >= 0) {
            int p = at * pass.stride + pass.start;
            for (int k = 0; k < pass.k; k++, p += pass.step)
                if ((unsigned)p < (unsigned)pass.size) sum += line[p * pass.inner];
        } else {
            const int* list = lists + pass.start + 2 * at;
            for (int k = 0; k < list[1]; k++) sum += line[lists[list[0] + k] * pass.inner];
        }
        to[e] = last ? combined(x, to + e, sum) : sum;
    }
}
"""
KNOWN_PASS = """\
template <class R, int SIZE, int OUT, int INNER, int COUNT, int K, int STRIDE, int STEP, int START>
__device__ __forceinline__ void known_pass(R* to, const R* from, const int* lists, const Numbers& x, bool last)
{
    for (int e = threadIdx.x; e < COUNT; e += blockDim.x) {
        const int inner = e % INNER, at = e / INNER % OUT, outer = e / (INNER * OUT);
        const R* line = from + outer * (SIZE * INNER) + inner;
        R sum = 0;
        if (K >= 0) {
            const int first = at * STRIDE + START;
#pragma unroll 8
            for (int k = 0; k < K; k++)
                if ((unsigned)(first + k * STEP) < (unsigned)SIZE) sum += line[(first + k * STEP) * INNER];
        } else {
            const int* list = lists + START + 2 * at;
            for (int k = 0; k < list[1]; k++) sum += line[lists[list[0] + k] * INNER];
        }
        to[e] = last ? combined(x, to + e, sum) : sum;
    }
}
"""


@dataclass(frozen=True)
class Memory:
    """The maps of a block: `shared` bytes of shared memory or, where they do not fit, part of `scratch` bytes."""

    text: str
    shared: int
    scratch: int

    @classmethod
    def of(cls, data: ProgramData, real: str, item: int, shared_limit: int, before: int = 0, sums: int = 0) -> Memory:
        """`mem` and, behind it, `sums`, so many numbers in float64; both behind `before` bytes of scratch memory."""
        maps = -(-data.size * item // 8) * 8
        size = maps + 8 * sums
        in_shared = size <= min(SHARED_MOST, shared_limit)
        scratch = -(-(before + (0 if in_shared else size)) // 256) * 256
        base = "(char*)dynamic_shared" if in_shared else f"scratch + (long long)blockIdx.x * {scratch} + {before}"
        text = "extern __shared__ vec dynamic_shared[];\n    " * in_shared
        text += f"char* base = {base};\n    {real}* mem = ({real}*)base;"
        text += f"\n    double* sums = (double*)(base + {maps});" * (sums > 0)
        return cls(text, size if in_shared else 0, scratch)

    @classmethod
    def of_image(cls, data: ProgramData, shared_limit: int, given: int = 0, sums: int = 0) -> Memory:
        """Before the maps in float64 stand the image's `own` table and the shares that it was `given`."""
        made = cls.of(data, "double", 8, shared_limit, 8 * (data.own_size + given), sums)
        own = f"double* own = (double*)(scratch + (long long)blockIdx.x * {made.scratch});\n    "
        own += f"double* given = own + {data.own_size};\n    " * (given > 0)
        return cls(own + made.text, made.shared, made.scratch)


def threads(data: ProgramData, most: int = 256) -> int:
    """Threads of a block for the largest map."""
    largest = max(op.out_size for op in data.numbered)
    return max(64, min(most, -(-largest // 64) * 32))


def common(data: ProgramData, more: str = "") -> str:
    """Types and functions that all kernels of a text share; `more` goes with the formulas in float64, in `exact`."""
    layers = [layer for layer, _ in data.layers]
    structs = "".join(
        f"struct {name} {{ {kind} {', '.join(numbers._fields)}; }};\n"
        for name, kind, numbers in (
            ("Op", "int", OpInts), ("Numbers", "double", OpReals), ("Pass", "int", Pass), ("Copy", "int", Copy),
        )
    )  # fmt: skip
    own = "".join(_own_formula(k, data, layer, slope) for k, (layer, slope) in enumerate(data.layers))
    return f"""\
{shifts_array(data)}\
{structs}\
__device__ __forceinline__ int place(const Op& op, int e)
{{
{"    return e;" if data.whole else PLACE}
}}
{SUMS}\
{PEAK}\
namespace exact {{
typedef double real;
{EXACT}{formulas("double", layers, data.tangents)}\
{more}{own}}}
"""


def shifts_array(data: ProgramData) -> str:
    return f"__device__ const unsigned char shifts[] = {{{', '.join(map(str, data.shifts)) or '0'}}};\n"


OWN_CONSTANTS = Constants("x.unit", "x.alpha", "x.beta", "op.even", "op.odd", "op.shifts")


def _own_formula(k: int, data: ProgramData, layer: Nonlinearity, slope: bool) -> str:
    """Formula k of an image with itself. At equal places a nonlinearity leaves the numbers that other sheets read.

    A slope comes before these are there.
    """
    c = OWN_CONSTANTS
    if slope:
        still = f"    if (op.still) return {slope_diagonal(layer, 'K', c)};\n"
    else:
        stores = "".join(f"        mine[{p} * op.whole] = {e};\n" for p, e in enumerate(entries(layer, "K", c)))
        value = diagonal_formula(layer, "K", c)
        if isinstance(layer, Elementwise):
            series = "sqrt(x.unit * K), panels + op.series"
            value = f"series_entries({series}, mine + op.whole, op.whole, op.even, op.odd)"
            if data.backward is not None:
                behind = "mine + (1 + op.even + op.odd) * op.whole"
                value += f" + series_behind({series}, {behind}, op.whole, op.even, op.odd)"
        stores += f"        peak(top, {peak_of(layer, 'K', c)});\n"
        still = f"    if (op.still) {{\n{stores}        return {value};\n    }}\n"
    pair = "    return 0.0;\n"
    if data.moving:
        if isinstance(layer, Elementwise):
            first, second = ([f"Terms{{{m}, op.whole}}"] for m in ("mine", "other"))
        else:
            first, second = ([f"{m}[{p} * op.whole]" for p in range(planes(layer))] for m in ("mine", "other"))
        value = (slope_formula if slope else pair_formula)(layer, "K", c, first, second)
        pair = f"    const double* other = sheet + op.second + at;\n    return {value};\n"
    return f"""\
// {"the slope of " * slope}{type(layer).__name__}
__device__ double nonlinearity_{k}(double K, const Op& op, const Numbers& x, double* sheet, int at, double* top,
                                   const double* panels)
{{
    double* mine = sheet + op.first + at;
{still}{pair}}}
"""


def own_formulas(data: ProgramData) -> list[str]:
    """The formulas of an image with itself, as expressions of K at element e."""
    return [
        f"exact::nonlinearity_{k}(K, op, x, own + op.own, at, peaks + op.site, panels)" for k in range(len(data.layers))
    ]


def pair_formulas(data: ProgramData) -> list[str]:
    """The formulas in the working precision, for table rows t1 and t2, as expressions of K at element e."""
    c = Constants("(real)x.unit", "(real)x.alpha", "(real)x.beta", "op.even", "op.odd", "op.shifts")
    found = []
    for layer, slope in data.layers:
        one, other = (
            [f"Terms{{{row} + op.offset + {at}, op.plane}}"]
            if isinstance(layer, Elementwise)
            else [f"{row}[op.offset + {p} * op.plane + {at}]" for p in range(planes(layer))]
            for row, at in (("t1", "op.first + at"), ("t2", "op.second + at"))
        )
        found.append((slope_formula if slope else pair_formula)(layer, "K", c, one, other))
    return found


def pair_product(data: ProgramData) -> str:
    """The product of two images' channel c at element e, added to f."""
    plane = data.layout.input.plane
    first, second = (f"{t}[(long long)c * {plane} + op.{w} + at]" for t, w in (("t1", "first"), ("t2", "second")))
    return f"fma({first}, {second}, f)"


def own_product(data: ProgramData) -> str:
    """The product of channel c of an image with itself at element e, added to f."""
    plane = math.prod(data.program.shape)
    first, second = (f"(double)image[(long long)c * {plane} + op.{w} + at]" for w in ("first", "second"))
    return f"fma({first}, {second}, f)"


def known_passes(data: ProgramData) -> str:
    """Sums along axes: those with the most work have code of their own sizes.

    Below pools only pairs use it: there an image's sums are of as many kinds, and run once.
    """
    cases = ""
    for sizes, numbers in data.known_passes:
        labels, template = " ".join(f"case {n}:" for n in numbers), ", ".join(map(str, sizes))
        cases += f"    {labels} known_pass<R, {template}>(to, from, lists, x, last); break;\n"
    return f"""{KNOWN_PASS}\
template <class R> __device__ void run_known(int number, R* to, const R* from, const Pass& pass, const int* lists,
                                             const Numbers& x, bool last)
{{
    switch (number) {{
{cases}    default: run_pass(to, from, pass, lists, x, last);
    }}
}}
"""


def walk(
    data: ProgramData, real: str, steps: int, values: list[str], product: str, known: bool, backward: str = ""
) -> str:
    """The loop over the first steps: `mem` holds the maps, `values[f]` is formula f of K at element e.

    `product` adds the product of the two images' channel c to f, `known` says that `known_passes` are in the text, and
    `backward` has the statements for steps of a gradient.
    """
    call = "run_known(op.first_pass + s, " if known else "run_pass("
    passes = f"((const Pass*)(program + {data.passes_at}))[op.first_pass + s]"
    end = data.size - 2 * data.temporary
    cases = "\n".join(
        _case(k, real, value, slope) for k, (value, (_, slope)) in enumerate(zip(values, data.layers, strict=True))
    )
    if backward:
        backward = f"        if (op.kind != {OPERATION}) {{\n{backward}        continue;\n        }}\n"
    return f"""\
    for (int k = 0; k < {steps}; k++) {{
        const Op op = ((const Op*)program)[k];
        const Numbers x = ((const Numbers*)numbers)[k];
{backward}\
        const {real}* from = mem + op.src;
        {real}* dst = mem + op.dst;
        bool odd = false;
        if (op.src == {NOTHING}) {{
            for (int e = threadIdx.x; e < op.out_size; e += blockDim.x) dst[e] = combined(x, dst + e, ({real})0);
            __syncthreads();
        }} else if (op.src == {PIXELS}) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const int at = place(op, e);
                {real} f = 0;
                for (int c = 0; c < {data.program.channels}; c++) f = {product};
                dst[e] = combined(x, dst + e, f);
            }}
            __syncthreads();
        }} else if (op.formula >= 0) {{
            {real}* to = op.passes ? mem + {end} : dst;
            odd = true;
            switch (op.formula) {{
{cases}
            }}
            from = to;
            __syncthreads();
        }} else if (!op.passes) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) dst[e] = combined(x, dst + e, from[e]);
            __syncthreads();
        }}
        for (int s = 0; s < op.passes; s++) {{
            const bool last = s + 1 == op.passes;
            {real}* to = last ? dst : mem + (odd ? {end + data.temporary} : {end});
            {call}to, from, {passes}, program + {data.lists_at}, x, last);
            from = to;
            odd = !odd;
            __syncthreads();
        }}
    }}
"""


def _case(k: int, real: str, value: str, slope: bool) -> str:
    if slope:
        value = f"({value}) * fma(({real})x.own, K, op.times < 0 ? ({real})0 : mem[op.times + e])"
    return f"""\
            case {k}: for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const int at = place(op, e);
                const {real} K = from[e], f = {value};
                to[e] = op.passes ? f : combined(x, to + e, f);
            }} break;"""
