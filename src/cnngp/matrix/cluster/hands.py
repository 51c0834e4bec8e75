"""Work in the hands of a cluster's workers: the one place that gives it out, for matrices, solves and searches.

A piece of work is given to one worker, so that it is known whose death takes it along. What a worker had in hand that
dies, freezes, is paused or refuses is given to another. Results may so be computed twice, and are the same.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from cnngp.common.errors import one_line

from .connection import ANSWER_SECONDS, ClusterError, require_dask, while_true
from .roster import LOOK_SECONDS, Roster

log = logging.getLogger("cnngp")

# Deaths of workers with the same work in hand, until this is blamed; failures to send the data, until that is given up.
DEATHS = 4
# Tasks that a worker has: one that it computes, and one to go on with at once.
AHEAD = 2


@dataclass(eq=False)
class Task:
    """A piece of work, and who has it in hand."""

    item: Any
    worker: str = ""
    deaths: int = 0
    again: bool = False
    """Another worker had it in hand, and may have done a part of it."""


# Gives the result of a task, or raises its error.
Outcome = Callable[[], Any]


class Hands:
    """Who has which task in hand. `again` are tasks to be given out once more.

    `named` says what a task is, for messages. `data`, where there are any, are sent to the workers once, and are the
    first argument of every function that is given out.
    """

    def __init__(self, roster: Roster, named: Callable[[Any], str], data: Any = None) -> None:
        self.roster, self.client = roster, roster.client
        self.again: deque[Task] = deque()
        self.running: dict[Any, Task] = {}
        self._named, self._data = named, data
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._over: list[tuple[Task, Outcome]] = []
        self._workers: list[str] = []
        self._dead: set[str] = set()
        self._looked = -LOOK_SECONDS
        self._sent: Any = None
        self._unsent = 0

    def workers(self) -> list[str]:
        """Those that take part; waits, with a warning, while there are none. Takes back what the lost had in hand."""
        with self._reaching():
            if time.monotonic() - self._looked > LOOK_SECONDS:
                self._workers, self._looked = self.roster.workers(), time.monotonic()
                self._take_from_the_lost(set(self._workers))
        return self._workers

    def free(self, ahead: int | None = AHEAD) -> list[str]:
        """The workers, each as often as it can take a task: up to `ahead`, or None for one on each of its threads. The
        first places of all come before the second of any.
        """
        workers = self.workers()
        has = Counter(task.worker for task in self.running.values())
        room = {w: (self.roster.threads(w) if ahead is None else ahead) for w in workers}
        most = max(room.values(), default=0)
        return [w for place in range(most) for w in workers if has[w] <= place < room[w]]

    def give(self, task: Task, worker: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Have a worker compute `function(data, *arguments)`, or without data `function(*arguments)`."""
        with self._reaching():
            if self._data is not None:
                if not self._send():
                    self.again.append(task)
                    return
                arguments = (self._sent, *arguments)
            task.worker = worker
            self.roster.used.add(worker)
            future = self.client.submit(function, *arguments, workers=[worker], pure=False)
        self.running[future] = task
        future.add_done_callback(self._ended.put)

    def ended(self, timeout: float = LOOK_SECONDS) -> list[tuple[Task, Outcome]]:
        """The tasks that are over, each with what gives its result or raises its error; waits so long for the first."""
        with self._reaching(), suppress(queue.Empty):
            future = self._ended.get(timeout=timeout)
            while True:
                task = self.running.pop(future, None)
                if task is not None:
                    self._finish(future, task)
                future = self._ended.get_nowait()
        over, self._over = self._over, []
        return over

    def refuse(self, task: Task, reason: str) -> None:
        """Its worker cannot do such work: others do."""
        self.roster.refuse(task.worker, reason)
        self._give_again(task)
        self._workers, self._looked = [], -LOOK_SECONDS

    def drop(self) -> None:
        """Ask for no more."""
        if self.running and self.client.status == "running":
            with suppress(OSError):  # the scheduler has just gone: nobody is left to be told
                self.client.cancel(list(self.running))

    # ---- what can happen ---------------------------------------------------------------------------------------------

    def _finish(self, future: Any, task: Task) -> None:
        if future.status == "finished":
            try:
                result = future.result(timeout=ANSWER_SECONDS)
            except (TimeoutError, CancelledError):  # its worker has died with the result
                future.cancel()
                self._say_dead(task.worker)
                self._died(task)
            else:
                self._over.append((task, partial(_give, result)))
            return
        if future.status == "error":
            error = future.exception()
            if not isinstance(error, require_dask().KilledWorker):
                self._over.append((task, partial(_raise, error)))
                return
        self._check_scheduler()
        if future.status == "cancelled":
            self._sent = None  # the data may be gone, and the client may not have heard of it
        self._say_dead(task.worker)
        self._died(task)

    def _take_from_the_lost(self, at_work: set[str]) -> None:
        """What workers have in hand that are gone, frozen, paused, or have refused another task."""
        lost = [(future, task) for future, task in self.running.items() if task.worker not in at_work]
        states = {task.worker: self.roster.state(task.worker) for _, task in lost}
        for worker, state in states.items():
            self._say_lost(worker, state or "is gone")
        for future, task in lost:
            del self.running[future]
            future.cancel()
            if states[task.worker] is not None or task.worker in self.roster.refused:
                self._give_again(task)
            else:
                self._died(task)

    def _say_dead(self, worker: str) -> None:
        """Of a worker whose result did not come. It may have had nothing else in hand, so nobody would look for it."""
        self.roster.there()
        state = self.roster.state(worker)
        self._say_lost(worker, "is gone" if state is None else state or "does not hand over a result")

    def _say_lost(self, worker: str, why: str) -> None:
        """Once for each worker that is gone, although both of its tasks and a look at the roster may tell of it."""
        if worker in self.roster.refused or worker in self._dead:
            return
        if self.roster.state(worker) is None:
            self._dead.add(worker)
        log.warning("worker %s %s; others do its work", worker, why)

    def _died(self, task: Task) -> None:
        task.deaths += 1
        if task.deaths < DEATHS:
            self._give_again(task)
            return
        error = ClusterError(
            f"{task.deaths} workers died, one after the other, with {self._named(task.item)} in hand; their logs say "
            "why (often too little memory)"
        )
        self._over.append((task, partial(_raise, error)))

    def _give_again(self, task: Task) -> None:
        task.again = True
        self.again.append(task)

    def _send(self) -> bool:
        """See that workers hold the data. False where a worker was lost on the way."""
        if self._sent is not None and self._sent.status == "finished":
            return True
        workers = self._workers

        def send() -> Any:  # to all of them: held once, they would be gone with their holder
            return self.client.scatter(self._data, workers=workers, broadcast=True, hash=False)

        try:
            self._sent = while_true(lambda: set(workers) <= set(self.roster.there()), send)
        except (OSError, RuntimeError, ValueError, KeyError, CancelledError) as error:
            if isinstance(error, ClusterError):
                raise
            self._sent = None
            self._check_scheduler()
            self._unsent += 1
            if self._unsent >= DEATHS:
                raise ClusterError(f"the data cannot be sent to the workers: {one_line(error)}") from error
            self._looked = -LOOK_SECONDS
            self.workers()
            return False
        self._unsent = 0
        return True

    def _check_scheduler(self) -> None:
        """Before it is asked: Dask would try for half a minute to reach one that is gone."""
        if self.client.status != "running":
            raise ClusterError(f"the scheduler {self.roster.address} is gone")

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Errors of the connection in one line."""
        self._check_scheduler()
        try:
            yield
        except ClusterError:
            self._check_scheduler()
            raise
        except OSError as error:
            raise ClusterError(f"the scheduler {self.roster.address} is gone") from error
        except Exception:
            self._check_scheduler()
            raise


def compute_all(
    roster: Roster,
    function: Callable[..., Any],
    items: Sequence[Any],
    *arguments: Any,
    named: Callable[[Any], str],
    data: Any = None,
) -> list[Any]:
    """`function(data, item, *arguments)` of every item, by whoever is there, in the order of the items."""
    hands = Hands(roster, named, data)
    waiting = deque(Task(k) for k in range(len(items)))
    results: dict[int, Any] = {}
    try:
        while len(results) < len(items):
            for worker in hands.free():
                if not hands.again and not waiting:
                    break
                task = hands.again.popleft() if hands.again else waiting.popleft()
                hands.give(task, worker, function, items[task.item], *arguments)
            for task, outcome in hands.ended():
                results[task.item] = outcome()
    finally:
        hands.drop()
    return [results[k] for k in range(len(items))]


def _give(found: Any) -> Any:
    return found


def _raise(error: BaseException) -> NoReturn:
    raise error
