"""Where networks are scored: in this process, on several of this machine, or on the workers of a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from cnngp.common import memory
from cnngp.common.devices import ActualDevice
from cnngp.common.errors import one_line
from cnngp.gp.checks import MatrixError
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.kernel import Kernel
from cnngp.matrix.cluster.cluster import Cluster
from cnngp.matrix.cluster.connection import connect
from cnngp.network.layers import Dense, NetworkError
from cnngp.network.serialize import from_json

from .scoring import Problem, Score, score

POLL_SECONDS = 0.3


@dataclass(frozen=True)
class Outcome:
    """What came of a network: a score, or the reason why there is none."""

    score: Score | None = None
    reason: str = ""
    invalid: bool = False
    """Whether the network cannot be used with these images at all."""


def outcome(network_json: str, problem: Problem) -> Outcome:
    """Score a network. What goes wrong is told in words: whoever asked may not have what it takes to make the error."""
    try:
        return Outcome(score(from_json(network_json), problem))
    except Exception as error:
        invalid = isinstance(error, (NetworkError, RangeError, MatrixError))
        return Outcome(None, f"{type(error).__name__}: {one_line(error)}", invalid)


class Pool:
    """Scores networks; `cluster` is None on this machine."""

    def __init__(self, processes: int, cluster: Cluster | None) -> None:
        self._processes, self._cluster = processes, cluster

    def outcomes(self, networks: Iterable[str], problem: Problem) -> Generator[tuple[int, Outcome] | None]:
        """(k, what came of the k-th network), as they come, and now and then None; networks are taken when needed."""
        several = min(self._processes, _fitting(problem)) if self._processes > 1 else 1
        if self._cluster is not None:
            yield from self._cluster.results(outcome, networks, problem)
        elif several > 1:
            yield from _on_processes(networks, problem, several)
        else:
            yield from ((k, outcome(network, problem)) for k, network in enumerate(networks))


@contextmanager
def pool_of(processes: int, scheduler: Any) -> Iterator[Pool]:
    """The pool of a number of processes, or of a Dask client or the scheduler at an address if one is given."""
    if scheduler is None:
        yield Pool(processes, None)
        return
    with nullcontext(scheduler) if not isinstance(scheduler, str) else connect(scheduler) as client:
        cluster = Cluster(client)
        cluster.fit()  # one line where it has no workers, before a study is made
        yield Pool(processes, cluster)


def engine_device(problem: Problem) -> ActualDevice:
    """Where kernels will be computed; refuses a device, type or thread count that cannot be."""
    return Kernel(Dense(), problem.device, problem.dtype, problem.threads, problem.kind).device


def _fitting(problem: Problem) -> int:
    """Number of processes that the memory allows."""
    free = memory.available(engine_device(problem))
    return 1 << 20 if free is None else max(1, free // problem.bytes_needed)


def _on_processes(networks: Iterable[str], problem: Problem, processes: int) -> Generator[tuple[int, Outcome] | None]:
    """Spawned, not forked: a fork of a process with threads or a card is broken."""
    if problem.threads is None and engine_device(problem) == "cpu":
        from cnngp.kernel.engines.cpu.runner import default_threads

        problem = replace(problem, threads=max(1, default_threads() // processes))
    todo, running = enumerate(networks), dict[Future[Outcome], int]()
    pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin, (problem,))
    try:
        while True:
            for k, network in islice(todo, processes - len(running)):
                running[pool.submit(_outcome_here, network)] = k
            if not running:
                return
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
            yield None
    except BrokenProcessPool:
        raise RuntimeError(
            "a worker process ended by itself, as when memory runs out; what is finished is kept, run again with fewer "
            "processes"
        ) from None
    finally:
        for process in list(pool._processes.values()) if pool._processes else ():
            process.terminate()  # a draw in progress is done again by the next run
        pool.shutdown(wait=True, cancel_futures=True)


_here: list[Problem] = []
"""The problem of a process of a pool."""


def _begin(problem: Problem) -> None:
    """Begin a process of a pool: Ctrl-C is its parent's, and without its parent it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _here.append(problem)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _outcome_here(network_json: str) -> Outcome:
    return outcome(network_json, _here[0])
