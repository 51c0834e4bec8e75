"""The work of a search as tasks of a Dask cluster, seen from the client.

A worker has as many draws in hand as it has threads. What one that dies had in hand is given to another, and the images
are sent again where the last worker that held them is gone.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from cnngp.common.errors import one_line
from cnngp.matrix.cluster.cluster import ClusterError, connect
from cnngp.matrix.cluster.connection import ANSWER_SECONDS, require_dask
from cnngp.matrix.cluster.hands import DEATHS
from cnngp.matrix.cluster.roster import Roster
from cnngp.network.serialize import from_json

from .scoring import Problem, Score, score
from .study import Study
from .work import POLL_SECONDS, Level, claim, compute, keep

_WORKERS_SECONDS = 30


@contextmanager
def connected(scheduler: Any) -> Iterator[Any]:
    """A client with at least one worker: the one given, or one of the scheduler at an address."""
    with ExitStack() as stack:
        if isinstance(scheduler, str):
            scheduler = stack.enter_context(connect(scheduler))
        try:
            scheduler.wait_for_workers(1, timeout=_WORKERS_SECONDS)
        except TimeoutError:
            raise ClusterError(
                f"the scheduler {scheduler.scheduler.address} has no workers; start one with `dask worker`"
            ) from None
        yield scheduler


def fill(level: Level, study: Study, client: Any, told: Callable[[], None]) -> None:
    """Have a level's draws computed; a draw counts when its result is in the study. Claims and study stay here."""
    hands = Hands(client, level.problem, study.path)
    failures = 0
    try:
        while not set(level.draws) <= level.done(study):
            for worker in hands.free():
                number = hands.again.popleft() if hands.again else claim(level, study)
                if number is None:
                    break
                network = None if level.networks is None else level.networks[number]
                hands.give(number, worker, compute, level.space, level.seed, number, network)
            time.sleep(POLL_SECONDS / 3)
            for number, outcome in hands.ended():
                failures = keep(level, study, number, outcome, failures)
                told()
    finally:
        hands.drop()
        study.claims.drop_all()


def score_there(network_json: str, problem: Problem, client: Any, kept: Path) -> Score:
    """One score by a worker: the machine that asks may have no card."""
    hands = Hands(client, problem, kept)
    try:
        while True:
            free = hands.free()
            if not hands.running:
                hands.give(0, free[0], _score, network_json)
            time.sleep(POLL_SECONDS / 3)
            for _, outcome in hands.ended():
                found: Score = outcome()
                return found
    finally:
        hands.drop()


def _score(problem: Problem, network_json: str) -> Score:
    return score(from_json(network_json), problem)


class Hands:
    """Who has which draw in hand. `again` are those that a worker lost; `kept` is the file that an error names."""

    def __init__(self, client: Any, problem: Problem, kept: Path) -> None:
        self.client, self.problem, self.kept = client, problem, kept
        self.roster = Roster(client)
        self.running: dict[int, tuple[str, Any]] = {}
        self.again: deque[int] = deque()
        self._over: list[tuple[int, Callable[[], Any]]] = []
        self._deaths: Counter[int] = Counter()
        self._images: Any = None
        self._unsent = 0

    def free(self) -> list[str]:
        """Workers with a free thread, as often as they have one. Waits while there are no workers, with a warning."""
        with self._reaching():
            self._check_scheduler()
            there = self.roster.workers()
            threads = self.client.nthreads()
            for number, (worker, future) in list(self.running.items()):
                if worker not in there:
                    self._lost(number, future)
        has = Counter(worker for worker, _ in self.running.values())
        return [worker for worker in there for _ in range(threads.get(worker, 0) - has[worker])]

    def give(self, number: int, worker: str, function: Callable[..., Any], *arguments: Any) -> None:
        """Have a worker compute `function(problem, *arguments)`."""
        with self._reaching():
            if not self._send():
                self.again.append(number)
                return
            # On one worker, so that it is known whose death takes the draw with it.
            future = self.client.submit(function, self._images, *arguments, workers=[worker], pure=False)
        self.running[number] = worker, future

    def ended(self) -> list[tuple[int, Callable[[], Any]]]:
        """The draws that are over, each with what gives its result or raises its error."""
        killed = require_dask().KilledWorker
        with self._reaching():
            for number, (_, future) in list(self.running.items()):
                if future.status == "finished":
                    try:
                        found = future.result(timeout=ANSWER_SECONDS)
                    except (TimeoutError, CancelledError):  # its worker has died with the result
                        self._lost(number, future)
                    else:
                        del self.running[number]
                        self._over.append((number, partial(_give, found)))
                elif future.status == "cancelled" or (
                    future.status == "error" and isinstance(future.exception(), killed)
                ):
                    self._lost(number, future)
                elif future.status == "error":
                    del self.running[number]
                    self._over.append((number, partial(_raise, future.exception())))
        over, self._over = self._over, []
        return over

    def drop(self) -> None:
        """Ask for no more."""
        if self.running and self.client.status == "running":
            with suppress(OSError):  # the scheduler has just gone: nobody is left to be told
                self.client.cancel([future for _, future in self.running.values()])

    def _send(self) -> bool:
        """See that workers hold the images. False where a worker was lost on the way."""
        if self._images is not None and self._images.status == "finished":
            return True
        try:  # to all of them: held once, they would be gone with their holder
            self._images = self.client.scatter(self.problem, broadcast=True, hash=False)
        except OSError as error:
            self._images = None
            self.roster.there()  # unless it is the scheduler that is gone
            self._unsent += 1
            if self._unsent >= DEATHS:
                raise ClusterError(f"the images cannot be sent to the workers: {one_line(error)}") from error
            return False
        self._unsent = 0
        return True

    def _lost(self, number: int, future: Any) -> None:
        """Its worker, or the images, are gone: give it again, unless worker after worker has died of it."""
        self._check_scheduler()
        del self.running[number]
        if future.status == "cancelled":
            self._images = None  # the client may not have heard that they are gone
        else:
            future.cancel()
        self._deaths[number] += 1
        if self._deaths[number] < DEATHS:
            self.again.append(number)
            return
        reason = "workers died, one after the other, with it in hand; their logs say why (often too little memory)"
        self._over.append((number, partial(_raise, ClusterError(f"{DEATHS} {reason}"))))

    def _check_scheduler(self) -> None:
        """Before it is asked: Dask would try for half a minute to reach one that is gone."""
        if self.client.status != "running":
            raise ClusterError(f"the scheduler {self.roster.address} is gone")

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Errors of the cluster, with what is left of the search."""
        try:
            yield
        except Exception as error:
            text = str(error)
            if isinstance(error, OSError) or self.client.status != "running":
                text = f"the scheduler {self.roster.address} is gone"
            elif not isinstance(error, ClusterError):
                raise
            raise ClusterError(f"{text}; {self.kept} keeps what is finished, run the same again") from error


def _give(found: Any) -> Any:
    return found


def _raise(error: BaseException) -> NoReturn:
    raise error
