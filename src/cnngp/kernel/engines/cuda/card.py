"""One GPU with compiled kernels: `tables` for images, `pairs` for a tile of the matrix, `self_pairs` for gradients.

CuPy caches the compiled code on disk under a hash of its source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import devices
from cnngp.common.tiles import Tile

from .cuda_source import CudaSource
from .kernel_frame import Launch

NEVER = -(1 << 40)  # a `below` that excludes no pair
MEMORY_SHARE = 0.6  # share of the free memory for table rows and tiles


class Card:
    """A GPU, its memory and its kernels; `xp` is CuPy. Use it inside `with card.current():`."""

    def __init__(self, device: int, source: CudaSource, panels: NDArray[np.float64]) -> None:
        self.xp, self.device, self.source = devices.require_card(), device, source
        self.dtype = np.dtype({"float": np.float32, "double": np.float64}[source.dtype])
        self._numbers: dict[str, NDArray[Any]] = {
            "panels": panels,
            "program": source.data.ints,
            "numbers": source.data.reals,
        }

    def current(self) -> AbstractContextManager[Any]:
        return devices.card(self.device)

    def free_bytes(self) -> int:
        return devices.card_memory()[0] + devices.pooled_memory()

    @cached_property
    def functions(self) -> dict[str, Any]:
        """The kernels, compiled at first use."""
        module = self.xp.RawModule(code=self.source.text, options=("-std=c++17",))
        found = {name: module.get_function(name) for name in self.source.launches}
        for name, function in found.items():
            if self.source.launches[name].shared > 48 * 1024:
                function.max_dynamic_shared_size_bytes = self.source.launches[name].shared
        return found

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """The panels of series and the program's numbers, on the GPU."""
        return {name: self.xp.asarray(values) for name, values in self._numbers.items()}

    def fixed_bytes(self) -> int:
        """Memory needed for any number of images: the program's numbers, unless already there, and scratch.

        The scratch is that of one block, for each of the four launches that can be in flight.
        """
        numbers = 0 if "numbers" in self.__dict__ else sum(a.nbytes for a in self._numbers.values())
        return numbers + 4 * max(launch.scratch for launch in self.source.launches.values())

    def tables(self, X: Any) -> tuple[Any, Any, Any]:
        """Table rows (N, row), peaks (N, nonlinearities), and K(x, x) (1, N), or with Θ(x, x) as second row (2, N)."""
        x, n, data = self.xp.ascontiguousarray(self.xp.asarray(X), dtype=self.dtype), len(X), self.source.data
        rows, peaks = self.xp.empty((n, data.layout.row), self.dtype), self.xp.zeros((n, data.sites), np.float64)
        diagonals = self.xp.empty((1 + data.tangents, n), np.float64)
        self._launcher("tables", n)(x, rows, peaks, diagonals, np.int32(n))
        return rows, peaks[:, : len(data.program.activations)], diagonals

    def pairs(self, first: Any, second: Any, places: Sequence[Any], ld: int, below: int) -> None:
        """Write K of rows `first` and `second` to the first of the matrices `places`, and transposed to the second.

        All have `ld` entries per row. For kind "ntk" there are two more for Θ. None is not written.
        """
        n, m = len(first), len(second)
        out, mirror, *others = (np.uint64(0) if a is None else a for a in places)
        sizes = np.int32(n), np.int32(m), np.int64(ld), np.int64(below)
        self._launcher("pairs", self.source.pairs.blocks(n, m))(first, second, out, mirror, *sizes, *others)

    def phases(
        self, first: Any, second: Any, weights: Any, shares: tuple[Any, Any], sums: Any
    ) -> Callable[[int], None]:
        """Launcher of a gradient's pairs (walk/walk_kernels.py): call it with one phase after another.

        If both `shares` are the same array, the pairs are of one set of images.
        """
        n, m = weights.shape
        one_set = shares[0] is shares[1]
        launch = self._launcher("phase", n if one_set else min(n, m))
        before, behind = (first, second, weights, np.int32(n), np.int32(m)), (np.int32(one_set), *shares, sums)
        return lambda phase: launch(*before, np.int32(phase), *behind)

    def self_pairs(self, rows: Any, seeds: NDArray[np.float64], shares: Any) -> tuple[Any, Any]:
        """Sums of each image, (N, slots), and the gradients by its pixels, (N, pixels), or (N, 0) if not needed."""
        n, data, backward = len(rows), self.source.data, self.source.backward
        sums, peaks = self.xp.empty((n, backward.slots), np.float64), self.xp.zeros((n, data.sites), np.float64)
        pixels = self.xp.empty((n, backward.pixels), np.float64)
        self._launcher("self_pairs", n)(rows, self.xp.asarray(seeds), shares, sums, pixels, peaks, np.int32(n))
        return sums, pixels

    def _launcher(self, name: str, wanted: int) -> Callable[..., None]:
        """Launcher of a kernel, which appends the arrays `given` to its arguments.

        Querying the GPU's memory takes longer than a short launch, so it is done once.
        """
        how, function = self.source.launches[name], self.functions[name]
        blocks = self._blocks(wanted, how)
        scratch = self.xp.empty(max(1, blocks * how.scratch), self.xp.uint8) if "scratch" in how.given else None
        given = [scratch if array == "scratch" else self.numbers[array] for array in how.given]

        def launch(*arguments: Any) -> None:
            function((blocks,), (how.threads,), (*arguments, *given), shared_mem=how.shared)

        return launch

    def _blocks(self, wanted: int, how: Launch) -> int:
        """Number of blocks: one per piece of work, or as many as can loop over the work with their own scratch."""
        if not how.resident:
            return wanted
        processors = self.xp.cuda.Device(self.device).attributes["MultiProcessorCount"]
        if not how.scratch:
            return int(min(wanted, 8 * processors))
        return int(max(1, min(wanted, how.resident * processors, int(0.2 * self.free_bytes()) // how.scratch)))


class Bands:
    """Table rows of one or two sets of images on a GPU, computed and cached band by band."""

    def __init__(self, card: Card, X: Any, Z: Any, side: int) -> None:
        self.card, self.sets, self.side = card, (X, Z), side
        self._kept: dict[tuple[int, int], Any] = {}

    def of(self, tile: Tile) -> tuple[Any, Any]:
        """Table rows of a tile's rows and of its columns, from the cache if they are there."""
        keys = (0, tile.rows.start), (int(self.sets[0] is not self.sets[1]), tile.columns.start)
        card, size = self.card, self.side * self.card.source.data.layout.row * self.card.dtype.itemsize
        for which, start in keys:
            if (which, start) in self._kept:
                continue
            if size > (1.0 - MEMORY_SHARE) * (card.free_bytes() - card.fixed_bytes()):
                self._kept = {key: band for key, band in self._kept.items() if key in keys}
            self._kept[which, start] = card.tables(self.sets[which][start : start + self.side])[0]
        return self._kept[keys[0]], self._kept[keys[1]]
