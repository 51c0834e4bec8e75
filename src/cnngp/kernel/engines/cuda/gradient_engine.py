"""Gradients on the cards: tiles of the matrix, each with the images' own part, added up in a fixed order.

A tile's pairs give to the variances of its images, and the images with themselves take that on to the parameters. All
of it is linear in G, so every tile is complete by itself; what it gives is added up on the host in the order of the
tiles, whichever card had them. Numbers are the same in every run, as long as there is memory for the same tiles.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cnngp.common.tiles import Grid, Tell, Tile, share
from cnngp.kernel.program.ops import Back, Reverse
from cnngp.kernel.series.packed import Rows

from ..base import Advance
from ..weights import Gradient, finished, prepared
from .card import Bands, Card
from .cuda_source import CudaSource, generate_gradient
from .engine import CardEngine
from .walk.program_data import BackwardData

MAX_TILE = 1024
# Map elements that are worked on between two reports of progress, about a second's work.
REPORT_ELEMENTS = 2e9

Array = NDArray[np.float64]


class CudaGradient(CardEngine):
    """Gradients of one network on the cards, as `GradientEngine` gives them."""

    def __init__(
        self, reverse: Reverse, dtype: str, devices: Sequence[int] | None = None, tile: int | None = None
    ) -> None:
        def write(rows: Mapping[int, Rows], shared_limit: int) -> CudaSource:
            return generate_gradient(reverse, dtype, rows, shared_limit)

        super().__init__(reverse.program, dtype, "cuda-gradient", write, devices, tile)
        self._elements = sum(math.prod(s.shape) for s in reverse.steps if isinstance(s, Back))

    def gradient(self, X: Any, Z: Any | None, G: Array, advance: Advance = None) -> Gradient:
        """Σ G ∂K/∂θ; without Z, of the matrix of X with both triangles and its diagonal."""
        second = X if Z is None else Z
        cards = self._cards_for(X, second)
        backward = cards[0].source.backward
        weights, diagonal, exponent = prepared(G, Z is None)
        with cards[0]:
            side = self._side(cards[0], max(len(X), len(second)))
        todo = list(Grid((len(X), len(second)), (side, side), Z is None))
        found = _Sums(backward, len(X), None if Z is None else len(Z), todo)
        each = max(1, int(REPORT_ELEMENTS / max(1, self._elements)))
        jobs = [_Job(card, Bands(card, X, second, side, images=True), weights, diagonal, found, each) for card in cards]
        share(jobs, todo, _Job.run, advance)
        sums = [
            (name, factor * float(value))
            for parts, value in zip(backward.shares, found.sums, strict=False)  # one sum is there in any case
            for name, factor in parts
        ]
        of_x, of_z = (found.of_x, None if Z is None else found.of_z) if backward.pixels else (None, None)
        return finished(self.program, sums, of_x, of_z, exponent)

    def _side(self, card: Card, images: int) -> int:
        data, backward, item = card.source.data, card.source.backward, self.dtype.itemsize
        row = data.pixels + data.layout.row + backward.entries
        # Of the images of both sides pixels, a table row, shares, sums and gradients; and the tile's weights.
        each = item * row + 8 * (2 * backward.slots + backward.pixels + 2)
        return self._largest_side(card, images, MAX_TILE, 2 * each, item)


class _Sums:
    """Sum of the results of tiles, in their order: one that comes early waits for those before it.

    Results are sums, and the gradients of the pixels of a tile's row images and column images.
    """

    def __init__(self, backward: BackwardData, n: int, m: int | None, tiles: Sequence[Tile]) -> None:
        self.sums = np.zeros(backward.slots)
        self.of_x = np.zeros((n, backward.pixels))
        self.of_z = self.of_x if m is None else np.zeros((m, backward.pixels))
        self._waiting = list(reversed(tiles))
        self._early: dict[Tile, tuple[Array, Array | None, Array | None] | None] = {}
        self._lock = threading.Lock()

    def add(self, tile: Tile, part: tuple[Array, Array | None, Array | None] | None) -> None:
        with self._lock:
            self._early[tile] = part
            while self._waiting and self._waiting[-1] in self._early:
                following = self._waiting.pop()
                sums, rows, columns = self._early.pop(following) or (0.0, None, None)
                self.sums += sums
                if rows is not None:
                    self.of_x[following.rows] += rows
                if columns is not None:
                    self.of_z[following.columns] += columns


class _Job(NamedTuple):
    """One card's share of the tiles; `weights` and `diagonal` are those of the whole matrix."""

    card: Card
    bands: Bands
    weights: Array
    diagonal: Array
    found: _Sums
    pairs_a_report: int

    def run(self, todo: Iterable[Tile], tell: Tell) -> None:
        import cupy

        with self.card:
            cupy.cuda.get_current_stream().synchronize()  # inputs may come from work in flight
            for tile in todo:
                self.found.add(tile, self._part(tile, tell))

    def _part(self, tile: Tile, tell: Tell) -> tuple[Array, Array | None, Array | None] | None:
        import cupy

        card, backward = self.card, self.card.source.backward
        (n, m), on_diagonal = tile.shape, tile.on_diagonal
        weights = self.weights[tile.rows, tile.columns]
        seeds = self.diagonal[tile.rows] if on_diagonal else np.zeros(n)
        if not weights.any() and not seeds.any():
            tell(tile.pairs)
            return None
        (x, first), (z, second) = self.bands.of(tile)
        shares = cupy.zeros((n, backward.entries), card.dtype)
        others = shares if on_diagonal else cupy.zeros((m, backward.entries), card.dtype)
        sums = cupy.zeros((n if on_diagonal else min(n, m), backward.slots), np.float64)
        on_card = cupy.asarray(np.ascontiguousarray(weights, card.dtype))
        waiting = 0
        launch = card.phases(first, second, on_card, (shares, others), sums)
        for phase in range(max(n, m)):
            launch(phase)
            # Of one set of images half of a phase, without the pairs of an image with itself.
            waiting += (n - (n % 2 or phase % 2 == 0)) // 2 if on_diagonal else min(n, m)
            if waiting >= self.pairs_a_report:
                cupy.cuda.get_current_stream().synchronize()
                tell(waiting)
                waiting = 0
        own, rows = card.self_pairs(x, seeds, shares)
        total = sums.get().sum(axis=0) + own.get().sum(axis=0)
        columns = None
        if not on_diagonal:
            own, columns = card.self_pairs(z, np.zeros(m), others)
            total += own.get().sum(axis=0)
        tell(waiting)
        return total, *(None if g is None else g.get() for g in (rows, columns))
