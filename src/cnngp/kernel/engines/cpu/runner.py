"""Execution of a plan: tables of images and blocks of pairs, on all threads, with little memory.

The matrix is processed in strips of rows. The tables of a strip's images are made once; then each task takes one group
of column images, makes their tables, and runs the strip's rows against them. `engine.py` and `gradient.py` define the
work on a strip and a group; nothing else is stored, so memory does not grow with the number of images.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.program import Program
from cnngp.kernel.series.packed import Rows, SeriesTables

from ..base import Advance, check_range
from . import columns as col
from .machine_code import entry
from .plan import CpuPlan, Ints

Array = NDArray[Any]

# For √K below this, 1/√K counts as 0: the smallest √K for which products of two and their inverses are normal numbers.
SMALLEST = {"float32": 2.0**-62, "float64": 2.0**-510}
LANES64 = col.LANES["float64"]


def default_threads() -> int:
    """Number of threads: NUMBA_NUM_THREADS or OMP_NUM_THREADS (which joblib and Dask set), else all cores."""
    for name in ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(name, "")
        if value.isdigit() and int(value) > 0:
            return int(value)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="cnngp")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads


class Variances(NamedTuple):
    """K(x, x) and Θ(x, x) of images, zeros if Θ is not computed, (N,) each, and the largest variance at each
    nonlinearity in buffer units, (N, activations).
    """

    K: NDArray[np.float64]
    theta: NDArray[np.float64]
    peaks: NDArray[np.float64]


class Runner:
    """A plan together with the memory to run it.

    `selves` are its operations with the functions for images with themselves, `pairs` with those for pairs; the first
    `tables` operations of `selves` suffice to make an image's table. Each image has `shares` numbers in which gradients
    accumulate, and `block` row images are processed at a time.
    """

    def __init__(
        self, plans: Plans[Any], plan: CpuPlan, selves: Ints, pairs: Ints, *, tables: int | None = None,
        shares: int = 0, block: int = 1,
    ) -> None:  # fmt: skip
        program, self.dtype, self.threads = plans.program, plans.dtype, plans.threads
        self.plan, self.shares, self.block = plan, shares, block
        self.activations = len(program.activations)
        self.lanes = col.LANES[self.dtype.name]
        floats = plan.floats.copy()
        floats[:, col.SMALLEST] = SMALLEST[self.dtype.name]
        self.units = program.unit, program.theta_unit
        parts = floats, plan.taps, plans.series.panels, np.array(self.units, self.dtype)
        self._codes: list[tuple[Any, ...]] = []

        def code(ints: Ints) -> int:
            """Address of the integers that describe the program to the interpreter: the columns OPS … UNITS."""
            numbers, taps, panels, units = (part.ctypes.data for part in parts)
            sizes = plan.channels, plan.locations, plan.width, plan.buffers, plan.input, plan.output, plan.theta
            told = np.array([ints.ctypes.data, len(ints), numbers, taps, panels, *sizes, units], np.int64)
            self._codes.append((told, ints, *parts))  # the arrays must outlive their addresses
            return int(told.ctypes.data)

        self.pairs, self.selves = code(pairs), code(selves)
        self.tables = self.selves if tables is None else code(selves[:tables])
        self.ends = plan.output, plan.theta
        """Buffers of K and Θ after an image's tables are made; −1 for none."""
        self._local = threading.local()

    def each(self, task: Callable[[Any], int | None], items: Iterable[Any], advance: Advance = None) -> None:
        """Run a task per item on the process's pool of this many threads, which concurrent calls share.

        A task returns the number of pairs that it has computed, for `advance`.
        """
        items, told = list(items), advance or (lambda pairs: None)
        if self.threads == 1 or len(items) == 1:
            for item in items:
                told(task(item) or 0)
            return
        futures = [_pool(self.threads).submit(task, item) for item in items]
        try:
            for future in futures:
                told(future.result() or 0)
        finally:  # after an error or Ctrl-C: cancel tasks that have not begun, wait for the others
            for future in futures:
                future.cancel()
            wait(futures)

    def variances(self, x: Array) -> Variances:
        found = np.zeros((2, len(x)))
        peaks = np.empty((len(x), self.activations))

        def task(first: int) -> None:
            w = self.workspace()
            count = min(LANES64, len(x) - first)
            w.make_tables(self.tables, x, first, count)
            for values, end, unit in zip(found, self.ends, self.units, strict=True):
                at = (w.maps_at + end) * LANES64
                if end >= 0:
                    values[first : first + count] = w.maps64[at : at + count] * unit
            peaks[first : first + count] = w.peaks.reshape(-1, LANES64)[: self.activations, :count].T

        self.each(task, range(0, len(x), LANES64))
        return Variances(found[0], found[1], peaks)

    def row_tables(self, rows: Array) -> Array:
        """Tables of the row images in the working precision, one row each."""
        own = np.empty((len(rows), self.plan.table), self.dtype)
        spread = entry("spread_rows", self.dtype.name)

        def task(first: int) -> None:
            w = self.workspace()
            count = min(LANES64, len(rows) - first)
            w.make_tables(self.tables, rows, first, count)
            spread(w.table64.ctypes.data, own.ctypes.data, self.plan.table, first, count)

        self.each(task, range(0, len(rows), LANES64))
        return own

    def workspace(self) -> Workspace:
        """Return the workspace of the calling thread."""
        w: Workspace | None = getattr(self._local, "workspace", None)
        if w is None:
            w = self._local.workspace = Workspace(self)
        return w


