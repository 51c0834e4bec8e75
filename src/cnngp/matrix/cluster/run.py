"""One run on a cluster, seen from the client: which tiles are given out next, and what became of them.

A worker is given a few tiles at a time, never more than two tasks, so nothing here grows with the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cnngp.common.tiles import Grid

from .hands import AHEAD, Hands, Task
from .roster import Roster
from .worker import Job, Refused, TileAt, work

# A task holds enough tiles to take about this long; tiles are then written while the next are computed, and the
# scheduler has little to do.
_TASK_SECONDS = 4.0
_MOST_TILES = 64


class Run:
    """The client's side of one run."""

    def __init__(
        self,
        roster: Roster,
        job: Job,
        grid: Grid,
        todo: Sequence[TileAt],
        count: Callable[[int], None],
        advance: Callable[[int], Any],
    ) -> None:
        self.job, self.grid, self.todo = job, grid, todo
        self.count, self.advance = count, advance
        self.hands = Hands(roster, lambda tiles: f"the tiles from {tiles[0]}")
        self.given = 0
        self.size = 1

    def go(self) -> None:
        try:
            while self.hands.running or self.hands.again or self.given < len(self.todo):
                self.give()
                for task, outcome in self.hands.ended():
                    self._finish(task, outcome())
        finally:
            self.hands.drop()

    def give(self) -> None:
        for worker in self.hands.free():
            task = self._next(len(self.hands.workers()))
            if task is None:
                return
            self.hands.give(task, worker, work, self.job, task.item, task.again)

    def _next(self, workers: int) -> Task | None:
        if self.hands.again:
            return self.hands.again.popleft()
        left = len(self.todo) - self.given
        if not left:
            return None
        # Towards the end ever fewer, so that all workers are done at about the same time.
        size = max(1, min(self.size, left // (2 * AHEAD * max(1, workers))))
        task = Task(list(self.todo[self.given : self.given + size]))
        self.given += size
        return task

    def _finish(self, task: Task, result: Any) -> None:
        if isinstance(result, Refused):
            self.hands.refuse(task, result.reason)
            return
        self.count(len(task.item))
        self.advance(sum(self.grid.at(i, j).pairs for i, j in task.item))
        if len(task.item) == self.size and result.seconds < _TASK_SECONDS / 2:
            self.size = min(2 * self.size, _MOST_TILES)
