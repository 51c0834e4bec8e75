"""One card with compiled kernels: `tables` for images, `pairs` for a tile of the matrix, `self_pairs` for gradients.

The compiled code is kept in CuPy's cache on disk, under a hash of its source.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cnngp.common.tiles import Tile

from .cuda_source import CudaSource

OPTIONS = ("-std=c++17",)
NEVER = -(1 << 40)  # a `below` that leaves no pair out
MEMORY_SHARE = 0.6  # of the free memory, for table rows and tiles
RESIDENT = 2  # blocks that a multiprocessor gets where their maps lie in global memory, and of a gradient
RESIDENT_BACKWARD = 4


class Made(NamedTuple):
    """Results of the `tables` kernel: rows (N, row), peaks (N, nonlinearities) and the diagonals.

    Those are (1, N), K(x, x) alone, or (2, N) with Θ(x, x).
    """

    rows: Any
    peaks: Any
    diagonals: Any


class Card:
    """A card, its memory and its kernels; arrays are CuPy's. `with card:` makes it the current one."""

    def __init__(self, device: int, source: CudaSource, panels: NDArray[np.float64]) -> None:
        self.device, self.source = device, source
        self.dtype = np.dtype({"float": np.float32, "double": np.float64}[source.dtype])
        self._host = (panels, source.data.ints, source.data.reals)
        self._entered = threading.local()

    def __enter__(self) -> Self:
        import cupy

        stack = self._entered.__dict__.setdefault("stack", [])
        stack.append(cupy.cuda.Device(self.device))
        stack[-1].__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.stack.pop().__exit__(*error)

    def free_bytes(self) -> int:
        import cupy

        free, _ = cupy.cuda.runtime.memGetInfo()
        return int(free + cupy.get_default_memory_pool().free_bytes())

    @cached_property
    def functions(self) -> dict[str, Any]:
        """The kernels, compiled when first asked for."""
        import cupy

        module = cupy.RawModule(code=self.source.text, options=OPTIONS)
        found = {name: module.get_function(name) for name in self.source.launches}
        for name, function in found.items():
            if self.source.launches[name].shared > 48 * 1024:
                function.max_dynamic_shared_size_bytes = self.source.launches[name].shared
        return found

    @cached_property
    def data(self) -> tuple[Any, ...]:
        """The panels of series, and the program's numbers."""
        import cupy

        return tuple(map(cupy.asarray, self._host))

    def fixed_bytes(self) -> int:
        """Memory that work takes for however few images: the program's numbers, if not there yet, and scratch.

        That is of one block, of the four launches that can be in flight.
        """
        numbers = 0 if "data" in self.__dict__ else sum(a.nbytes for a in self._host)
        return numbers + 4 * max(launch.scratch for launch in self.source.launches.values())

    def images(self, X: Any) -> Any:
        import cupy

        return cupy.ascontiguousarray(cupy.asarray(X), dtype=self.dtype)

    def tables(self, images: Any) -> Made:
        """Table rows of images, with their variances."""
        import cupy

        x, n, data = self.images(images), len(images), self.source.data
        rows, peaks = cupy.empty((n, data.layout.row), self.dtype), cupy.zeros((n, data.sites), np.float64)
        diagonals = cupy.empty((1 + data.tangents, n), np.float64)
        self._launcher("tables", n, RESIDENT, self.data)(x, rows, peaks, diagonals, np.int32(n))
        return Made(rows, peaks[:, : len(data.program.activations)], diagonals)

    def pairs(self, first: Any, second: Any, K: tuple[Any, Any], theta: tuple[Any, Any], ld: int, below: int) -> None:
        """K of rows `first` and `second` into the first of two matrices, and transposed into the other.

        All have `ld` entries a row. Of kind "ntk" Θ goes into `theta`, and K only where there is a matrix for it.
        """
        n, m, source, how = len(first), len(second), self.source, self.source.pairs
        (out, mirror), others = ([np.uint64(0) if a is None else a for a in places] for places in (K, theta))
        sizes = np.int32(n), np.int32(m), np.int64(ld), np.int64(below)
        arguments = (first, second, out, mirror, *sizes, *(others if source.data.tangents else ()))
        if source.path == "walk":
            self._launcher("pairs", n * m, RESIDENT, self.data[1:])(*arguments)
        elif how.scratch:
            self._launcher("pairs", how.blocks(n, m), how.resident, ())(*arguments)
        else:
            more = (np.uint64(0),) * (source.path == "sheets")
            grid = (how.blocks(n, m),), (how.threads,)
            self.functions["pairs"](*grid, (*arguments, *more), shared_mem=how.shared)

    def phases(
        self, first: Any, second: Any, weights: Any, shares: tuple[Any, Any], sums: Any
    ) -> Callable[[int], None]:
        """Launcher of a gradient's pairs (walk/walk_kernels.py): call it with one phase after the other.

        Where both `shares` are the same array, the pairs are of one set of images.
        """
        n, m = weights.shape
        one_set = shares[0] is shares[1]
        launch = self._launcher("pairs", n if one_set else min(n, m), RESIDENT_BACKWARD, self.data[1:])
        before, behind = (first, second, weights, np.int32(n), np.int32(m)), (np.int32(one_set), *shares, sums)
        return lambda phase: launch(*before, np.int32(phase), *behind)

    def self_pairs(self, x: Any, seeds: NDArray[np.float64], shares: Any) -> tuple[Any, Any]:
        """The sums of each image, (N, slots), and the gradients of its pixels, (N, pixels) or none."""
        import cupy

        n, data, backward = len(x), self.source.data, self.source.backward
        sums, peaks = cupy.empty((n, backward.slots), np.float64), cupy.zeros((n, data.sites), np.float64)
        pixels = cupy.empty((n, backward.pixels), np.float64) if backward.pixels else None
        place = np.uint64(0) if pixels is None else pixels
        launch = self._launcher("self_pairs", n, RESIDENT_BACKWARD, self.data)
        launch(x, cupy.asarray(seeds), shares, sums, place, peaks, np.int32(n))
        return sums, pixels

    def _launcher(self, name: str, wanted: int, resident: int, data: tuple[Any, ...]) -> Callable[..., None]:
        """Launcher of a kernel whose blocks walk over the work, with scratch memory and data behind its arguments.

        Asking the card for its memory takes longer than a short launch, so it is asked once.
        """
        how, function = self.source.launches[name], self.functions[name]
        blocks, scratch = self._blocks(wanted, how.scratch, resident)

        def launch(*arguments: Any) -> None:
            function((blocks,), (how.threads,), (*arguments, scratch, *data), shared_mem=how.shared)

        return launch

    def _blocks(self, wanted: int, scratch: int, resident: int) -> tuple[int, Any]:
        """Number of blocks, and the scratch memory that they share."""
        import cupy

        processors = cupy.cuda.Device(self.device).attributes["MultiProcessorCount"]
        blocks = min(wanted, 8 * processors)
        if scratch:
            blocks = max(1, min(wanted, resident * processors, int(0.2 * self.free_bytes()) // scratch))
        return blocks, cupy.empty(max(1, blocks * scratch), cupy.uint8)


class Bands:
    """The table rows of one or two sets of images on a card, band by band; with `images` the images too."""

    def __init__(self, card: Card, X: Any, Z: Any, side: int, images: bool = False) -> None:
        self.card, self.sets, self.side, self.images = card, (X, Z), side, images
        self._kept: dict[tuple[int, int], tuple[Any, Any]] = {}

    def of(self, tile: Tile) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """(images, rows) of a tile's rows and of its columns, from before where they are kept."""
        keys = (0, tile.rows.start), (int(self.sets[0] is not self.sets[1]), tile.columns.start)
        first, second = (self._band(key, keys) for key in keys)
        return first, second

    def _band(self, key: tuple[int, int], used: Sequence[tuple[int, int]]) -> tuple[Any, Any]:
        if key not in self._kept:
            data = self.card.source.data
            size = self.side * (data.layout.row + data.pixels * self.images) * self.card.dtype.itemsize
            if size > (1.0 - MEMORY_SHARE) * (self.card.free_bytes() - self.card.fixed_bytes()):
                self._kept = {k: band for k, band in self._kept.items() if k in used}
            which, start = key
            x = self.card.images(self.sets[which][start : start + self.side])
            self._kept[key] = x if self.images else None, self.card.tables(x).rows
        return self._kept[key]
