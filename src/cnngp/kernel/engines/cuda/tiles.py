"""What one card does with the tiles of a matrix that it gets.

Table rows of a band of images are made once and kept while memory allows; a tile goes to the host while the next one is
computed. Which card gets which tile is settled by `share` of common/tiles.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cnngp.common.tiles import Tell, Tile

from .card import NEVER, Card

MEMORY_SHARE = 0.6  # of the free memory, for table rows and tiles


class Job:
    """One card's share of a matrix: its bands of table rows, and tiles on their way to the host.

    `outs` are the matrices of K and Θ, None for one that is not asked for.
    """

    def __init__(self, card: Card, X: Any, Z: Any, outs: Sequence[Any], side: int, on_host: bool) -> None:
        self.card, self.outs, self.side, self.on_host = card, outs, side, on_host
        self.images = (X, Z)
        self.bands: dict[tuple[int, int], Any] = {}

    def run(self, tiles: Iterable[Tile], tell: Tell) -> None:
        """Tiles one after the other; a tile is copied to the host while the next one is computed."""
        import cupy

        with self.card:
            stream = cupy.cuda.Stream(non_blocking=True)
            copies = cupy.cuda.Stream(non_blocking=True)
            waiting: tuple[Tile, list[Any], Any] | None = None
            cupy.cuda.get_current_stream().synchronize()  # inputs may come from work in flight
            try:
                with stream:
                    for tile in tiles:
                        results = self._compute(tile)
                        event = stream.record()
                        if waiting is not None:
                            self._finish(*waiting, copies, tell)
                        waiting = (tile, results, event)
                    if waiting is not None:
                        self._finish(*waiting, copies, tell)
            finally:
                stream.synchronize()  # whatever ended it: nobody gives back memory that is still written to

    def _compute(self, tile: Tile) -> list[Any]:
        import cupy

        card, (n, m), i, j = self.card, tile.shape, tile.rows.start, tile.columns.start
        first = self._rows(0, i, tile)
        second = self._rows(0 if self.images[0] is self.images[1] else 1, j, tile)
        below = 0 if tile.on_diagonal else NEVER
        places: list[tuple[Any, Any]] = []
        results: list[Any] = []
        ld = max(n, m)
        for out in self.outs:
            if out is None:
                places.append((None, None))
            elif not self.on_host and int(out.device.id) == card.device:
                ld = out.shape[1]
                places.append((out[i:, j:], out[j:, i:] if tile.symmetric else None))
            else:
                result = cupy.empty((n, ld), card.dtype)
                mirror = cupy.empty((m, ld), card.dtype) if tile.mirrored else None
                places.append((result, result if tile.on_diagonal else mirror))
                results.append([result[:, :m]] + ([] if mirror is None else [mirror[:, :n]]))
        (K, K_mirror), (theta, theta_mirror) = (*places, (None, None))[:2]
        card.pairs(first, second, K, K_mirror, ld, below, theta, theta_mirror)
        return results

    def _rows(self, which: int, start: int, tile: Tile) -> Any:
        """The table rows of a band, from before where they are kept."""
        key = (which, start)
        if key not in self.bands:
            used = {(0, tile.rows.start), (which, tile.columns.start)}
            size = self.side * self.card.source.row * self.card.dtype.itemsize
            if size > (1.0 - MEMORY_SHARE) * self.card.free_bytes():
                self.bands = {k: rows for k, rows in self.bands.items() if k in used}
            self.bands[key] = self.card.tables(self.images[which][start : start + self.side]).rows
        return self.bands[key]

    def _finish(self, tile: Tile, results: list[Any], event: Any, copies: Any, tell: Tell) -> None:
        """Bring a tile where it belongs."""
        import cupy

        if results:
            copies.wait_event(event)
            places = (tile.rows, tile.columns), (tile.columns, tile.rows)
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
        tell(tile.pairs)
