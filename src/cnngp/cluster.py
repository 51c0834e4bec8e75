"""Tiles on the workers of a Dask cluster; the one place that knows Dask.

The client keeps the list of tiles and gives each worker a few at a time, never more than two tasks, so nothing here
grows with the matrix. A worker reads the images from the store, computes, and writes its tiles straight into the store;
only counts come back. What a worker that dies had in hand is given to another.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from . import store_run
from .cluster_worker import Done, Job, Place, Refused, engine_of, line, release, work
from .image_rows import ImageRows
from .kernel import Kernel
from .store import GramStore
from .tiles import Grid

log = logging.getLogger("cnngp")

# Tasks that a worker has: one that it computes, and one to go on with at once.
_AHEAD = 2
# A task is so many tiles that it takes about this long; tiles are then written while the next are computed, and the
# scheduler has little to do.
_TASK_SECONDS = 4.0
_MOST_TILES = 64
# Deaths of workers with the same tiles in hand, until these are blamed.
_DEATHS = 4
_LOOK_SECONDS = 1.0
# How long an answer of a few bytes may take. One that was computed may never come: its worker has died with it.
_ANSWER_SECONDS = 5.0
# How long to wait for a first worker, or for one after the last has gone.
_PATIENCE = 300.0
# Network file systems show new files late on other machines.
_SEEN_SECONDS = 60.0


class DaskUnavailable(ImportError):
    """dask.distributed is not installed."""


class ClusterError(RuntimeError):
    """A cluster that is not there, or whose workers cannot do the work."""


def connect(address: str, timeout: float = 10.0) -> Any:
    """A `dask.distributed.Client` of the scheduler at `address`, such as tcp://host:8786.

    `ClusterError` where none answers within `timeout` seconds, also where something else listens there.
    """
    distributed = _distributed()
    if not re.fullmatch(r"((tcp|tls|ws|wss|ucx)://)?[^\s/]+:\d+", address):
        raise ClusterError(f"scheduler {address!r}: expected the address of a Dask scheduler, such as tcp://host:8786")
    # A scheduler that goes away is told in one line from here; the client would add a traceback.
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    answer: list[Any] = []

    def open_client() -> None:
        try:
            answer.append(distributed.Client(address, timeout=timeout))
        except Exception as error:
            answer.append(error)

    # In a thread: what is no scheduler may take the connection, say nothing, and never let the client go.
    thread = threading.Thread(target=open_client, name="cnngp-connect", daemon=True)
    thread.start()
    thread.join(timeout + 1.0)
    if answer and isinstance(answer[0], distributed.Client):
        return answer[0]
    silent = not answer or isinstance(answer[0], OSError)
    reason = f"no scheduler answers within {timeout:g} s" if silent else "what answers there is no Dask scheduler"
    raise ClusterError(f"{address}: {reason}; start one with `dask scheduler`, workers with `dask worker {address}`")


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise DaskUnavailable("a cluster needs dask.distributed: pip install 'cnngp[dask]'") from None
    return distributed


# ---- on the client ---------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Task:
    """Tiles that a worker has in hand."""

    places: list[Place]
    worker: str = ""
    deaths: int = 0
    again: bool = False
    """Another worker had them in hand, and may have written some."""


class Crew:
    """The workers of a cluster that compute one matrix: those with one engine, whoever comes and goes."""

    def __init__(self, client: Any, kernel: Kernel, image_shape: tuple[int, ...], store: Any) -> None:
        distributed = _distributed()
        if not isinstance(client, distributed.Client):
            raise ClusterError(f"client={client!r}: expected a dask.distributed.Client")
        if client.asynchronous:
            raise ClusterError("client= is asynchronous; give one that was made without asynchronous=True")
        self.client = client
        self.where = store_run.address_for_workers(store)
        from distributed.protocol import pickle

        self._kernel: bytes = pickle.dumps(kernel)
        self._image_shape = image_shape
        self._refused: dict[str, str] = {}
        self._known: set[str] = set()
        self._used: set[str] = set()
        self._alone_since: float | None = None
        self.workers = 0

    def engine(self, wanted: str | None) -> tuple[str, Literal["cpu", "cuda"]]:
        """The engine of the matrix, and its device: `wanted` where a worker has it, else the one of most workers, those
        with a card before the others. Workers with other engines stand aside.
        """
        asked = {
            w: self.client.submit(engine_of, self._kernel, self._image_shape, workers=[w], pure=False)
            for w in self._workers()
        }
        engines: dict[str, tuple[str, Literal["cpu", "cuda"]]] = {}
        until = time.monotonic() + _PATIENCE
        while asked and time.monotonic() < until:
            there = self._there()
            for worker, future in list(asked.items()):
                if future.status == "finished":
                    with suppress(TimeoutError):
                        answer = future.result(timeout=_ANSWER_SECONDS)
                        if isinstance(answer, Refused):
                            self._refuse(worker, answer.reason)
                        else:
                            engines[worker] = answer
                elif future.status == "error":
                    self._refuse(worker, line(future.exception()))
                elif worker in there:
                    continue
                del asked[worker]
            time.sleep(0.02)
        for worker in asked:
            self._refuse(worker, f"it did not answer in {_PATIENCE:.0f} s; others use it")
        if not engines:
            raise self._nobody()
        counts = Counter(engines.values())
        best = max(counts, key=lambda e: (e[0] == wanted, e[1] == "cuda", counts[e]))
        for worker, other in engines.items():
            if other != best:
                self._refuse(worker, f"its engine is {other[0]}, that of the matrix {best[0]}")
        self.workers = counts[best]
        return best

    def fill(
        self,
        place: GramStore,
        x: ImageRows,
        z: ImageRows | None,
        todo: Sequence[Place],
        count: Callable[[int], None],
        advance: Callable[[int], Any],
    ) -> None:
        """Have the tiles `todo` computed and written; `count` is told of tiles, `advance` of pairs."""
        try:
            mark = store_run.begin(place, x, z)
            _Run(self, mark, place.grid, todo, count, advance).go()
        finally:
            store_run.end(place)
            self._release()
        until = time.monotonic() + _SEEN_SECONDS
        while unseen := len(place.missing(place.present())):
            if time.monotonic() > until:
                raise ClusterError(f"{unseen:,} tiles that workers have written are not seen by the client")
            time.sleep(0.5)

    def _release(self) -> None:
        """Have the workers let go of the images. One that does not answer keeps them until the next run."""

        def ask() -> None:
            with suppress(Exception, asyncio.CancelledError):
                self.client.run(release, workers=list(self._used), on_error="ignore")

        if self._used and self.client.status == "running":
            # In a thread: a worker that hangs would never let go of the client.
            thread = threading.Thread(target=ask, name="cnngp-release", daemon=True)
            thread.start()
            thread.join(_ANSWER_SECONDS)

    def _there(self, paused: bool = False) -> list[str]:
        """The workers. Those that Dask has paused, because their memory is nearly full, begin no task."""
        scheduler = self.client.scheduler
        try:
            return list(self.client.sync(scheduler.ncores if paused else scheduler.ncores_running))
        except OSError:
            raise ClusterError(f"the scheduler {self._address} does not answer any more") from None

    def _workers(self) -> list[str]:
        """Those that take part; waits while there are none, and looks at new ones."""
        while True:
            there = self._there()
            self._look_at([w for w in there if w not in self._known])
            fit = [w for w in there if w not in self._refused]
            if fit:
                self._alone_since = None
                return fit
            if there:
                raise self._nobody()
            if self._alone_since is None:
                self._alone_since = time.monotonic()
                log.warning("no workers at %s; waiting for one", self._address)
            if time.monotonic() - self._alone_since > _PATIENCE:
                raise ClusterError(
                    f"no workers at {self._address}; start them with `dask worker {self._address}` on any machine, and "
                    "with more memory (--memory-limit) if Dask has paused them"
                )
            time.sleep(_LOOK_SECONDS / 2)

    def _look_at(self, workers: list[str]) -> None:
        """Refuse those without this package, or with another version of it."""
        if not workers:
            return
        from . import __version__

        # `eval`, which every Python has, where a function of this package could not be found
        found = self.client.run(eval, "__import__('cnngp').__version__", workers=workers, on_error="return")
        for worker in workers:
            version = found.get(worker)
            if version is None or isinstance(version, OSError):
                continue  # it has just gone
            self._known.add(worker)
            if isinstance(version, Exception):
                self._refuse(worker, f"it cannot import cnngp ({line(version)})")
            elif version != __version__:
                self._refuse(worker, f"it has cnngp {version}, the client {__version__}")

    def _refuse(self, worker: str, reason: str) -> None:
        if reason not in self._refused.values():
            log.warning("worker %s takes no part: %s", worker, reason)
        self._refused[worker] = reason

    def _nobody(self) -> ClusterError:
        reasons = Counter(self._refused.values())
        said = "; ".join(f"{reason} ({n} of them)" if n > 1 else reason for reason, n in reasons.most_common(3))
        return ClusterError(f"no worker at {self._address} can do the work: {said}")

    @property
    def _address(self) -> str:
        return str(self.client.scheduler.address)


class _Run:
    """The client's side of one run: who has which tiles in hand."""

    def __init__(
        self,
        crew: Crew,
        mark: str,
        grid: Grid,
        todo: Sequence[Place],
        count: Callable[[int], None],
        advance: Callable[[int], Any],
    ) -> None:
        self.crew, self.grid, self.count, self.advance = crew, grid, count, advance
        self.job = Job(crew._kernel, crew.where, mark)
        self.todo = todo
        self.given = 0
        self.again: deque[_Task] = deque()
        self.flying: dict[Any, _Task] = {}
        self.ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.size = 1
        self.number = 0

    def go(self) -> None:
        looked = -_LOOK_SECONDS
        workers: list[str] = []
        try:
            while self.flying or self.again or self.given < len(self.todo):
                if time.monotonic() - looked > _LOOK_SECONDS:
                    workers, looked = self.crew._workers(), time.monotonic()
                    self._take_from_the_lost(set(workers))
                self._give(workers)
                try:
                    future = self.ended.get(timeout=_LOOK_SECONDS)
                except queue.Empty:
                    continue
                task = self.flying.pop(future, None)
                if task is not None:
                    self._finish(future, task)
                    if task.worker in self.crew._refused:
                        workers, looked = [], -_LOOK_SECONDS
        finally:
            if self.flying and self.crew.client.status == "running":
                self.crew.client.cancel(list(self.flying))

    def _give(self, workers: list[str]) -> None:
        has = Counter(task.worker for task in self.flying.values())
        for ahead in range(_AHEAD):
            for worker in workers:
                if has[worker] > ahead:
                    continue
                task = self._next(len(workers))
                if task is None:
                    return
                task.worker = worker
                self.crew._used.add(worker)
                has[worker] += 1
                self.number += 1
                future = self.crew.client.submit(
                    work,
                    self.job,
                    task.places,
                    task.again,
                    key=f"cnngp-tiles-{self.job.mark[:8]}-{self.number}",
                    workers=[worker],
                )
                self.flying[future] = task
                future.add_done_callback(self.ended.put)

    def _next(self, workers: int) -> _Task | None:
        if self.again:
            return self.again.popleft()
        left = len(self.todo) - self.given
        if not left:
            return None
        # Towards the end ever fewer, so that all workers are done at about the same time.
        size = max(1, min(self.size, left // (2 * _AHEAD * workers)))
        task = _Task(list(self.todo[self.given : self.given + size]))
        self.given += size
        return task

    def _finish(self, future: Any, task: _Task) -> None:
        if future.status != "finished":
            self._fail(future, task)
            return
        try:
            result: Done | Refused = future.result(timeout=_ANSWER_SECONDS)
        except TimeoutError:
            future.cancel()
            self._died(task)
            return
        if isinstance(result, Refused):
            self.crew._refuse(task.worker, result.reason)
            self._give_again(task)
            return
        self.count(len(task.places))
        self.advance(sum(self.grid.at(i, j).pairs for i, j in task.places))
        if len(task.places) == self.size and result.seconds < _TASK_SECONDS / 2:
            self.size = min(2 * self.size, _MOST_TILES)

    def _fail(self, future: Any, task: _Task) -> None:
        if future.status == "error":
            error = future.exception()
            if not isinstance(error, _distributed().KilledWorker):
                raise error
        elif self.crew.client.status != "running":
            raise ClusterError(f"the scheduler {self.crew._address} is gone")
        self._died(task)

    def _take_from_the_lost(self, at_work: set[str]) -> None:
        """What workers have in hand that are gone, paused, or have refused another task."""
        lost = [(future, task) for future, task in self.flying.items() if task.worker not in at_work]
        if not lost:
            return
        there = self.crew._there(paused=True)
        for worker in {task.worker for _, task in lost} - self.crew._refused.keys():
            paused = "begins no more tasks (Dask pauses one whose memory is nearly full)"
            log.warning("worker %s %s; others do its tiles", worker, paused if worker in there else "is gone")
        for future, task in lost:
            del self.flying[future]
            future.cancel()
            if task.worker in there or task.worker in self.crew._refused:
                self._give_again(task)
            else:
                self._died(task)

    def _died(self, task: _Task) -> None:
        task.deaths += 1
        if task.deaths >= _DEATHS:
            raise ClusterError(
                f"{task.deaths} workers died, one after the other, with the tiles from {task.places[0]} in hand; their "
                "logs say why (often too little memory)"
            )
        self._give_again(task)

    def _give_again(self, task: _Task) -> None:
        task.again = True
        self.again.append(task)
