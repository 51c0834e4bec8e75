"""A program without pools as data: the arrays that a block of threads walks through, and its sums along axes.

Each sum has code with its own sizes, so the text has as many of them as the program has kinds of sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from cnngp.kernel.program import Op, Program
from cnngp.kernel.series.packed import Rows
from cnngp.network.geometry import AxisSum

from ..layout import Site, TableLayout
from ..walk import ProgramWalk, passes_of


class Walk(ProgramWalk):
    """The program as data, shared by the pair kernel and the tables' kernel."""

    NUMBERS = "op"
    NUMBERS_TYPE = "Op"
    PASSES = "op.pass_count"

    def __init__(self, program: Program, layout: TableLayout, series: Mapping[int, Rows]) -> None:
        super().__init__(program, layout, series, (op for op in program.ops if op.sums is not None))
        self.kinds: list[str] = []
        self.windows: list[tuple[int, int]] = []
        self.sources: list[int] = []
        self.known: dict[AxisSum, int] = {}
        self.passes: list[int] = []
        self.ops = [self._op(op) for op in program.ops]

    def _op(self, op: Op) -> str:
        a = op.activation
        first = len(self.passes)
        self.passes += [self._kind(*one) for one in passes_of(op)]
        site = Site(0, 0, 0, (1, 1, 1)) if a is None else self.layout.sites[a.site]
        numbers = [self.buffers[op.src], self.buffers[op.dst], math.prod(op.shape), self.formula_of(op)]
        numbers += [site.offset, site.plane, op.shape[2], 0 if a is None else a.site, first, len(self.passes) - first]
        numbers += [*self.series_of(op), *self.times_of(op)]
        text = ", ".join([*map(str, numbers), *map(repr, self.reals_of(op))])
        layer = "" if a is None else f", {a.layer!r}"
        return f"    {{{text}}},  // {op.place or '(network)'}{layer}"

    def _kind(self, s: AxisSum, inner: int, count: int) -> int:
        """Which specialisation of `window_sum` or `listed_sum` a pass runs."""
        w = s.window
        sizes = (s.size, s.out_size, inner, count)
        # A single output is not checked for bounds, so its window must lie inside. Sums without terms stay lists: the
        # text is part of the engine's identity, by which stores that were begun are continued.
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
{self.shifts_array()}\
__device__ const Window windows[] = {{{windows}}};
__device__ const int sources[] = {{{", ".join(map(str, self.sources)) or "0"}}};
__device__ const short passes[] = {{{", ".join(map(str, self.passes)) or "0"}}};
__device__ const Op ops[] = {{
{chr(10).join(self.ops) or "{0}"}
}};
{self.combined()}\
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
        run_pass = f"run_pass<{real}>(to, from, passes[op.first_pass + s], op, last)"
        return f"""\
    for (int k = 0; k < {len(self.ops)}; k++) {{
        const Op op = ops[k];
        const {real}* from = mem + op.src;
        {real}* dst = mem + op.dst;
        bool odd = false;
        {self.steps(real, formulas, run_pass)}\
    }}
"""
