"""The kernels for any shape: a block of threads owns an image pair, or one image when it makes the tables.

Maps lie in shared memory, or in a scratch area of the block's own where they do not fit. The program is data (the
arrays `ops` and `passes`) that the block walks through, so code size and compile time do not grow with depth. The
tables' kernel runs the same walk in float64 on one image: the variance recursion, which also gives the exact diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from cnngp.kernel.program import NOTHING, Program, Shape
from cnngp.kernel.series.packed import Rows
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import Elementwise, Nonlinearity

from .layout import Site, TableLayout
from .math import (
    DIAGONAL_FORMULAS,
    SERIES_DIAGONAL,
    SERIES_FORMULAS,
    Constants,
    diagonal_formula,
    entries,
    pair_formula,
    peak_of,
    slope_diagonal,
    slope_formula,
)
from .results import THETA_ARGUMENTS, results, theta_diagonal
from .slopes import SERIES_SLOPE, SERIES_SLOPE_DIAGONAL, SLOPE_DIAGONAL_FORMULAS

SHARED_MOST = 100 * 1024  # bytes of shared memory a block takes at most, so that a multiprocessor has room for two


@dataclass(frozen=True)
class BlockKernel:
    """The text and how to launch it: `scratch` bytes of global memory for each block, or `shared` bytes instead."""

    text: str
    threads: int
    shared: int
    scratch: int


@dataclass(frozen=True)
class _Memory:
    """Offsets of the buffers and of two maps for intermediate results, in elements."""

    buffers: tuple[int, ...]
    temporary: tuple[int, int]
    size: int

    @classmethod
    def of(cls, program: Program) -> _Memory:
        starts, end = [], 0
        for size in program.buffers:
            starts.append(end)
            end += size
        most = 1
        for op in program.ops:
            shapes = [op.shape, *_shapes(op.shape, op.sums)]
            most = max(most, *(math.prod(s) for s in shapes)) if op.sums is not None else most
        return cls(tuple(starts), (end, end + most), end + 2 * most)


def _shapes(shape: Shape, sums: tuple[AxisSum, AxisSum, AxisSum] | None) -> list[Shape]:
    """The map's shape after each pass along an axis."""
    found = []
    for axis, s in enumerate(sums or ()):
        if not s.is_identity:
            d, h, w = (s.out_size if k == axis else n for k, n in enumerate(shape))
            shape = (d, h, w)
            found.append(shape)
    return found


class _Series(Protocol):
    """What is known of a program's series."""

    tangents: bool
    series: Mapping[int, Rows]


