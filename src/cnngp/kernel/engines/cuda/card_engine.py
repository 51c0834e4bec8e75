"""Base of the engines of kernels and of gradients: cards with code, variances of images, sides of tiles."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.devices import EngineError, require_card
from cnngp.kernel.program import Kind, Program
from cnngp.kernel.series.packed import Rows, SeriesTables

from ..base import check_range
from .card import KINDS, Card
from .card_tiles import MEMORY_SHARE
from .cuda_source import CudaSource

VERSION = 2


class CardEngine:
    """Runs one program on the cards.

    `devices` names the cards, by default all; `tile` the side of a tile, by default what memory and time suggest.
    """

    def __init__(
        self, program: Program, dtype: str, name: str, devices: Sequence[int] | None, tile: int | None
    ) -> None:
        cupy = require_card()
        self.program = program
        self.dtype = np.dtype(dtype)
        self._series = SeriesTables(program, self.dtype)
        self._tile = tile
        self._devices = list(range(cupy.cuda.runtime.getDeviceCount()) if devices is None else devices)
        self._shared_limit = min(
            int(cupy.cuda.Device(k).attributes["MaxSharedMemoryPerBlockOptin"]) for k in self._devices
        )
        self._cards: dict[tuple[Rows, ...], list[Card]] = {}
        self.source = self.cards()[0].source
        kind = cupy.cuda.Device(self._devices[0]).compute_capability
        text = hashlib.sha256(self.source.content + self._series.panels.tobytes()).hexdigest()
        self.identity = f"{name}-{VERSION}-{self.dtype.name}-sm{kind}-{text[:16]}"

    def _generate(self, rows: Mapping[int, Rows]) -> CudaSource:
        """The code for series of these lengths."""
        raise NotImplementedError

    def cards(self, peaks: NDArray[np.float64] | None = None) -> list[Card]:
        """The cards, with code for these variances: an Elementwise's series is as long as they need, and no longer."""
        rows = self._series.rows(peaks)
        key = tuple(rows.values())
        if key not in self._cards:
            source = self._generate(rows)
            self._cards[key] = [Card(k, source, self._series.panels) for k in self._devices]
        return self._cards[key]

    def _cards_for(self, *sets: Any) -> list[Card]:
        """The cards with code for the variances of these images."""
        if not self._series.sites:
            return self.cards()
        return self.cards(np.max([self._diagonals(X)[1] for X in sets], axis=0))

    def diagonal(self, X: Any) -> NDArray[np.float64]:
        """The kernel of each image with itself, in float64. Raises `RangeError`."""
        return self._diagonals(X)[0][self.program.kind]

    def _diagonals(self, X: Any) -> tuple[dict[Kind, NDArray[np.float64]], NDArray[np.float64]]:
        """K(x, x) and perhaps Θ(x, x), and the largest variance of all images at each nonlinearity."""
        card = self.cards()[0]
        with card:
            step = self._side(card, len(X))
            diagonals, peaks = [], []
            for start in range(0, len(X), step):
                made = card.tables(X[start : start + step])
                diagonals.append(made.diagonals.get())
                peaks.append(made.peaks.get())
        found = dict(zip(KINDS, np.concatenate(diagonals, axis=1), strict=False))
        largest = np.concatenate(peaks)
        return found, check_range(self.program, self.dtype, self._series, largest, found["nngp"], found.get("ntk"))

    def _side(self, card: Card, images: int) -> int:
        """The side of a tile."""
        raise NotImplementedError

    def _largest_side(self, card: Card, images: int, most: float, band: float, entry: float, reserved: int = 0) -> int:
        """The side of a tile: all images, unless memory or `most` speaks against it.

        An image of a tile takes `band` bytes, and a pair `entry` bytes, beside those that are `reserved`.
        """
        if self._tile is not None:
            return self._tile
        budget = MEMORY_SHARE * (card.free_bytes() - card.fixed_bytes() - reserved)
        by_memory = (math.sqrt(band * band + 4 * entry * max(0.0, budget)) - band) / (2 * entry)
        side = int(min(most, by_memory))
        if side < 1:
            raise EngineError(
                f"not enough memory on the GPU: an image needs {int(band):,} bytes and {card.free_bytes():,} are free"
            )
        pieces = -(-images // side)
        return -(-images // pieces) if pieces > 1 else images
