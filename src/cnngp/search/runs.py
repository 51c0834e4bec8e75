"""The work of a search: the loop over draws, here, on processes of this machine, or on the workers of a cluster."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from cnngp.common import memory
from cnngp.common.devices import ActualDevice
from cnngp.common.progress import progress_bar
from cnngp.common.tables import percent
from cnngp.gp.checks import MatrixError
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.kernel import Kernel
from cnngp.matrix.cluster.cluster import Cluster, Refused
from cnngp.matrix.cluster.connection import ClusterError, connect
from cnngp.network.layers import Dense, Network, NetworkError
from cnngp.network.serialize import from_json

from .scoring import Problem, score
from .space import Draw, Space, SpaceError
from .study import Study, StudyError, best, this_process

# Draws in a row that no network comes of, and that fail: more are the fault of the space, or of the machine or data.
_MOST_INVALID = 1000
_MOST_FAILURES = 3
POLL_SECONDS = 0.3


@dataclass(frozen=True)
class Level:
    """Draws to score on one problem: new ones from a space, or `networks` that were drawn before."""

    where: str
    name: str
    problem: Problem
    draws: int
    """How many there are to be in all."""
    space: Space
    sampler: str
    seed: int
    networks: dict[int, str] | None = None

    def done(self, study: Study) -> int:
        return min(self.draws, len({t.user_attrs["draw"] for t in study.records("COMPLETE")}))

    def network(self, trial: Any) -> Network:
        if self.networks is not None:
            return from_json(self.networks[trial.user_attrs["draw"]])
        network = self.space.network(Draw(trial))
        self.space.check_cost(network.shapes(self.problem.image_shape).cost)
        return network


def work(level: Level, by: str, told: Callable[[], None], go_on: Callable[[], bool]) -> None:
    """Draw after draw, until there are as many as were asked for or others are at the last ones."""
    study = Study(level.where, level.name, new=False)
    chosen = None if level.networks is None else list(level.networks)
    no_network = (NetworkError, RangeError, MatrixError) if chosen is None else ()
    failures = invalid = 0
    while go_on() and (trial := study.ask(level.draws, chosen, level.sampler, level.seed, by)) is not None:
        try:
            network = level.network(trial)
            found = score(network, level.problem)
        except no_network as error:
            study.tell(trial, None, "PRUNED", invalid=f"{type(error).__name__}: {error}")
            invalid += 1
            if invalid >= _MOST_INVALID:
                size = " × ".join(map(str, level.problem.image_shape))
                raise NetworkError(
                    f"{invalid:,} draws of the space {level.space.name} in a row make no network on images of {size}; "
                    f"the last: {error}"
                ) from error
        except SpaceError:  # every draw would fail of it
            study.tell(trial, None, "FAIL")
            raise
        except Exception as error:
            failure = " ".join(f"draw {trial.user_attrs['draw']}: {type(error).__name__}: {error}".split())
            study.tell(trial, None, "FAIL", **({"failure": failure} if chosen is None else {}))
            failures += 1
            if failures >= _MOST_FAILURES or chosen is not None:
                raise RuntimeError(f"{failure} ({level.where} keeps what is finished)") from error
        except BaseException:
            study.tell(trial, None, "FAIL")  # to be drawn again
            raise
        else:
            study.tell(trial, found.error, network=network.to_json(), score=found)
            failures = invalid = 0
        told()


def run(level: Level, study: Study, processes: int, cluster: Cluster | None, progress: bool) -> None:
    """Fill a level, and show how far it is."""
    with _bar(level, study, progress) as told, _interruptible(level, study):
        while level.done(study) < level.draws:
            if cluster is not None:
                _on_cluster(level, study, cluster, told)
                continue
            several = min(processes, level.draws - level.done(study), _fitting(level.problem))
            if several > 1:
                _on_processes(_for_one_of(level, several), several, told)
            else:
                work(level, this_process(), told, lambda: True)
            if level.done(study) < level.draws:  # others are at the last ones; should one of them die, its draw is ours
                time.sleep(POLL_SECONDS)
                told()
        told()


# ---- processes -------------------------------------------------------------------------------------------------------


def engine_device(problem: Problem) -> ActualDevice:
    """Where kernels will be computed; refuses a device, type or thread count that cannot be."""
    return Kernel(Dense(), problem.device, problem.dtype, problem.threads, problem.kind).device


def _fitting(problem: Problem) -> int:
    """Number of processes that the memory allows."""
    free = memory.available(engine_device(problem))
    return 1 << 20 if free is None else max(1, free // problem.bytes_needed)


def _for_one_of(level: Level, processes: int) -> Level:
    """Each process has its share of the CPU's threads."""
    if level.problem.threads is not None or engine_device(level.problem) != "cpu":
        return level
    from cnngp.kernel.engines.cpu.runner import default_threads

    return replace(level, problem=replace(level.problem, threads=max(1, default_threads() // processes)))


def _on_processes(level: Level, processes: int, told: Callable[[], None]) -> None:
    """Spawned, not forked: a fork of a process with threads or a card is broken."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, spawn, signal.signal, (signal.SIGINT, signal.SIG_IGN))  # Ctrl-C is ours
    try:
        running = [pool.submit(_process, level) for _ in range(processes)]
        while wait(running, timeout=POLL_SECONDS).not_done:
            told()
            for ended in (r for r in running if r.done()):
                ended.result()
        for ended in running:
            ended.result()
    except BrokenProcessPool:
        raise RuntimeError(
            "a worker process ended by itself, as when memory runs out; what is finished is kept, run again with fewer "
            "processes"
        ) from None
    finally:
        for process in list(pool._processes.values()) if pool._processes else ():
            process.terminate()  # a draw in progress is done again by the next run
        pool.shutdown(wait=True, cancel_futures=True)


def _process(level: Level) -> None:
    """What a process runs. Without its parent it stops."""
    parent = multiprocessing.parent_process()
    work(level, this_process(), lambda: None, lambda: parent is None or parent.is_alive())


# ---- Dask ------------------------------------------------------------------------------------------------------------


@contextmanager
def on_cluster(scheduler: Any) -> Iterator[Cluster | None]:
    """The workers of a client, or of the scheduler at an address, if one is given."""
    if scheduler is None:
        yield None
        return
    with nullcontext(scheduler) if not isinstance(scheduler, str) else connect(scheduler) as client:
        cluster = Cluster(client)
        cluster.fit()  # one line where it has no workers, before a study is made
        yield cluster


def _on_cluster(level: Level, study: Study, cluster: Cluster, told: Callable[[], None]) -> None:
    done = level.done(study)
    try:
        with closing(cluster.everywhere(_on_worker, level)) as seconds:
            while done < level.draws:
                next(seconds)
                study.give_up(cluster.fit())
                told()
                before, done = done, level.done(study)
                cluster.lost = cluster.lost if done == before else 0
    except ClusterError as error:
        raise ClusterError(f"{error}; {level.where} keeps what is finished; run the same command again") from error


def _on_worker(turn: int, level: Level) -> None:
    from distributed import get_worker

    try:
        work(level, this_process(get_worker().address), lambda: None, lambda: True)
    except StudyError as error:
        raise Refused(f"{error}; give a study that all workers see") from None


# ---- what people see -------------------------------------------------------------------------------------------------


@contextmanager
def _bar(level: Level, study: Study, wanted: bool) -> Iterator[Callable[[], None]]:
    """A progress bar with the best so far, on a terminal."""
    what = "draws" if level.networks is None else f"with {len(level.problem.X):,} images"
    with progress_bar(level.draws, what, "network", wanted=wanted, delay=0.5, keep=True) as bar:

        def told() -> None:
            if bar.disable:
                return
            bar.update(level.done(study) - bar.n)
            for first in best(study.trials(), 1):
                bar.set_postfix_str(f"best {percent(first.error, 2)} (draw {first.draw})")

        told()
        yield told


@contextmanager
def _interruptible(level: Level, study: Study) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; {level.done(study):,} of {level.draws:,} networks are in {level.where}. Run it again to "
            "continue"
        ) from None