class Workspace:
    """Memory of one thread: maps and tables in the working precision, and in float64 for images with themselves."""

    def __init__(self, runner: Runner) -> None:
        p, L, dtype = runner.plan, runner.lanes, runner.dtype
        self.runner = runner
        pixels = p.channels * p.locations
        self.maps_at = col.POWERS + p.width
        self.shares_at = self.maps_at + runner.block * p.buffers + p.scratch
        maps = self.shares_at + runner.shares
        self.frame = np.zeros(col.ROW_LIST + int(p.ints[:, col.ROW_K].max(initial=1)), np.int64)
        self.maps64, self.pixels64, self.table64 = (aligned(n * LANES64) for n in (maps, pixels, p.table))
        self.peaks = aligned(max(1, runner.activations) * LANES64)
        self.maps, self.pixels, self.table = (aligned(n * L, dtype) for n in (maps, pixels, p.table))
        # Addresses of maps, of the frame, and of a group of images' pixels and tables.
        self.space, self.space64 = (
            [array.ctypes.data for array in arrays]
            for arrays in (
                (self.maps, self.frame, self.pixels, self.table),
                (self.maps64, self.frame, self.pixels64, self.table64),
            )
        )
        self._image_tables = entry("image_tables", dtype.name)
        self._spread = entry("spread_lanes", dtype.name)

    def make_tables(self, code: int, images: Array, first: int, count: int) -> None:
        """Run `code` for up to LANES64 images with themselves."""
        self.peaks.fill(0.0)
        self._image_tables(code, *self.space64, self.peaks.ctypes.data, images.ctypes.data, first, count)

    def column_tables(self, images: Array, first: int, count: int) -> None:
        """Make the tables of a group of column images, the last of which fills spare lanes."""
        for lane in range(0, self.runner.lanes, LANES64):
            at = min(first + lane, first + count - 1)
            self.make_tables(self.runner.tables, images, at, max(1, min(LANES64, first + count - at)))
            for part, numbers in ((2, self.pixels64), (3, self.table64)):
                self._spread(self.space64[part], self.space[part], len(numbers) // LANES64, lane)


def aligned(n: int, dtype: Any = np.float64) -> Array:
    """Array of zeros that starts on a cache line, so that no vector straddles two."""
    dtype = np.dtype(dtype)
    raw = np.zeros(n * dtype.itemsize + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n * dtype.itemsize].view(dtype)


R = TypeVar("R", bound=Runner)


class Plans(ABC, Generic[R]):
    """The plans of one program: a single one, unless it has an Elementwise, whose series depends on the images."""

    def __init__(self, program: Program, dtype: str, threads: int | None) -> None:
        self.program = program
        self.dtype = np.dtype(dtype)
        self.threads = default_threads() if threads is None else threads
        self.series = SeriesTables(program, self.dtype)
        self._runners: dict[tuple[Rows, ...], R] = {}

    @abstractmethod
    def planned(self, rows: dict[int, Rows]) -> R:
        """Return the plan that uses these rows of each series."""

    def runner(self, peaks: NDArray[np.float64] | None) -> R:
        """Return the plan for images with these largest variances; `peaks=None` for images with themselves."""
        rows = self.series.rows(peaks)
        key = tuple(rows.values())
        if key not in self._runners:
            self._runners[key] = self.planned(rows)
        return self._runners[key]

    def checked(self, x: Array) -> Variances:
        """Return the variances of images, with the largest of all peaks, (activations,), after the range check."""
        found = self.runner(None).variances(x)
        largest = check_range(self.program, self.dtype, self.series, found.peaks, found.K, found.theta)
        return found._replace(peaks=largest)

    def peaks(self, *sets: Array) -> NDArray[np.float64] | None:
        """Largest variances of these images; None if no plan depends on them."""
        if not self.series.sites:
            return None
        return np.asarray(np.max([self.runner(None).variances(x).peaks.max(axis=0) for x in sets], axis=0))
