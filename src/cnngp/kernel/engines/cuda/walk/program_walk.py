"""CUDA text of the walk of a block of threads through a program (program_data.py).

It runs in the working precision on two images and in float64 on one image with itself: there, operations of
displacement zero give the variances, and write the image's own table, which the others read. Maps are in shared memory,
or in the block's own scratch memory if they do not fit. Each operation applies its nonlinearity and then sums along one
axis after another; between sums the results alternate between two temporary maps.
"""

from __future__ import annotations

import math

from cnngp.kernel.formulas import SERIES, formula
from cnngp.kernel.program import NOTHING, PIXELS
from cnngp.network.layers import Nonlinearity

from ..formula_text.device_functions import formulas, text_of
from ..formula_text.formula_writer import filled
from ..kernel_frame import Launch
from .program_data import OPERATION, ProgramData

SHARED_MOST = 100 * 1024  # largest shared memory of a block in bytes, so that a multiprocessor has room for two
PARTS = 2 * 64 * 8  # largest shared memory in bytes of a gradient's per-warp sums, besides the maps
GIVEN = "scratch", "panels", "program", "numbers"
"""Arrays that follow the arguments of a kernel that walks."""
GIVEN_TEXT = """\
char* __restrict__ scratch, const double* __restrict__ panels, const int* __restrict__ program,
    const double* __restrict__ numbers"""

# Combination of an operation's result with old values, and sums along an axis. Sums with the most work have code for
# their sizes (`Known`), so that the compiler replaces divisions by multiplications and unrolls windows.
SUMS = """\
template <class R> __device__ __forceinline__ R combined(const Numbers& x, const R* old, R value)
{
    const R fresh = (R)x.scale * value + (R)x.bias;
    return x.keep == 0.0 ? fresh : (R)x.keep * *old + fresh;
}
template <int SIZE, int OUT, int INNER, int RESULTS, int K, int STRIDE, int STEP, int START> struct Known {
    static constexpr int size = SIZE, out = OUT, inner = INNER, results = RESULTS;
    static constexpr int k = K, stride = STRIDE, step = STEP, start = START;
};
template <class R, class P>
__device__ __forceinline__ void run_pass(R* to, const R* from, const P pass, const int* lists, const Numbers& x,
                                         bool last)
{
    for (int e = threadIdx.x; e < pass.results; e += blockDim.x) {
        const int rest = e / pass.inner, inner = e - rest * pass.inner;
        const int outer = rest / pass.out, at = rest - outer * pass.out;
        const R* line = from + outer * (pass.size * pass.inner) + inner;
        R sum = 0;
        if (pass.k >= 0) {
            const int first = at * pass.stride + pass.start;
#pragma unroll 8
            for (int k = 0; k < pass.k; k++)
                if ((unsigned)(first + k * pass.step) < (unsigned)pass.size)
                    sum += line[(first + k * pass.step) * pass.inner];
        } else {
            const int* list = lists + pass.start + 2 * at;
            for (int k = 0; k < list[1]; k++) sum += line[lists[list[0] + k] * pass.inner];
        }
        to[e] = last ? combined(x, to + e, sum) : sum;
    }
}
"""
# Location of element e of a sheet in the map that it is part of.
PLACE = """\
    const int row = e / op.width, z = row / op.height;
    return z * op.table_plane + (row - z * op.height) * op.table_width + e - row * op.width;"""
# Formulas in float64 for any working precision; they run once per image, so plain division and roots are fast enough.
EXACT = """\
// Numbers that are not negative order like their bits, and a NaN is above them all.
__device__ __forceinline__ void peak(double* at, double K)
{
    if (!(K <= *(volatile double*)at)) atomicMax((unsigned long long*)at, (unsigned long long)__double_as_longlong(K));
}
namespace exact {
typedef double real;
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / fmax(x, 2.3e-308); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ double clamp01(double x) { return fmin(fabs(x), 1.0); }
__device__ __forceinline__ double product(double s1, double s2) { return s1 * s2; }
"""
CONSTANTS = {name: f"(real)x.{name}" for name in ("unit", "alpha", "beta")}
CONSTANTS |= {name: f"op.{name}" for name in ("even", "odd", "shifts")}


