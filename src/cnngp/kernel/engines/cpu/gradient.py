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
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.program import PIXELS, Op, Program
from cnngp.kernel.program.reverse import Back, Pixels, Reverse, Step, Total
from cnngp.kernel.series.packed import Rows, SeriesTables

from ..base import Advance, RangeError
from .back import (
    ADDRESSES,
    OWN_SHARES,
    PAIR_BACKS,
    SELF_BACKS,
    SHARES,
    SLOT,
    TIMES,
    WRITES,
    dot,
    pair_pixels,
    self_pixels,
    still,
    total,
)
from .back_series import series_back, series_still, series_variances
from .calls import compiled, pair_calls, variance_calls
from .engine import SMALLEST, aligned, default_threads, run_tasks
from .interpreter import Space, image_tables, jit, multiply_images, run_ops, spread_lanes, spread_rows
from .plan import (
    ACT,
    BASE,
    IMAGES,
    MAP_STEP,
    NO_ACT,
    OP_CALL,
    OWN_AT,
    OWN_STEP,
    OWN_TABLE,
    ROW_CALL,
    ROW_K,
    ROW_LIST,
    SCRATCH,
    SERIES,
    TABLE,
    make_plan,
)
from .plan import SMALLEST as SMALLEST_COLUMN
from .rows import POWERS
from .simd import LANES, lanes, pointer

Array = NDArray[Any]

# Bytes that the shares of a strip's row images may take in all streams, and the most streams.
STRIP_BYTES = 96 << 20
STREAMS = 16


_pair_series, _self_series = series_back(both=False), series_back(both=True)


class Code(NamedTuple):
    """What is run, as in interpreter.py; `seed` is where ∂L/∂K goes."""

    ints: Any
    floats: Any
    taps: Any
    panels: Any
    channels: int
    locations: int
    width: int
    buffers: int
    input: int
    seed: int


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
            m[base + code.seed * L + lane] = weights[i, lane]
            empty = empty and weights[i, lane] == 0.0
        if empty:
            continue
        if code.input >= 0:
            at = base + code.input * L
            multiply_images(m, at, images, i * pixels, lane_pixels, code.channels, code.locations)
        f[OWN_AT] = i * own.shape[1]
        f[known + 1] = shares_at + i * shares.shape[1] * shares.itemsize
        run_ops(code, m, entries, table, f)


class Gradient(NamedTuple):
    """Σ G ∂K/∂θ by name, and Σ G ∂K/∂pixel, (N, pixels), where the program goes on to the images."""

    parameters: dict[str, float]
    of_x: NDArray[np.float64] | None
    of_z: NDArray[np.float64] | None


