"""Gradients on the cards: tiles of the matrix, each with the images' own part, added up in a fixed order.

A tile's pairs give to the variances of its images, and the images with themselves take that on to the parameters. All
of it is linear in G, so every tile is complete by itself; what it gives is added up on the host in the order of the
tiles, whichever card had them. Numbers are the same in every run, as long as there is memory for the same tiles.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cnngp.common.devices import EngineError, require_card
from cnngp.common.tiles import Grid, Tell, Tile, share
from cnngp.kernel.program.steps import Back, Reverse
from cnngp.kernel.series.packed import SeriesTables

from ...base import Advance
from ...weights import Gradient, finished, prepared
from ..tiles import MEMORY_SHARE
from .card import GradientCard
from .source import GradientSource, generate

VERSION = 1
MAX_TILE = 1024
# Map elements that are worked on between two reports of progress, about a second's work.
REPORT_ELEMENTS = 2e9

Array = NDArray[np.float64]


class CudaGradient:
    """Gradients of one network on the cards, as `CpuGradient` gives them.

    `devices` names the cards, by default all; `tile` the side of a tile, by default what memory allows.
    """

    def __init__(
        self, reverse: Reverse, dtype: str, devices: Sequence[int] | None = None, tile: int | None = None
    ) -> None:
        cupy = require_card()
        self.reverse, self.dtype = reverse, np.dtype(dtype)
        self.series = SeriesTables(reverse.program, self.dtype)
        self._tile = tile
        self._devices = list(range(cupy.cuda.runtime.getDeviceCount()) if devices is None else devices)
        self._shared_limit = min(
            int(cupy.cuda.Device(k).attributes["MaxSharedMemoryPerBlockOptin"]) for k in self._devices
        )
        self._elements = sum(math.prod(s.shape) for s in reverse.steps if isinstance(s, Back))
        self._cards: dict[Any, list[GradientCard]] = {}
        source = self._cards_for(None)[0].source
        content = source.text.encode() + source.ints.tobytes() + source.reals.tobytes() + source.ways.tobytes()
        kind = cupy.cuda.Device(self._devices[0]).compute_capability
        digest = hashlib.sha256(content + self.series.panels.tobytes()).hexdigest()
        self.identity = f"cuda-gradient-{VERSION}-{self.dtype.name}-sm{kind}-{digest[:16]}"

    def gradient(self, X: Any, Z: Any | None, G: Array, advance: Advance = None) -> Gradient:
        """Σ G ∂K/∂θ; without Z, of the matrix of X with both triangles and its diagonal."""
        symmetric = Z is None
        second = X if Z is None else Z
        cards = self._cards_for(None)
        if self.series.sites:
            cards = self._cards_for(np.maximum(self._peaks(X), self._peaks(second)))
        source = cards[0].source
        weights, diagonal, exponent = prepared(G, symmetric)
        with cards[0]:
            side = self._side(cards[0], max(len(X), len(second)))
        found = _Found(source, len(X), len(second), symmetric)
        todo = list(Grid((len(X), len(second)), (side, side), symmetric))
        problem = _Problem(X, second, weights, diagonal, symmetric, {tile: k for k, tile in enumerate(todo)})
        each = max(1, int(REPORT_ELEMENTS / max(1, self._elements)))
        share([_Job(card, problem, found, each) for card in cards], todo, _Job.run, advance)
        sums = [
            (name, factor * float(value))
            for parts, value in zip(source.shares, found.sums, strict=False)  # one sum is there in any case
            for name, factor in parts
        ]
        of_x, of_z = (found.of_x, None if symmetric else found.of_z) if source.pixels else (None, None)
        return finished(self.reverse.program, sums, of_x, of_z, exponent)

    def _cards_for(self, peaks: Array | None) -> list[GradientCard]:
        """Cards with code for these variances: an Elementwise's series is as long as they need."""
        rows = self.series.rows(peaks)
        key = tuple(rows.values())
        if key not in self._cards:
            source = generate(self.reverse, self.dtype, rows, self._shared_limit)
            sites = len(self.reverse.program.activations)
            self._cards[key] = [GradientCard(k, source, self.dtype, sites, self.series.panels) for k in self._devices]
        return self._cards[key]

    def _peaks(self, X: Any) -> Array:
        """The largest variance at each nonlinearity, in buffer units."""
        card = self._cards_for(None)[0]
        with card:
            step = self._side(card, len(X))
            parts = (card.images(X[start : start + step]) for start in range(0, len(X), step))
            return np.asarray(np.max([card.tables(x)[1].get().max(axis=0) for x in parts], axis=0))

    def _side(self, card: GradientCard, images: int) -> int:
        """The side of a tile: all images, unless there are many or memory speaks against it."""
        if self._tile is not None:
            return self._tile
        source, item = card.source, self.dtype.itemsize
        pixels = self.reverse.program.channels * math.prod(self.reverse.program.shape)
        # Of the images of both sides pixels, a table row, shares, sums and gradients; and the tile's weights.
        each = 2 * (item * (pixels + source.row + source.entries) + 8 * (2 * source.slots + source.pixels + 2))
        budget = MEMORY_SHARE * card.free_bytes()
        side = int(min(MAX_TILE, (math.sqrt(each * each + 4 * item * budget) - each) / (2 * item)))
        if side < 1:
            raise EngineError(
                f"not enough memory on the card: the gradient needs {each:,} bytes for an image and "
                f"{card.free_bytes():,} are free"
            )
        pieces = -(-images // side)
        return -(-images // pieces)


class _Problem(NamedTuple):
    """What is asked for; `order` numbers the tiles."""

    X: Any
    Z: Any
    weights: Array
    diagonal: Array
    symmetric: bool
    order: dict[Tile, int]


class _Part(NamedTuple):
    """What a tile gives: sums, and of its row images and column images the gradients of the pixels."""

    tile: Tile
    sums: Array
    rows: Array | None
    columns: Array | None


class _Found:
    """What tiles have given, added up in their order: a part that comes early waits for those before it."""

    def __init__(self, source: GradientSource, n: int, m: int, symmetric: bool) -> None:
        self.sums = np.zeros(source.slots)
        self.of_x = np.zeros((n, source.pixels))
        self.of_z = self.of_x if symmetric else np.zeros((m, source.pixels))
        self._next = 0
        self._early: dict[int, _Part | None] = {}
        self._lock = threading.Lock()

    def add(self, number: int, part: _Part | None) -> None:
        with self._lock:
            self._early[number] = part
            while self._next in self._early:
                part = self._early.pop(self._next)
                self._next += 1
                if part is None:
                    continue
                tile = part.tile
                self.sums += part.sums
                if part.rows is not None:
                    self.of_x[tile.rows] += part.rows
                if part.columns is not None:
                    self.of_z[tile.columns] += part.columns


class _Job:
    """One card's share of the tiles."""

    def __init__(self, card: GradientCard, problem: _Problem, found: _Found, pairs_a_report: int) -> None:
        self.card, self.problem, self.found, self.pairs_a_report = card, problem, found, pairs_a_report
        self._bands: dict[tuple[int, int], tuple[Any, Any]] = {}

    def run(self, todo: Iterable[Tile], tell: Tell) -> None:
        import cupy

        with self.card:
            cupy.cuda.get_current_stream().synchronize()  # inputs may come from work in flight
            for tile in todo:
                self.found.add(self.problem.order[tile], self._part(tile, tell))

    def _part(self, tile: Tile, tell: Tell) -> _Part | None:
        import cupy

        p, card = self.problem, self.card
        (n, m), on_diagonal = tile.shape, tile.on_diagonal
        weights = p.weights[tile.rows, tile.columns]
        seeds = p.diagonal[tile.rows] if on_diagonal else np.zeros(n)
        if not weights.any() and not seeds.any():
            tell(tile.pairs)
            return None
        x, first = self._band(0, tile.rows, tile)
        z, second = self._band(int(not p.symmetric), tile.columns, tile)
        shares = cupy.zeros((n, card.source.entries), card.dtype)
        others = shares if on_diagonal else cupy.zeros((m, card.source.entries), card.dtype)
        sums = cupy.zeros((n if on_diagonal else min(n, m), card.source.slots), np.float64)
        on_card = cupy.asarray(np.ascontiguousarray(weights, card.dtype))
        waiting = 0
        launch = card.pairs(first, second, on_card, (shares, others), sums)
        for phase in range(max(n, m)):
            launch(phase)
            waiting += _pairs(n, m, phase, on_diagonal)
            if waiting >= self.pairs_a_report:
                cupy.cuda.get_current_stream().synchronize()
                tell(waiting)
                waiting = 0
        own, rows = card.selves(x, seeds, shares)
        total = sums.get().sum(axis=0) + own.get().sum(axis=0)
        columns = None
        if not on_diagonal:
            own, columns = card.selves(z, np.zeros(m), others)
            total += own.get().sum(axis=0)
        tell(waiting)
        return _Part(tile, total, *(None if g is None else g.get() for g in (rows, columns)))

    def _band(self, which: int, part: slice, tile: Tile) -> tuple[Any, Any]:
        """Images and their table rows, from before where the last tile had them."""
        used = {(0, tile.rows.start), (int(not self.problem.symmetric), tile.columns.start)}
        self._bands = {key: band for key, band in self._bands.items() if key in used}
        key = (which, part.start)
        if key not in self._bands:
            images = self.card.images((self.problem.X, self.problem.Z)[which][part])
            self._bands[key] = images, self.card.tables(images)[0]
        return self._bands[key]


def _pairs(n: int, m: int, phase: int, one_set: bool) -> int:
    """How many pairs a phase has."""
    if not one_set:
        return min(n, m)
    return (n - 1) // 2 if n % 2 or phase % 2 == 0 else n // 2
