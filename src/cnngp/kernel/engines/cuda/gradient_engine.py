"""Gradients on the cards: tiles of the matrix, each with the images' own part, added up in a fixed order.

A tile's pairs give to the variances of its images, and the images with themselves take that on to the parameters. All
of it is linear in G, so every tile is complete by itself; what it gives is added up on the host in the order of the
tiles, whichever card had them. Numbers are the same in every run, as long as there is memory for the same tiles.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.tiles import Grid, Tell, Tile, share
from cnngp.kernel.program.ops import Back, Reverse

from ..base import Advance
from ..weights import Gradient, finished, prepared
from .card import Bands, Card
from .cuda_source import generate_gradient
from .engine import CudaEngine

MAX_TILE = 1024
# Map elements that are worked on between two reports of progress, about a second's work.
REPORT_ELEMENTS = 2e9

Array = NDArray[np.float64]


class CudaGradient(CudaEngine):
    """Gradients of one network on the cards, as `GradientEngine` gives them; and matrices, as slowly as gradients, but
    from the same code, which is not compiled anew for other variances.
    """

    name = "cuda-gradient"

    def __init__(
        self, reverse: Reverse, dtype: str, devices: Sequence[int] | None = None, tile: int | None = None
    ) -> None:
        super().__init__(reverse.program, dtype, devices, tile, write=partial(generate_gradient, reverse, dtype))
        elements = sum(math.prod(s.shape) for s in reverse.steps if isinstance(s, Back))
        self._pairs_a_report = max(1, int(REPORT_ELEMENTS / max(1, elements)))

    def gradient(self, X: Any, Z: Any | None, G: Array, advance: Advance = None) -> Gradient:
        """Σ G ∂K/∂θ; without Z, of the matrix of X with both triangles and its diagonal."""
        second = X if Z is None else Z
        cards = self._cards_for(X, second)
        data, backward, item = cards[0].source.data, cards[0].source.backward, self.dtype.itemsize
        weights, diagonal, exponent = prepared(G, Z is None)
        with cards[0].current():
            # Of the images of both sides pixels, a table row, shares, sums and gradients; and the tile's weights.
            row = data.pixels + data.layout.row + backward.entries
            band = 2 * (item * row + 8 * (2 * backward.slots + backward.pixels + 2))
            side = self._side_for(cards[0], max(len(X), len(second)), MAX_TILE, band, item)
        todo = list(Grid((len(X), len(second)), (side, side), Z is None))
        sums, of_x = np.zeros(backward.slots), np.zeros((len(X), backward.pixels))
        of_z = of_x if Z is None else np.zeros((len(Z), backward.pixels))
        found = _InOrder(todo)

        def run(card: Card, tiles: Iterable[Tile], tell: Tell) -> None:
            bands = Bands(card, X, second, side)
            with card.current():
                card.xp.cuda.get_current_stream().synchronize()  # inputs may come from work in flight
                for tile in tiles:
                    seeds = diagonal[tile.rows] * tile.on_diagonal
                    parts = self._parts(bands, tile, weights[tile.rows, tile.columns], seeds, tell)
                    found.add(tile, list(zip((sums, of_x[tile.rows], of_z[tile.columns]), parts, strict=False)))

        share(cards, todo, run, advance)
        shares = [
            (name, factor * float(value))
            for parts, value in zip(backward.shares, sums, strict=False)  # one sum is there in any case
            for name, factor in parts
        ]
        if not backward.pixels:
            return finished(self.program, shares, None, None, exponent)
        return finished(self.program, shares, of_x, None if Z is None else of_z, exponent)

    def _parts(self, bands: Bands, tile: Tile, weights: Array, seeds: Array, tell: Tell) -> list[Array]:
        """What a tile gives to the sums, to the pixels of its row images and to those of its column images, if others.

        `seeds` are the weights of its row images with themselves.
        """
        if not weights.any() and not seeds.any():
            tell(tile.pairs)
            return []
        card, xp, (n, m) = bands.card, bands.card.xp, tile.shape
        backward = card.source.backward
        first, second = bands.of(tile)
        sets = (first,) if tile.on_diagonal else (first, second)
        shares = [xp.zeros((len(rows), backward.entries), card.dtype) for rows in sets]
        sums = xp.zeros((n if tile.on_diagonal else min(n, m), backward.slots), np.float64)
        on_card = xp.asarray(np.ascontiguousarray(weights, card.dtype))
        launch = card.phases(first, second, on_card, (shares[0], shares[-1]), sums)
        waiting = 0
        for phase in range(max(n, m)):
            launch(phase)
            # Of one set of images half of a phase, without the pairs of an image with itself.
            waiting += (n - (n % 2 or phase % 2 == 0)) // 2 if tile.on_diagonal else min(n, m)
            if waiting >= self._pairs_a_report:
                xp.cuda.get_current_stream().synchronize()
                tell(waiting)
                waiting = 0
        own = [card.self_pairs(*part) for part in zip(sets, (seeds, np.zeros(m)), shares, strict=False)]
        total = sum((part.get().sum(axis=0) for part, _ in own), sums.get().sum(axis=0))
        tell(waiting)
        return [total, *(pixels.get() for _, pixels in own)]


class _InOrder:
    """Adds up what tiles give, in their order: what comes early waits for the tiles before it."""

    def __init__(self, tiles: Sequence[Tile]) -> None:
        self._waiting = deque(tiles)
        self._early: dict[Tile, list[tuple[Array, Array]]] = {}
        self._lock = threading.Lock()

    def add(self, tile: Tile, parts: list[tuple[Array, Array]]) -> None:
        """Parts of a tile, each with the total that it belongs to."""
        with self._lock:
            self._early[tile] = parts
            while self._waiting and self._waiting[0] in self._early:
                for total, part in self._early.pop(self._waiting.popleft()):
                    total += part
