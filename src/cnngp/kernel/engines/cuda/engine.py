"""The GPU engine: compiles a program's CUDA at run time and runs tiles of the kernel matrix on every card there is.

The engine chooses the code and the size of a tile. source.py writes the code, card.py compiles and launches it,
tiles.py shares the tiles of a matrix among the cards.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import Output, to_output
from cnngp.kernel.program import Program
from cnngp.kernel.series.packed import SeriesTables

from ..base import Advance, check_range
from .card import NEVER, Card
from .source import CudaSource, generate
from .tiles import MEMORY_SHARE, Job, share, tiles

__all__ = ["NEVER", "CudaEngine", "EngineError", "available", "require"]

VERSION = 1
MAX_TILE = 16384
# Map elements that one launch may compute, so that it takes about a second and progress can be shown.
LAUNCH_ELEMENTS = {"warp": 8e11, "dense": 2e11, "block": 2e10, "sheets": 6e11, "walk": 1e10}


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
        return diagonal, check_range(self.program, self.dtype, self._series, all_peaks, diagonal)

    def cross(self, X: Any, Z: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        cards = self._cards
        if self._series.sites:
            cards = self._cards_for(np.maximum(self._diagonal(X)[1], self._diagonal(Z)[1]))
        return self._matrix(cards, X, Z, None, output, advance)

    def symmetric(self, X: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        diagonal, peaks = self._diagonal(X)
        return self._matrix(self._cards_for(peaks), X, X, diagonal, output, advance)

    def _cards_for(self, peaks: NDArray[np.float64]) -> list[Card]:
        """Cards with code for these variances: an Elementwise's series is as long as they need, and no longer."""
        if not self._series.sites:
            return self._cards
        source = self._generate(peaks)
        if source.digest not in self._longer:
            self._longer[source.digest] = self._make_cards(source)
        return self._longer[source.digest]

    def _matrix(
        self,
        cards: list[Card],
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
        todo = tiles(len(X), len(Z), side, diagonal is not None)
        jobs = [Job(card, X, Z, out, side, on_host) for card in cards]
        if len(jobs) == 1:
            with jobs[0].card:
                jobs[0].run(todo, advance)
        else:
            share(jobs, todo, advance)
        with cards[0]:
            if diagonal is not None:
                xp: Any = np if on_host else cupy
                xp.fill_diagonal(out, xp.asarray(diagonal).astype(self.dtype))
            if not on_host:
                cupy.cuda.get_current_stream().synchronize()
        return to_output(out, output)

    def _side(self, card: Card, images: int, reserved: int) -> int:
        """The side of a tile: all images, unless memory or the length of a launch speaks against it."""
        if self._tile is not None:
            return self._tile
        item = self.dtype.itemsize
        budget = MEMORY_SHARE * (card.free_bytes() - reserved * item)
        row = card.source.row * item
        by_time = math.sqrt(LAUNCH_ELEMENTS[card.source.path] / max(1, self._elements))
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
