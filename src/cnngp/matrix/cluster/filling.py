"""Filling the tiles of a matrix on a cluster: each worker fills the store as a single process does.

A worker computes what the store lacks, its own share first and then what the others have not done. So the others do the
tiles of one that dies or freezes without being told, and the client only watches the store.

A worker checks the name of its run (`images.py`) before it begins a tile and before it writes one. If the name has
changed, it stops: the run has ended, a later one has replaced it, or the worker sees another store at the same path.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from cnngp.common import memory
from cnngp.common.devices import ActualDevice
from cnngp.common.errors import StoreError, one_line
from cnngp.common.tiles import Tile
from cnngp.kernel.kernel import Kernel

from ..fill import fill, lanes, not_done_by_others
from ..images import ImageRows, begin_run, end_run
from ..store.places import FULL, same_for_all_machines
from ..store.store import GramStore
from .cluster import Cluster, Refused, same_version

Engine = tuple[str, ActualDevice]
"""Identity and device of an engine."""


class ClusterFill:
    """A matrix that the workers of a Dask client compute, in a store that all of them can open."""

    def __init__(self, client: Any, kernel: Kernel, image_shape: tuple[int, ...], where: Any) -> None:
        from distributed.protocol import pickle

        # As bytes, so that a worker that cannot unpickle the kernel reports why; Dask itself would lose the worker.
        self._kernel: bytes = pickle.dumps(kernel)
        self._where = same_for_all_machines(where)
        self._cluster = Cluster(client, engine_here, self._kernel, image_shape)
        self.workers = 0

    def engine(self, wanted: str | None) -> Engine:
        """Choose the engine of the matrix and its device: `wanted` if a worker has it, else the most common engine on
        a GPU, or on a CPU if no worker has a GPU.
        """
        counts: Counter[Engine] = Counter(self._cluster.fit().values())
        best = max(counts, key=lambda e: (e[0] == wanted, e[1] == "cuda", counts[e]))
        self.workers = counts[best]
        return best

    def fill(self, store: GramStore, x: ImageRows, z: ImageRows | None, done: Callable[[Tile], None]) -> None:
        """Have the workers compute the tiles that the store lacks; call `done` for each."""
        lacking, next_look = set(store.missing()), 0.0
        shares = itertools.cycle([(k, self.workers) for k in range(self.workers)])

        def whole() -> bool:
            nonlocal lacking, next_look
            began = time.monotonic()
            if began > next_look:
                before, lacking = lacking, set(store.missing())
                for at in sorted(before - lacking):
                    self._cluster.lost = 0
                    done(store.grid.at(*at))
                # Listing a large store may be slow, so it takes at most a tenth of the time.
                next_look = time.monotonic() + max(0.2, 10.0 * (time.monotonic() - began))
            return not lacking

        try:
            job = self._kernel, self._where, begin_run(store, x, z)
            for _ in self._cluster.results(fill_missing, shares, job, over=whole):
                next_look = min(next_look, time.monotonic() + 0.2)  # a worker has found nothing left to do
        finally:
            end_run(store)


async def engine_here(version: str, kernel: bytes, image_shape: tuple[int, ...], dask_worker: Any) -> Engine | Refused:
    """On a worker: return its engine for a kernel.

    Errors are returned as text, because the client may lack what unpickling them needs, such as CuPy.
    """
    same_version(version)
    try:
        made = await asyncio.to_thread(_on_worker, kernel, dask_worker)
        return (await asyncio.to_thread(made.engine_for, image_shape)).identity, made.device
    except Exception as error:
        return Refused(one_line(error))


def fill_missing(share: tuple[int, int], job: tuple[bytes, str, bytes]) -> Refused | None:
    """On a worker: compute the tiles that the store lacks, beginning with its share.

    Only errors that every worker would meet are raised: a `StoreError`, such as for a tile with NaN, or a full disk.
    """
    from distributed import get_worker

    kernel_bytes, where, run = job
    store = GramStore(where)
    if store.found is None:
        return Refused(f"it does not see the store {where}; give a path or URL that all machines share")

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
            return Refused(f"its engine is {engine}, that of the matrix {store.found.engine}")
        x = ImageRows(store.open_array("images/X"), kernel, "X")
        z = None if store.found.Z is None else ImageRows(store.open_array("images/Z"), kernel, "Z")
        for rows in (x, x if z is None else z):
            rows.room = 0 if kernel.device == "cpu" else (memory.available("cuda") or 0) // 16
        if kernel.check:
            kernel.verify(x.X)
        tiles = not_done_by_others(store, store.missing(), share, check)
        # A worker that sees several GPUs uses the first: tools that start a worker per GPU show all GPUs to each.
        fill(tiles, lanes(kernel, x.image_shape, 1 if kernel.device == "cuda" else None), x, z, write, lambda _: None)
    except Exception as error:
        if store.get_bytes("images/run") == run:  # else the images may have been deleted while they were read
            if isinstance(error, StoreError) or (isinstance(error, OSError) and error.errno in FULL):
                raise
            return Refused(f"{type(error).__name__}: {one_line(error)}")
    return None


def _on_worker(kernel: bytes, worker: Any) -> Kernel:
    """Unpickle the kernel, with as many threads as the worker has."""
    from distributed.protocol import pickle

    made: Kernel = pickle.loads(kernel)
    threads = worker.state.nthreads
    return Kernel(made.network, made.device, made.dtype, threads, made.kind, made.check, made.symmetry)
