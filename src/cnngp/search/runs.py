"""Where the work of a search is done: here, on processes of this machine, or as tasks of a Dask cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cnngp.common import memory
from cnngp.common.devices import ActualDevice
from cnngp.common.progress import progress_bar
from cnngp.kernel.kernel import Kernel
from cnngp.network.layers import Dense

from .scoring import Problem, Score
from .study import Study, best
from .work import POLL_SECONDS, Level, work


def on_processes(level: Level, study: Study, processes: int, progress: bool) -> None:
    """Fill a level here, or on several processes of this machine."""
    missing = len(set(level.draws) - level.done(study))
    device = engine_device(level.problem)
    free = memory.available(device)
    if free is not None:
        processes = min(processes, max(1, free // level.problem.bytes_needed))
    processes = min(processes, missing)
    with _bar(level, study, progress) as told, _interruptible(level, study):
        if processes <= 1:
            work(level, study, told)
        else:
            _spawn(_for_one_of(level, processes, device), processes, told)
        told()


def engine_device(problem: Problem) -> ActualDevice:
    """Where kernels will be computed; refuses a device, type or thread count that cannot be."""
    return Kernel(Dense(), problem.device, problem.dtype, problem.threads, problem.kind).device


def _for_one_of(level: Level, processes: int, device: str) -> Level:
    """Each process has its share of the CPU's threads."""
    if level.problem.threads is not None or device != "cpu":
        return level
    from cnngp.kernel.engines.cpu.runner import default_threads

    threads = max(1, default_threads() // processes)
    return replace(level, problem=replace(level.problem, threads=threads))


def _spawn(level: Level, processes: int, told: Callable[[], None]) -> None:
    """Start the processes and watch them. Spawned, not forked: a fork of a process with threads or a card is broken."""
    context = multiprocessing.get_context("spawn")
    errors = context.SimpleQueue()
    workers = [context.Process(target=_process, args=(level, errors), daemon=True) for _ in range(processes)]
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            for worker in workers:
                worker.join(POLL_SECONDS / processes)
            told()
            _raise_failure(workers, errors)
        _raise_failure(workers, errors)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.terminate()  # its claim goes with it
        for worker in workers:
            if worker.pid is not None:
                worker.join()


def _raise_failure(workers: list[Any], errors: Any) -> None:
    if not errors.empty():
        raise RuntimeError(errors.get())
    codes = [worker.exitcode for worker in workers if worker.exitcode not in (None, 0)]
    if codes and errors.empty():
        raise RuntimeError(
            f"a worker process ended with exit code {codes[0]}, as when memory runs out; what is finished is kept, run "
            "again with fewer processes"
        )


def _process(level: Level, errors: Any) -> None:
    """What a process runs. Ctrl-C is its parent's to handle, and without its parent it stops."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    try:
        with Study(level.path, level.identity) as study:
            work(level, study, _nothing, lambda: parent is None or parent.is_alive())
    except Exception as error:
        errors.put(str(error) or type(error).__name__)


def _nothing() -> None:
    pass


# ---- Dask -----------------------------------------------------------------------------------------------------------


def on_cluster(level: Level, study: Study, scheduler: Any, progress: bool) -> None:
    """Fill a level with tasks on a cluster's workers; claims and study stay here."""
    from .tasks import connected, fill

    with connected(scheduler) as client, _bar(level, study, progress) as told, _interruptible(level, study):
        fill(level, study, client, told)
        told()


def score_on_cluster(network_json: str, problem: Problem, study: Study, scheduler: Any) -> Score:
    """One score by a worker: the machine that asks may have no card."""
    from .tasks import connected, score_there

    with connected(scheduler) as client:
        return score_there(network_json, problem, client, study.path)


def check_cluster(scheduler: Any) -> None:
    """One line where there is no scheduler, or where it has no workers."""
    from .tasks import connected

    with connected(scheduler):
        pass


# ---- what people see ------------------------------------------------------------------------------------------------


@contextmanager
def _bar(level: Level, study: Study, wanted: bool) -> Iterator[Callable[[], None]]:
    """A progress bar with the best so far, on a terminal."""
    what = "draws" if level.networks is None else f"with {len(level.problem.X):,} images"
    with progress_bar(len(level.draws), what, "network", wanted=wanted, delay=0.5, keep=True) as bar:

        def told() -> None:
            if bar.disable:
                return
            trials = [t for t in level.trials(study) if t.draw in level.draws]
            bar.update(len(trials) - bar.n)
            if trials:
                first = best(trials)[0]
                bar.set_postfix_str(f"best {100 * first.error:.2f} % (draw {first.draw})")

        told()
        yield told


@contextmanager
def _interruptible(level: Level, study: Study) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        done = len(set(level.draws) & level.done(study))
        raise KeyboardInterrupt(
            f"interrupted; {done:,} of {len(level.draws):,} networks are in {study.path}. Run it again to continue"
        ) from None


def run_token() -> str:
    return f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