class Walk:
    """The program as data, shared by the pair kernel and the tables' kernel."""

    def __init__(self, program: Program, layout: TableLayout, series: Mapping[int, Rows]) -> None:
        self.program, self.layout, self.series = program, layout, series
        self.tangents = program.theta is not None
        self.shifts: list[int] = []
        self.shifts_at: dict[int, int] = {}
        for site, rows in series.items():
            self.shifts_at[site] = len(self.shifts)
            self.shifts += rows.shifts
        self.memory = _Memory.of(program)
        self.layers: list[tuple[Nonlinearity, bool]] = []
        """The formulas that operations take: of a nonlinearity, or of its slope."""
        self.kinds: list[str] = []
        self.windows: list[tuple[int, int]] = []
        self.sources: list[int] = []
        self.known: dict[AxisSum, int] = {}
        self.passes: list[int] = []
        self.ops = [self._op(k) for k in range(len(program.ops))]

    def _op(self, k: int) -> str:
        op = self.program.ops[k]
        a = op.activation
        first = len(self.passes)
        shape = op.shape
        for axis, s in enumerate(op.sums or ()):
            if s.is_identity:
                continue
            inner = math.prod(shape[axis + 1 :])
            d, h, w = (s.out_size if n == axis else size for n, size in enumerate(shape))
            shape = (d, h, w)
            self.passes.append(self._kind(s, inner, math.prod(shape)))
        key = None if a is None else (a.layer, op.tangent is not None)
        if key is not None and key not in self.layers:
            self.layers.append(key)
        site = Site(0, 0, 0, (1, 1, 1)) if a is None else self.layout.sites[a.site]
        formula = -1 if key is None else self.layers.index(key)
        alpha, beta = (0.0, 0.0) if a is None else a.coefficients
        unit = 1.0 if a is None else a.unit
        numbers = [self.memory.buffers[op.src], self.memory.buffers[op.dst], math.prod(op.shape), formula]
        numbers += [site.offset, site.plane, op.shape[2], 0 if a is None else a.site, first, len(self.passes) - first]
        rows = Rows(0, 0, 0, ()) if a is None else self.series.get(a.site, Rows(0, 0, 0, ()))
        numbers += [rows.at, rows.even, rows.odd, self.shifts_at.get(numbers[7], 0) if rows.count else 0]
        reals = [unit, alpha, beta, op.keep, op.scale, op.bias]
        if self.tangents:
            t = op.tangent
            numbers.append(-1 if t is None or t.times == NOTHING else self.memory.buffers[t.times])
            reals.append(0.0 if t is None else t.own)
        text = ", ".join([*map(str, numbers), *map(repr, reals)])
        layer = "" if a is None else f", {a.layer!r}"
        return f"    {{{text}}},  // {op.place or '(network)'}{layer}"

    def _kind(self, s: AxisSum, inner: int, count: int) -> int:
        """Which specialisation of `window_sum` or `listed_sum` a pass runs."""
        w = s.window
        sizes = (s.size, s.out_size, inner, count)
        # `window_sum` asks for a window that lies in the axis once; sums without terms have always been listed.
        if w is not None and w.padding is not None and w.low < w.high and all(s.sources):
            numbers = (*sizes, w.k, w.stride, w.dilation, -w.start)
            call = f"window_sum<R, {', '.join(map(str, numbers))}>(to, from, op, last)"
        else:
            call = f"listed_sum<R, {', '.join(map(str, sizes))}>(to, from, {self._listed(s)}, op, last)"
        if call not in self.kinds:
            self.kinds.append(call)
        return self.kinds.index(call)

    def _listed(self, s: AxisSum) -> int:
        """Where the list of the sums' windows starts."""
        if s not in self.known:
            self.known[s] = len(self.windows)
            for row in s.sources:
                self.windows.append((len(self.sources), len(row)))
                self.sources += row
        return self.known[s]

    def arrays(self) -> str:
        """The data as CUDA."""
        windows = ", ".join(f"{{{a}, {b}}}" for a, b in self.windows) or "{0, 0}"
        times = (
            "\n    int times;                            // a slope is multiplied with that map + own K" * self.tangents
        )
        return f"""\
struct Window {{ int first, count; }};
struct Op {{
    int src, dst, size, formula;          // where its maps are, how many elements it reads, which nonlinearity
    int offset, plane, width, site;       // where a table row keeps that nonlinearity's numbers
    int first_pass, pass_count;           // sums along axes
    int series, even, odd, shifts;        // an Elementwise's series: where it is, its rows, their steps{times}
    double unit, alpha, beta, keep, scale, bias{", own" * self.tangents};
}};
__device__ const unsigned char shifts[] = {{{", ".join(map(str, self.shifts)) or "0"}}};
__device__ const Window windows[] = {{{windows}}};
__device__ const int sources[] = {{{", ".join(map(str, self.sources)) or "0"}}};
__device__ const short passes[] = {{{", ".join(map(str, self.passes)) or "0"}}};
__device__ const Op ops[] = {{
{chr(10).join(self.ops) or "{0}"}
}};
template <class R> __device__ __forceinline__ R combined(const Op& op, const R* old, R value)
{{
    const R fresh = (R)op.scale * value + (R)op.bias;
    return op.keep == 0.0 ? fresh : (R)op.keep * *old + fresh;
}}
// Sums along an axis of N places with INNER elements in each; COUNT results. Here over windows of K places STEP apart,
// the first of output m at m STRIDE - BEFORE, with zeros outside.
template <class R, int N, int OUT, int INNER, int COUNT, int K, int STRIDE, int STEP, int BEFORE>
__device__ __forceinline__ void window_sum(R* to, const R* from, const Op& op, bool last)
{{
    for (int e = threadIdx.x; e < COUNT; e += blockDim.x) {{
        const int inner = e % INNER, first = e / INNER % OUT * STRIDE - BEFORE, outer = e / (INNER * OUT);
        const R* x = from + outer * (N * INNER) + first * INNER + inner;
        R sum = 0;
#pragma unroll 8
        for (int k = 0; k < K; k++)
            if ((OUT == 1 && BEFORE == 0) || (unsigned)(first + k * STEP) < (unsigned)N) sum += x[k * STEP * INNER];
        to[e] = last ? combined(op, to + e, sum) : sum;
    }}
}}
// The same over places that are listed: other paddings, transposed convolutions.
template <class R, int N, int OUT, int INNER, int COUNT>
__device__ void listed_sum(R* to, const R* from, int list, const Op& op, bool last)
{{
    for (int e = threadIdx.x; e < COUNT; e += blockDim.x) {{
        const int inner = e % INNER, at = e / INNER % OUT, outer = e / (INNER * OUT);
        const R* x = from + outer * (N * INNER) + inner;
        const Window w = windows[list + at];
        R sum = 0;
        for (int k = 0; k < w.count; k++) sum += x[sources[w.first + k] * INNER];
        to[e] = last ? combined(op, to + e, sum) : sum;
    }}
}}
template <class R> __device__ void run_pass(R* to, const R* from, int kind, const Op& op, bool last)
{{
    switch (kind) {{
{self._cases()}
    }}
}}
"""

    def _cases(self) -> str:
        return "\n".join(f"    case {k}: {call}; break;" for k, call in enumerate(self.kinds))

    def body(self, real: str, formulas: list[str]) -> str:
        """The walk: `mem` holds the maps, `formulas[k]` is nonlinearity k of K at element e as an expression."""
        t0, t1 = self.memory.temporary
        formulas = [
            f"({f}) * fma(({real})op.own, K, op.times < 0 ? ({real})0 : mem[op.times + e])" if slope else f
            for f, (_, slope) in zip(formulas, self.layers, strict=True)
        ]
        cases = "\n".join(
            f"            case {k}: for (int e = threadIdx.x; e < op.size; e += blockDim.x) "
            f"{{ const {real} K = from[e]; const {real} f = {f};\n"
            "                to[e] = op.pass_count ? f : combined(op, to + e, f); } break;"
            for k, f in enumerate(formulas)
        )
        return f"""\
    for (int k = 0; k < {len(self.ops)}; k++) {{
        const Op op = ops[k];
        const {real}* from = mem + op.src;
        {real}* dst = mem + op.dst;
        bool odd = false;
        if (op.formula >= 0) {{
            {real}* to = op.pass_count ? mem + {t0} : dst;
            odd = true;
            switch (op.formula) {{
{cases}
            }}
            from = to;
            __syncthreads();
        }} else if (!op.pass_count) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) dst[e] = combined(op, dst + e, from[e]);
            __syncthreads();
        }}
        for (int s = 0; s < op.pass_count; s++) {{
            const bool last = s + 1 == op.pass_count;
            {real}* to = last ? dst : mem + (odd ? {t1} : {t0});
            run_pass<{real}>(to, from, passes[op.first_pass + s], op, last);
            from = to;
            odd = !odd;
            __syncthreads();
        }}
    }}
"""


