"""One call's matrix in square tiles, and the cards that compute them.

Each card takes the next tile, so any number of cards share the work. Table rows of a band of images are made once and
kept while memory allows; a tile goes to the host while the next one is computed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from ..base import Advance
from .card import NEVER, Card

MEMORY_SHARE = 0.6  # of the free memory, for table rows and tiles


@dataclass(frozen=True)
class Tile:
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


def tiles(n: int, m: int, side: int, symmetric: bool) -> list[Tile]:
    return [
        Tile(i, min(i + side, n), j, min(j + side, m), symmetric)
        for i in range(0, n, side)
        for j in range(i if symmetric else 0, m, side)
    ]


class Job:
    """One card's share of a matrix: its bands of table rows, and tiles on their way to the host.

    `outs` are the matrices of K and Θ, None for one that is not asked for.
    """

    def __init__(self, card: Card, X: Any, Z: Any, outs: Sequence[Any], side: int, on_host: bool) -> None:
        self.card, self.outs, self.side, self.on_host = card, outs, side, on_host
        self.images = (X, Z)
        self.bands: dict[tuple[int, int], Any] = {}

    def run(self, todo: Iterable[Tile], advance: Callable[[int], None] | None) -> None:
        """Tiles one after the other; a tile is copied to the host while the next one is computed."""
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        copies = cupy.cuda.Stream(non_blocking=True)
        waiting: tuple[Tile, list[Any], Any] | None = None
        cupy.cuda.get_current_stream().synchronize()  # inputs may come from work in flight
        with stream:
            for tile in todo:
                results = self._compute(tile)
                event = stream.record()
                if waiting is not None:
                    self._finish(*waiting, copies, advance)
                waiting = (tile, results, event)
            if waiting is not None:
                self._finish(*waiting, copies, advance)
        stream.synchronize()

    def _compute(self, tile: Tile) -> list[Any]:
        import cupy

        card, n, m = self.card, tile.i1 - tile.i0, tile.j1 - tile.j0
        first = self._rows(0, tile.i0, tile)
        second = self._rows(0 if self.images[0] is self.images[1] else 1, tile.j0, tile)
        on_diagonal = tile.mirrored and tile.i0 == tile.j0
        below = 0 if on_diagonal else NEVER
        places: list[tuple[Any, Any]] = []
        results: list[Any] = []
        ld = max(n, m)
        for out in self.outs:
            if out is None:
                places.append((None, None))
            elif not self.on_host and int(out.device.id) == card.device:
                ld = out.shape[1]
                places.append((out[tile.i0 :, tile.j0 :], out[tile.j0 :, tile.i0 :] if tile.mirrored else None))
            else:
                result = cupy.empty((n, ld), card.dtype)
                mirror = cupy.empty((m, ld), card.dtype) if tile.mirrored and not on_diagonal else None
                places.append((result, result if on_diagonal else mirror))
                results.append([result[:, :m]] + ([] if mirror is None else [mirror[:, :n]]))
        (K, K_mirror), (theta, theta_mirror) = (*places, (None, None))[:2]
        card.pairs(first, second, K, K_mirror, ld, below, theta, theta_mirror)
        return results

    def _rows(self, which: int, start: int, tile: Tile) -> Any:
        """The table rows of a band, from before where they are kept."""
        key = (which, start)
        if key not in self.bands:
            used = {(0, tile.i0), (which, tile.j0)}
            size = self.side * self.card.source.row * self.card.dtype.itemsize
            if size > (1.0 - MEMORY_SHARE) * self.card.free_bytes():
                self.bands = {k: rows for k, rows in self.bands.items() if k in used}
            self.bands[key] = self.card.tables(self.images[which][start : start + self.side]).rows
        return self.bands[key]

    def _finish(self, tile: Tile, results: list[Any], event: Any, copies: Any, advance: Any) -> None:
        """Bring a tile where it belongs."""
        import cupy

        if results:
            copies.wait_event(event)
            places = (
                (slice(tile.i0, tile.i1), slice(tile.j0, tile.j1)),
                (slice(tile.j0, tile.j1), slice(tile.i0, tile.i1)),
            )
            for out, parts in zip([out for out in self.outs if out is not None], results, strict=True):
                for (a, b), result in zip(places, parts, strict=False):
                    with copies:
                        host = cupy.ascontiguousarray(result).get(stream=copies)
                        if self.on_host:
                            out[a, b] = host
                        else:
                            with cupy.cuda.Device(int(out.device.id)):
                                out[a, b] = cupy.asarray(host)
        else:
            event.synchronize()
        if advance is not None:
            advance(tile.pairs)


def share(jobs: list[Job], todo: list[Tile], advance: Advance) -> None:
    """Each card takes the next tile when it has room, from its own thread; progress is told from this one."""
    lock, stopped = threading.Lock(), threading.Event()
    queue = iter(todo)
    done: list[int] = []

    def take() -> Iterator[Tile]:
        while not stopped.is_set():
            with lock:
                tile = next(queue, None)
            if tile is None:
                return
            yield tile

    def work(job: Job) -> None:
        with job.card:
            job.run(take(), done.append)

    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = {pool.submit(work, job) for job in jobs}
        told = 0
        try:
            while futures:
                finished, futures = wait(futures, timeout=0.2, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                if advance is not None and (now := len(done)) > told:
                    advance(sum(done[told:now]))
                    told = now
        finally:
            stopped.set()  # after an error or Ctrl-C the other cards finish the tile they are at, not the matrix
