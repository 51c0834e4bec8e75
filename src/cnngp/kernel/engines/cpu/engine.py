"""The CPU engine: whole networks for a group of pairs at a time, on all threads, with little memory.

The matrix is computed in strips of rows. The tables of a strip's images are made once; then each task takes one group
of column images, makes their tables, and runs the strip's rows against them. Nothing else is kept, so memory does not
grow with the number of images.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import Output, to_output
from cnngp.kernel.program import Kind, Program
from cnngp.kernel.program.formulas import Family
from cnngp.kernel.series.packed import Rows, SeriesTables

from ..base import Advance, check_range
from . import interpreter as interpreter
from .calls import pair_calls, variance_calls
from .plan import ROW_K, ROW_LIST, CpuPlan, make_plan
from .plan import SMALLEST as SMALLEST_COLUMN
from .simd import LANES
from .work import POWERS

Array = NDArray[Any]

# Bytes that a strip's tables may take, and that the maps of one block of rows may take in a core's L2.
STRIP_BYTES = 24 << 20
BLOCK_BYTES = 384 << 10
# 1/√K counts as 0 below these √K: the smallest for which products of two and their inverses stay normal numbers.
SMALLEST = {"float32": 2.0**-62, "float64": 2.0**-510}

# They change when bits of results may, so that a store never mixes them: networks with nonlinearities of these families
# changed in version 4, those with pools in versions 5 and 6, and those with LeakyReLU and Abs in version 7.
VERSION, POOLED_VERSION = 3, 6
_CHANGED = {Family.SIN: 4, Family.COS: 4, Family.GELU: 4, Family.RELU_LIKE: 7}


def default_threads() -> int:
    """Threads this process may use: NUMBA_NUM_THREADS or OMP_NUM_THREADS (joblib and Dask set them), else all cores."""
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_pools: dict[int, ThreadPoolExecutor] = {}
_pools_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)  # a child has none of its parent's threads


def _ignore(pairs: int) -> None:
    pass


def run_tasks(
    task: Callable[[Any], int | None], items: list[Any], threads: int, advance: Callable[[int], None]
) -> None:
    """Run a task per item on the process's one pool of that many threads, which concurrent calls share."""
    if threads == 1 or len(items) == 1:
        for item in items:
            advance(task(item) or 0)
        return
    with _pools_lock:
        pool = _pools.setdefault(threads, ThreadPoolExecutor(threads, thread_name_prefix="cnngp"))
    futures = [pool.submit(task, item) for item in items]
    try:
        for future in futures:
            advance(future.result() or 0)
    finally:  # after an error or Ctrl-C: drop what has not begun, wait for what has
        for future in futures:
            future.cancel()
        wait(futures)


class CpuEngine:
    """Runs one program on the CPU. See `Engine` for what it offers."""

    def __init__(self, program: Program, dtype: str, threads: int | None = None) -> None:
        self.program = program
        self.dtype = np.dtype(dtype)
        self.threads = default_threads() if threads is None else threads
        families = {op.activation.formula.family for op in program.ops if op.activation is not None}
        pooled = VERSION if program.input is not None else POOLED_VERSION
        version = max([pooled, *(_CHANGED.get(family, VERSION) for family in families)])
        self.identity = f"cpu-{version}-{self.dtype.name}" + ("" if program.kind == "nngp" else f"-{program.kind}")
        self._series = SeriesTables(program, self.dtype)
        self._runs: dict[tuple[Rows, ...], _Run] = {}

    def diagonal(self, X: Array) -> NDArray[np.float64]:
        K, theta, _ = self._variances(X.reshape(len(X), -1))
        return K if self.program.kind == "nngp" else theta

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
        """The matrices of these kinds, from one pass over the pairs; of one set of images where Z is None."""
        x = X.reshape(len(X), -1)
        z = x if Z is None else Z.reshape(len(Z), -1)
        peaks, diagonals = None, {}
        if Z is None:
            diagonals["nngp"], diagonals["ntk"], peaks = self._variances(x)
        elif self._series.sites:
            peaks = np.maximum(self._variances(x)[2], self._variances(z)[2])
        out = {kind: np.empty((len(x), len(z)), self.dtype) for kind in kinds}
        none = np.empty((0, 0), self.dtype)
        self._run(peaks).fill(out.get("nngp", none), out.get("ntk", none), x, z, Z is None, advance)
        for kind in kinds if Z is None else ():
            np.fill_diagonal(out[kind], diagonals[kind].astype(self.dtype))
        return [to_output(out[kind], output) for kind in kinds]

    def _variances(self, x: Array) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """K(x, x) and Θ(x, x) of each image, and the largest variance at each site; refuses what does not fit."""
        K, theta, peaks = self._run(None).variances(x)
        return K, theta, check_range(self.program, self.dtype, self._series, peaks, K, theta)

    def _run(self, peaks: NDArray[np.float64] | None) -> _Run:
        """The plan for images with these variances; one serves all, but for the length of an Elementwise's series."""
        rows = self._series.rows(peaks)
        key = tuple(rows.values())
        if key not in self._runs:
            self._runs[key] = _Run(self, make_plan(self.program, rows))
        return self._runs[key]