def memory(
    data: ProgramData, real: str, shared_limit: int, own: bool = False, gradient: bool = False
) -> tuple[str, Launch]:
    """Write the declarations of a block's maps, `mem`, in shared memory or, if they do not fit, in scratch memory.

    For a gradient the `sums` in float64 follow the maps. Scratch memory begins with an image's `own` table if needed,
    followed, for a gradient, by the shares that it was `given`.
    """
    entries, slots, most, resident = 0, 0, 256, 2
    if gradient and data.backward is not None:
        entries, slots, most, resident = data.backward.entries * own, data.backward.slots, 512, 4
        shared_limit -= PARTS
    largest = max(op["out_size"] for op in data.numbered)
    maps, before = -(-data.size * (4 if real == "float" else 8) // 8) * 8, 8 * (data.own_size * own + entries)
    size = maps + 8 * slots
    in_shared = size <= min(SHARED_MOST, shared_limit)
    scratch = -(-(before + (0 if in_shared else size)) // 256) * 256
    place = f"scratch + (long long)blockIdx.x * {scratch}"
    text = f"double* own = (double*)({place});\n    " * own
    text += f"double* given = own + {data.own_size};\n    " * (entries > 0)
    text += "extern __shared__ vec dynamic_shared[];\n    " * in_shared
    text += f"char* base = {'(char*)dynamic_shared' if in_shared else f'{place} + {before}'};\n    "
    text += f"{real}* mem = ({real}*)base;" + f"\n    double* sums = (double*)(base + {maps});" * (slots > 0)
    threads = max(64, min(most, -(-largest // 64) * 32))
    return text, Launch(threads, size if in_shared else 0, scratch, resident=resident, given=GIVEN)


def common(data: ProgramData, walks: bool) -> str:
    """Write types and functions that all kernels of a text share; `walks`: the kernel of pairs walks too."""
    layers = [layer for layer, _ in data.layers]
    gradients = data.backward is not None
    structs = "".join(
        f"struct {name} {{ {kind} {', '.join(fields)}; }};\n" for name, (kind, fields) in data.structs.items()
    )
    own = "".join(_own_formula(k, data, layer, slope) for k, (layer, slope) in enumerate(data.layers))
    known = ""  # sums along axes: those with the most work have code for their sizes
    for sizes, numbers in data.known_passes:
        labels, template = " ".join(f"case {n}:" for n in numbers), ", ".join(map(str, sizes))
        known += f"    {labels} run_pass(to, from, Known<{template}>(), lists, x, last); break;\n"
    return f"""\
__device__ const unsigned char shifts[] = {{{", ".join(map(str, data.shifts)) or "0"}}};
{structs}\
__device__ __forceinline__ int place(const Op& op, int e)
{{
{"    return e;" if data.whole else PLACE}
}}
{SUMS}\
template <class R> __device__ __forceinline__ void run_known(int number, R* to, const R* from, const Pass& pass,
                                                             const int* lists, const Numbers& x, bool last)
{{
    switch (number) {{
{known}    default: run_pass(to, from, pass, lists, x, last);
    }}
}}
{_pair_formulas(data) * walks}\
{EXACT}{formulas("double", layers, data.tangents, gradients)}\
{_pair_formulas(data) * data.moving}{own}}}
"""


def _pair_formulas(data: ProgramData) -> str:
    """Write the formulas of pairs, also those for gradients; the images' numbers are `plane` apart."""
    texts = []
    for k, (layer, slope) in enumerate(data.layers):
        text, one, other = text_of(layer), ["Terms{first, plane}"], ["Terms{second, plane}"]
        if formula(layer).family is not SERIES:
            one, other = ([f"{image}[{p} * plane]" for p in range(text.planes)] for image in ("first", "second"))
        wanted = [("real", "pair", text.slope if slope else text.pair)]
        wanted += [("Parts", "parts", text.parts)] * (data.backward is not None)
        texts += [
            f"""\
__device__ __forceinline__ {kind} {name}_{k}(real K, const Op& op, const Numbers& x, const real* first,
                                         const real* second, int plane)
{{
    return {filled(expression, CONSTANTS, "K", one, other)};
}}
"""
            for kind, name, expression in wanted
        ]
    return "".join(texts)


def _own_formula(k: int, data: ProgramData, layer: Nonlinearity, slope: bool) -> str:
    """Write formula k of an image with itself. At equal locations a nonlinearity writes the table for other sheets.

    A slope runs before the table is written.
    """
    text = text_of(layer)
    stores = ""
    if not slope:
        for p, entry in enumerate(text.entries):
            stores += f"        mine[{p} * op.whole] = {filled(entry, CONSTANTS)};\n"
        stores += f"        peak(top, {filled(text.peak, CONSTANTS)});\n"
    value = filled(text.slope_diagonal if slope else text.diagonal, CONSTANTS)
    pair = f"exact::pair_{k}(K, op, x, mine, sheet + op.second + at, op.whole)"
    still = ""
    if data.backward is not None:
        still = f"""\
__device__ Still still_{k}(double K, const Op& op, const Numbers& x, const double* panels)
{{
    return {filled(text.still, CONSTANTS)};
}}
"""
    return f"""\
// {"the slope of " * slope}{type(layer).__name__}
__device__ double own_{k}(double K, const Op& op, const Numbers& x, double* sheet, int at, double* top,
                          const double* panels)
{{
    double* mine = sheet + op.first + at;
    if (op.still) {{
{stores}        return {value};
    }}
    return {pair if data.moving else "0.0"};
}}
{still}"""


def walk(data: ProgramData, real: str, steps: int, own: bool, backward: str = "") -> str:
    """Write the loop over the first `steps`: `mem` holds the maps of two images, or of an image with its `own` table.

    `backward` has the statements for steps of a gradient. With pools only pairs use the code for known sizes: a single
    image has sums of as many kinds, but runs them once.
    """
    call = "run_pass(" if own and data.moving else "run_known(op.first_pass + s, "
    passes = f"((const Pass*)(program + {data.passes_at}))[op.first_pass + s]"
    end = data.size - 2 * data.temporary
    plane = math.prod(data.program.shape) if own else data.layout.input.plane
    first, second = ("(double)image", "(double)image") if own else ("t1", "t2")
    cases = "\n".join(_case(k, real, own, slope) for k, (_, slope) in enumerate(data.layers))
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
                const long long at = place(op, e);
                {real} f = 0;
                for (int c = 0; c < {data.program.channels}; c++)
                    f = fma({first}[at + op.first + c * {plane}LL], {second}[at + op.second + c * {plane}LL], f);
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


def _case(k: int, real: str, own: bool, slope: bool) -> str:
    value = f"pair_{k}(K, op, x, t1 + op.offset + op.first + at, t2 + op.offset + op.second + at, op.plane)"
    if own:
        value = f"exact::own_{k}(K, op, x, own + op.own, at, peaks + op.site, panels)"
    if slope:
        value = f"({value}) * fma(({real})x.own, K, op.times < 0 ? ({real})0 : mem[op.times + e])"
    return f"""\
            case {k}: for (int e = threadIdx.x; e < op.size; e += blockDim.x) {{
                const int at = place(op, e);
                const {real} K = from[e], f = {value};
                to[e] = op.passes ? f : combined(x, to + e, f);
            }} break;"""
