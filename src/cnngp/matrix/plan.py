"""What a kernel matrix will cost before it is computed, and what a store holds afterwards."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from cnngp.common.errors import StoreError
from cnngp.common.tiles import Grid
from cnngp.kernel.engines.base import Engine
from cnngp.kernel.kernel import Kernel

from .images import ImageRows
from .store.chunks import chunk_bytes
from .store.places import local_path
from .store.spec import Spec
from .store.store import GramStore
from .tile_size import check_tile, default_tile
from .verifying import damaged_tiles

_FEWEST = 16  # images a side of the smallest block that is timed: a processor's vector of pairs


@dataclass(frozen=True)
class GramCost:
    """The cost of K(X, X). Rate and memory are measured on a few pairs; what a store already has is not counted."""

    images: int
    pairs: int
    tile: int
    tiles: int
    disk_bytes: int
    disk_free_bytes: int | None
    memory_bytes: int | None
    """Peak of this process after these pairs: it does not grow with the images."""
    fit_bytes: int
    """The float64 buffer of an exact fit."""
    engine: str
    pairs_per_second: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan(kernel: Kernel, X: Any, *, tile: int | None = None, store: Any = None) -> GramCost:
    """Count everything, time a few pairs, and say what the whole will take."""
    side = check_tile(tile)
    x = ImageRows(X, kernel, "X")
    n = len(x)
    engine = kernel.engine_for(x.image_shape)
    usual = default_tile(kernel.network.shapes(x.image_shape).elements, kernel.device, (n, n), True)
    grid = Grid((n, n), side or usual, True)
    rate = measured_rate(x, min(usual[0], grid.tile[0]))
    a, b = grid.counts
    return GramCost(
        images=n,
        pairs=grid.pairs,
        tile=grid.tile[0],
        tiles=len(grid),
        disk_bytes=a * b * chunk_bytes(grid.tile, x.dtype),
        disk_free_bytes=_free(store),
        memory_bytes=_peak_memory(),
        fit_bytes=8 * n * n,
        engine=engine.identity,
        pairs_per_second=rate,
        seconds=grid.pairs / rate,
    )


def measured_rate(x: ImageRows, side: int) -> float:
    """Pairs per second in tiles of that side, from as many pairs as take half a second, or from one tile.

    Tables cost time for each image and are a large part of a small block, so they are timed apart.
    """
    engine = x.kernel.engine_for(x.image_shape)
    half = max(1, min(side, len(x) // 2))
    card = 0 if x.kernel.device == "cuda" else None
    first, second = x.block(slice(0, half), card), x.block(slice(len(x) - half, len(x)), card)
    engine.cross(first[:2], second[:2], "numpy", None)  # compiles
    count = min(half, _FEWEST)
    while True:
        whole, tables = _timed(engine, first[:count], second[:count])
        if whole > 0.5 or count == half:
            break
        count = min(half, 2 * count)
    pair, image = max(whole - tables, 0.1 * whole) / count**2, tables / (2 * count)
    return half**2 / (half**2 * pair + 2 * half * image)


def _timed(engine: Engine, first: Any, second: Any) -> tuple[float, float]:
    """Seconds for all pairs of two blocks of images, and for the images' tables alone."""
    start = time.perf_counter()
    engine.diagonal(first)
    engine.diagonal(second)
    middle = time.perf_counter()
    engine.cross(first, second, "numpy", None)
    return max(time.perf_counter() - middle, 1e-9), middle - start


def expected_seconds(kernel: Kernel, X: Any, pairs: int) -> float:
    """How long `pairs` of images such as X take here, by timing a few."""
    rows = ImageRows(X, kernel, "X")
    elements = kernel.network.shapes(rows.image_shape).elements
    side = default_tile(elements, kernel.device, (len(rows), len(rows)), True)[0]
    return pairs / measured_rate(rows, side)


def _free(store: Any) -> int | None:
    folder = local_path("." if store is None else store)
    if folder is None:
        return None
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _peak_memory() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True)
class Status:
    """What a store holds. `damaged` is None where the tiles were not read."""

    spec: Spec
    tiles: int
    missing: int
    damaged: int | None
    chunk_bytes: int

    @property
    def whole(self) -> bool:
        return not self.missing and not self.damaged

    def as_dict(self) -> dict[str, Any]:
        counts = {"tiles": self.tiles, "missing": self.missing, "damaged": self.damaged, "whole": self.whole}
        return counts | {"bytes": self.chunk_bytes} | self.spec.attributes()


def status(where: Any, *, verify: bool = True, progress: bool = True) -> Status:
    """Look at a store, and at every tile of it, without writing or waiting: also while another process fills it."""
    local = local_path(where)
    if local is not None and not (local / "zarr.json").exists():
        what = "is not a store of cnngp (it has no zarr.json)" if local.exists() else "does not exist"
        raise StoreError(f"{local} {what}; stores are made by `cnngp gram --store` and cnngp.gram(…, store=…)")
    gram_store = GramStore(where, read_only=True)
    if gram_store.found is None:
        raise StoreError(f"{gram_store.name} is not a store of cnngp; stores are made by cnngp.gram(…, store=…)")
    there = gram_store.present()
    missing = gram_store.missing(there)
    if there.any():  # else it may have just been begun, before its array
        gram_store.check_array(growing=bool(missing))
    damaged = len(damaged_tiles(gram_store, missing, progress)) if verify else None
    stored = int(there.sum()) * chunk_bytes(gram_store.grid.tile, gram_store.found.dtype)
    return Status(gram_store.found, len(gram_store.grid), len(missing), damaged, stored)