class _Run:
    """A plan with the memory to run it."""

    def __init__(self, engine: CpuEngine, plan: CpuPlan) -> None:
        self.engine = engine
        self.plan = plan
        self.dtype = engine.dtype
        self.lanes = LANES[self.dtype.name]
        numbers = plan.floats.copy()
        numbers[:, SMALLEST_COLUMN] = SMALLEST[self.dtype.name]
        self.variance_code, self.pair_code = (
            interpreter.Code(
                calls, numbers, plan.taps, engine._series.panels, plan.channels, plan.locations, plan.width,
                plan.buffers, plan.input, plan.output, plan.theta,
            )
            for calls in (variance_calls(plan.ints), pair_calls(plan.ints, self.dtype.name))
        )  # fmt: skip
        map_bytes = plan.buffers * self.lanes * self.dtype.itemsize
        # Small maps: a call to an operation costs as much as some of its elements, so more images share one.
        self.block = next((b for b, most in ((8, BLOCK_BYTES // 3), (4, BLOCK_BYTES)) if b * map_bytes <= most), 2)
        self.strip = max(32, min(1024, STRIP_BYTES // (plan.table * self.dtype.itemsize)))
        self._local = threading.local()

    def variances(self, x: Array) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """(N,) K(x, x) and Θ(x, x), zeros where there is none, and (N, activations) the largest variances, in buffer
        units.
        """
        program, ends = self.engine.program, (self.plan.output, self.plan.theta)
        diagonals = np.zeros((2, len(x)))
        peaks = np.empty((len(x), len(self.engine.program.activations)))

        def task(first: int) -> None:
            w = self._workspace()
            count = min(w.lanes64, len(x) - first)
            w.tables(x, first, count)
            for diagonal, end, unit in zip(diagonals, ends, (program.unit, program.theta_unit), strict=True):
                at = (POWERS + self.plan.width + end) * w.lanes64
                if end >= 0:
                    diagonal[first : first + count] = w.maps64[at : at + count] * unit
            peaks[first : first + count] = w.peaks.reshape(-1, w.lanes64)[: peaks.shape[1], :count].T

        self._each(task, range(0, len(x), LANES["float64"]))
        return diagonals[0], diagonals[1], peaks

    def fill(self, K: Array, theta: Array, X: Array, Z: Array, symmetric: bool, advance: Advance) -> None:
        """All pairs, into the matrices that have rows."""
        for row0 in range(0, len(X), self.strip):
            rows = X[row0 : row0 + self.strip]
            own = self._row_tables(rows)
            groups = range(row0 // self.lanes * self.lanes if symmetric else 0, len(Z), self.lanes)
            # Enough tasks for every thread to have several, each with enough rows to pay for its column tables.
            pieces = max(1, min(-(-4 * self.engine.threads // max(1, len(groups))), len(rows) // 32))
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
                w = self._workspace()
                w.column_tables(Z, column0, count)
                unit, theta_unit = map(self.dtype.type, (self.engine.program.unit, self.engine.program.theta_unit))
                interpreter.pair_block(
                    self.pair_code,
                    w.space,
                    interpreter.Rows(rows, own, first, last, self.block),
                    interpreter.Target(K, theta, row0, column0, count, symmetric, unit, theta_unit),
                )
                below = max(0, row0 + last - column0) if symmetric else 0
                return (last - first) * count - below * (below + 1) // 2

            self._each(task, tasks, advance)

    def _row_tables(self, rows: Array) -> Array:
        own = np.empty((len(rows), self.plan.table), self.dtype)

        def task(first: int) -> None:
            w = self._workspace()
            count = min(w.lanes64, len(rows) - first)
            w.tables(rows, first, count)
            interpreter.spread_rows(w.table64, count, own, first)

        self._each(task, range(0, len(rows), LANES["float64"]))
        return own

    def _each(self, task: Callable[[Any], int | None], items: Iterable[Any], advance: Advance = None) -> None:
        run_tasks(task, list(items), self.engine.threads, advance or _ignore)

    def _workspace(self) -> _Workspace:
        w: _Workspace | None = getattr(self._local, "workspace", None)
        if w is None:
            w = self._local.workspace = _Workspace(self)
        return w


def aligned(n: int, dtype: Any = np.float64) -> Array:
    """Zeros that start on a cache line, so that no vector straddles two."""
    dtype = np.dtype(dtype)
    raw = np.zeros(n * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n * dtype.itemsize].view(dtype)


class _Workspace:
    """A thread's own memory: maps and tables in the working precision, and in float64 for the variance recursion."""

    def __init__(self, run: _Run) -> None:
        p = run.plan
        self.run = run
        self.lanes64 = LANES["float64"]
        n = p.channels * p.locations
        head = POWERS + p.width
        frame = np.zeros(ROW_LIST + int(p.ints[:, ROW_K].max(initial=1)), np.int64)
        self.maps64 = aligned((head + p.buffers + p.scratch) * self.lanes64)
        self.pixels64 = aligned(n * self.lanes64)
        self.table64 = aligned(p.table * self.lanes64)
        self.peaks = aligned(max(1, len(run.engine.program.activations)) * self.lanes64)
        self.pixels = aligned(n * run.lanes, run.dtype)
        self.table = aligned(p.table * run.lanes, run.dtype)
        maps = aligned((head + run.block * p.buffers + p.scratch) * run.lanes, run.dtype)
        self.space = interpreter.Space(maps, frame, self.pixels, self.table)
        self.space64 = interpreter.Space(self.maps64, frame, self.pixels64, self.table64)

    def tables(self, images: Array, first: int, count: int) -> None:
        self.peaks.fill(0.0)
        interpreter.image_tables(self.run.variance_code, self.space64, self.peaks, images, first, count)

    def column_tables(self, images: Array, first: int, count: int) -> None:
        for lane in range(0, self.run.lanes, self.lanes64):
            at = min(first + lane, first + count - 1)
            self.tables(images, at, max(1, min(self.lanes64, first + count - at)))
            interpreter.spread_lanes(self.table64, self.table, lane)
            interpreter.spread_lanes(self.pixels64, self.pixels, lane)
