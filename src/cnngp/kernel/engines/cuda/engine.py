"""The GPU engine: compiles a program's CUDA at run time and runs tiles of the kernel matrix on every card there is.

The engine chooses the code and the size of a tile. source.py writes the code, card.py compiles and launches it,
tiles.py takes one card through its tiles.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import Output, to_output
from cnngp.common.devices import EngineError, require_card
from cnngp.common.tiles import Grid, share
from cnngp.kernel.program import Kind, Program
from cnngp.kernel.series.packed import SeriesTables

from ..base import Advance, check_range
from .card import KINDS, NEVER, Card
from .source import CudaSource, generate
from .tiles import MEMORY_SHARE, Job

__all__ = ["NEVER", "CudaEngine", "EngineError"]

VERSION = 1
MAX_TILE = 16384
# Map elements that one launch may compute, so that it takes about a second and progress can be shown.
LAUNCH_ELEMENTS = {"warp": 8e11, "dense": 2e11, "block": 2e10, "sheets": 6e11, "walk": 1e10}


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
        cupy = require_card()
        self.program = program
        self.dtype = np.dtype(dtype)
        self._series = SeriesTables(program, self.dtype)
        self._elements = sum(math.prod(op.shape) for op in program.ops if op.activation is not None)
        self._tile = tile
        self._devices = list(range(cupy.cuda.runtime.getDeviceCount()) if devices is None else devices)
        self._shared_limit = min(
            int(cupy.cuda.Device(k).attributes["MaxSharedMemoryPerBlockOptin"]) for k in self._devices
        )
        self.source = source or self._generate(None)
        self._cards = self._make_cards(self.source)
        self._longer: dict[str, list[Card]] = {}
        kind = cupy.cuda.Device(self._cards[0].device).compute_capability
        text = hashlib.sha256(self.source.content + self._series.panels.tobytes()).hexdigest()
        self.identity = f"cuda-{VERSION}-{self.dtype.name}-sm{kind}-{text[:16]}"

    def _generate(self, peaks: NDArray[np.float64] | None) -> CudaSource:
        rows = self._series.rows(peaks)
        return generate(self.program, self.dtype, series=rows, shared_limit=self._shared_limit)

    def _make_cards(self, source: CudaSource) -> list[Card]:
        return [Card(k, source, self.dtype, len(self.program.activations), self._series.panels) for k in self._devices]

    def diagonal(self, X: Any) -> NDArray[np.float64]:
        return self._diagonals(X)[0][self.program.kind]

    def _diagonals(self, X: Any) -> tuple[dict[Kind, NDArray[np.float64]], NDArray[np.float64]]:
        """K(x, x) and perhaps Θ(x, x), and the largest variance of all images at each nonlinearity."""
        card = self._cards[0]
        found, peaks = [], []
        with card:
            step = self._side(card, len(X), 0)
            for start in range(0, len(X), step):
                made = card.tables(X[start : start + step])
                found.append(made.diagonals.get())
                peaks.append(made.peaks.get())
        diagonals = dict(zip(KINDS, np.concatenate(found, axis=1), strict=False))
        theta = diagonals.get("ntk")
        largest = check_range(self.program, self.dtype, self._series, np.concatenate(peaks), diagonals["nngp"], theta)
        return diagonals, largest

    def cross(self, X: Any, Z: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        return self._matrices(X, Z, (self.program.kind,), output, advance)[0]

    def symmetric(self, X: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        return self._matrices(X, None, (self.program.kind,), output, advance)[0]

    def both(self, X: Any, Z: Any | None, output: Output = "numpy", advance: Advance = None) -> tuple[Any, Any]:
        K, theta = self._matrices(X, Z, KINDS, output, advance)
        return K, theta

    def _cards_for(self, peaks: NDArray[np.float64]) -> list[Card]:
        """Cards with code for these variances: an Elementwise's series is as long as they need, and no longer."""
        if not self._series.sites:
            return self._cards
        source = self._generate(peaks)
        if source.digest not in self._longer:
            self._longer[source.digest] = self._make_cards(source)
        return self._longer[source.digest]

    def _matrices(self, X: Any, Z: Any | None, kinds: Sequence[Kind], output: Output, advance: Advance) -> list[Any]:
        """The matrices of these kinds, from one pass over the pairs; of one set of images where Z is None."""
        import cupy

        cards = self._cards
        diagonals: dict[Kind, NDArray[np.float64]] = {}
        if Z is None:
            diagonals, peaks = self._diagonals(X)
            cards = self._cards_for(peaks)
        elif self._series.sites:
            cards = self._cards_for(np.maximum(self._diagonals(X)[1], self._diagonals(Z)[1]))
        second = X if Z is None else Z
        on_host = output == "numpy"
        xp: Any = np if on_host else cupy
        with cards[0]:
            entries = len(X) * len(second) * len(kinds)
            side = self._side(cards[0], max(len(X), len(second)), entries * (not on_host), len(kinds))
            out = {kind: xp.empty((len(X), len(second)), self.dtype) for kind in kinds}
        grid = Grid((len(X), len(second)), (side, side), symmetric=Z is None)
        places = [out.get(kind) for kind in KINDS[: len(KINDS) if self.program.kind == "ntk" else 1]]
        share([Job(card, X, second, places, side, on_host) for card in cards], grid, Job.run, advance)
        with cards[0]:
            for kind in kinds if Z is None else ():
                xp.fill_diagonal(out[kind], xp.asarray(diagonals[kind]).astype(self.dtype))
            if not on_host:
                cupy.cuda.get_current_stream().synchronize()
        return [to_output(out[kind], output) for kind in kinds]

    def _side(self, card: Card, images: int, reserved: int, matrices: int = 1) -> int:
        """The side of a tile: all images, unless memory or the length of a launch speaks against it."""
        if self._tile is not None:
            return self._tile
        item = self.dtype.itemsize
        budget = MEMORY_SHARE * (card.free_bytes() - reserved * item)
        row = card.source.row * item
        by_time = math.sqrt(LAUNCH_ELEMENTS[card.source.path] / max(1, self._elements))
        # Two bands of rows, and of each matrix four tiles: two in flight, each with its mirror image.
        entry = item * matrices
        by_memory = (math.sqrt(row * row + 4 * entry * max(0.0, budget)) - row) / (4 * entry)
        side = int(min(MAX_TILE, by_time, by_memory))
        if side < 1:
            raise EngineError(
                f"not enough memory on the GPU: an image needs {row:,} bytes of tables and "
                f"{card.free_bytes():,} are free"
            )
        pieces = -(-images // side)
        return -(-images // pieces) if pieces > 1 else images
