"""What a worker of a cluster does: open the store of a run, compute tiles, write them.

Runs inside Dask's worker processes. A worker that cannot do the work says why, and others do it.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from cnngp.common import memory
from cnngp.common.arrays import DataError
from cnngp.common.devices import ActualDevice
from cnngp.common.errors import StoreError, one_line
from cnngp.kernel.kernel import Kernel

from ..fill import fill, lanes
from ..images import ImageRows
from ..store.keys import FULL
from ..store.store import GramStore
from . import mark as store_run

TileAt = tuple[int, int]


@dataclass(frozen=True)
class Job:
    """What a worker needs to know: the pickled kernel, where the store is, and the mark of the run."""

    kernel: bytes
    where: str
    mark: str


@dataclass(frozen=True)
class Done:
    seconds: float


@dataclass(frozen=True)
class Refused:
    reason: str


def work(job: Job, at: list[TileAt], again: bool) -> Done | Refused:
    """Compute tiles and write them. `again`: another worker had them in hand, and may have written some.

    Only what would meet every worker is raised: a tile that came out wrong, a full disk. Of all else just the words
    travel, because the client may not have what it takes to make the error again, such as CuPy.
    """
    began = time.monotonic()
    site = _site(job)
    if isinstance(site, Refused):
        return site
    store = site.store

    def write(tile: Any, block: Any) -> None:
        store_run.check(store, job.mark)
        store.write(tile, block)

    tiles = (store.grid.at(i, j) for i, j in at)
    todo = (t for t in tiles if not store.has(t)) if again else tiles
    try:
        fill(todo, site.lanes, site.x, site.z, write, _ignore, site.turn)
    except store_run.RunEnded as error:
        return Refused(str(error))
    except DataError as error:
        return Refused(f"it does not see all images of the run ({error})")
    except StoreError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        return Refused(_named(error))
    return Done(time.monotonic() - began)


class _Site:
    """A run on a worker: the store, the images, the engine."""

    def __init__(self, job: Job, store: GramStore, kernel: Kernel) -> None:
        assert store.found is not None
        self.mark = job.mark
        self.store = store
        # Two tasks at a time: on a processor they share its threads, on a card they take turns.
        self.turn: AbstractContextManager[Any] = threading.Lock() if kernel.device == "cuda" else nullcontext()
        self.x = ImageRows(store_run.images(store, "X"), kernel, "X")
        self.z = None if store.found.Z is None else ImageRows(store_run.images(store, "Z"), kernel, "Z")
        for rows in (self.x, self.z):
            if rows is not None:
                rows.room = _room(kernel) // (8 if self.z is None else 16)
        # A worker with several cards in sight uses the first: tools that start one for each card show it all of them.
        self.lanes = lanes(kernel, self.x.image_shape, most=1)
        if kernel.check:
            kernel.verify(self.x.X)


def _room(kernel: Kernel) -> int:
    """Bytes that this worker may use: Dask pauses one, for good, that comes near its limit."""
    from distributed import get_worker

    room = memory.available(kernel.device) or 0
    return room if kernel.device == "cuda" else min(room, get_worker().memory_manager.memory_limit or room)


_sites: list[_Site] = []
_making = threading.Lock()


def _site(job: Job) -> _Site | Refused:
    """The site of a run, kept from task to task; of one run at a time."""
    with _making:
        for site in _sites:
            if site.mark == job.mark:
                return site
        _sites.clear()
        try:
            store = GramStore(job.where)
            if store.found is None:
                return Refused(f"it does not see the store {job.where}; give a path or URL that all machines share")
            store_run.check(store, job.mark)
            kernel = _kernel(job.kernel)
            engine = kernel.engine_for(store.found.X.shape).identity
            if engine != store.found.engine:
                return Refused(f"its engine is {engine}, that of the matrix {store.found.engine}")
            made = _Site(job, store, kernel)
        except Exception as error:  # of any kind: this worker cannot do it, another may
            return Refused(one_line(error))
        _sites.append(made)
        return made


def release() -> None:
    """Let go of the images. Without the lock: Dask calls it beside tasks, where it must not wait for them."""
    _sites.clear()


def engine_of(kernel: bytes, image_shape: tuple[int, ...]) -> tuple[str, ActualDevice] | Refused:
    try:
        made = _kernel(kernel)
        return made.engine_for(image_shape).identity, made.device
    except Exception as error:
        return Refused(one_line(error))


def _kernel(pickled: bytes) -> Kernel:
    """The kernel on this worker, with as many threads as the worker has."""
    from distributed import get_worker
    from distributed.protocol import pickle

    kernel: Kernel = pickle.loads(pickled)
    return Kernel(
        kernel.network,
        kernel.device,
        kernel.dtype,
        get_worker().state.nthreads,
        kernel.kind,
        kernel.check,
        kernel.symmetry,
    )


def _named(error: BaseException) -> str:
    name, said = type(error).__name__, one_line(error)
    return said if said == name else f"{name}: {said}"


def _ignore(pairs: int) -> None:
    pass
