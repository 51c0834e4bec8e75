"""The tiles of a matrix on a cluster: each worker fills the store in the way that a single process does.

A worker computes what the store lacks, its own share first and then what others have not done, and writes it straight
into the store. So the tiles of a worker that dies or freezes are done by the others without anybody telling them, and
the client only looks at what is there.

    STORE/images/X, Z      the images in the working precision; every worker reads them from here
    STORE/K/.run-…         an empty file with a name of its own for each run

A worker looks for this mark before it begins a tile and before it writes one. Without it, it stops: the run has ended,
or was taken over by a later one, or the worker sees another store at the same path.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from cnngp.common import memory
from cnngp.common.errors import StoreError, one_line
from cnngp.common.tiles import Tile
from cnngp.kernel.kernel import Kernel

from ..fill import fill, lanes, not_done_by_others
from ..images import ImageRows
from ..store.keys import FULL
from ..store.places import same_for_all_machines
from ..store.store import GramStore
from .cluster import Cluster, Engine, Refused, pickled, unpickled

_MARK = ".run-"
_IMAGES = "images"


class ClusterFill:
    """A matrix that the workers of a cluster compute."""

    def __init__(self, client: Any, kernel: Kernel, image_shape: tuple[int, ...], where: Any) -> None:
        self._cluster = Cluster(client)
        self._kernel, self._image_shape, self._where = kernel, image_shape, same_for_all_machines(where)
        self.workers = 0

    def engine(self, wanted: str | None) -> Engine:
        """The engine of the matrix, and its device: `wanted` where a worker has it; see `Cluster.elect`."""
        best, self.workers = self._cluster.elect(self._kernel, self._image_shape, wanted)
        return best

    def fill(self, store: GramStore, x: ImageRows, z: ImageRows | None, done: Callable[[Tile], None]) -> None:
        """Have the tiles computed that the store lacks; `done` is told of each."""
        lacking, next_look = set(store.missing(store.present())), 0.0
        try:
            job = _Job(pickled(self._kernel), self._where, begin(store, x, z), self.workers)
            with closing(self._cluster.results(fill_missing, itertools.count(), job)) as seconds:
                for _ in seconds:
                    began = time.monotonic()
                    if began < next_look:
                        continue
                    now = set(store.missing(store.present()))
                    for at in sorted(lacking - now):
                        self._cluster.lost = 0
                        done(store.grid.at(*at))
                    lacking = now
                    if not lacking:
                        return
                    next_look = time.monotonic() + 10.0 * (time.monotonic() - began)  # listing a store takes time
        finally:
            end(store)


@dataclass(frozen=True)
class _Job:
    """What a worker needs to know: the kernel, where the store is, the mark of the run, and how many workers it has."""

    kernel: bytes
    where: str
    mark: str
    workers: int


def fill_missing(turn: int, job: _Job) -> None:
    """On a worker: compute what the store lacks, beginning with the share of this turn.

    Only what would meet every worker is raised: a tile that came out wrong, a full disk. Of all else just the words
    travel, because the client may not have what it takes to make the error again, such as CuPy.
    """
    try:
        _fill(turn, job)
    except _RunEnded:
        return
    except (StoreError, Refused):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        if not _runs(GramStore(job.where), job):
            return  # the images go with the mark, and may have been half gone when they were read
        reason = f"{type(error).__name__}: {one_line(error)}"
    else:
        return
    raise Refused(reason)  # here, where it has no other error as its context


def _fill(turn: int, job: _Job) -> None:
    from distributed import get_worker

    store = GramStore(job.where)

    def check() -> None:
        if not _runs(store, job):
            raise _RunEnded

    def write(tile: Tile, block: Any) -> None:
        check()
        store.write(tile, block)

    if store.found is None:
        raise Refused(f"it does not see the store {job.where}; give a path or URL that all machines share")
    check()
    kernel = unpickled(job.kernel, get_worker())
    engine = kernel.engine_for(store.found.X.shape).identity
    if engine != store.found.engine:
        raise Refused(f"its engine is {engine}, that of the matrix {store.found.engine}")
    x = ImageRows(store.open_array(f"{_IMAGES}/X"), kernel, "X")
    z = None if store.found.Z is None else ImageRows(store.open_array(f"{_IMAGES}/Z"), kernel, "Z")
    for rows in (x, z):
        if rows is not None:
            rows.room = _room(kernel) // (8 if z is None else 16)
    if kernel.check:
        kernel.verify(x.X)
    lacking = store.missing(store.present())
    tiles = not_done_by_others(store, lacking, (turn % job.workers, job.workers), check)
    # A worker with several cards in sight uses the first: tools that start one for each card show it all of them.
    fill(tiles, lanes(kernel, x.image_shape, 1 if kernel.device == "cuda" else None), x, z, write, lambda _: None)


def _runs(store: GramStore, job: _Job) -> bool:
    return store.get_bytes(f"K/{_MARK}{job.mark}") is not None


class _RunEnded(Exception):
    """The store has not, or no longer, the mark of this run."""


def _room(kernel: Kernel) -> int:
    """Bytes that this worker may use: Dask pauses one, for good, that comes near its limit."""
    from distributed import get_worker

    room = memory.available(kernel.device) or 0
    return room if kernel.device == "cuda" else min(room, get_worker().memory_manager.memory_limit or room)


def begin(store: GramStore, x: ImageRows, z: ImageRows | None) -> str:
    """Put the images there, then the mark, which is returned."""
    end(store)
    mark = uuid.uuid4().hex
    with store.writing("its tiles stay valid"):
        for name, rows, step in (("X", x, store.grid.tile[0]), ("Z", z, store.grid.tile[1])):
            if rows is None:
                continue
            array = store.new_array(f"{_IMAGES}/{name}", rows.shape, (min(step, len(rows)), *rows.image_shape), x.dtype)
            for start in range(0, len(rows), step):
                part = slice(start, min(start + step, len(rows)))
                array[part] = rows.block(part).reshape(-1, *rows.image_shape)
        store.set_bytes(f"K/{_MARK}{mark}", b"")
    return mark


def end(store: GramStore) -> None:
    """Take away the mark, so that workers write nothing any more, and the images."""
    with store.writing("its tiles stay valid"):
        for name in store.names("K"):
            if name.startswith(_MARK):
                store.delete(f"K/{name}")
        store.delete_folder(_IMAGES)
