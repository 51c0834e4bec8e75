"""A program with pools as numbers in global memory, and the text that walks through them.

A program of sheets can have tens of thousands of operations, so they are not text: a block of threads reads one after
the other, and the text depends on the nonlinearities and on a few sizes alone. The walk runs in the working precision
on two images, and in float64 on one image with itself: there, operations without displacement give the variances, which
the others then read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.program import NOTHING, PIXELS, Op, Program
from cnngp.kernel.series.packed import Rows
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import Elementwise, Nonlinearity

from ..layout import TableLayout
from ..math import (
    Constants,
    diagonal_formula,
    entries,
    formulas,
    pair_formula,
    planes,
    slope_diagonal,
    slope_formula,
)
from ..walk import PEAK, ProgramWalk, passes_of

# Formulas in float64, whatever the working precision; they run once an image, so plain division and roots will do.
EXACT = """\
__device__ __forceinline__ double reciprocal(double x) { return 1.0 / fmax(x, 2.3e-308); }
__device__ __forceinline__ double root(double x) { return sqrt(x); }
__device__ __forceinline__ double clamp01(double x) { return fmin(fabs(x), 1.0); }
__device__ __forceinline__ double product(double s1, double s2) { return s1 * s2; }
"""


def structs(tangents: bool) -> str:
    times = (
        "\n    int times;                                     // a slope is multiplied with that map + own K" * tangents
    )
    return f"""\
struct Op {{
    int src, dst, formula, size, out_size;         // maps, nonlinearity, how many elements are read and made
    int width, height, table_width, table_plane;   // of the sheet, and of the whole map that the tables keep
    int first, second;                             // where the sheet begins in the tables of the two images
    int offset, plane, site, still;                // where its numbers are; whether the displacement is zero
    int pass, passes;                              // sums along axes
    int series, even, odd, shifts;                 // an Elementwise's series: where it is, its rows, their steps{times}
}};
struct Numbers {{ double unit, alpha, beta, keep, scale, bias{", own" * tangents}; }};
// Sums along an axis: over windows of `k` places `step` apart, the first of output m at m stride + start, with zeros
// outside; or (k < 0) over places listed from `start` on.
struct Pass {{ int size, out, inner, count, k, stride, step, start; }};
"""


@dataclass(frozen=True)
class SheetData:
    """A program's operations as numbers: `ints` holds operations, passes and lists one after the other."""

    ints: NDArray[np.int32]
    reals: NDArray[np.float64]
    ops: int
    passes: int
    lists: int


