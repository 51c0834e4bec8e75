"""Workers of a Dask cluster, and the assignment of tasks to them.

Dask starts the tasks and transfers their results. This module detects workers that die, freeze or join late, for which
Dask itself waits for minutes, and reassigns their tasks.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from cnngp.cluster import ClusterError, DaskUnavailable, within
from cnngp.common.errors import one_line
from cnngp.common.optional import need

log = logging.getLogger("cnngp")

# Workers send a heartbeat about every second. One that has been silent for this long is frozen or cut off.
SILENT_SECONDS = 10.0
# Seconds to wait while there are no workers, at the start or after the last one has gone.
PATIENCE = 300.0
# Seconds that the scheduler, and then the workers, may take to answer.
_SCHEDULER_SECONDS = 30.0
_WORKERS_SECONDS = 10.0
# Seconds between two looks at the workers.
_LOOK_SECONDS = 0.5
# Losing this many workers beyond the most there ever were, without a result in between, means the work kills them.
_DEATHS = 4
# Exceptions of a call whose scheduler or worker is lost.
_LOST = (OSError, asyncio.CancelledError, concurrent.futures.CancelledError)


class Refused(Exception):
    """Reason of a worker that cannot do the work; other workers do it."""


def same_version(version: str) -> None:
    """On a worker: raise `Refused` if the client has another version of the package."""
    from cnngp import __version__

    if __version__ != version:
        raise Refused(f"it has cnngp {__version__}, the client {version}")


class Cluster:
    """The workers of a client's scheduler that can do the work, updated as workers join and leave.

    Each runs `question(version, *arguments)`, with the version of this package; one that fails or refuses is left out.
    """

    def __init__(self, client: Any, question: Callable[..., Any] = same_version, *arguments: Any) -> None:
        from cnngp import __version__

        if not isinstance(client, need("distributed", "a cluster", DaskUnavailable).Client):
            raise ClusterError(f"client={client!r}: expected a dask.distributed.Client")
        if client.asynchronous:
            raise ClusterError("client= is asynchronous; give one that was made without asynchronous=True")
        if client.status != "running":
            raise ClusterError(f"client= is {client.status}; give one that is connected to its scheduler")
        self.client, self.address = client, str(client.scheduler.address)
        self.lost = 0
        """Workers lost since the last result; a caller that sees a result by other means sets it to 0."""
        self._ask = partial(client.run, question, __version__, *arguments, on_error="return")
        self._most = 0
        self._fit: dict[str, tuple[int, Any]] = {}  # (threads, answer) by worker
        self._refused: dict[str, str] = {}

    def fit(self) -> dict[str, Any]:
        """Return the usable workers and their answers; log those that are unusable or gone, and wait while none is
        usable.
        """
        began, waiting = time.monotonic(), False
        while True:
            known, there = self._look()
            new = sorted(there.keys() - self._fit.keys() - self._refused.keys())
            with suppress(*_LOST):  # one of them has frozen: all are asked again in the next round
                answers = within(_WORKERS_SECONDS, partial(self._ask, workers=new)) if new else {}
                for worker, answer in answers.items():
                    if isinstance(answer, Exception) and not isinstance(answer, _LOST):
                        self._refuse(worker, answer)
                    elif not isinstance(answer, _LOST):
                        self._fit[worker] = there[worker], answer
            self._most = max(self._most, len(self._fit))
            if self._fit:
                return {worker: answer for worker, (_, answer) in self._fit.items()}
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
                raise ClusterError(f"{known or 'no'} workers at {self.address}; {how}")
            time.sleep(0.1)

    def results(
        self,
        function: Callable[..., Any],
        items: Iterable[Any],
        shared: Any,
        *,
        parallel: bool = False,
        over: Callable[[], bool] = lambda: False,
    ) -> Generator[tuple[int, Any]]:
        """Yield (k, `function(item, shared)` for item number k) as results arrive, until all have or `over()` is True.

        A worker has one item at a time, or with `parallel` one per thread; `shared` is sent to each worker once. The
        items of a worker that is lost, freezes or returns `Refused` are given to other workers.
        """
        from distributed import KilledWorker

        todo, again = enumerate(items), list[tuple[int, Any]]()
        running: dict[Any, tuple[str, tuple[int, Any]]] = {}
        sent: dict[str, Any] = {}
        looked = -_LOOK_SECONDS
        try:
            while not over():
                if time.monotonic() - looked > _LOOK_SECONDS or not self._fit:
                    self.fit()
                    looked = time.monotonic()
                for future in [f for f, (worker, _) in running.items() if worker not in self._fit]:
                    worker, numbered = running.pop(future)
                    future.cancel()
                    again.append(numbered)
                    sent.pop(worker, None)
                at_work = Counter(worker for worker, _ in running.values())
                for worker in (w for w in self._fit for _ in range((self._fit[w][0] if parallel else 1) - at_work[w])):
                    taken = again.pop() if again else next(todo, None)
                    if taken is None:
                        break
                    try:
                        if worker not in sent:
                            send = partial(self.client.scatter, shared, workers=[worker], hash=False)
                            sent[worker] = within(_WORKERS_SECONDS, send)
                        given = taken[1], sent[worker]
                        running[self.client.submit(function, *given, workers=[worker], pure=False)] = worker, taken
                    except (*_LOST, LookupError, ValueError):  # the worker is lost; the next look detects it
                        again.append(taken)
                if not running and not again:
                    return
                time.sleep(0.005)
                for future in [f for f in running if f.status != "pending"]:
                    worker, numbered = running.pop(future)
                    error = future.exception() if future.status == "error" else None
                    if error is not None and not isinstance(error, KilledWorker):
                        raise error
                    try:
                        found = future.result(timeout=5.0)
                    except (*_LOST, KilledWorker):  # the result is lost with its worker
                        again.append(numbered)
                        continue
                    if isinstance(found, Refused):
                        self._refuse(worker, found)
                        again.append(numbered)
                        continue
                    self.lost = 0
                    yield numbered[0], found
        finally:
            if self.client.status == "running":
                with suppress(OSError):  # the scheduler has just gone, and its tasks with it
                    self.client.cancel(list(running))

    def _look(self) -> tuple[int, dict[str, int]]:
        """Return the number of workers that the scheduler knows and the threads of each that is responsive; log lost
        workers and remove them from `_fit`.
        """

        def seen(dask_scheduler: Any) -> dict[str, tuple[int, float]]:  # uses the scheduler's clock; needs no cnngp
            return {w: (s.nthreads, time.time() - s.last_seen) for w, s in dask_scheduler.workers.items()}

        gone = ClusterError(f"the scheduler {self.address} is gone")
        if self.client.status != "running":  # Dask itself would retry for half a minute
            raise gone
        try:
            known = within(_SCHEDULER_SECONDS, partial(self.client.run_on_scheduler, seen))
        except _LOST as error:
            raise gone from error
        there = {worker: threads for worker, (threads, silent) in known.items() if silent <= SILENT_SECONDS}
        for worker in self._fit.keys() - there.keys():
            how = "does not answer any more (frozen, or cut off)" if worker in known else "is gone"
            log.warning("worker %s %s; others do its work", worker, how)
            del self._fit[worker]
            self.lost += 1
            if self.lost >= _DEATHS + self._most:
                why = "their logs say why (often too little memory)"
                raise ClusterError(f"{self.lost} workers were lost, one after the other, without a result; {why}")
        return len(known), there

    def _refuse(self, worker: str, error: BaseException) -> None:
        """Exclude a worker, and log the reason if it is a new one."""
        reason = one_line(error) if isinstance(error, Refused) else f"it cannot run cnngp ({one_line(error)})"
        if reason not in self._refused.values():
            log.warning("worker %s takes no part: %s", worker, reason)
        self._refused[worker] = reason
        self._fit.pop(worker, None)