def _memory(walk: Walk, item: int, real: str, shared_limit: int) -> tuple[str, int, int]:
    """How the kernel gets its memory, and the bytes it needs: (declaration, shared, scratch)."""
    size = walk.memory.size * item
    if size <= min(SHARED_MOST, shared_limit):
        return f"extern __shared__ vec dynamic_shared[];\n    {real}* mem = ({real}*)dynamic_shared;", size, 0
    stride = -(-size // 256) * 256
    return f"{real}* mem = ({real}*)(scratch + (long long)blockIdx.x * {stride});", 0, stride


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
            for p, text in enumerate(entries(layer, "K", "op.unit"))
        )
        formulas.append(
            f"[&] {{ {stores} peak(peaks + op.site, {peak_of(layer, 'K')}); "
            f"return {diagonal_formula(layer, 'K', constants)}; }}()"
        )
    memory, shared, scratch = _memory(walk, 8, "double", shared_limit)
    slot = f"(r / {v} * width + c) * {v} + r % {v}" if v > 1 else "e"
    fold = f"if (width >= {layout.fold} && width % 2 == 0) {{ r = 2 * r + c % 2; c /= 2; width /= 2; }}"
    count = math.prod(program.shape)
    assert program.input is not None
    begin = walk.memory.buffers[program.input]
    text = f"""
{DIAGONAL_FORMULAS}{SLOPE_DIAGONAL_FORMULAS * walk.tangents}{SERIES_DIAGONAL if walk.series else ""}\
{SERIES_SLOPE_DIAGONAL if walk.series and walk.tangents else ""}
// Where element e of a map stands in its plane of a table row.
__device__ __forceinline__ int slot(int e, int width)
{{
    int r = e / width, c = e % width;
    {fold if layout.fold else ""}
    return {slot};
}}
// Numbers that are not negative order like their bits, and a NaN is above them all.
__device__ __forceinline__ void peak(double* at, double K)
{{
    if (!(K <= *(volatile double*)at)) atomicMax((unsigned long long*)at, (unsigned long long)__double_as_longlong(K));
}}
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
    if (threadIdx.x == 0) diagonal[i] = {program.unit!r} * mem[{walk.memory.buffers[program.output]}];
{theta_diagonal(program, walk.memory.buffers)}    __syncthreads();
    }}
}}
"""
    return BlockKernel(text, _threads(program), shared, scratch)