class SheetWalk(ProgramWalk):
    """The program as data, shared by the pair kernel and the tables' kernel."""

    NUMBERS = "x"
    NUMBERS_TYPE = "Numbers"
    PASSES = "op.passes"
    ELEMENT = "\n                const int at = place(op, e); "

    def __init__(self, program: Program, layout: TableLayout, series: Mapping[int, Rows]) -> None:
        super().__init__(program, layout, series, program.ops)
        self.own: dict[int, int] = {}  # where the float64 table of one image keeps a site's numbers
        end = 0
        for a in program.activations:
            self.own[a.site] = end
            end += layout.sites[a.site].planes * a.size
        self.own_size = end
        self._passes: dict[tuple[int, ...], int] = {}
        self._lists: list[int] = []
        self._known: dict[AxisSum, int] = {}
        ops = [self._op(op) for op in program.ops]
        reals = [self.reals_of(op) for op in program.ops]
        passes = [n for key in self._passes for n in key]
        ints = [n for op in ops for n in op] + passes + self._lists
        self.data = SheetData(
            np.array(ints, np.int32),
            np.array(reals, np.float64),
            len(ops),
            len(ops) * len(ops[0]),
            len(ops) * len(ops[0]) + len(passes),
        )

    def _op(self, op: Op) -> list[int]:
        a = op.activation
        passes = [(s.size, s.out_size, inner, count, *self._window(s)) for s, inner, count in passes_of(op)]
        first_pass = self._consecutive(passes) if passes else 0
        table = self.program.shape if op.src == PIXELS else op.shape if a is None else a.shape
        begin = [(o[0] * table[1] + o[1]) * table[2] + o[2] for o in (op.first, op.second)]
        site = -1 if a is None else a.site
        return [
            op.src if op.src in (PIXELS, NOTHING) else self.buffers[op.src],
            self.buffers[op.dst],
            self.formula_of(op),
            math.prod(op.shape),
            math.prod(op.out_shape),
            op.shape[2],
            op.shape[1],
            table[2],
            table[1] * table[2],
            *begin,
            0 if a is None else self.layout.sites[site].offset,
            0 if a is None else self.layout.sites[site].plane,
            max(site, 0),
            int(op.is_still),
            first_pass,
            len(passes),
            *self.series_of(op),
            *self.times_of(op),
        ]

    def _window(self, s: AxisSum) -> tuple[int, int, int, int]:
        window = s.window
        if window is not None and window.padding is not None:
            return window.k, window.stride, window.dilation, window.start
        if s not in self._known:
            sources = [nu for row in s.sources for nu in row]
            begin = len(self._lists) + 2 * s.out_size
            self._known[s] = len(self._lists)
            for row in s.sources:
                self._lists += [begin, len(row)]
                begin += len(row)
            self._lists += sources
        return -1, 0, 0, self._known[s]

    def _consecutive(self, found: Sequence[tuple[int, ...]]) -> int:
        """Where these passes stand one after the other; a list of passes that is known stands once."""
        key = tuple(n for one in found for n in one)
        if key not in self._passes:
            self._passes[key] = sum(len(k) for k in self._passes) // 8
        return self._passes[key]

    def walk(self, real: str, cases: list[str], product: str) -> str:
        """The walk through all operations."""
        return f"    for (int k = 0; k < {self.data.ops}; k++) {{\n{self.operation(real, cases, product)}    }}\n"

    def operation(self, real: str, cases: list[str], product: str, run_pass: str = "run_pass(") -> str:
        """Operation k of the plan: `mem` holds the maps; `cases[f]` is nonlinearity f of K at element e.

        `product` adds the product of the two images' channel c to f; `run_pass` begins the call for sums along an axis.
        """
        data = self.data
        sums = f"{run_pass}to, from, ((const Pass*)(plan + {data.passes}))[op.pass + s], plan + {data.lists}, x, last)"
        return f"""\
        const Op op = ((const Op*)plan)[k];
        const Numbers x = ((const Numbers*)numbers)[k];
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
                for (int c = 0; c < {self.program.channels}; c++) f = {product};
                dst[e] = combined(x, dst + e, f);
            }}
            __syncthreads();
        }} else {self.steps(real, cases, sums)}"""

    @property
    def place(self) -> str:
        """Where element e of a sheet is in the map that it is part of."""
        return """\
    const int row = e / op.width, z = row / op.height;
    return z * op.table_plane + (row - z * op.height) * op.table_width + e - row * op.width;"""

    def common(self) -> str:
        return f"""\
{self.shifts_array()}\
{structs(self.tangents)}
__device__ __forceinline__ int place(const Op& op, int e)
{{
{self.place}
}}
{self.combined()}\
template <class R>
__device__ void run_pass(R* to, const R* from, const Pass pass, const int* lists, const Numbers& x, bool last)
{{
    for (int e = threadIdx.x; e < pass.count; e += blockDim.x) {{
        const int rest = e / pass.inner, inner = e - rest * pass.inner;
        const int outer = rest / pass.out, at = rest - outer * pass.out;
        const R* line = from + (long long)outer * pass.size * pass.inner + inner;
        R sum = 0;
        if (pass.k >= 0) {{
            int p = at * pass.stride + pass.start;
            for (int k = 0; k < pass.k; k++, p += pass.step)
                if ((unsigned)p < (unsigned)pass.size) sum += line[p * pass.inner];
        }} else {{
            const int* list = lists + pass.start + 2 * at;
            for (int k = 0; k < list[1]; k++) sum += line[lists[list[0] + k] * pass.inner];
        }}
        to[e] = last ? combined(x, to + e, sum) : sum;
    }}
}}
{PEAK}\
namespace exact {{
typedef double real;
{EXACT}{formulas("double", [layer for layer, _ in self.layers], self.tangents)}
{"".join((_own_slope if slope else _own_function)(k, layer) for k, (layer, slope) in enumerate(self.layers))}}}
"""


def _own_function(k: int, layer: Nonlinearity) -> str:
    """A nonlinearity of an image with itself: at equal places it leaves the numbers that other sheets read."""
    c = Constants("x.unit", "x.alpha", "x.beta", "op.even", "op.odd", "op.shifts")
    stores = "".join(f"        mine[{p} * whole] = {text};\n" for p, text in enumerate(entries(layer, "K", c)))
    diagonal = diagonal_formula(layer, "K", c)
    first, second = ([f"{m}[{p} * whole]" for p in range(planes(layer))] for m in ("mine", "other"))
    if isinstance(layer, Elementwise):
        diagonal = "series_entries(sqrt(x.unit * K), panels + op.series, mine + whole, whole, op.even, op.odd)"
        first, second = ([f"Terms{{{m}, whole}}"] for m in ("mine", "other"))
    return f"""\
// {layer!r}
__device__ double nonlinearity_{k}(double K, const Op& op, const Numbers& x, double* sheet, int whole, int at,
                                   double* top, const double* panels)
{{
    double* mine = sheet + op.first + at;
    if (op.still) {{
{stores}        peak(top, K);
        return {diagonal};
    }}
    const double* other = sheet + op.second + at;
    return {pair_formula(layer, "K", c, first, second)};
}}
"""


def _own_slope(k: int, layer: Nonlinearity) -> str:
    """The slope of a nonlinearity of an image with itself; at equal places it comes before the numbers are there."""
    c = Constants("x.unit", "x.alpha", "x.beta", "op.even", "op.odd", "op.shifts")
    first, second = ([f"{m}[{p} * whole]" for p in range(planes(layer))] for m in ("mine", "other"))
    if isinstance(layer, Elementwise):
        first, second = ([f"Terms{{{m}, whole}}"] for m in ("mine", "other"))
    return f"""\
// the slope of {layer!r}
__device__ double nonlinearity_{k}(double K, const Op& op, const Numbers& x, double* sheet, int whole, int at,
                                   double* top, const double* panels)
{{
    if (op.still) return {slope_diagonal(layer, "K", c)};
    const double *mine = sheet + op.first + at, *other = sheet + op.second + at;
    return {slope_formula(layer, "K", c, first, second)};
}}
"""
