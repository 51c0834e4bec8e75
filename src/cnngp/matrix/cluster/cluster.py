"""The workers of a Dask cluster that can do the work, and the two ways to use them.

`everywhere` runs one function on each worker, those that join later too: it looks for what is missing in a store or in
a study until nothing is. `computed` gives the results of a list of items.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cnngp.common.devices import ActualDevice
from cnngp.common.errors import one_line
from cnngp.kernel.kernel import Kernel

from .connection import ClusterError, check_client, within

log = logging.getLogger("cnngp")

# Workers say that they are alive about every second. One that has not for so long is frozen, or cut off from the
# scheduler, which itself waits for minutes before it gives it up.
SILENT_SECONDS = 10.0
# How long to wait for a first worker, or for one after the last has gone.
PATIENCE = 300.0
_SCHEDULER_SECONDS = 30.0
# How long to wait for the engines of workers that are there, but busy with the work of others.
_ENGINE_SECONDS = 60.0
# Workers that may be lost, beside as many as there were, without a result between them: then the work kills them.
_DEATHS = 4
# What a call comes to whose worker, or whose data, are lost.
_LOST = (OSError, asyncio.CancelledError, concurrent.futures.CancelledError)

Engine = tuple[str, ActualDevice]
"""An engine's identity, and its device."""


class Refused(Exception):
    """Raised on a worker that cannot do the work, with the reason; others do it."""


