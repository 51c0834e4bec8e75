"""The workers of a Dask cluster that can do the work, and the one way to use them: items in, results out.

Dask starts the work and carries what comes of it. A worker that dies, freezes or joins late is noticed here, because
Dask itself waits for minutes, and what it had is given to others.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from cnngp.common.devices import ActualDevice
from cnngp.common.errors import one_line
from cnngp.common.optional import need
from cnngp.kernel.kernel import Kernel

from .connection import ClusterError, DaskUnavailable, within

log = logging.getLogger("cnngp")

# Workers say that they are alive about every second. One that has not for so long is frozen, or cut off.
SILENT_SECONDS = 10.0
# How long to wait for a first worker, or for one after the last has gone.
PATIENCE = 300.0
# How often workers are looked at, and how long the scheduler, and they, may take to answer.
_LOOK_SECONDS = 0.5
_SCHEDULER_SECONDS = 30.0
_ANSWER_SECONDS = 10.0
# Workers that may be lost, beside as many as there were, without a result between them: then the work kills them.
_DEATHS = 4
# What a call comes to whose worker, or whose data, are lost.
_LOST = (OSError, asyncio.CancelledError, concurrent.futures.CancelledError)
_END: Any = object()

Engine = tuple[str, ActualDevice]
"""An engine's identity, and its device."""


class Refused(Exception):
    """Raised on a worker that cannot do the work, with the reason; others do it."""


