"""The GPU engines: matrices and gradients, in tiles on all GPUs.

cuda_source.py writes the code, and card.py compiles and launches it.

For a gradient, a tile's pairs give gradients by the variances of its images, which the images with themselves propagate
to the parameters. All of this is linear in G, so every tile is complete by itself; the contributions are added on the
host in the order of the tiles, whichever GPU computed them. Results are the same in every run, as long as there is
memory for the same tiles.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import Output, to_output
from cnngp.common.devices import EngineError, card_count, require_card
from cnngp.common.tiles import Grid, Tell, Tile, share
from cnngp.kernel.program import Kind, Program
from cnngp.kernel.program.ops import Back, Reverse
from cnngp.kernel.series.packed import Rows, SeriesTables

from ..base import Advance, Gradient, check_range, finished, prepared
from .card import MEMORY_SHARE, NEVER, Bands, Card
from .cuda_source import CudaSource, Path, generate, generate_gradient

VERSION = 3
KINDS: tuple[Kind, ...] = ("nngp", "ntk")
"""Order of the results of one pass."""
MAX_TILE, MAX_GRADIENT_TILE = 16384, 1024
# Map elements of one launch, at most, so that it takes about a second and progress can be shown.
LAUNCH_ELEMENTS = {"warp": 8e11, "dense": 2e11, "sheets": 6e11, "walk": 1e10}
# Map elements of a gradient between two progress reports, about a second's work.
REPORT_ELEMENTS = 2e9

Array = NDArray[np.float64]


class CudaEngine:
    """Runs one program on GPUs; see `Engine`.

    `devices` are the numbers of the GPUs, by default all; `tile` is the side of a tile, chosen from memory and time by
    default. `path` and `launch_shape` override the choices of `generate`, for tests and measurements. `write` replaces
    `generate`: it returns the source for given series and shared memory.
    """

    name = "cuda"

    def __init__(
        self,
        program: Program,
        dtype: str,
        devices: Sequence[int] | None = None,
        tile: int | None = None,
        path: Path | None = None,
        launch_shape: tuple[int, int, int, int] | None = None,
        write: Callable[..., CudaSource] | None = None,
    ) -> None:
        device = require_card().cuda.Device
        self.program, self.dtype, self._tile = program, np.dtype(dtype), tile
        self._write = write or partial(generate, program, dtype, path, launch_shape=launch_shape)
        self._elements = sum(math.prod(op.shape) for op in program.ops if op.activation is not None)
        self._series = SeriesTables(program, self.dtype)
        self._devices = list(range(card_count()) if devices is None else devices)
        self._shared_limit = min(int(device(k).attributes["MaxSharedMemoryPerBlockOptin"]) for k in self._devices)
        self._cards: dict[tuple[Rows, ...], list[Card]] = {}
        self.source = self.cards()[0].source
        kind = device(self._devices[0]).compute_capability
        text = hashlib.sha256(self.source.content + self._series.panels.tobytes()).hexdigest()
        self.identity = f"{self.name}-{VERSION}-{self.dtype.name}-sm{kind}-{text[:16]}"

    def cards(self, peaks: Array | None = None) -> list[Card]:
        """Return the GPUs, with code for these variances: an Elementwise's series has only the rows that they need."""
        rows = self._series.rows(peaks)
        key = tuple(rows.values())
        if key not in self._cards:
            source = self._write(series=rows, shared_limit=self._shared_limit)
            self._cards[key] = [Card(k, source, self._series.panels) for k in self._devices]
        return self._cards[key]

    def _cards_for(self, X: Any, Z: Any) -> list[Card]:
        """Return the GPUs with code for the variances of these images."""
        sets = [X] if Z is None else [X, Z]
        return self.cards(np.max([self._diagonals(x)[1] for x in sets], axis=0) if self._series.sites else None)

    def diagonal(self, X: Any) -> Array:
        """Kernel of each image with itself, in float64. Raises `RangeError`."""
        return self._diagonals(X)[0][self.program.kind]

    def _diagonals(self, X: Any) -> tuple[dict[Kind, Array], Array]:
        """K(x, x), Θ(x, x) if computed, and the largest variance of all images at each nonlinearity."""
        card = self.cards()[0]
        with card.current():
            step = self._side(card, len(X))
            diagonals, peaks = [], []
            for start in range(0, len(X), step):
                _, top, diagonal = card.tables(X[start : start + step])
                diagonals.append(diagonal.get())
                peaks.append(top.get())
        found = dict(zip(KINDS, np.concatenate(diagonals, axis=1), strict=False))
        largest = np.concatenate(peaks)
        return found, check_range(self.program, self.dtype, self._series, largest, found["nngp"], found.get("ntk"))

    def _side(self, card: Card, images: int, matrices: int = 1, reserved: int = 0) -> int:
        """Side of a tile of this many matrices: all images, unless memory or time limits it.

        `reserved` is the number of entries set aside for the results.
        """
        item, data = self.dtype.itemsize, card.source.data
        most = min(MAX_TILE, math.sqrt(LAUNCH_ELEMENTS[card.source.path] / max(1, self._elements)))
        # Two bands of rows and the images of one; for each matrix four tiles: two in flight, each with a mirror image.
        band = item * (2 * data.layout.row + data.pixels) + 8 * (data.sites + 2)
        return self._side_for(card, images, most, band, 4 * item * matrices, reserved * item)

    def _side_for(self, card: Card, images: int, most: float, band: float, entry: float, reserved: int = 0) -> int:
        """Side of tiles that take `band` bytes per image and `entry` bytes per pair, at most `most`."""
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

    def cross(self, X: Any, Z: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        return self._matrices(X, Z, (self.program.kind,), output, advance)[0]

    def symmetric(self, X: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        return self._matrices(X, None, (self.program.kind,), output, advance)[0]

    def both(self, X: Any, Z: Any | None, output: Output = "numpy", advance: Advance = None) -> tuple[Any, Any]:
        K, theta = self._matrices(X, Z, KINDS, output, advance)
        return K, theta

    def _matrices(self, X: Any, Z: Any | None, kinds: Sequence[Kind], output: Output, advance: Advance) -> list[Any]:
        """Compute the matrices of these kinds in one pass over the pairs; Z is None for one set of images."""
        diagonals: dict[Kind, Array] = {}
        if Z is None:
            diagonals, peaks = self._diagonals(X)
            cards = self.cards(peaks)
        else:
            cards = self._cards_for(X, Z)
        second, on_host, cupy = X if Z is None else Z, output == "numpy", cards[0].xp
        xp: Any = np if on_host else cupy
        with cards[0].current():
            entries = len(X) * len(second) * len(kinds)
            side = self._side(cards[0], max(len(X), len(second)), len(kinds), entries * (not on_host))
            out = {kind: xp.empty((len(X), len(second)), self.dtype) for kind in kinds}
        grid = Grid((len(X), len(second)), (side, side), symmetric=Z is None)
        places = [out.get(kind) for kind in KINDS[: len(KINDS) if self.program.kind == "ntk" else 1]]
        share([Job(card, Bands(card, X, second, side), places, on_host) for card in cards], grid, Job.run, advance)
        with cards[0].current():
            for kind in kinds if Z is None else ():
                xp.fill_diagonal(out[kind], xp.asarray(diagonals[kind]).astype(self.dtype))
            if not on_host:
                cupy.cuda.get_current_stream().synchronize()
        return [to_output(out[kind], output) for kind in kinds]


class Job:
    """One GPU's share of a matrix: its bands of table rows, and tiles on their way to the host.

    `outs` are the matrices of K and Θ, None for one that is not needed.
    """

    def __init__(self, card: Card, bands: Bands, outs: Sequence[Any], on_host: bool) -> None:
        self.card, self.bands, self.outs, self.on_host = card, bands, outs, on_host

    def run(self, tiles: Iterable[Tile], tell: Tell) -> None:
        """Compute tiles one after another; each is copied to the host while the next one is computed."""
        cuda = self.card.xp.cuda
        with self.card.current():
            stream, copies = cuda.Stream(non_blocking=True), cuda.Stream(non_blocking=True)
            waiting: tuple[Tile, list[Any], Any] | None = None
            cuda.get_current_stream().synchronize()  # inputs may depend on work in flight
            try:
                with stream:
                    for tile in tiles:
                        following = tile, self._compute(tile), stream.record()
                        if waiting is not None:
                            self._finish(*waiting, copies, tell)
                        waiting = following
                    if waiting is not None:
                        self._finish(*waiting, copies, tell)
            finally:
                stream.synchronize()  # also after an error: memory that is still written must not be freed

    def _compute(self, tile: Tile) -> list[Any]:
        card, (n, m), i, j = self.card, tile.shape, tile.rows.start, tile.columns.start
        first, second = self.bands.of(tile)
        places: list[Any] = []
        results: list[Any] = []
        ld = max(n, m)
        for out in self.outs:
            if out is None:
                places += [None, None]
            elif not self.on_host and int(out.device.id) == card.device:
                ld = out.shape[1]
                places += [out[i:, j:], out[j:, i:] if tile.symmetric else None]
            else:
                result = card.xp.empty((n, ld), card.dtype)
                mirror = card.xp.empty((m, ld), card.dtype) if tile.mirrored else None
                places += [result, result if tile.on_diagonal else mirror]
                results.append([result[:, :m]] + ([] if mirror is None else [mirror[:, :n]]))
        card.pairs(first, second, places, ld, 0 if tile.on_diagonal else NEVER)
        return results

    def _finish(self, tile: Tile, results: list[Any], event: Any, copies: Any, tell: Tell) -> None:
        """Copy a tile to its matrix."""
        xp = self.card.xp
        if results:
            copies.wait_event(event)
            places = (tile.rows, tile.columns), (tile.columns, tile.rows)
            for out, parts in zip([out for out in self.outs if out is not None], results, strict=True):
                for (a, b), result in zip(places, parts, strict=False):
                    with copies:
                        host = xp.ascontiguousarray(result).get(stream=copies)
                        if self.on_host:
                            out[a, b] = host
                        else:
                            with xp.cuda.Device(int(out.device.id)):
                                out[a, b] = xp.asarray(host)
        else:
            event.synchronize()
        tell(tile.pairs)


class CudaGradient(CudaEngine):
    """Gradients of one network on GPUs, see `GradientEngine`; and matrices, as slowly as gradients, but from the same
    code, which need not be compiled again for other variance parameters.
    """

    name = "cuda-gradient"

    def __init__(
        self, reverse: Reverse, dtype: str, devices: Sequence[int] | None = None, tile: int | None = None
    ) -> None:
        super().__init__(reverse.program, dtype, devices, tile, write=partial(generate_gradient, reverse, dtype))
        elements = sum(math.prod(s.shape) for s in reverse.steps if isinstance(s, Back))
        self._pairs_a_report = max(1, int(REPORT_ELEMENTS / max(1, elements)))

    def gradient(self, X: Any, Z: Any | None, G: Array, advance: Advance = None) -> Gradient:
        """Σ G ∂K/∂θ; without Z, for the whole matrix of X including its diagonal."""
        second = X if Z is None else Z
        cards = self._cards_for(X, Z)
        data, backward, item = cards[0].source.data, cards[0].source.backward, self.dtype.itemsize
        weights, diagonal, exponent = prepared(G, Z is None)
        with cards[0].current():
            # For images of both sides: pixels, a table row, shares, sums and gradients; and the tile's weights.
            row = data.pixels + data.layout.row + backward.entries
            band = 2 * (item * row + 8 * (2 * backward.slots + backward.pixels + 2))
            side = self._side_for(cards[0], max(len(X), len(second)), MAX_GRADIENT_TILE, band, item)
        todo = list(Grid((len(X), len(second)), (side, side), Z is None))
        sums, of_x = np.zeros(backward.slots), np.zeros((len(X), backward.pixels))
        of_z = of_x if Z is None else np.zeros((len(Z), backward.pixels))
        found = _InOrder(todo)

        def run(card: Card, tiles: Iterable[Tile], tell: Tell) -> None:
            bands = Bands(card, X, second, side)
            with card.current():
                card.xp.cuda.get_current_stream().synchronize()  # inputs may depend on work in flight
                for tile in tiles:
                    seeds = diagonal[tile.rows] * tile.on_diagonal
                    parts = self._parts(bands, tile, weights[tile.rows, tile.columns], seeds, tell)
                    found.add(tile, list(zip((sums, of_x[tile.rows], of_z[tile.columns]), parts, strict=False)))

        share(cards, todo, run, advance)
        shares = [
            (name, factor * float(value))
            for parts, value in zip(backward.shares, sums, strict=False)  # there is always at least one sum
            for name, factor in parts
        ]
        pixels = (of_x, None if Z is None else of_z) if backward.pixels else (None, None)
        return finished(self.program, shares, pixels[0], pixels[1], exponent)

    def _parts(self, bands: Bands, tile: Tile, weights: Array, seeds: Array, tell: Tell) -> list[Array]:
        """Contributions of a tile to the sums, to the pixels of its row images and, off the diagonal, of its columns.

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
            # With one set of images only half of a phase counts, without the pairs of an image with itself.
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
    """Adds the contributions of tiles in the order of the tiles; early ones wait for the tiles before them."""

    def __init__(self, tiles: Sequence[Tile]) -> None:
        self._waiting = deque(tiles)
        self._early: dict[Tile, list[tuple[Array, Array]]] = {}
        self._lock = threading.Lock()

    def add(self, tile: Tile, parts: list[tuple[Array, Array]]) -> None:
        """Add the parts of a tile, each given with the total that it belongs to."""
        with self._lock:
            self._early[tile] = parts
            while self._waiting and self._waiting[0] in self._early:
                for total, part in self._early.pop(self._waiting.popleft()):
                    total += part
