"""One run on a cluster, seen from the client: who has which tiles in hand.

A worker is given a few tiles at a time, never more than two tasks, so nothing here grows with the matrix. What a worker
that dies, or is paused, or refuses, had in hand is given to another.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..grid import Grid
from .connection import ANSWER_SECONDS, ClusterError, require_dask
from .roster import LOOK_SECONDS, Roster
from .worker import Done, Job, Place, Refused, work

log = logging.getLogger("cnngp")

# Tasks that a worker has: one that it computes, and one to go on with at once.
_AHEAD = 2
# A task has as many tiles as take about this long; tiles are then written while the next are computed, and the
# scheduler has little to do.
_TASK_SECONDS = 4.0
_MOST_TILES = 64
# Deaths of workers with the same work in hand, until this is blamed.
DEATHS = 4


@dataclass(eq=False)
class Task:
    """Tiles that a worker has in hand."""

    places: list[Place]
    worker: str = ""
    deaths: int = 0
    again: bool = False
    """Another worker had them in hand, and may have written some."""


class Run:
    """The client's side of one run: who has which tiles in hand."""

    def __init__(
        self,
        roster: Roster,
        job: Job,
        grid: Grid,
        todo: Sequence[Place],
        count: Callable[[int], None],
        advance: Callable[[int], Any],
    ) -> None:
        self.roster, self.client, self.job, self.grid = roster, roster.client, job, grid
        self.count, self.advance = count, advance
        self.todo = todo
        self.given = 0
        self.again: deque[Task] = deque()
        self.flying: dict[Any, Task] = {}
        self.ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.size = 1
        self.number = 0

    def go(self) -> None:
        looked = -LOOK_SECONDS
        workers: list[str] = []
        try:
            while self.flying or self.again or self.given < len(self.todo):
                if time.monotonic() - looked > LOOK_SECONDS:
                    workers, looked = self.roster.workers(), time.monotonic()
                    self._take_from_the_lost(set(workers))
                self._give(workers)
                try:
                    future = self.ended.get(timeout=LOOK_SECONDS)
                except queue.Empty:
                    continue
                task = self.flying.pop(future, None)
                if task is not None:
                    self._finish(future, task)
                    if task.worker in self.roster.refused:
                        workers, looked = [], -LOOK_SECONDS
        finally:
            if self.flying and self.client.status == "running":
                self.client.cancel(list(self.flying))

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
                self.roster.used.add(worker)
                has[worker] += 1
                self.number += 1
                future = self.client.submit(
                    work,
                    self.job,
                    task.places,
                    task.again,
                    key=f"cnngp-tiles-{self.job.mark[:8]}-{self.number}",
                    workers=[worker],
                )
                self.flying[future] = task
                future.add_done_callback(self.ended.put)

    def _next(self, workers: int) -> Task | None:
        if self.again:
            return self.again.popleft()
        left = len(self.todo) - self.given
        if not left:
            return None
        # Towards the end ever fewer, so that all workers are done at about the same time.
        size = max(1, min(self.size, left // (2 * _AHEAD * workers)))
        task = Task(list(self.todo[self.given : self.given + size]))
        self.given += size
        return task

    def _finish(self, future: Any, task: Task) -> None:
        if future.status != "finished":
            self._fail(future, task)
            return
        try:
            result: Done | Refused = future.result(timeout=ANSWER_SECONDS)
        except TimeoutError:
            future.cancel()
            self._died(task)
            return
        if isinstance(result, Refused):
            self.roster.refuse(task.worker, result.reason)
            self._give_again(task)
            return
        self.count(len(task.places))
        self.advance(sum(self.grid.at(i, j).pairs for i, j in task.places))
        if len(task.places) == self.size and result.seconds < _TASK_SECONDS / 2:
            self.size = min(2 * self.size, _MOST_TILES)

    def _fail(self, future: Any, task: Task) -> None:
        if future.status == "error":
            error = future.exception()
            if not isinstance(error, require_dask().KilledWorker):
                raise error
        elif self.client.status != "running":
            raise ClusterError(f"the scheduler {self.roster.address} is gone")
        self._died(task)

    def _take_from_the_lost(self, at_work: set[str]) -> None:
        """What workers have in hand that are gone, paused, or have refused another task."""
        lost = [(future, task) for future, task in self.flying.items() if task.worker not in at_work]
        if not lost:
            return
        there = self.roster.there(paused=True)
        for worker in {task.worker for _, task in lost} - self.roster.refused.keys():
            paused = "begins no more tasks (Dask pauses one whose memory is nearly full)"
            log.warning("worker %s %s; others do its tiles", worker, paused if worker in there else "is gone")
        for future, task in lost:
            del self.flying[future]
            future.cancel()
            if task.worker in there or task.worker in self.roster.refused:
                self._give_again(task)
            else:
                self._died(task)

    def _died(self, task: Task) -> None:
        task.deaths += 1
        if task.deaths >= DEATHS:
            raise ClusterError(
                f"{task.deaths} workers died, one after the other, with the tiles from {task.places[0]} in hand; their "
                "logs say why (often too little memory)"
            )
        self._give_again(task)

    def _give_again(self, task: Task) -> None:
        task.again = True
        self.again.append(task)
