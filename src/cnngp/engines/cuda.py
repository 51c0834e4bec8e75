"""The GPU engine: compiles a program's CUDA at run time and runs tiles of the kernel matrix on every card there is.

The compiled code is kept in CuPy's cache on disk, under a hash of its source. A matrix is cut into square tiles; each
card takes the next one, so any number of cards share the work. Table rows of a band of images are made once and kept
while memory allows.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Output, to_output
from ..program import Program
from .base import Advance, check_range
from .cpu_series import SeriesTables
from .cuda_source import CudaSource, generate

VERSION = 1
OPTIONS = ("-std=c++17",)

MAX_TILE = 16384
# Map elements that one launch may compute, so that it takes about a second and progress can be shown.
LAUNCH_ELEMENTS = {"warp": 8e11, "dense": 2e11, "block": 2e10}
MEMORY_SHARE = 0.6  # of the free memory, for table rows and tiles
NEVER = -(1 << 40)  # a `below` that leaves no pair out


class EngineError(RuntimeError):
    """The card cannot be used."""


def require() -> None:
    """Raise `EngineError`, with what to do, unless CuPy and a card are there."""
    try:
        import cupy
    except ImportError:
        raise EngineError("device='cuda' needs CuPy; install it with: pip install \"cnngp[cuda]\"") from None
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise EngineError(f"device='cuda': no usable NVIDIA card ({error}); use device='cpu'") from None
    if not found:
        raise EngineError("device='cuda': no NVIDIA card was found; use device='cpu'")


def available() -> bool:
    try:
        require()
    except EngineError:
        return False
    return True


class CudaEngine:
    """Runs one program on the cards. See `Engine` for what it offers.

    `devices` names the cards, by default all; `tile` the side of a tile, by default what memory and time suggest.
    """

    def __init__(
        self,
        program: Program,
        dtype: str,
        devices: Sequence[int] | None = None,
        tile: int | None = None,
        source: CudaSource | None = None,
    ) -> None:
        require()
        import cupy

        self.program = program
        self.dtype = np.dtype(dtype)
        self._series = SeriesTables(program, self.dtype)
        self._tile = tile
        self._devices = list(range(cupy.cuda.runtime.getDeviceCount()) if devices is None else devices)
        self._shared_limit = min(
            int(cupy.cuda.Device(k).attributes["MaxSharedMemoryPerBlockOptin"]) for k in self._devices
        )
        self.source = source or self._generate(None)
        self._cards = self._make_cards(self.source)
        self._longer: dict[str, list[_Card]] = {}
        kind = cupy.cuda.Device(self._cards[0].device).compute_capability
        text = hashlib.sha256(self.source.text.encode() + self._series.panels.tobytes()).hexdigest()
        self.identity = f"cuda-{VERSION}-{self.dtype.name}-sm{kind}-{text[:16]}"

    def _generate(self, peaks: NDArray[np.float64] | None) -> CudaSource:
        rows = self._series.rows(peaks)
        return generate(self.program, self.dtype, series=rows, shared_limit=self._shared_limit)

    def _make_cards(self, source: CudaSource) -> list[_Card]:
        return [_Card(k, source, self.dtype, len(self.program.activations), self._series.panels) for k in self._devices]

    def diagonal(self, X: Any) -> NDArray[np.float64]:
        return self._diagonal(X)[0]

    def _diagonal(self, X: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """K(x, x), and the largest variance of all images at each nonlinearity."""
        card = self._cards[0]
        found, peaks = [], []
        with card:
            step = self._side(card, len(X), 0)
            for start in range(0, len(X), step):
                made = card.tables(X[start : start + step])
                found.append(made.diagonal.get())
                peaks.append(made.peaks.get())
        diagonal, all_peaks = np.concatenate(found), np.concatenate(peaks)
        check_range(self.program, self.dtype, all_peaks, diagonal)
        highest = all_peaks.max(axis=0)
        self._series.rows(highest)  # refuses variances beyond a series
        return diagonal, highest

    def cross(self, X: Any, Z: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        cards = self._cards
        if self._series.sites:
            cards = self._cards_for(np.maximum(self._diagonal(X)[1], self._diagonal(Z)[1]))
        return self._matrix(cards, X, Z, None, output, advance)

    def symmetric(self, X: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        diagonal, peaks = self._diagonal(X)
        return self._matrix(self._cards_for(peaks), X, X, diagonal, output, advance)

    def _cards_for(self, peaks: NDArray[np.float64]) -> list[_Card]:
        """Cards with code for these variances: an Elementwise's series is as long as they need, and no longer."""
        if not self._series.sites:
            return self._cards
        source = self._generate(peaks)
        if source.digest not in self._longer:
            self._longer[source.digest] = self._make_cards(source)
        return self._longer[source.digest]

    # ---- tiles ----

    def _matrix(
        self,
        cards: list[_Card],
        X: Any,
        Z: Any,
        diagonal: NDArray[np.float64] | None,
        output: Output,
        advance: Advance,
    ) -> Any:
        import cupy

        on_host = output == "numpy"
        with cards[0]:
            side = self._side(cards[0], max(len(X), len(Z)), len(X) * len(Z) * (not on_host))
            out = np.empty((len(X), len(Z)), self.dtype) if on_host else cupy.empty((len(X), len(Z)), self.dtype)
        tiles = _tiles(len(X), len(Z), side, diagonal is not None)
        jobs = [_Job(card, X, Z, out, side, on_host) for card in cards]
        if len(jobs) == 1:
            with jobs[0].card:
                jobs[0].run(tiles, advance)
        else:
            _share(jobs, tiles, advance)
        with cards[0]:
            if diagonal is not None:
                xp: Any = np if on_host else cupy
                xp.fill_diagonal(out, xp.asarray(diagonal).astype(self.dtype))
            if not on_host:
                cupy.cuda.get_current_stream().synchronize()
        return to_output(out, output)

    def _side(self, card: _Card, images: int, reserved: int) -> int:
        """The side of a tile: all images, unless memory or the length of a launch speaks against it."""
        if self._tile is not None:
            return self._tile
        item = self.dtype.itemsize
        budget = MEMORY_SHARE * (card.free_bytes() - reserved * item)
        row = card.source.row * item
        by_time = math.sqrt(LAUNCH_ELEMENTS[card.source.path] / max(1, self.program.elements))
        # Two bands of rows, and four tiles: two in flight, each with its mirror image.
        by_memory = (math.sqrt(row * row + 4 * item * max(0.0, budget)) - row) / (4 * item)
        side = int(min(MAX_TILE, by_time, by_memory))
        if side < 1:
            raise EngineError(
                f"not enough memory on the card: an image needs {row:,} bytes of tables and "
                f"{card.free_bytes():,} are free"
            )
        pieces = -(-images // side)
        return -(-images // pieces) if pieces > 1 else images


@dataclass(frozen=True)
class _Tile:
    """Rows i0:i1 and columns j0:j1; `mirrored`: the same numbers stand at the transposed place."""

    i0: int
    i1: int
    j0: int
    j1: int
    mirrored: bool

    @property
    def pairs(self) -> int:
        n = self.i1 - self.i0
        return n * (n - 1) // 2 if self.mirrored and self.i0 == self.j0 else n * (self.j1 - self.j0)


def _tiles(n: int, m: int, side: int, symmetric: bool) -> list[_Tile]:
    return [
        _Tile(i, min(i + side, n), j, min(j + side, m), symmetric)
        for i in range(0, n, side)
        for j in range(i if symmetric else 0, m, side)
    ]


def _share(jobs: list[_Job], tiles: list[_Tile], advance: Advance) -> None:
    """Each card takes the next tile when it has room, from its own thread; progress is told from this one."""
    lock = threading.Lock()
    queue = iter(tiles)
    done: list[int] = []

    def take() -> Iterator[_Tile]:
        while True:
            with lock:
                tile = next(queue, None)
            if tile is None:
                return
            yield tile

    def work(job: _Job) -> None:
        with job.card:
            job.run(take(), done.append)

    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = {pool.submit(work, job) for job in jobs}
        told = 0
        while futures:
            finished, futures = wait(futures, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
            if advance is not None and (now := len(done)) > told:
                advance(sum(done[told:now]))
                told = now


@dataclass(frozen=True)
class _Made:
    """What the `tables` kernel leaves: rows (N, row), peaks (N, nonlinearities) and the diagonal (N,)."""

    rows: Any
    peaks: Any
    diagonal: Any


class _Card:
    """One card with the compiled kernels. `with card:` makes it the current one."""

    def __init__(
        self, device: int, source: CudaSource, dtype: np.dtype[Any], sites: int, panels: NDArray[np.float64]
    ) -> None:
        self.device, self.source, self.dtype, self.sites = device, source, dtype, sites
        self._panels = panels
        self._functions: tuple[Any, Any] | None = None
        self._entered = threading.local()

    def __enter__(self) -> _Card:
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

    @property
    def functions(self) -> tuple[Any, Any]:
        """(tables, pairs), compiled when first asked for."""
        if self._functions is None:
            import cupy

            module = cupy.RawModule(code=self.source.text, options=OPTIONS)
            tables, pairs = module.get_function("tables"), module.get_function("pairs")
            for function, launch in ((tables, self.source.tables), (pairs, self.source.pairs)):
                if launch.shared > 48 * 1024:
                    function.max_dynamic_shared_size_bytes = launch.shared
            self._functions = tables, pairs
        return self._functions

    def _blocks(self, wanted: int, scratch: int) -> tuple[int, Any]:
        """How many blocks walk over the work, and the scratch memory that they share."""
        import cupy

        processors = cupy.cuda.Device(self.device).attributes["MultiProcessorCount"]
        blocks = min(wanted, 8 * processors)
        if scratch:
            blocks = max(1, min(wanted, 2 * processors, int(0.2 * self.free_bytes()) // scratch))
        return blocks, cupy.empty(max(1, blocks * scratch), cupy.uint8)

    def tables(self, images: Any) -> _Made:
        import cupy

        x = cupy.ascontiguousarray(cupy.asarray(images), dtype=self.dtype)
        n = len(x)
        rows = cupy.empty((n, self.source.row), self.dtype)
        peaks = cupy.zeros((n, max(1, self.sites)), np.float64)
        diagonal = cupy.empty(n, np.float64)
        launch = self.source.tables
        blocks, scratch = self._blocks(n, launch.scratch)
        arguments = (x, rows, peaks, diagonal, np.int32(n), scratch, cupy.asarray(self._panels))
        self.functions[0]((blocks,), (launch.threads,), arguments, shared_mem=launch.shared)
        return _Made(rows, peaks[:, : self.sites], diagonal)

    def pairs(self, first: Any, second: Any, out: Any, mirror: Any, ld: int, below: int) -> None:
        """K of rows `first` and `second` into `out`, and transposed into `mirror`; both have `ld` entries a row."""
        n, m = len(first), len(second)
        source, launch = self.source, self.source.pairs
        other = np.uint64(0) if mirror is None else mirror
        arguments: tuple[Any, ...] = (
            first,
            second,
            out,
            other,
            np.int32(n),
            np.int32(m),
            np.int64(ld),
            np.int64(below),
        )
        if source.path == "block":
            blocks, scratch = self._blocks(n * m, launch.scratch)
            arguments = (*arguments, scratch)
        else:
            blocks = -(-n // source.block_rows) * -(-m // source.block_columns)
        self.functions[1]((blocks,), (launch.threads,), arguments, shared_mem=launch.shared)


class _Job:
    """One card's share of a matrix: its bands of table rows, and tiles on their way to the host."""

    def __init__(self, card: _Card, X: Any, Z: Any, out: Any, side: int, on_host: bool) -> None:
        self.card, self.out, self.side, self.on_host = card, out, side, on_host
        self.images = (X, Z)
        self.bands: dict[tuple[int, int], Any] = {}

    def run(self, tiles: Any, advance: Callable[[int], None] | None) -> None:
        """Tiles one after the other; a tile is copied to the host while the next one is computed."""
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        copies = cupy.cuda.Stream(non_blocking=True)
        waiting: tuple[_Tile, list[Any], Any] | None = None
        cupy.cuda.get_current_stream().synchronize()  # inputs may come from work in flight
        with stream:
            for tile in tiles:
                results = self._compute(tile)
                event = stream.record()
                if waiting is not None:
                    self._finish(*waiting, copies, advance)
                waiting = (tile, results, event)
            if waiting is not None:
                self._finish(*waiting, copies, advance)
        stream.synchronize()

    def _compute(self, tile: _Tile) -> list[Any]:
        import cupy

        card, n, m = self.card, tile.i1 - tile.i0, tile.j1 - tile.j0
        first = self._rows(0, tile.i0, tile)
        second = self._rows(0 if self.images[0] is self.images[1] else 1, tile.j0, tile)
        on_diagonal = tile.mirrored and tile.i0 == tile.j0
        below = 0 if on_diagonal else NEVER
        if not self.on_host and int(self.out.device.id) == card.device:
            there = self.out[tile.j0 :, tile.i0 :] if tile.mirrored else None
            card.pairs(first, second, self.out[tile.i0 :, tile.j0 :], there, self.out.shape[1], below)
            return []
        ld = max(n, m)
        result = cupy.empty((n, ld), card.dtype)
        mirror = cupy.empty((m, ld), card.dtype) if tile.mirrored and not on_diagonal else None
        card.pairs(first, second, result, result if on_diagonal else mirror, ld, below)
        return [result[:, :m]] + ([] if mirror is None else [mirror[:, :n]])

    def _rows(self, which: int, start: int, tile: _Tile) -> Any:
        """The table rows of a band, from before where they are kept."""
        key = (which, start)
        if key not in self.bands:
            used = {(0, tile.i0), (which, tile.j0)}
            size = self.side * self.card.source.row * self.card.dtype.itemsize
            if size > (1.0 - MEMORY_SHARE) * self.card.free_bytes():
                self.bands = {k: rows for k, rows in self.bands.items() if k in used}
            self.bands[key] = self.card.tables(self.images[which][start : start + self.side]).rows
        return self.bands[key]

    def _finish(self, tile: _Tile, results: list[Any], event: Any, copies: Any, advance: Any) -> None:
        """Bring a tile where it belongs."""
        import cupy

        if results:
            copies.wait_event(event)
            places = (
                (slice(tile.i0, tile.i1), slice(tile.j0, tile.j1)),
                (slice(tile.j0, tile.j1), slice(tile.i0, tile.i1)),
            )
            for (a, b), result in zip(places, results, strict=False):
                with copies:
                    if self.on_host:
                        self.out[a, b] = cupy.ascontiguousarray(result).get(stream=copies)
                    else:
                        host = cupy.ascontiguousarray(result).get(stream=copies)
                        with cupy.cuda.Device(int(self.out.device.id)):
                            self.out[a, b] = cupy.asarray(host)
        else:
            event.synchronize()
        if advance is not None:
            advance(tile.pairs)
