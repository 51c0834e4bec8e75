"""Tiles of a matrix on one card: bands of table rows, and copies to the host.

Table rows of a band of images are made once and kept while memory allows; a tile goes to the host while the next one is
computed. Which card gets which tile is settled by `share` of common/tiles.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cnngp.common.tiles import Tell, Tile

from .card import NEVER, Card

MEMORY_SHARE = 0.6  # of the free memory, for table rows and tiles


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
            size = self.side * (data.row + data.pixels * self.images) * self.card.dtype.itemsize
            if size > (1.0 - MEMORY_SHARE) * (self.card.free_bytes() - self.card.fixed_bytes()):
                self._kept = {k: band for k, band in self._kept.items() if k in used}
            which, start = key
            x = self.card.images(self.sets[which][start : start + self.side])
            self._kept[key] = x if self.images else None, self.card.tables(x).rows
        return self._kept[key]


class Job:
    """One card's share of a matrix: its bands of table rows, and tiles on their way to the host.

    `outs` are the matrices of K and Θ, None for one that is not asked for.
    """

    def __init__(self, card: Card, X: Any, Z: Any, outs: Sequence[Any], side: int, on_host: bool) -> None:
        self.card, self.outs, self.on_host = card, outs, on_host
        self.bands = Bands(card, X, Z, side)

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
                stream.synchronize()  # whatever ended it: memory that is still written to must not be given back

    def _compute(self, tile: Tile) -> list[Any]:
        import cupy

        card, (n, m), i, j = self.card, tile.shape, tile.rows.start, tile.columns.start
        (_, first), (_, second) = self.bands.of(tile)
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

    def _finish(self, tile: Tile, results: list[Any], event: Any, copies: Any, tell: Tell) -> None:
        """Copy a tile to its matrix."""
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
