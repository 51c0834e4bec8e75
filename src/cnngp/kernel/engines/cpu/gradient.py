"""Gradients on the CPU: runs the reversed program for one group of pairs at a time, on all threads.

Each pair adds to sums over all pairs and to the shares of its two images' variances. The shares of a group's columns
are complete for a strip when its rows are done, and those of the rows when all groups are done; then the reversed
program runs for these images with themselves, in float64.

Bits do not depend on the threads: groups are distributed to a number of streams that depends on the problem alone, each
stream adds in its own order, and the streams are added in a fixed order.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.program.ops import Pixels, Reverse
from cnngp.kernel.series.packed import Rows

from ..base import Advance, Gradient, finished, prepared
from . import columns as col
from .machine_code import entry
from .plan import make_plan, pair_calls, shares_of_variances, variance_calls
from .runner import LANES64, Array, Plans, Runner

VERSION = 1  # changes whenever results may change

# Largest size in bytes of the shares of a strip's row images in all streams, and the largest number of streams.
STRIP_BYTES = 96 << 20
STREAMS = 16


class CpuGradient(Plans["GradientRunner"]):
    """Gradients of one network. Images are (N, channels, locations) in the working precision."""

    def __init__(self, reverse: Reverse, dtype: str, threads: int | None = None) -> None:
        super().__init__(reverse.program, dtype, threads)
        self.reverse = reverse
        self.identity = f"cpu-gradient-{VERSION}-{self.dtype.name}"

    def planned(self, rows: dict[int, Rows]) -> GradientRunner:
        return GradientRunner(self, rows)

    def diagonal(self, X: Array) -> NDArray[np.float64]:
        return self.checked(X.reshape(len(X), -1)).K

    def gradient(self, X: Array, Z: Array | None, G: NDArray[np.float64], advance: Advance = None) -> Gradient:
        """Σ G ∂K/∂θ; without Z, for the whole matrix of X including its diagonal."""
        x = X.reshape(len(X), -1)
        z = x if Z is None else Z.reshape(len(Z), -1)
        return self.runner(self.peaks(x, z)).gradient(x, z, Z is None, G, advance)


class GradientRunner(Runner):
    """Runs a reversed program."""

    def __init__(self, gradient: CpuGradient, rows: dict[int, Rows]) -> None:
        self.reverse = reverse = gradient.reverse
        program, dtype = reverse.program, gradient.dtype.name
        self.to_images = any(isinstance(step, Pixels) for step in reverse.steps)
        # Each image collects the shares of its variances, and then the gradients by its pixels.
        self.of_variances = shares_of_variances(program)
        entries = self.of_variances + (program.channels * math.prod(program.shape) if self.to_images else 0)
        plan = make_plan(program, rows, reverse)
        selves, pairs = variance_calls(plan.ints), pair_calls(plan.ints, dtype)
        super().__init__(gradient, plan, selves, pairs, tables=reverse.forwards, shares=entries)
        self.ends = sum(program.buffers[: reverse.value]), -1

    def gradient(self, x: Array, z: Array, symmetric: bool, G: NDArray[np.float64], advance: Advance) -> Gradient:
        weights, diagonal, exponent = prepared(G, symmetric)
        groups = list(range(0, len(z), self.lanes))
        streams = min(-(-len(groups) // 2), STREAMS)
        strip = max(16, min(1024, STRIP_BYTES // (streams * self.shares * self.dtype.itemsize)))
        sums = np.zeros(self.reverse.slots)
        of_x = np.zeros((len(x), self.shares - self.of_variances))
        of_z = of_x if symmetric else np.zeros((len(z), self.shares - self.of_variances))
        for row0 in range(0, len(x), strip):
            part = slice(row0, row0 + strip)
            sums += self._strip(x[part], z, weights[part], diagonal[part], groups, streams, of_x[part], of_z, advance)
        shares = [(share.name, share.factor * float(sums[share.slot])) for share in self.reverse.shares]
        own, other = (of_x, None if symmetric else of_z) if self.to_images else (None, None)
        return finished(self.reverse.program, shares, own, other, exponent)

    def _strip(
        self, rows: Array, z: Array, weights: Array, diagonal: Array, groups: list[int], streams: int, of_rows: Array,
        of_z: Array, advance: Advance,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Return the sums of some row images with all column images."""
        own = self.row_tables(rows)
        eights = range(0, len(rows), LANES64)
        shares = np.zeros((streams, len(rows), self.shares), self.dtype)
        sums = np.zeros((streams, self.reverse.slots))

        def stream(k: int) -> int:
            for column0 in groups[k::streams]:
                self._group(rows, own, z, weights, column0, shares[k], sums[k], of_z)
            return sum(int(np.count_nonzero(weights[:, c : c + self.lanes])) for c in groups[k::streams])

        self.each(stream, range(streams), advance)
        collected = shares.sum(axis=0, dtype=np.float64)
        own_sums = np.zeros((len(eights), self.reverse.slots))

        def selves(k: int) -> None:
            first = eights[k]
            count = min(LANES64, len(rows) - first)
            given = np.zeros((self.shares, LANES64))
            given[:, :count] = collected[first : first + count].T
            seeds = np.zeros(LANES64)
            seeds[:count] = diagonal[first : first + count]
            of_rows[first : first + count] += self._backwards(rows, first, count, given, seeds, own_sums[k])

        self.each(selves, range(len(eights)))
        return np.asarray(sums.sum(axis=0) + own_sums.sum(axis=0))

    def _group(
        self, rows: Array, own: Array, z: Array, weights: Array, column0: int, shares: Array, sums: Array, of_z: Array
    ) -> None:
        """Run the strip's rows against one group of column images, then these column images with themselves."""
        count = min(self.lanes, len(z) - column0)
        own_weights = np.zeros((len(rows), self.lanes), self.dtype)
        own_weights[:, :count] = weights[:, column0 : column0 + count]
        if not own_weights.any():
            return
        w = self.workspace()
        w.column_tables(z, column0, count)
        of_columns = w.maps[w.shares_at * self.lanes :]
        of_columns.fill(0.0)
        w.frame[col.SHARES_AT] = w.shares_at * self.lanes
        entry("pair_gradients", self.dtype.name)(
            self.pairs, *w.space, rows.ctypes.data, own.ctypes.data, self.plan.table, len(rows),
            own_weights.ctypes.data, sums.ctypes.data, shares.ctypes.data, shares.strides[0],
        )  # fmt: skip
        given = of_columns.reshape(self.shares, self.lanes).astype(np.float64)
        for first in range(0, count, LANES64):
            part = np.ascontiguousarray(given[:, first : first + LANES64])
            size = min(LANES64, count - first)
            at = slice(column0 + first, column0 + first + size)
            of_z[at] += self._backwards(z, column0 + first, size, part, np.zeros(LANES64), sums)

    def _backwards(self, images: Array, first: int, count: int, shares: Array, seeds: Array, sums: Array) -> Array:
        """Run images with themselves backwards, from ∂L/∂K and the shares of their variances to the sums.

        Returns the gradients by their pixels, (count, pixels), or (count, 0) if they are not needed.
        """
        w = self.workspace()
        seed_at, shares_at = (w.maps_at + self.plan.output) * LANES64, w.shares_at * LANES64
        w.maps64[shares_at:] = shares.ravel()
        w.maps64[seed_at : seed_at + LANES64] = seeds
        w.frame[col.SUMS_AT], w.frame[col.SHARES_AT] = sums.ctypes.data, shares_at
        w.make_tables(self.selves, images, first, count)
        return w.maps64[shares_at:].reshape(-1, LANES64)[self.of_variances :, :count].T
