"""The reversed program as numbers in global memory: its operations (sheets/walk.py), and the steps of the way back.

The text that walks through them depends on the nonlinearities and on sizes, not on the parameters of the network: a
search over those compiles it once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.program import PIXELS, Op, Program
from cnngp.kernel.program.steps import Back, Pixels, Reverse, Step, Total, as_program
from cnngp.kernel.series.packed import Rows

from ..layout import TableLayout
from ..math import Constants, back_formulas, formulas, pair_back, still_back, still_formulas
from ..sheets.walk import SheetWalk

OPERATION, BACK, TOTAL, TO_PIXELS = range(4)
"""What a step is."""

STRUCT = """\
// A step of the way back, beside its operation: what it is, the map that it multiplies with, whether it writes one,
// where the shares of its nonlinearity's variances begin, and which sums it adds to (-1: none).
struct Way { int kind, times, writes, shares, slot, extra_slot; };
// The sum of a number over the block, for thread 0 to read behind the next barrier.
template <class R> __device__ __forceinline__ void leave_sum(R value, R* parts)
{
    for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(ALL, value, d);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
}
template <class R> __device__ __forceinline__ double collected(const R* parts)
{
    double total = 0.0;
    for (int w = 0; w < blockDim.x / 32; w++) total += (double)parts[w];
    return total;
}
"""

# `run_pass` of sheets/walk.py with sizes that the compiler knows: it divides by multiplying, and unrolls windows.
KNOWN_PASS = """\
template <int SIZE, int OUT, int INNER, int COUNT, int K, int STRIDE, int STEP, int START>
__device__ __forceinline__ void known_pass(real* to, const real* from, const int* lists, const Numbers& x, bool last)
{
    for (int e = threadIdx.x; e < COUNT; e += blockDim.x) {
        const int inner = e % INNER, at = e / INNER % OUT, outer = e / (INNER * OUT);
        const real* line = from + outer * (SIZE * INNER) + inner;
        real sum = 0;
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
MOST_PASSES = 24
"""How many of them there are at most: each takes time to compile."""

# Where an operation's numbers have its passes (sheets/walk.py).
PASS, PASSES = 15, 16


class BackWalk(SheetWalk):
    """The steps as data, shared by the kernels.

    `slots` sums are made; `shares[s]` says which parameters sum s belongs to, and by which factors. A program with
    pools has sums for each of its sheets, and those that belong to the same parameters in the same way are one here.
    """

    def __init__(self, reverse: Reverse, layout: TableLayout, series: Mapping[int, Rows]) -> None:
        program, steps = as_program(reverse), list(reverse.steps)
        self.forwards = reverse.forwards
        if program.input is not None:  # the product of the two images is an operation like the others
            product = Op("", PIXELS, program.input, program.shape, program.shape, None, None, 0.0, 1.0, 0.0)
            program, steps = replace(program, ops=(product, *program.ops)), [product, *steps]
            self.forwards += 1
        super().__init__(program, layout, series)
        self.seed = self.buffers[reverse.seed]
        self.variances = max(1, program.elements)
        """How many shares of variances an image collects; those of its pixels, if any, stand behind."""
        self.pixels = program.channels * math.prod(program.shape)
        self.to_images = any(isinstance(step, Pixels) for step in steps)
        self.entries = self.variances + (self.pixels if self.to_images else 0)
        belongs: dict[int, tuple[tuple[str, float], ...]] = {}
        for share in reverse.shares:
            belongs[share.slot] = (*belongs.get(share.slot, ()), (share.name, share.factor))
        self.shares = list(dict.fromkeys(belongs.values()))
        self.slots = max(1, len(self.shares))
        places = {parts: k for k, parts in enumerate(self.shares)}
        self._slot_of = {slot: places[parts] for slot, parts in belongs.items()}
        self.ways: NDArray[np.int32] = np.array([self._way(step) for step in steps], np.int32)

    def _way(self, step: Step) -> list[int]:
        match step:
            case Op():
                return [OPERATION, 0, 0, 0, -1, -1]
            case Back():
                offset = 0 if step.activation is None else step.activation.offset
                sums = [self._slot_of.get(step.slot + k, -1) for k in range(2)]
                return [BACK, self.buffers[step.times], int(step.dst is not None), offset, *sums]
            case Total():
                return [TOTAL, 0, 0, 0, self._slot_of.get(step.slot, -1), -1]
            case Pixels():
                return [TO_PIXELS, 0, 0, self.variances, -1, -1]

    def common(self) -> str:
        """All that the kernels share; in `exact` in float64, for images with themselves."""
        layers = [layer for layer, _ in self.layers]
        # Without comments that show a layer with its parameters.
        known = re.sub(r"^// [A-Z].*\(.*\)\n", "", super().common(), flags=re.MULTILINE)
        c = Constants("x.unit", "x.alpha", "x.beta", "op.even", "op.odd", "op.shifts")
        own = "".join(
            f"""\
__device__ Parts back_{k}(double K, const Op& op, const Numbers& x, const double* mine, const double* other, int whole)
{{
    return {pair_back(layer, c, ["mine", "other"], "whole")};
}}
__device__ Still still_{k}(double K, const Op& op, const Numbers& x, const double* panels)
{{
    return {still_back(layer, c)};
}}
"""
            for k, layer in enumerate(layers)
        )
        return f"""\
{known}{STRUCT}
namespace exact {{
{back_formulas("double", layers)}{still_formulas(layers)}{own}}}
"""

    @property
    def place(self) -> str:
        if all(_is_whole(op, self.program) for op in self.program.ops):
            return "    return e;"
        return super().place

    def known_passes(self) -> str:
        """Sums along axes in the working precision: those with the most work have code of their own sizes."""
        data = self.data
        ops = data.ints[: data.passes].reshape(data.ops, -1)
        passes = data.ints[data.passes : data.lists].reshape(-1, 8)
        work: Counter[tuple[int, ...]] = Counter()
        for first, count in ops[:, [PASS, PASSES]].tolist():
            for size, out, inner, elements, k, *rest in passes[first : first + count].tolist():
                work[size, out, inner, elements, k, *rest] += elements * max(k, 1)
        cases = ""
        for sizes, _ in work.most_common(MOST_PASSES):
            numbers = " ".join(f"case {n}:" for n, row in enumerate(passes.tolist()) if tuple(row) == sizes)
            template = ", ".join(map(str, sizes))
            cases += f"    {numbers} known_pass<{template}>(to, from, lists, x, last); break;\n"
        return f"""{KNOWN_PASS}\
__device__ void run_known(int number, real* to, const real* from, const Pass& pass, const int* lists, const Numbers& x,
                          bool last)
{{
    switch (number) {{
{cases}    default: run_pass(to, from, pass, lists, x, last);
    }}
}}
"""

    def working(self, real: str) -> str:
        """The formulas in the working precision."""
        layers = [layer for layer, _ in self.layers]
        return formulas(real, layers) + back_formulas(real, layers)


def _is_whole(op: Op, program: Program) -> bool:
    """Whether the places of an operation's map are those of the tables that it reads."""
    table = program.shape if op.src == PIXELS else op.shape if op.activation is None else op.activation.shape
    return op.first == op.second == (0, 0, 0) and op.shape == table