class Cluster:
    """The workers at a client's scheduler that have this package, whoever comes and goes."""

    def __init__(self, client: Any) -> None:
        check_client(client)
        self.client = client
        self.lost = 0
        """Workers that were lost since the last result; whoever sees a result sets it to 0."""
        self._most = 0
        self._refused: dict[str, str] = {}
        self._asked: dict[str, Any] = {}
        self._fit: set[str] = set()
        self._heard: dict[str, tuple[float, float]] = {}

    @property
    def address(self) -> str:
        return str(self.client.scheduler.address)

    def elect(self, kernel: Kernel, image_shape: tuple[int, ...], wanted: str | None) -> tuple[Engine, int]:
        """Choose the engine of a matrix, and count the workers that have it: `wanted` where a worker has it, else the
        engine of most workers, those with a card before the others.
        """
        from distributed import wait

        ask = partial(self.client.submit, engine_of, pickled(kernel), image_shape, pure=False)
        asked = {worker: ask(workers=[worker]) for worker in self.fit()}
        with suppress(*_LOST):  # later ones say for themselves whether they fit
            wait(list(asked.values()), timeout=_ENGINE_SECONDS)
        for worker in [w for w in asked if asked[w].status == "error"]:
            self._refuse(worker, asked.pop(worker).exception())
        counts = Counter(future.result(timeout=5) for future in asked.values() if future.status == "finished")
        if not counts:
            raise self._nobody(self._there())
        best = max(counts, key=lambda e: (e[0] == wanted, e[1] == "cuda", counts[e]))
        return best, counts[best]

    def everywhere(self, function: Callable[..., Any], shared: Any) -> Generator[None]:
        """Run `function(turn, shared)` on every worker, and again where it has ended; turns count from 0.

        Yields about every second, until the caller has what it wants. Ends with what the function raises.
        """
        from distributed import KilledWorker, wait

        running: dict[str, Any] = {}
        sent: dict[str, Any] = {}
        turns = itertools.count()
        try:
            while True:
                for worker in self.fit():
                    with suppress(*_LOST, ValueError):  # lost: it is noticed next time
                        if worker not in sent:
                            send = partial(self.client.scatter, shared, workers=[worker], hash=False)
                            sent[worker] = within(5.0, send)
                        if worker not in running:
                            given = (next(turns), sent[worker])
                            running[worker] = self.client.submit(function, *given, workers=[worker], pure=False)
                for worker in running.keys() - self._heard.keys():  # not of one that is silent: it may wake up
                    running.pop(worker).cancel()
                    sent.pop(worker)
                with suppress(*_LOST):
                    wait(list(running.values()), timeout=1.0, return_when="FIRST_COMPLETED")
                for worker in [w for w in running if running[w].status != "pending"]:
                    future = running.pop(worker)
                    error = future.exception() if future.status == "error" else None
                    if isinstance(error, Refused):
                        self._refuse(worker, error)
                    elif error is not None and not isinstance(error, KilledWorker):
                        raise error
                yield
        finally:
            if self.client.status == "running":
                with suppress(OSError):  # the scheduler has just gone: nobody is left to be told
                    self.client.cancel(list(running.values()))

    def computed(self, function: Callable[..., Any], items: Sequence[Any], shared: Any) -> list[Any]:
        """`function(item, shared)` of every item, in their order; `shared` is sent to each worker once."""
        from distributed import KilledWorker, wait

        results: dict[int, Any] = {}
        while len(results) < len(items):
            workers = self.fit()
            with suppress(*_LOST):  # with what was sent, or with a result: others do it
                send = partial(self.client.scatter, shared, workers, broadcast=True, hash=False)
                sent = within(_SCHEDULER_SECONDS, send)
                futures = {
                    self.client.submit(function, item, sent, workers=workers, pure=False): place
                    for place, item in enumerate(items)
                    if place not in results
                }
                while any(future.status == "pending" for future in futures) and set(workers) <= set(self.fit()):
                    with suppress(TimeoutError):
                        wait(list(futures), timeout=1.0)
                for future, place in futures.items():
                    if future.status == "error" and isinstance(future.exception(), KilledWorker):
                        raise ClusterError(f"{one_line(future.exception())} Its log says why, often too little memory")
                    if future.status != "pending":
                        results[place] = future.result(timeout=5)
        return [results[place] for place in range(len(items))]

    def fit(self) -> list[str]:
        """The workers that take part, after a word about each that is unfit or gone. Waits while there are none."""
        from distributed import wait

        began = time.monotonic()
        while True:
            there = self._there()
            for worker in self._fit - set(there):
                self._lose(worker)
            for worker in [w for w in self._asked if w not in there]:
                self._asked.pop(worker).cancel()
            for worker in there:
                if worker not in {*self._fit, *self._refused, *self._asked}:
                    # `eval`, which every Python has, where a function of this package could not be found
                    ask = (eval, "__import__('cnngp').__version__")
                    self._asked[worker] = self.client.submit(*ask, workers=[worker], pure=False, priority=100)
            with suppress(*_LOST):  # later ones join when they have answered
                wait(list(self._asked.values()), timeout=0.01 if self._fit else SILENT_SECONDS)
            for worker in [w for w in self._asked if self._asked[w].status != "pending"]:
                future = self._asked.pop(worker)
                if future.status == "error":
                    self._refuse(worker, future.exception())
                    continue
                with suppress(*_LOST):  # it has just gone, with its answer
                    self._compare(worker, future.result(timeout=5))
            self._most = max(self._most, len(self._fit))
            if self._fit:
                return sorted(self._fit)
            if there and set(there) <= set(self._refused):
                raise self._nobody(there)
            if not self._heard:
                self._wait_for_one()
            if time.monotonic() - began > PATIENCE:
                raise ClusterError(f"none of the {len(self._heard):,} workers at {self.address} answers")
            time.sleep(0.05)

    def _compare(self, worker: str, version: str) -> None:
        from cnngp import __version__

        if version == __version__:
            self._fit.add(worker)
        else:
            self._refuse(worker, Refused(f"it has cnngp {version}, the client {__version__}"))

    def _there(self) -> list[str]:
        """The workers that have been heard of lately."""
        found = self._reach(lambda: self.client.sync(self.client.scheduler.identity))["workers"]
        now, before = time.monotonic(), self._heard
        self._heard = {}
        for worker, about in found.items():
            beat = float(about["last_seen"])  # by the scheduler's clock, so only whether it moves is of use
            last = before.get(worker, (beat, now))
            self._heard[worker] = last if last[0] == beat else (beat, now)
        return [worker for worker, (_, last) in self._heard.items() if now - last <= SILENT_SECONDS]

    def _wait_for_one(self) -> None:
        log.warning("no workers at %s; waiting for one", self.address)
        try:
            self.client.wait_for_workers(1, timeout=PATIENCE)
        except TimeoutError:
            how = f"start them with `dask worker {self.address}` on any machine"
            raise ClusterError(f"no workers at {self.address}; {how}") from None

    def _reach(self, call: Callable[[], Any]) -> Any:
        """Result of a call to the scheduler; one line where it is gone. Dask itself tries for half a minute."""
        gone = ClusterError(f"the scheduler {self.address} is gone")
        if self.client.status != "running":
            raise gone
        try:
            return within(_SCHEDULER_SECONDS, call)
        except _LOST as error:
            raise gone from error

    def _refuse(self, worker: str, error: BaseException) -> None:
        reason = one_line(error) if isinstance(error, Refused) else f"it cannot run cnngp ({one_line(error)})"
        if reason not in self._refused.values():
            log.warning("worker %s takes no part: %s", worker, reason)
        self._refused[worker] = reason
        self._fit.discard(worker)

    def _lose(self, worker: str) -> None:
        how = "does not answer any more (frozen, or cut off)" if worker in self._heard else "is gone"
        log.warning("worker %s %s; others do its work", worker, how)
        self._fit.remove(worker)
        self.lost += 1
        if self.lost >= _DEATHS + self._most:
            why = "their logs say why (often too little memory)"
            raise ClusterError(f"{self.lost} workers were lost, one after the other, without a result; {why}")

    def _nobody(self, there: Sequence[str]) -> ClusterError:
        reasons = Counter(self._refused[worker] for worker in there)
        said = "; ".join(f"{reason} ({n} of them)" if n > 1 else reason for reason, n in reasons.most_common(3))
        return ClusterError(f"no worker at {self.address} can do the work: {said}")


def engine_of(kernel: bytes, image_shape: tuple[int, ...]) -> Engine:
    """On a worker: its engine for a kernel."""
    try:
        made = unpickled(kernel)
        return made.engine_for(image_shape).identity, made.device
    except Exception as error:
        reason = one_line(error)
    raise Refused(reason)  # here, where it has no error as its context that the client may not know


def pickled(kernel: Kernel) -> bytes:
    """A kernel as bytes: a worker that cannot make it says why, where Dask itself would lose the worker."""
    from distributed.protocol import pickle

    data: bytes = pickle.dumps(kernel)
    return data


def unpickled(kernel: bytes) -> Kernel:
    """The kernel on this worker, with as many threads as the worker has."""
    from distributed import get_worker
    from distributed.protocol import pickle

    made: Kernel = pickle.loads(kernel)
    threads = get_worker().state.nthreads
    return Kernel(made.network, made.device, made.dtype, threads, made.kind, made.check, made.symmetry)