class Cluster:
    """The workers at a client's scheduler that have this version of the package, whoever comes and goes."""

    def __init__(self, client: Any) -> None:
        if not isinstance(client, need("distributed", "a cluster", DaskUnavailable).Client):
            raise ClusterError(f"client={client!r}: expected a dask.distributed.Client")
        if client.asynchronous:
            raise ClusterError("client= is asynchronous; give one that was made without asynchronous=True")
        if client.status != "running":
            raise ClusterError(f"client= is {client.status}; give one that is connected to its scheduler")
        self.client, self.address = client, str(client.scheduler.address)
        self.lost = 0
        """Workers that were lost since the last result; whoever sees one by other means sets it to 0."""
        self._most = 0
        self._fit: set[str] = set()
        self._refused: dict[str, str] = {}

    def elect(self, kernel: Kernel, image_shape: tuple[int, ...], wanted: str | None) -> tuple[Engine, int]:
        """Choose the engine of a matrix, and count the workers that have it: `wanted` where a worker has it, else the
        engine of most workers, those with a card before the others.
        """
        counts: Counter[Engine] = Counter()
        while not counts:
            for worker, answer in self._ask(list(self.fit()), _engine_of, pickled(kernel), image_shape).items():
                if isinstance(answer, Exception):
                    self._refuse(worker, answer)
                else:
                    counts[answer] += 1
        best = max(counts, key=lambda e: (e[0] == wanted, e[1] == "cuda", counts[e]))
        return best, counts[best]

    def results(
        self, function: Callable[..., Any], items: Iterable[Any], shared: Any, parallel: bool = False
    ) -> Generator[tuple[int, Any] | None]:
        """Run `function(item, shared)` for each item on some worker, one at a time, or where `parallel` one a thread.

        Yields (k, result) for the k-th item as they come, and None about every second. `shared` is sent to each worker
        once. Ends with what the function raises, unless that is `Refused`.
        """
        from distributed import KilledWorker, wait

        todo, again = enumerate(items), deque[tuple[int, Any]]()
        running: dict[Any, tuple[str, tuple[int, Any]]] = {}
        sent: dict[str, Any] = {}
        threads, looked = self.fit(), time.monotonic()
        try:
            while True:
                if time.monotonic() - looked > _LOOK_SECONDS or not self._fit:
                    threads, looked = self.fit(), time.monotonic()
                for future in [f for f, (worker, _) in running.items() if worker not in self._fit]:
                    worker, numbered = running.pop(future)
                    future.cancel()
                    again.append(numbered)
                    sent.pop(worker, None)
                at_work = Counter(worker for worker, _ in running.values())
                free = (w for w in sorted(self._fit) for _ in range((threads[w] if parallel else 1) - at_work[w]))
                for worker in free:
                    numbered = again.popleft() if again else next(todo, _END)
                    if numbered is _END:
                        break
                    try:
                        if worker not in sent:
                            send = partial(self.client.scatter, shared, workers=[worker], hash=False)
                            sent[worker] = within(5.0, send)
                        given = numbered[1], sent[worker]
                        running[self.client.submit(function, *given, workers=[worker], pure=False)] = worker, numbered
                    except (*_LOST, LookupError, ValueError):  # the worker is lost, which is noticed next time
                        again.append(numbered)
                if not running and not again:
                    return
                with suppress(*_LOST):
                    wait(list(running), timeout=1.0, return_when="FIRST_COMPLETED")
                for future in [f for f in running if f.status != "pending"]:
                    worker, numbered = running.pop(future)
                    error = future.exception() if future.status == "error" else None
                    if error is None:
                        with suppress(*_LOST):  # with its worker
                            found = numbered[0], future.result(timeout=5.0)
                            self.lost = 0
                            yield found
                            continue
                    elif isinstance(error, Refused):
                        self._refuse(worker, error)
                    elif not isinstance(error, KilledWorker):
                        raise error
                    again.append(numbered)
                yield None
        finally:
            if self.client.status == "running":
                with suppress(OSError):  # the scheduler has just gone: nobody is left to be told
                    self.client.cancel(list(running))

    def computed(self, function: Callable[..., Any], items: Sequence[Any], shared: Any) -> list[Any]:
        """`function(item, shared)` of every item, in their order."""
        found = dict(filter(None, self.results(function, items, shared, parallel=True)))
        return [found[k] for k in range(len(items))]

    def fit(self) -> dict[str, int]:
        """The workers that take part, each with its threads, after a word about those that are unfit or gone. Waits
        while there are none.
        """
        from cnngp import __version__

        began, waiting = time.monotonic(), False
        while True:
            known, there = self._look()
            for worker in self._fit - there.keys():
                self._lose(worker, worker in known)
            new = sorted(there.keys() - self._fit - self._refused.keys())
            # `eval`, which every Python has, where a function of this package could not be found
            for worker, version in self._ask(new, eval, "__import__('cnngp').__version__").items():
                if isinstance(version, Exception):
                    self._refuse(worker, version)
                elif version != __version__:
                    self._refuse(worker, Refused(f"it has cnngp {version}, the client {__version__}"))
                else:
                    self._fit.add(worker)
            self._most = max(self._most, len(self._fit))
            if self._fit:
                return {worker: there[worker] for worker in self._fit}
            if there and there.keys() <= self._refused.keys():
                reasons = Counter(self._refused[worker] for worker in there)
                said = "; ".join(f"{reason} ({n} of them)" if n > 1 else reason for reason, n in reasons.most_common(3))
                raise ClusterError(f"no worker at {self.address} can do the work: {said}")
            if not known and not waiting:
                log.warning("no workers at %s; waiting for one", self.address)
                waiting = True
            if time.monotonic() - began > PATIENCE:
                start = f"start them with `dask worker {self.address}` on any machine"
                how = "none of them answers" if known else start
                raise ClusterError(f"{len(known) or 'no'} workers at {self.address}; {how}")
            time.sleep(0.1)

    def _look(self) -> tuple[set[str], dict[str, int]]:
        """The workers that the scheduler knows, and those that it has heard of lately, with their threads."""
        gone = ClusterError(f"the scheduler {self.address} is gone")
        if self.client.status != "running":  # Dask itself tries for half a minute
            raise gone
        look = partial(self.client.sync, self.client.scheduler.identity)
        try:
            found = within(_SCHEDULER_SECONDS, look)["workers"]
            now = within(_SCHEDULER_SECONDS, partial(self.client.run_on_scheduler, time.time))  # its clock, not ours
        except _LOST as error:
            raise gone from error
        heard = {w: int(about["nthreads"]) for w, about in found.items() if now - about["last_seen"] <= SILENT_SECONDS}
        return set(found), heard

    def _ask(self, workers: Sequence[str], function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Result or error of a function on each of the workers, beside their work; nothing of those that are lost, and
        of none where one is frozen.
        """
        ask = partial(self.client.run, function, *arguments, workers=workers, on_error="return")
        try:
            answers = within(_ANSWER_SECONDS, ask) if workers else {}
        except _LOST:
            return {}
        return {worker: answer for worker, answer in answers.items() if not isinstance(answer, _LOST)}

    def _refuse(self, worker: str, error: BaseException) -> None:
        reason = one_line(error) if isinstance(error, Refused) else f"it cannot run cnngp ({one_line(error)})"
        if reason not in self._refused.values():
            log.warning("worker %s takes no part: %s", worker, reason)
        self._refused[worker] = reason
        self._fit.discard(worker)

    def _lose(self, worker: str, known: bool) -> None:
        how = "does not answer any more (frozen, or cut off)" if known else "is gone"
        log.warning("worker %s %s; others do its work", worker, how)
        self._fit.remove(worker)
        self.lost += 1
        if self.lost >= _DEATHS + self._most:
            why = "their logs say why (often too little memory)"
            raise ClusterError(f"{self.lost} workers were lost, one after the other, without a result; {why}")


async def _engine_of(kernel: bytes, image_shape: tuple[int, ...], dask_worker: Any) -> Engine:
    """On a worker: its engine for a kernel."""
    try:
        made = await asyncio.to_thread(unpickled, kernel, dask_worker)
        return (await asyncio.to_thread(made.engine_for, image_shape)).identity, made.device
    except Exception as error:
        reason = one_line(error)
    raise Refused(reason)  # here, where it has no error as its context that the client may not know


def pickled(kernel: Kernel) -> bytes:
    """A kernel as bytes: a worker that cannot make it says why, where Dask itself would lose the worker."""
    from distributed.protocol import pickle

    data: bytes = pickle.dumps(kernel)
    return data


def unpickled(kernel: bytes, worker: Any) -> Kernel:
    """The kernel on this worker, with as many threads as the worker has."""
    from distributed.protocol import pickle

    made: Kernel = pickle.loads(kernel)
    threads = worker.state.nthreads
    return Kernel(made.network, made.device, made.dtype, threads, made.kind, made.check, made.symmetry)
