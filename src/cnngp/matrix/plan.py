"""Cost estimate of a kernel matrix before it is computed, and the status of a store."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import Any

from cnngp.common.errors import StoreError
from cnngp.common.tiles import Grid
from cnngp.kernel.kernel import Kernel

from .gram import specify
from .images import ImageRows
from .store.places import local_path
from .store.spec import Spec
from .store.store import GramStore
from .store.tile_bytes import chunk_bytes, tile_of
from .tile_size import check_tile, measured_rate, tile_here


@dataclass(frozen=True)
class GramCost:
    """Cost of K(X, X), in total and without the tiles that its store already has. Rate and memory are measured on a few
    pairs.
    """

    images: int
    pairs: int
    pairs_left: int
    tile: int
    tiles: int
    tiles_left: int
    disk_bytes: int
    disk_free_bytes: int | None
    memory_bytes: int | None
    """Peak memory of this process after these pairs; it does not grow with the number of images."""
    fit_bytes: int
    """Bytes of the float64 matrix that an exact fit factorises."""
    engine: str
    pairs_per_second: float
    seconds: float
    """For the pairs that are left."""


def plan(kernel: Kernel, X: Any, *, tile: int | None = None, store: Any = None) -> GramCost:
    """Estimate the cost of K(X, X) from exact counts and the time of a few pairs."""
    x = ImageRows(X, kernel, "X")
    n = len(x)
    there = None if store is None else begun(kernel, X, store, tile)
    grid = Grid((n, n), check_tile(tile) or (tile_here(x, (n, n), True) if there is None else there.tile), True)
    pairs_left, tiles_left = (grid.pairs, len(grid)) if there is None else (there.pairs_left, there.of - there.tiles)
    rate = measured_rate(x, min(grid.tile))
    a, b = grid.counts
    local, free, peak = local_path("." if store is None else store), None, None
    if local is not None:
        folder = local.absolute()
        free = shutil.disk_usage(next(f for f in (folder, *folder.parents) if f.exists())).free
    if sys.platform != "win32":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return GramCost(
        images=n,
        pairs=grid.pairs,
        pairs_left=pairs_left,
        tile=grid.tile[0],
        tiles=len(grid),
        tiles_left=tiles_left,
        disk_bytes=a * b * chunk_bytes(grid.tile, x.dtype),
        disk_free_bytes=free,
        memory_bytes=peak,
        fit_bytes=8 * n * n,
        engine=kernel.engine_for(x.image_shape).identity,
        pairs_per_second=rate,
        seconds=pairs_left / rate,
    )


@dataclass(frozen=True)
class Begun:
    """Progress of a store: the tiles it has, `of` how many, their sides, and the pairs still to compute."""

    tiles: int
    of: int
    tile: tuple[int, int]
    pairs_left: int


def begun(kernel: Kernel, X: Any, store: Any, tile: int | None = None) -> Begun | None:
    """Return the progress of K(X, X) in a store without writing to it; None if it was not begun. Raises the errors of
    `gram` for a store of another matrix, so that a plan never promises what `gram` would refuse.
    """
    there = _looked_at(store)
    if there is None or there.found is None:
        return None
    x = ImageRows(X, kernel, "X")
    wanted = specify(there.found, kernel, x, None, check_tile(tile) or there.found.tile, there.found.engine)
    there.found.refuse_unless_same_or_grown(wanted, there.name)
    lost = {tile_of(there.grid, *at) for at in there.grid.cut_by_growth(wanted.shape)} | set(there.missing())
    kept = [t for t in there.grid if (t.i, t.j) not in lost]
    return Begun(len(kept), len(wanted.grid), wanted.tile, wanted.grid.pairs - sum(t.pairs for t in kept))


def _looked_at(where: Any) -> GramStore | None:
    """Open a store read-only if it exists, without making its folder."""
    local = local_path(where)
    return GramStore(where, read_only=True) if local is None or (local / "zarr.json").exists() else None


@dataclass(frozen=True)
class Status:
    """Status of a store. `damaged` is None if the tiles were not read."""

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
    """Check a store and, with `verify`, all its tiles. Never writes or waits, even while another process fills it."""
    local, store = local_path(where), _looked_at(where)
    if store is None or store.found is None:
        what = "is not a store of cnngp" if local is None or local.exists() else "does not exist"
        raise StoreError(f"{local or where} {what}; stores are made by `cnngp gram --store` and cnngp.gram(…, store=…)")
    there = store.present()
    missing = store.missing(there)
    if there.any():  # without tiles it may have just been begun, and its array not written yet
        store.check_array(growing=bool(missing))
    damaged = len(store.damaged(missing, progress)) if verify else None
    stored = int(there.sum()) * chunk_bytes(store.grid.tile, store.found.dtype)
    return Status(store.found, len(store.grid), len(missing), damaged, stored)
