"""Gradients on the CPU: the reversed program for a group of pairs at a time, on all threads, with little memory.

The pairs are gone through as in engine.py: strips of rows against groups of column images. Each pair adds to sums over
all pairs and to the shares of its two images' variances. Those of a group's columns are complete for a strip when its
rows are done, and those of the rows when all groups are; then the reversed program runs for these images with
themselves, in float64.

Bits do not depend on the threads: groups are dealt out to a number of streams that depends on the problem alone, each
adds up in its own order, and streams are added in theirs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.program.reverse import Pixels, Reverse
from cnngp.kernel.series.packed import Rows, SeriesTables

from ..base import Advance
from ..weights import Gradient, finished, prepared
from .back.plan import known_at, reversed_plan, shares_of_variances, with_backs
from .calls import pair_calls, variance_calls
from .compiling import jit
from .engine import SMALLEST, aligned, default_threads, run_tasks
from .interpreter import Code, Space, image_tables, multiply_images, run_ops, spread_lanes, spread_rows
from .plan import BASE, IMAGES, MAP_STEP, OWN_AT, OWN_STEP, SCRATCH
from .plan import SMALLEST as SMALLEST_COLUMN
from .simd import LANES, lanes, pointer
from .work import POWERS

Array = NDArray[Any]

VERSION = 1  # changes with the numbers

# Bytes that the shares of a strip's row images may take in all streams, and the most streams.
STRIP_BYTES = 96 << 20
STREAMS = 16


@jit
def pair_gradients(
    code: Code, space: Space, X: Any, own: Any, weights: Any, shares: Any, known: int, sums_at: int, shares_at: int
) -> None:
    """Every row image against the group of column images in `space`; rows without weights are left out."""
    m, lane_pixels, f = pointer(space.maps), pointer(space.pixels), pointer(space.frame)
    images, entries, table = pointer(X), pointer(own), pointer(space.table)
    L = lanes(m)
    pixels = code.channels * code.locations
    base = (POWERS + code.width) * L
    f[BASE], f[SCRATCH], f[MAP_STEP], f[OWN_STEP], f[IMAGES] = base, base + code.buffers * L, 0, 0, 1
    f[known] = sums_at
    for i in range(len(X)):
        empty = True
        for lane in range(L):
            m[base + code.output * L + lane] = weights[i, lane]
            empty = empty and weights[i, lane] == 0.0
        if empty:
            continue
        if code.input >= 0:
            at = base + code.input * L
            multiply_images(m, at, images, i * pixels, lane_pixels, code.channels, code.locations)
        f[OWN_AT] = i * own.shape[1]
        f[known + 1] = shares_at + i * shares.shape[1] * shares.itemsize
        run_ops(code, m, entries, table, f)


class CpuGradient:
    """Gradients of one network. Images come as (N, channels, locations) in the working precision, known to be in range.

    One plan serves all images, but for the length of an Elementwise's series.
    """

    def __init__(self, reverse: Reverse, dtype: str, threads: int | None = None) -> None:
        self.reverse, self.dtype = reverse, np.dtype(dtype)
        self.identity = f"cpu-gradient-{VERSION}-{self.dtype.name}"
        self.threads = default_threads() if threads is None else threads
        self.series = SeriesTables(reverse.program, self.dtype)
        self._runs: dict[tuple[Rows, ...], _Run] = {}

    def gradient(self, X: Array, Z: Array | None, G: NDArray[np.float64], advance: Advance = None) -> Gradient:
        """Σ G ∂K/∂θ; without Z, of the matrix of X with both triangles and its diagonal."""
        x = X.reshape(len(X), -1)
        z = x if Z is None else Z.reshape(len(Z), -1)
        peaks = None
        if self.series.sites:
            peaks = np.maximum(self._run(None).peaks(x), self._run(None).peaks(z))
        return self._run(peaks).gradient(x, z, Z is None, G, advance)

    def _run(self, peaks: NDArray[np.float64] | None) -> _Run:
        rows = self.series.rows(peaks)
        key = tuple(rows.values())
        if key not in self._runs:
            self._runs[key] = _Run(self, rows)
        return self._runs[key]


class _Run:
    """A plan with the memory to run it."""

    def __init__(self, owner: CpuGradient, rows: dict[int, Rows]) -> None:
        self.reverse, self.dtype, self.threads = owner.reverse, owner.dtype, owner.threads
        reverse = owner.reverse
        self.lanes = LANES[self.dtype.name]
        program = reverse.program
        self.to_images = any(isinstance(step, Pixels) for step in reverse.steps)
        # What an image collects: the shares of its variances, then the gradients of its pixels.
        self.variances = shares_of_variances(program)
        self.entries = self.variances + (program.channels * math.prod(program.shape) if self.to_images else 0)
        self.plan = plan = reversed_plan(reverse, rows)
        self.known = known_at(plan)
        numbers = plan.floats.copy()
        numbers[:, SMALLEST_COLUMN] = SMALLEST[self.dtype.name]

        def code(ints: Array) -> Code:
            return Code(
                ints, numbers[: len(ints)], plan.taps, owner.series.panels, plan.channels, plan.locations, plan.width,
                plan.buffers, plan.input, plan.output, plan.theta,
            )  # fmt: skip

        both = with_backs(variance_calls(plan.ints), reverse, "float64", of_pairs=False)
        self.tables, self.selves = code(both[: reverse.forwards]), code(both)
        self.pairs = code(with_backs(pair_calls(plan.ints, self.dtype.name), reverse, self.dtype.name, of_pairs=True))
        self._local = threading.local()

    def peaks(self, x: Array) -> NDArray[np.float64]:
        """The largest variance at each nonlinearity, in buffer units."""
        lanes64 = LANES["float64"]
        found = np.zeros((-(-len(x) // lanes64), len(self.reverse.program.activations)))

        def task(k: int) -> None:
            w = self._workspace()
            w.run(self.tables, x, k * lanes64, min(lanes64, len(x) - k * lanes64))
            found[k] = w.peaks.reshape(-1, lanes64)[: found.shape[1]].max(axis=1)

        run_tasks(task, list(range(len(found))), self.threads, _ignore)
        return np.asarray(found.max(axis=0))

    def gradient(self, x: Array, z: Array, symmetric: bool, G: NDArray[np.float64], advance: Advance) -> Gradient:
        weights, diagonal, exponent = prepared(G, symmetric)
        groups = list(range(0, len(z), self.lanes))
        streams = min(-(-len(groups) // 2), STREAMS)
        strip = max(16, min(1024, STRIP_BYTES // (streams * self.entries * self.dtype.itemsize)))
        sums = np.zeros(self.reverse.slots)
        of_x = np.zeros((len(x), self.entries - self.variances))
        of_z = of_x if symmetric else np.zeros((len(z), self.entries - self.variances))
        for row0 in range(0, len(x), strip):
            part = slice(row0, row0 + strip)
            sums += self._strip(
                x[part], z, weights[part], diagonal[part], groups, streams, of_x[part], of_z, advance or _ignore
            )
        shares = [(share.name, share.factor * float(sums[share.slot])) for share in self.reverse.shares]
        own, other = (of_x, None if symmetric else of_z) if self.to_images else (None, None)
        return finished(self.reverse.program, shares, own, other, exponent)

    def _strip(
        self, rows: Array, z: Array, weights: Array, diagonal: Array, groups: list[int], streams: int, of_rows: Array,
        of_z: Array, advance: Callable[[int], None],
    ) -> NDArray[np.float64]:  # fmt: skip
        """The sums of some row images with all column images."""
        own = np.empty((len(rows), self.plan.table), self.dtype)
        lanes64 = LANES["float64"]
        eights = list(range(0, len(rows), lanes64))

        def row_tables(first: int) -> None:
            w = self._workspace()
            w.run(self.tables, rows, first, min(lanes64, len(rows) - first))
            spread_rows(w.table64, min(lanes64, len(rows) - first), own, first)

        run_tasks(row_tables, eights, self.threads, _ignore)
        shares = np.zeros((streams, len(rows), self.entries), self.dtype)
        sums = np.zeros((streams, self.reverse.slots))

        def stream(k: int) -> int:
            for column0 in groups[k::streams]:
                self._group(rows, own, z, weights, column0, shares[k], sums[k], of_z)
            return sum(int(np.count_nonzero(weights[:, c : c + self.lanes])) for c in groups[k::streams])

        run_tasks(stream, list(range(streams)), self.threads, advance)
        collected = shares.sum(axis=0, dtype=np.float64)
        own_sums = np.zeros((len(eights), self.reverse.slots))

        def selves(k: int) -> None:
            first = eights[k]
            count = min(lanes64, len(rows) - first)
            given = np.zeros((self.entries, lanes64))
            given[:, :count] = collected[first : first + count].T
            seeds = np.zeros(lanes64)
            seeds[:count] = diagonal[first : first + count]
            of_rows[first : first + count] += self._workspace().back(rows, first, count, given, seeds, own_sums[k])

        run_tasks(selves, list(range(len(eights))), self.threads, _ignore)
        return np.asarray(sums.sum(axis=0) + own_sums.sum(axis=0))

    def _group(
        self, rows: Array, own: Array, z: Array, weights: Array, column0: int, shares: Array, sums: Array, of_z: Array
    ) -> None:
        """The strip's rows against one group of column images, then those images with themselves."""
        count = min(self.lanes, len(z) - column0)
        own_weights = np.zeros((len(rows), self.lanes), self.dtype)
        own_weights[:, :count] = weights[:, column0 : column0 + count]
        if not own_weights.any():
            return
        w = self._workspace()
        w.column_tables(z, column0, count)
        w.shares.fill(0.0)
        w.frame[self.known + 2] = w.shares_at
        pair_gradients(
            self.pairs, w.space, rows, own, own_weights, shares, self.known, sums.ctypes.data, shares.ctypes.data
        )
        lanes64 = LANES["float64"]
        given = w.shares.reshape(self.entries, self.lanes).astype(np.float64)
        for first in range(0, count, lanes64):
            part = np.ascontiguousarray(given[:, first : first + lanes64])
            size = min(lanes64, count - first)
            at = slice(column0 + first, column0 + first + size)
            of_z[at] += w.back(z, column0 + first, size, part, np.zeros(lanes64), sums)

    def _workspace(self) -> _Workspace:
        w: _Workspace | None = getattr(self._local, "workspace", None)
        if w is None:
            w = self._local.workspace = _Workspace(self)
        return w


