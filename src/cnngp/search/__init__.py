"""Random search for a network: draw, score on validation images, keep the best; resumable, in parallel processes.

draws at a small training size  ──best──▶  those few at larger sizes  ──best──▶  the network, and the test set once
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from cnngp.cluster import ClusterError, DaskUnavailable, connect
from cnngp.common.devices import Device
from cnngp.common.errors import is_whole
from cnngp.common.optional import need
from cnngp.common.progress import progress_bar
from cnngp.common.tables import percent
from cnngp.datasets import sets as datasets
from cnngp.datasets.dataset import Dataset
from cnngp.kernel.engines.cpu.runner import default_threads
from cnngp.kernel.kernel import Kernel
from cnngp.kernel.program import Kind
from cnngp.matrix.cluster.cluster import Cluster
from cnngp.network.layers import Dense, NetworkError

from .scoring import Outcome, Problem, Problems, Score, outcome, split_for
from .space import Space, find_space
from .study import SAMPLERS, SearchResult, Study, StudyError, Trial, best

__all__ = ["SearchResult", "Space", "StudyError", "Trial", "random_search", "split_for"]

# Limits on invalid draws and on failures in a row: more suggest a fault of the space, or of the machine or data.
_MOST_INVALID, _MOST_FAILURES = 1000, 3

Scorer: TypeAlias = Callable[[Iterable[str], Problem], Generator[tuple[int, Outcome]]]
"""(networks, problem) → (k, outcome of the k-th network), as they finish. Networks are taken only when needed."""


def random_search(
    data: Dataset | str | Path,
    space: Space | str = "paper-cnn",
    draws: int = 27,
    *,
    train: int | None = None,
    validation: int | None = None,
    full: Sequence[tuple[int, int | None]] = (),
    test: bool = False,
    seed: int = 0,
    study: str | Path | None = None,
    device: Device = "auto",
    dtype: str = "float32",
    threads: int | None = None,
    kind: Kind = "nngp",
    processes: int = 1,
    scheduler: Any = None,
    progress: bool = True,
    sampler: str = "random",
) -> SearchResult:
    """Draw networks from a space, score each by the validation error of its exact GP, and keep the best.

    Parameters
    ----------
    data : a `Dataset` or the name of one. If it has no validation images, a quarter of the training images, or
        `validation` of them, are held out: stratified by class, always the same ones.
    space : "paper-cnn", "paper-residual", "pooled", or a `Space` of your own.
    draws : total number of networks; those already in the study are not repeated.
    train : number of training images, taken from the start; None takes all.
    validation : number of validation images, likewise.
    full : rounds of scoring again: (3, None) takes the best three with all training images, (20, 10_000) the best
        twenty with 10,000. Each round takes the best of the one before, by validation error.
    test : True to compute the test error of the chosen network too. A test error that the study already holds is
        reported in any case.
    seed : the same seed gives the same draws; with "tpe", only on one process.
    study : file that keeps every draw, or the URL of a database; an interrupted search continues where it stopped.
        Several processes and machines may share it.
    sampler : sampler of Optuna: "random", or "tpe", which learns from earlier draws.
    device : "cpu", "cuda", or "auto" for the GPU if there is one.
    dtype : precision of the kernels, "float32" or "float64".
    threads : CPU threads, as in `Kernel`.
    kind : "nngp", or "ntk" to score networks by their tangent kernel.
    processes : worker processes on this machine. Scripts that ask for more than one need an
        `if __name__ == "__main__":`.
    scheduler : Dask client or address of a scheduler, whose workers score the networks.

    >>> from cnngp import datasets
    >>> from cnngp.search import random_search
    >>> result = random_search(datasets.digits(), draws=3, train=100, validation=100, device="cpu")
    >>> len(result.trials), result.best.error < 0.5
    (3, True)
    """
    start = time.perf_counter()
    _check(draws=draws, processes=processes, seed=seed)
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler={sampler!r}: expected one of {', '.join(map(repr, SAMPLERS))}")
    if scheduler is not None and processes != 1:
        raise ValueError(f"processes={processes} with a scheduler; the scheduler's workers are the processes")
    drawn_from = find_space(space)
    dataset = data if isinstance(data, Dataset) else datasets.load(data, split=split_for(str(data)))
    if scheduler is None:  # raises before the long work if the device or kernel is not available here
        kernel = Kernel(Dense(), device, dtype, threads, kind)
        if processes > 1 and threads is None and kernel.device == "cpu":
            threads = max(1, default_threads() // processes)
    problems = Problems(dataset, validation, device=device, dtype=dtype, threads=threads, kind=kind)
    for entry in full:
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise ValueError(f"full={full!r}: expected pairs (how many, training images or None for all)")
        _check(full=entry[0])
    rungs = [(count, problems.at(size)) for count, size in full]
    base = problems.at(train)
    if test:  # raises before the long work if test labels are missing from training
        problems.on_test(len((rungs[-1][1] if rungs else base).X))
    identity = {
        "space": f"{drawn_from.name} (version {drawn_from.version})",
        "sampler": sampler,
        "seed": seed,
        "images": str(base),
        "content": problems.fingerprint(),
        "dtype": dtype,
        "kind": kind,
    }
    with ExitStack() as stack:
        scored = stack.enter_context(_scorer(processes, scheduler))
        if study is None:
            study = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cnngp-search-"))) / "search.journal"
        kept = Study(str(study), sampler, seed)
        kept.require(identity)
        try:
            kept.resume()
            _draw(kept, scored, drawn_from, base, draws, progress)
            result = kept.result(drawn_from.name, str(base), draws)
            for count, problem in rungs:
                chosen = best(result.rungs[-1] if result.rungs else result.trials, count)
                trials = _again(kept, scored, chosen, problem, f"with {len(problem.X):,} images", progress)
                result = replace(result, rungs=(*result.rungs, trials))
            train = result.best.score.train
            if test:
                _again(kept, scored, [result.best], problems.on_test(train), "on test images", progress, "test")
        except KeyboardInterrupt:
            done = min(draws, len(kept.finished()))
            said = f"interrupted; {done:,} of {draws:,} networks are in {kept.where}. Run it again to continue"
            raise KeyboardInterrupt(said) from None
        except ClusterError as error:
            said = f"{error}; {kept.where} keeps what is finished; run the same command again"
            raise ClusterError(said) from error
        looks = kept.notes("test/")
        if found := looks.get(_key("test", train, result.best)):
            result = replace(result, test=Score(**found), looks=len(looks))
    return replace(result, seconds=time.perf_counter() - start)


@contextmanager
def _scorer(processes: int, scheduler: Any) -> Iterator[Scorer]:
    """Scorer of networks: in this process, by worker processes on this machine, or by those of a scheduler."""
    if scheduler is None and processes == 1:
        yield lambda networks, problem: ((k, outcome(text, problem)) for k, text in enumerate(networks))
        return
    with ExitStack() as stack:
        if scheduler is None:
            distributed = need("distributed", "several processes", DaskUnavailable)
            settings = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
            local = stack.enter_context(distributed.LocalCluster(processes, **settings))
            scheduler = stack.enter_context(distributed.Client(local))
        elif isinstance(scheduler, str):
            scheduler = stack.enter_context(connect(scheduler))
        cluster = Cluster(scheduler)
        cluster.fit()  # raises if it has no workers, before a study is created
        yield partial(cluster.results, outcome)


def _draw(study: Study, scored: Scorer, space: Space, problem: Problem, draws: int, progress: bool) -> None:
    """Draw and score networks from a space until the study has `draws` scores."""
    at_work = invalid = failures = 0

    def networks(asked: list[tuple[Any, str]]) -> Iterator[str]:
        nonlocal at_work
        while len(study.finished()) + at_work < draws:
            trial = study.ask()
            try:
                network = space.network(trial, problem.image_shape).to_json()
            except NetworkError as error:
                end(trial, "", Outcome(None, f"NetworkError: {error}", invalid=True))
            else:
                asked.append((trial, network))
                at_work += 1
                yield network

    def end(trial: Any, network: str, found: Outcome) -> None:
        nonlocal invalid, failures
        if found.score is not None:
            study.tell(trial, "COMPLETE", found.score, network=network)
            invalid = failures = 0
        elif found.invalid:
            study.tell(trial, "PRUNED", invalid=found.reason)
            invalid += 1
        else:
            study.tell(trial, "FAIL", failure=found.reason)
            failures += 1
        if failures >= _MOST_FAILURES:
            raise RuntimeError(f"{found.reason} ({study.where} keeps what is finished)")
        if invalid >= _MOST_INVALID:
            size = " × ".join(map(str, problem.image_shape))
            raise NetworkError(
                f"{invalid:,} draws of the space {space.name} in a row make no network on images of {size}; the "
                f"last: {found.reason}"
            )

    with progress_bar(draws, "draws", "network", wanted=progress, delay=0.5, keep=True) as bar:
        while len(study.finished()) < draws:
            asked: list[tuple[Any, str]] = []
            with closing(scored(networks(asked), problem)) as outcomes:
                for k, found in outcomes:
                    at_work -= 1
                    end(*asked[k], found)
                    bar.update(min(draws, len(study.finished())) - bar.n)
                    for first in best(study.trials(), 1):
                        bar.set_postfix_str(f"best {percent(first.error, 2)} (draw {first.draw})")


def _again(
    study: Study,
    scored: Scorer,
    chosen: Sequence[Trial],
    problem: Problem,
    what: str,
    progress: bool,
    kind: str = "again",
) -> tuple[Trial, ...]:
    """Score the same networks on other images, unless the study has the score already; the best first."""
    keys = {t.draw: _key(kind, len(problem.X), t) for t in chosen}
    known = study.notes(kind)
    todo = [t for t in chosen if keys[t.draw] not in known]
    with (
        progress_bar(len(todo), what, "network", wanted=progress, delay=0.5, keep=True) as bar,
        closing(scored([t.network_json for t in todo], problem)) as outcomes,
    ):
        for k, found in outcomes:
            if found.score is None:
                raise RuntimeError(f"draw {todo[k].draw}: {found.reason} ({study.where} keeps what is finished)")
            study.note(keys[todo[k].draw], asdict(found.score))
            bar.update()
    known = study.notes(kind)
    return tuple(best([replace(t, score=Score(**known[keys[t.draw]])) for t in chosen]))


def _key(kind: str, train: int, trial: Trial) -> str:
    """Key under which the study keeps the score of a network on other images."""
    return f"{kind}/{train}/{trial.draw}"


def _check(**counts: int) -> None:
    for name, value in counts.items():
        least = 0 if name == "seed" else 1
        if not is_whole(value, least):
            raise ValueError(f"{name}={value!r}: expected an integer of {least} or more")
