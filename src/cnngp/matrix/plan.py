"""What a kernel matrix will cost before it is computed, and what a store holds afterwards."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict, dataclass
from typing import Any

from cnngp.common.errors import StoreError
from cnngp.common.tiles import Grid
from cnngp.kernel.kernel import Kernel

from .gram import specify
from .images import ImageRows
from .speed import measured_rate, tile_here
from .store.chunks import chunk_bytes
from .store.places import local_path
from .store.seals import tile_of
from .store.spec import Spec
from .store.store import GramStore
from .tile_size import check_tile
from .verifying import damaged_tiles


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
    grid = Grid((n, n), side or tile_here(x, (n, n), True), True)
    rate = measured_rate(x, min(grid.tile))
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


@dataclass(frozen=True)
class Begun:
    """What a store has of a matrix that is asked for: tiles, of so many, and the pairs that are left."""

    tiles: int
    of: int
    pairs_left: int


def begun(kernel: Kernel, X: Any, store: Any, tile: int | None = None) -> Begun | None:
    """What a store has of K(X, X) so far, without writing; None where it was not begun. Refuses as `gram` does what is
    of something else, so that nothing is promised first.
    """
    local = local_path(store)
    if local is not None and not (local / "zarr.json").exists():
        return None
    there = GramStore(store, read_only=True)
    if there.found is None:
        return None
    x = ImageRows(X, kernel, "X")
    wanted = specify(there.found, kernel, x, None, check_tile(tile) or there.found.tile, there.found.engine)
    there.found.refuse_unless_same_or_grown(wanted, there.name)
    lost = {tile_of(there.grid, *at) for at in there.grid.cut_by_growth(wanted.shape)}
    lost |= set(there.missing(there.present()))
    kept = [t for t in there.grid if (t.i, t.j) not in lost]
    return Begun(len(kept), len(wanted.grid), wanted.grid.pairs - sum(t.pairs for t in kept))


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
