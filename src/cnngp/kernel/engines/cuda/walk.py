"""What all kernels have in common in which a block of threads walks through a program that is data.

Maps lie in shared memory, or in a scratch area of the block's own where they do not fit. Each operation takes its
nonlinearity, then sums along one axis after the other; between them results go to and fro between two maps. How
operations and sums are written down is told by block/walk.py and sheets/walk.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from cnngp.kernel.program import NOTHING, Op, Program
from cnngp.kernel.series.packed import Rows
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import Elementwise, Nonlinearity

from .layout import TableLayout
from .math import Constants, pair_formula, planes, slope_formula

SHARED_MOST = 100 * 1024  # bytes of shared memory a block takes at most, so that a multiprocessor has room for two

PEAK = """\
// Numbers that are not negative order like their bits, and a NaN is above them all.
__device__ __forceinline__ void peak(double* at, double K)
{
    if (!(K <= *(volatile double*)at)) atomicMax((unsigned long long*)at, (unsigned long long)__double_as_longlong(K));
}
"""


@dataclass(frozen=True)
class BlockKernel:
    """The text and how to launch it: `scratch` bytes of global memory for each block, or `shared` bytes instead."""

    text: str
    threads: int
    shared: int
    scratch: int


class ProgramWalk:
    """A program, where its maps are and which formulas its operations take, shared by the kernels of one source.

    `long` are the operations that may need the two maps for what is on its way; `size` counts elements of all maps.
    """

    NUMBERS: ClassVar[str]
    """The name, in the text, of what has an operation's factors, and its type."""
    NUMBERS_TYPE: ClassVar[str]
    PASSES: ClassVar[str]
    """How many sums along axes the operation has, in the text."""
    ELEMENT: ClassVar[str] = " "
    """What the text says first about element e of a map."""

    def __init__(self, program: Program, layout: TableLayout, series: Mapping[int, Rows], long: Iterable[Op]) -> None:
        self.program, self.layout, self.series = program, layout, series
        self.tangents = program.theta is not None
        self.shifts: list[int] = []
        self.shifts_at: dict[int, int] = {}
        for site, rows in series.items():
            self.shifts_at[site] = len(self.shifts)
            self.shifts += rows.shifts
        self.layers: list[tuple[Nonlinearity, bool]] = []
        """The formulas that operations take: of a nonlinearity, or of its slope."""
        *self.buffers, end = accumulate(program.buffers, initial=0)
        self.temporary = max([1, *(max(math.prod(op.shape), *_counts(op)) for op in long)])
        self.size = end + 2 * self.temporary

    def formula_of(self, op: Op) -> int:
        """The number of the formula that an operation takes, −1 for none."""
        if op.activation is None:
            return -1
        key = (op.activation.layer, op.tangent is not None)
        if key not in self.layers:
            self.layers.append(key)
        return self.layers.index(key)

    def series_of(self, op: Op) -> list[int]:
        """Where the series of an Elementwise is, its even and odd rows, and where their steps are."""
        site = -1 if op.activation is None else op.activation.site
        rows = self.series.get(site, Rows(0, 0, 0, ()))
        return [rows.at, rows.even, rows.odd, self.shifts_at.get(site, 0) if rows.count else 0]

    def times_of(self, op: Op) -> list[int]:
        """Where the map is that a slope is multiplied with, −1 for none; nothing in programs without Θ."""
        if not self.tangents:
            return []
        return [-1 if op.tangent is None or op.tangent.times == NOTHING else self.buffers[op.tangent.times]]

    def reals_of(self, op: Op) -> list[float]:
        """An operation's factors."""
        a = op.activation
        alpha, beta = (0.0, 0.0) if a is None else a.coefficients
        own = [0.0 if op.tangent is None else op.tangent.own] if self.tangents else []
        return [1.0 if a is None else a.unit, alpha, beta, op.keep, op.scale, op.bias, *own]

    def memory(self, item: int, real: str, shared_limit: int) -> tuple[str, int, int]:
        """How a kernel gets its maps, and the bytes that they need: (declaration, shared, scratch)."""
        size = self.size * item
        if size <= min(SHARED_MOST, shared_limit):
            return f"extern __shared__ vec dynamic_shared[];\n    {real}* mem = ({real}*)dynamic_shared;", size, 0
        stride = -(-size // 256) * 256
        return f"{real}* mem = ({real}*)(scratch + (long long)blockIdx.x * {stride});", 0, stride

    def pair_formulas(self, first: str, second: str) -> list[str]:
        """The formulas in the working precision, for table rows t1 and t2 that are read at these places."""
        x = self.NUMBERS
        constants = Constants(
            f"(real){x}.unit", f"(real){x}.alpha", f"(real){x}.beta", "op.even", "op.odd", "op.shifts"
        )
        found = []
        for layer, slope in self.layers:
            one, other = (
                [f"Terms{{{row} + op.offset + {at}, op.plane}}"]
                if isinstance(layer, Elementwise)
                else [f"{row}[op.offset + {p} * op.plane + {at}]" for p in range(planes(layer))]
                for row, at in (("t1", first), ("t2", second))
            )
            found.append((slope_formula if slope else pair_formula)(layer, "K", constants, one, other))
        return found

    def shifts_array(self) -> str:
        return f"__device__ const unsigned char shifts[] = {{{', '.join(map(str, self.shifts)) or '0'}}};\n"

    def combined(self) -> str:
        """The helper that adds a new value to what is there."""
        x = self.NUMBERS
        return f"""\
template <class R> __device__ __forceinline__ R combined(const {self.NUMBERS_TYPE}& {x}, const R* old, R value)
{{
    const R fresh = (R){x}.scale * value + (R){x}.bias;
    return {x}.keep == 0.0 ? fresh : (R){x}.keep * *old + fresh;
}}
"""

    def steps(self, real: str, formulas: list[str], run_pass: str) -> str:
        """One operation on the maps in `mem`: `formulas[k]` is nonlinearity k of K at element e as an expression.

        `run_pass` is the call that sums along axis s of the operation.
        """
        x, passes, t0 = self.NUMBERS, self.PASSES, self.size - 2 * self.temporary
        formulas = [
            f"({f}) * fma(({real}){x}.own, K, op.times < 0 ? ({real})0 : mem[op.times + e])" if slope else f
            for f, (_, slope) in zip(formulas, self.layers, strict=True)
        ]
        cases = "\n".join(
            f"            case {k}: for (int e = threadIdx.x; e < op.size; e += blockDim.x) "
            f"{{{self.ELEMENT}const {real} K = from[e]; const {real} f = {f};\n"
            f"                to[e] = {passes} ? f : combined({x}, to + e, f); }} break;"
            for k, f in enumerate(formulas)
        )
        return f"""\
if (op.formula >= 0) {{
            {real}* to = {passes} ? mem + {t0} : dst;
            odd = true;
            switch (op.formula) {{
{cases}
            }}
            from = to;
            __syncthreads();
        }} else if (!{passes}) {{
            for (int e = threadIdx.x; e < op.size; e += blockDim.x) dst[e] = combined({x}, dst + e, from[e]);
            __syncthreads();
        }}
        for (int s = 0; s < {passes}; s++) {{
            const bool last = s + 1 == {passes};
            {real}* to = last ? dst : mem + (odd ? {t0 + self.temporary} : {t0});
            {run_pass};
            from = to;
            odd = !odd;
            __syncthreads();
        }}
"""


def passes_of(op: Op) -> Iterator[tuple[AxisSum, int, int]]:
    """The sums along axes that an operation makes one after the other.

    With each go the elements that stand at one place of the axis, and how many results there are.
    """
    shape = list(op.shape)
    for axis, s in enumerate(op.sums or ()):
        if not s.is_identity:
            shape[axis] = s.out_size
            yield s, math.prod(shape[axis + 1 :]), math.prod(shape)


def _counts(op: Op) -> list[int]:
    return [0, *(count for _, _, count in passes_of(op))]
