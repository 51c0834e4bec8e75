"""The tiles of a matrix on a cluster: each worker fills the store in the way that a single process does.

A worker computes what the store lacks, its own share first and then what others have not done, and writes it straight
into the store. So the tiles of a worker that dies or freezes are done by the others without anybody telling them, and
the client only looks at what is there.

    STORE/images/X, Z      the images in the working precision; every worker reads them from here
    STORE/images/run       a name for each run

A worker looks for the name of its run before it begins a tile and before it writes one. Without it, it stops: the run
has ended, or was taken over by a later one, or the worker sees another store at the same path.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from cnngp.common import memory
from cnngp.common.devices import ActualDevice
from cnngp.common.errors import StoreError, one_line
from cnngp.common.tiles import Tile
from cnngp.kernel.kernel import Kernel

from ..fill import fill, lanes, not_done_by_others
from ..images import ImageRows
from ..store.places import FULL, same_for_all_machines
from ..store.store import GramStore
from .cluster import Cluster, Refused, same_version

_LOOK_SECONDS = 0.2
"""How often the client looks at the workers and, where that is quick, at the store."""
Engine = tuple[str, ActualDevice]
"""An engine's identity, and its device."""


class ClusterFill:
    """A matrix that the workers of a client's cluster compute, in a store that all of them see."""

    def __init__(self, client: Any, kernel: Kernel, image_shape: tuple[int, ...], where: Any) -> None:
        from distributed.protocol import pickle

        # As bytes: a worker that cannot make the kernel says why, where Dask itself would lose the worker.
        self._kernel: bytes = pickle.dumps(kernel)
        self._where = same_for_all_machines(where)
        self._cluster = Cluster(client, engine_here, self._kernel, image_shape)
        self.workers = 0

    def engine(self, wanted: str | None) -> Engine:
        """The engine of the matrix, and its device: `wanted` where a worker has it, else that of most workers, those
        with a card before the others.
        """
        counts: Counter[Engine] = Counter(self._cluster.fit().values())
        best = max(counts, key=lambda e: (e[0] == wanted, e[1] == "cuda", counts[e]))
        self.workers = counts[best]
        return best

    def fill(self, store: GramStore, x: ImageRows, z: ImageRows | None, done: Callable[[Tile], None]) -> None:
        """Have the tiles computed that the store lacks; `done` is told of each."""
        from distributed import KilledWorker

        lacking, next_look, running = set(store.missing()), 0.0, dict[str, Any]()
        submit = partial(self._cluster.client.submit, fill_missing, pure=False)
        shares = itertools.cycle((k, self.workers) for k in range(self.workers))
        try:
            job = self._kernel, self._where, begin(store, x, z)
            while lacking:
                fit = self._cluster.fit()
                running = {worker: future for worker, future in running.items() if worker in fit}
                for worker in fit.keys() - running.keys():
                    running[worker] = submit(*job, next(shares), workers=[worker])
                time.sleep(_LOOK_SECONDS)
                over = {worker: future for worker, future in running.items() if future.status != "pending"}
                for worker, future in over.items():
                    del running[worker]
                    error = future.exception() if future.status == "error" else None
                    if isinstance(error, Refused):
                        self._cluster.refuse(worker, error)
                    elif error is not None and not isinstance(error, KilledWorker):
                        raise error
                began = time.monotonic()
                if over or began > next_look:
                    now = set(store.missing())
                    for at in sorted(lacking - now):
                        self._cluster.lost = 0
                        done(store.grid.at(*at))
                    lacking = now
                    next_look = time.monotonic() + 10.0 * (time.monotonic() - began)  # listing a store takes time
        finally:
            end(store)


async def engine_here(version: str, kernel: bytes, image_shape: tuple[int, ...], dask_worker: Any) -> Engine:
    """On a worker: its engine for a kernel."""
    same_version(version)
    try:
        made = await asyncio.to_thread(_on_worker, kernel, dask_worker)
        return (await asyncio.to_thread(made.engine_for, image_shape)).identity, made.device
    except Exception as error:
        reason = one_line(error)
    raise Refused(reason)  # here, where it has no error as its context that the client may not know


def fill_missing(kernel_bytes: bytes, where: str, run: bytes, share: tuple[int, int]) -> None:
    """On a worker: compute what the store lacks, beginning with its share.

    Only what would meet every worker is raised: a tile that came out wrong, a full disk. Of all else just the words
    travel, because the client may not have what it takes to make the error again, such as CuPy.
    """
    from distributed import get_worker

    store = GramStore(where)
    if store.found is None:
        raise Refused(f"it does not see the store {where}; give a path or URL that all machines share")

    def check() -> None:
        if store.get_bytes("images/run") != run:
            raise InterruptedError("the run has ended")

    def write(tile: Tile, block: Any) -> None:
        check()
        store.write(tile, block)

    try:
        check()
        kernel = _on_worker(kernel_bytes, get_worker())
        engine = kernel.engine_for(store.found.X.shape).identity
        if engine != store.found.engine:
            raise Refused(f"its engine is {engine}, that of the matrix {store.found.engine}")
        x = ImageRows(store.open_array("images/X"), kernel, "X")
        z = None if store.found.Z is None else ImageRows(store.open_array("images/Z"), kernel, "Z")
        for rows in (x, x if z is None else z):
            rows.room = 0 if kernel.device == "cpu" else (memory.available("cuda") or 0) // 16
        if kernel.check:
            kernel.verify(x.X)
        tiles = not_done_by_others(store, store.missing(), share, check)
        # A worker with several cards uses the first: tools that start one worker for each card show it all of them.
        fill(tiles, lanes(kernel, x.image_shape, 1 if kernel.device == "cuda" else None), x, z, write, lambda _: None)
        return
    except Refused:
        raise
    except Exception as error:
        if store.get_bytes("images/run") != run:
            return  # the images go with the name of the run, and may have been half gone when they were read
        if isinstance(error, StoreError) or (isinstance(error, OSError) and error.errno in FULL):
            raise
        reason = f"{type(error).__name__}: {one_line(error)}"
    raise Refused(reason)  # here, where it has no other error as its context


def _on_worker(kernel: bytes, worker: Any) -> Kernel:
    """The kernel with as many threads as the worker has."""
    from distributed.protocol import pickle

    made: Kernel = pickle.loads(kernel)
    threads = worker.state.nthreads
    return Kernel(made.network, made.device, made.dtype, threads, made.kind, made.check, made.symmetry)


def begin(store: GramStore, x: ImageRows, z: ImageRows | None) -> bytes:
    """Put the images there, then the name of the run, which is returned."""
    end(store)
    with store.writing("its tiles stay valid"):
        for rows, step in zip((x, z), store.grid.tile, strict=True):
            if rows is None:
                continue
            shape = (min(step, len(rows)), *rows.image_shape)
            array = store.new_array(f"images/{rows.name}", rows.shape, shape, rows.dtype)
            for start in range(0, len(rows), step):
                part = slice(start, min(start + step, len(rows)))
                array[part] = rows.block(part).reshape(-1, *rows.image_shape)
        run = uuid.uuid4().hex.encode()
        store.set_bytes("images/run", run)
    return run


def end(store: GramStore) -> None:
    """Take away the name of the run, so that workers write nothing any more, and the images."""
    with store.writing("its tiles stay valid"):
        store.delete("images/run")
        store.delete_folder("images")