class CpuGradient:
    """Gradients of one network. Images come as (N, channels, locations) in the working precision, known to be in range.

    One plan serves all images, but for the length of an Elementwise's series.
    """

    def __init__(self, reverse: Reverse, dtype: str, threads: int | None = None) -> None:
        self.reverse, self.dtype = reverse, np.dtype(dtype)
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
        self.variances = max(1, program.elements)
        self.entries = self.variances + (program.channels * math.prod(program.shape) if self.to_images else 0)
        self.plan = plan = make_plan(_as_program(reverse), rows, series_entries=2)
        starts = np.concatenate([[0], np.cumsum(program.buffers)])
        self.known = ROW_LIST + int(plan.ints[:, ROW_K].max(initial=1))
        self.seed = int(starts[reverse.seed])
        for row, step in zip(plan.ints, reverse.steps, strict=True):
            if not isinstance(step, Op):
                row[ADDRESSES] = self.known
            if isinstance(step, Back | Total):
                row[SLOT] = step.slot
            if isinstance(step, Pixels):
                row[SHARES] = self.variances
            if isinstance(step, Back):
                row[TIMES], row[WRITES] = starts[step.times], step.dst is not None
                if step.activation is not None:
                    plane, pitch = math.prod(step.activation.shape[1:]), step.activation.shape[2]
                    for column, (a, b, c) in ((OWN_SHARES, step.first), (SHARES, step.second)):
                        row[column] = step.activation.offset + a * plane + b * pitch + c
        numbers = plan.floats.copy()
        numbers[:, SMALLEST_COLUMN] = SMALLEST[self.dtype.name]

        def code(ints: Array) -> Code:
            return Code(
                ints, numbers[: len(ints)], plan.taps, owner.series.panels, plan.channels, plan.locations, plan.width,
                plan.buffers, plan.input, self.seed,
            )  # fmt: skip

        both = self._with_backs(variance_calls(plan.ints), "float64", of_pairs=False)
        self.tables, self.selves = code(both[: reverse.forwards]), code(both)
        self.pairs = code(self._with_backs(pair_calls(plan.ints, self.dtype.name), self.dtype.name, of_pairs=True))
        self._local = threading.local()

    def _with_backs(self, ints: Array, dtype: str, of_pairs: bool) -> Array:
        """The operations of the way back get the addresses of their functions."""
        for row, step in zip(ints, self.reverse.steps, strict=True):
            function: Callable[..., None]
            if isinstance(step, Total):
                function = total
            elif isinstance(step, Pixels):
                function = pair_pixels if of_pairs else self_pixels
            elif not isinstance(step, Back):
                if row[ACT] == SERIES and row[OWN_TABLE] == row[TABLE] and not of_pairs:
                    row[ROW_CALL] = compiled(series_variances, dtype, True).address
                continue
            elif row[ACT] == NO_ACT:
                function = dot
            elif of_pairs:
                function = (PAIR_BACKS | {SERIES: _pair_series})[int(row[ACT])]
            elif row[OWN_TABLE] == row[TABLE]:
                function = series_still if row[ACT] == SERIES else still
            else:
                function = (SELF_BACKS | {SERIES: _self_series})[int(row[ACT])]
            row[OP_CALL] = compiled(function, dtype, False).address
        return ints

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
        exponent = math.frexp(float(np.max(np.abs(G), initial=0.0)))[1]
        weights = np.ldexp(G, -exponent)
        diagonal = np.zeros(len(x))
        if symmetric:
            diagonal = weights.diagonal().copy()
            weights = np.triu(weights + weights.T, 1)
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
        found = dict.fromkeys(self.reverse.program.network.parameters(), 0.0)
        for share in self.reverse.shares:
            found[share.name] += share.factor * float(sums[share.slot])
        derivatives = self._in_true_units(np.array(list(found.values())), exponent)
        named = dict(zip(found, map(float, derivatives), strict=True))
        if not self.to_images:
            return Gradient(named, None, None)
        of_x = self._in_true_units(of_x, exponent)
        return Gradient(named, of_x, None if symmetric else self._in_true_units(of_z, exponent))

    def _in_true_units(self, values: Array, exponent: int) -> NDArray[np.float64]:
        with np.errstate(over="ignore"):
            scaled = np.asarray(np.ldexp(self.reverse.program.unit * values, exponent))
        if not np.isfinite(scaled).all():
            raise RangeError("the gradient is beyond float64; use a smaller G")
        return scaled

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
        self.seed_at = (POWERS + p.width + owner.seed) * L64
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


def _as_program(reverse: Reverse) -> Program:
    """The steps as operations, for `make_plan`: those of the way back as if they had no sums."""

    def op(step: Step) -> Op:
        match step:
            case Op():
                return step
            case Back():
                return Op(
                    step.place, step.src, step.src if step.dst is None else step.dst, step.shape, step.shape,
                    step.activation, None, step.keep, step.scale, 0.0, step.first, step.second,
                )  # fmt: skip
            case Total():
                return Op(step.place, step.src, step.src, step.shape, step.shape, None, None, 1.0, 1.0, 0.0)
            case Pixels():
                return Op(
                    step.place, PIXELS, step.src, step.shape, step.shape, None, None, 0.0, 1.0, 0.0, step.first,
                    step.second,
                )  # fmt: skip

    return replace(reverse.program, ops=tuple(map(op, reverse.steps)))
