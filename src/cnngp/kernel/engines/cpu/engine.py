"""The CPU engine: runs whole networks for one group of pairs at a time, on all threads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import Output, to_output
from cnngp.kernel.formulas import RELU_LIKE
from cnngp.kernel.formulas.gelu import GELU
from cnngp.kernel.formulas.sine import COS, SIN
from cnngp.kernel.program import Kind, Program
from cnngp.kernel.series.packed import Rows

from ..base import Advance
from .columns import LANES
from .machine_code import entry
from .plan import CpuPlan, make_plan, pair_calls, variance_calls
from .runner import Array, Plans, Runner

# Bytes of a strip's tables, and of the maps of one block of rows, which should fit into a core's L2 cache.
STRIP_BYTES = 24 << 20
BLOCK_BYTES = 384 << 10

# A version changes when the bits of results may, so that a store never mixes them: version 4 changed networks with
# Sin, Cos and GELU, versions 5 and 6 those with pools, and version 7 those with LeakyReLU and Abs.
VERSION, POOLED_VERSION = 3, 6
_CHANGED = {SIN: 4, COS: 4, GELU: 4, RELU_LIKE: 7}


class PairRunner(Runner):
    """Fills matrices, one strip of `strip` rows after another."""

    def __init__(self, engine: CpuEngine, plan: CpuPlan) -> None:
        dtype = engine.dtype
        map_bytes = plan.buffers * LANES[dtype.name] * dtype.itemsize
        # The overhead of calling an operation equals some of its elements, so with small maps more images share a call.
        block = next((b for b, most in ((8, BLOCK_BYTES // 3), (4, BLOCK_BYTES)) if b * map_bytes <= most), 2)
        super().__init__(engine, plan, variance_calls(plan.ints), pair_calls(plan.ints, dtype.name), block=block)
        self.fewest = 8 if engine.program.input is None else 32  # with pools, pairs cost far more than tables
        self.strip = max(32, min(1024, STRIP_BYTES // (plan.table * dtype.itemsize)))

    def fill(self, K: Array | None, theta: Array | None, X: Array, Z: Array, symmetric: bool, advance: Advance) -> None:
        """Fill the given matrices with all pairs; if symmetric, everything except the diagonal."""
        pair_block = entry("pair_block", self.dtype.name)
        addresses = [0 if matrix is None else matrix.ctypes.data for matrix in (K, theta)]
        for row0 in range(0, len(X), self.strip):
            rows = X[row0 : row0 + self.strip]
            own = self.row_tables(rows)
            groups = range(row0 // self.lanes * self.lanes if symmetric else 0, len(Z), self.lanes)
            # Several tasks per thread, each with enough rows to amortise its column tables.
            pieces = max(1, min(-(-4 * self.threads // max(1, len(groups))), len(rows) // self.fewest))
            step = -(-len(rows) // pieces)
            tasks = [(column0, first) for column0 in groups for first in range(0, len(rows), step)]

            def task(
                at: tuple[int, int], rows: Array = rows, own: Array = own, row0: int = row0, step: int = step
            ) -> int:
                column0, first = at
                count = min(self.lanes, len(Z) - column0)
                last = min(first + step, len(rows))
                if symmetric:
                    last = min(last, column0 + count - 1 - row0)
                if first >= last:
                    return 0
                w = self.workspace()
                w.column_tables(Z, column0, count)
                pair_block(
                    self.pairs, *w.space, rows.ctypes.data, own.ctypes.data, self.plan.table, first, last,
                    self.block, *addresses, len(Z), row0, column0, count, symmetric,
                )  # fmt: skip
                below = max(0, row0 + last - column0) if symmetric else 0
                return (last - first) * count - below * (below + 1) // 2

            self.each(task, tasks, advance)


class CpuEngine(Plans[PairRunner]):
    """Runs one program on the CPU; see `Engine`."""

    def __init__(self, program: Program, dtype: str, threads: int | None = None) -> None:
        super().__init__(program, dtype, threads)
        families = {op.activation.formula.family for op in program.ops if op.activation is not None}
        pooled = VERSION if program.input is not None else POOLED_VERSION
        version = max([pooled, *(_CHANGED.get(family, VERSION) for family in families)])
        self.identity = f"cpu-{version}-{self.dtype.name}" + ("" if program.kind == "nngp" else f"-{program.kind}")

    def planned(self, rows: dict[int, Rows]) -> PairRunner:
        return PairRunner(self, make_plan(self.program, rows))

    def diagonal(self, X: Array) -> NDArray[np.float64]:
        found = self.checked(X.reshape(len(X), -1))
        return found.K if self.program.kind == "nngp" else found.theta

    def cross(self, X: Array, Z: Array, output: Output = "numpy", advance: Advance = None) -> Any:
        return self._matrices(X, Z, (self.program.kind,), output, advance)[0]

    def symmetric(self, X: Array, output: Output = "numpy", advance: Advance = None) -> Any:
        return self._matrices(X, None, (self.program.kind,), output, advance)[0]

    def both(self, X: Array, Z: Array | None, output: Output = "numpy", advance: Advance = None) -> tuple[Any, Any]:
        K, theta = self._matrices(X, Z, ("nngp", "ntk"), output, advance)
        return K, theta

    def _matrices(
        self, X: Array, Z: Array | None, kinds: tuple[Kind, ...], output: Output, advance: Advance
    ) -> list[Any]:
        """Compute the matrices of these kinds in one pass over the pairs; Z is None for one set of images."""
        x = X.reshape(len(X), -1)
        z = x if Z is None else Z.reshape(len(Z), -1)
        out = {kind: np.empty((len(x), len(z)), self.dtype) for kind in kinds}
        peaks: NDArray[np.float64] | None
        if Z is None:
            own = self.checked(x)
            peaks = own.peaks
            for kind in kinds:
                np.fill_diagonal(out[kind], own.K if kind == "nngp" else own.theta)
        else:
            peaks = self.peaks(x, z)
        self.runner(peaks).fill(out.get("nngp"), out.get("ntk"), x, z, Z is None, advance)
        return [to_output(out[kind], output) for kind in kinds]
