"""Tiles on the workers of a Dask cluster.

The client keeps the list of tiles and gives each worker a few at a time. A worker reads the images from the store,
computes, and writes its tiles straight into the store; only counts come back. What a worker that dies or freezes had in
hand is given to another.

    connection.py  the scheduler is reached, or the error says why not
    roster.py      who takes part
    hands.py       who has which work in hand
    run.py         which tiles are given out next
    worker.py      what a worker does
    mark.py        the images and the mark of a run, in the store
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from cnngp.kernel.kernel import Kernel

from ..images import ImageRows
from ..store.store import GramStore
from . import mark as store_run
from .connection import ANSWER_SECONDS, ClusterError, DaskUnavailable, connect, require_dask, within
from .roster import EngineName, Roster
from .run import Run
from .worker import Job, TileAt, release

__all__ = ["ClusterError", "Crew", "DaskUnavailable", "connect"]

# Network file systems show new files late on other machines.
_SEEN_SECONDS = 60.0


class Crew:
    """The workers of a cluster that compute one matrix: those with one engine, whoever comes and goes."""

    def __init__(self, client: Any, kernel: Kernel, image_shape: tuple[int, ...], store: Any) -> None:
        if not isinstance(client, require_dask().Client):
            raise ClusterError(f"client={client!r}: expected a dask.distributed.Client")
        if client.asynchronous:
            raise ClusterError("client= is asynchronous; give one that was made without asynchronous=True")
        if client.status != "running":
            raise ClusterError(f"client= is {client.status}; give one that is connected to its scheduler")
        self.client = client
        self.where = store_run.address_for_workers(store)
        from distributed.protocol import pickle

        self._kernel: bytes = pickle.dumps(kernel)
        self._image_shape = image_shape
        self.roster = Roster(client)
        self.workers = 0

    def engine(self, wanted: str | None) -> EngineName:
        """The engine of the matrix, and its device: `wanted` where a worker has it. See `Roster.elect`."""
        best, self.workers = self.roster.elect(self._kernel, self._image_shape, wanted)
        return best

    def fill(
        self,
        store: GramStore,
        x: ImageRows,
        z: ImageRows | None,
        todo: Sequence[TileAt],
        count: Callable[[int], None],
        advance: Callable[[int], Any],
    ) -> None:
        """Have the tiles `todo` computed and written; `count` is told of tiles, `advance` of pairs."""
        try:
            mark = store_run.begin(store, x, z)
            job = Job(self._kernel, self.where, mark)
            Run(self.roster, job, store.grid, todo, count, advance).go()
        finally:
            store_run.end(store)
            self._release()
        until = time.monotonic() + _SEEN_SECONDS
        while unseen := len(store.missing(store.present())):
            if time.monotonic() > until:
                raise ClusterError(f"{unseen:,} tiles that workers have written are not seen by the client")
            time.sleep(0.5)

    def _release(self) -> None:
        """Have the workers let go of the images. One that does not answer keeps them until the next run."""

        def ask() -> None:
            self.client.run(release, workers=list(self.roster.used), on_error="ignore")

        if self.roster.used and self.client.status == "running":
            with suppress(Exception, asyncio.CancelledError):
                within(ANSWER_SECONDS, ask)