class _Workspace:
    """A thread's own memory: maps, shares and tables in the working precision, and in float64 for single images."""

    def __init__(self, owner: _Run) -> None:
        p, L, L64 = owner.plan, owner.lanes, LANES["float64"]
        self.owner, self.lanes64 = owner, L64
        n = p.channels * p.locations
        maps = POWERS + p.width + p.buffers + p.scratch
        self.seed_at = (POWERS + p.width + p.output) * L64
        self.shares_at, self.shares64_at = maps * L, maps * L64
        self.frame = np.zeros(owner.known + 3, np.int64)
        self.maps64 = aligned((maps + owner.entries) * L64)
        self.pixels64, self.table64 = aligned(n * L64), aligned(p.table * L64)
        self.peaks = aligned(max(1, len(owner.reverse.program.activations)) * L64)
        self.maps = aligned((maps + owner.entries) * L, owner.dtype)
        self.shares = self.maps[self.shares_at :]
        self.space = Space(self.maps, self.frame, aligned(n * L, owner.dtype), aligned(p.table * L, owner.dtype))
        self.space64 = Space(self.maps64, self.frame, self.pixels64, self.table64)

    def run(self, code: Code, images: Array, first: int, count: int) -> None:
        self.peaks.fill(0.0)
        image_tables(code, self.space64, self.peaks, images, first, count)

    def column_tables(self, images: Array, first: int, count: int) -> None:
        for lane in range(0, self.owner.lanes, self.lanes64):
            at = min(first + lane, first + count - 1)
            self.run(self.owner.tables, images, at, max(1, min(self.lanes64, first + count - at)))
            spread_lanes(self.table64, self.space.table, lane)
            spread_lanes(self.pixels64, self.space.pixels, lane)

    def back(self, images: Array, first: int, count: int, shares: Array, seeds: Array, sums: Array) -> Array:
        """Images with themselves: from ∂L/∂K and the shares of their variances to the sums.

        Returns the gradients of their pixels, (count, pixels); none where they are not asked for.
        """
        self.maps64[self.shares64_at :] = shares.ravel()
        self.maps64[self.seed_at : self.seed_at + self.lanes64] = seeds
        self.frame[self.owner.known], self.frame[self.owner.known + 2] = sums.ctypes.data, self.shares64_at
        self.run(self.owner.selves, images, first, count)
        collected = self.maps64[self.shares64_at :].reshape(-1, self.lanes64)
        return collected[self.owner.variances :, :count].T


def _ignore(pairs: int) -> None:
    pass