def pair_kernel(walk: Walk, dtype: str, shared_limit: int) -> BlockKernel:
    """K of every pair, one pair a block at a time."""
    program, layout = walk.program, walk.layout
    constants = Constants("(real)op.unit", "(real)op.alpha", "(real)op.beta", "op.even", "op.odd", "op.shifts")
    formulas = []
    for layer, slope in walk.layers:
        written = slope_formula if slope else pair_formula
        if isinstance(layer, Elementwise):
            first, second = ([f"Terms{{{t} + op.offset + e, op.plane}}"] for t in ("t1", "t2"))
            formulas.append(written(layer, "K", constants, first, second))
            continue
        planes = range(len(entries(layer, "", "")))
        first = [f"t1[op.offset + {p} * op.plane + e]" for p in planes]
        second = [f"t2[op.offset + {p} * op.plane + e]" for p in planes]
        formulas.append(written(layer, "K", constants, first, second))
    memory, shared, scratch = _memory(walk, 4 if dtype == "float" else 8, "real", shared_limit)
    assert program.input is not None
    count = math.prod(program.shape)
    text = f"""{series_formulas(walk)}
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
        mem[{walk.memory.buffers[program.input]} + e] = sum;
    }}
    __syncthreads();
{walk.body("real", formulas)}
    if (threadIdx.x == 0) {{
{results(program, walk.memory.buffers)}
    }}
    __syncthreads();
    }}
}}
"""
    return BlockKernel(text, _threads(program), shared, scratch)


def series_formulas(walk: _Series) -> str:
    """The pair formulas of an Elementwise, where there is one."""
    return (SERIES_FORMULAS + SERIES_SLOPE * walk.tangents) if walk.series else ""
