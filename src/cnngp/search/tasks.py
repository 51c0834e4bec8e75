"""The work of a search as tasks of a Dask cluster, seen from the client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cnngp.matrix.cluster.connection import ClusterError, connect
from cnngp.matrix.cluster.hands import Hands, Task, compute_all
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
    """Have a level's draws computed; a draw counts when its result is in the study. Claims and study stay here.

    A worker has as many draws in hand as it has threads.
    """
    hands = Hands(Roster(client), lambda number: f"draw {number}", level.problem)
    failures = 0
    try:
        while not set(level.draws) <= level.done(study):
            with _keeping(study.path):
                for worker in hands.free(ahead=None):
                    task = hands.again.popleft() if hands.again else _next(level, study)
                    if task is None:
                        break
                    network = None if level.networks is None else level.networks[task.item]
                    hands.give(task, worker, compute, level.space, level.seed, task.item, network)
                ended = hands.ended(POLL_SECONDS)
            for task, outcome in ended:
                failures = keep(level, study, task.item, outcome, failures)
                told()
    finally:
        hands.drop()
        study.claims.drop_all()


def _next(level: Level, study: Study) -> Task | None:
    number = claim(level, study)
    return None if number is None else Task(number)


def score_there(network_json: str, problem: Problem, client: Any, kept: Path) -> Score:
    """One score by a worker: the machine that asks may have no card."""
    with _keeping(kept):
        [found] = compute_all(Roster(client), _score, [network_json], named=lambda _: "the network", data=problem)
    assert isinstance(found, Score)
    return found


@contextmanager
def _keeping(study: Path) -> Iterator[None]:
    """Errors of the cluster, with what is left of the search."""
    try:
        yield
    except ClusterError as error:
        raise ClusterError(f"{error}; {study} keeps what is finished; run the same command again") from error


def _score(problem: Problem, network_json: str) -> Score:
    return score(from_json(network_json), problem)
