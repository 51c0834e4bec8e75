"""The GPU engine: compiles a program's CUDA at run time and runs tiles of the kernel matrix on every card there is.

cuda_source.py writes the code, card.py compiles and launches it, card_tiles.py takes one card through its tiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import Output, to_output
from cnngp.common.devices import EngineError
from cnngp.common.tiles import Grid, share
from cnngp.kernel.program import Kind, Program
from cnngp.kernel.series.packed import Rows

from ..base import Advance
from .card import KINDS, NEVER, Card
from .card_engine import CardEngine
from .card_tiles import Job
from .cuda_source import CudaSource, Path, generate

__all__ = ["NEVER", "CudaEngine", "EngineError"]

MAX_TILE = 16384
# Map elements that one launch may compute, so that it takes about a second and progress can be shown.
LAUNCH_ELEMENTS = {"warp": 8e11, "dense": 2e11, "sheets": 6e11, "walk": 1e10}


class CudaEngine(CardEngine):
    """Runs one program on the cards. See `Engine` for what it offers.

    `path` and `launch_shape` override the choices of `generate`, for tests and measurements.
    """

    def __init__(
        self,
        program: Program,
        dtype: str,
        devices: Sequence[int] | None = None,
        tile: int | None = None,
        path: Path | None = None,
        launch_shape: tuple[int, int, int, int] | None = None,
    ) -> None:
        self._path, self._launch_shape = path, launch_shape
        super().__init__(program, dtype, "cuda", devices, tile)
        self._elements = sum(math.prod(op.shape) for op in program.ops if op.activation is not None)

    def _generate(self, rows: Mapping[int, Rows]) -> CudaSource:
        return generate(self.program, self.dtype, self._path, rows, self._shared_limit, self._launch_shape)

    def cross(self, X: Any, Z: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        return self._matrices(X, Z, (self.program.kind,), output, advance)[0]

    def symmetric(self, X: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        return self._matrices(X, None, (self.program.kind,), output, advance)[0]

    def both(self, X: Any, Z: Any | None, output: Output = "numpy", advance: Advance = None) -> tuple[Any, Any]:
        K, theta = self._matrices(X, Z, KINDS, output, advance)
        return K, theta

    def _matrices(self, X: Any, Z: Any | None, kinds: Sequence[Kind], output: Output, advance: Advance) -> list[Any]:
        """The matrices of these kinds, from one pass over the pairs; of one set of images where Z is None."""
        import cupy

        diagonals: dict[Kind, NDArray[np.float64]] = {}
        if Z is None:
            diagonals, peaks = self._diagonals(X)
            cards = self.cards(peaks)
        else:
            cards = self._cards_for(X, Z)
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

    def _side(self, card: Card, images: int, reserved: int = 0, matrices: int = 1) -> int:
        """The side of a tile, beside so many reserved entries."""
        item = self.dtype.itemsize
        most = min(MAX_TILE, math.sqrt(LAUNCH_ELEMENTS[card.source.path] / max(1, self._elements)))
        # Two bands of rows and the images of one; of each matrix four tiles: two in flight, each with its mirror image.
        data = card.source.data
        band = item * (2 * data.row + data.pixels) + 8 * (data.sites + 2)
        return self._largest_side(card, images, most, band, 4 * item * matrices, reserved * item)
