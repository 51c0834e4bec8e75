"""Search for a network: draw, score on validation images, keep the best; resumable, on any number of processes.

draws at a small training size  ──best──▶  those few at larger sizes  ──best──▶  the network, and the test set once
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cnngp.common.checks import is_whole
from cnngp.common.devices import Device
from cnngp.common.errors import DatasetError
from cnngp.datasets import sets as datasets
from cnngp.datasets.dataset import Dataset
from cnngp.kernel.program import Kind
from cnngp.network.serialize import from_json

from .problems import Problems, split_for
from .result import Look, Rung, SearchResult
from .runs import Level, engine_device, on_cluster, run
from .scoring import Problem, Score, score
from .space import Draw, Space, SpaceError, check_sendable, find_space
from .study import NAME, SAMPLERS, Study, StudyError, Trial, best

__all__ = ["Draw", "SearchResult", "Space", "SpaceError", "StudyError", "Trial", "random_search", "split_for"]


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
    before_test: Callable[[SearchResult], Any] | None = None,
    sampler: str = "random",
) -> SearchResult:
    """Draw networks from a space, score each by the validation error of its exact GP, and keep the best.

    Parameters
    ----------
    data : a `Dataset` or the name of one. Without validation images of its own, a quarter of the training images, or
        `validation`, are held out: each class in proportion, always the same ones.
    space : "paper-cnn", "paper-residual", "wide", "pooled", or a `Space` of your own.
    draws : number of networks in all; those already in the study are not repeated.
    train : how many training images, the first ones; None takes all.
    validation : how many validation images, likewise.
    full : what to score again, in turn: (3, None) the best three with all training images, (20, 10_000) the best
        twenty with 10,000. Each takes the best of the one before, by validation error.
    test : also compute the test error of the network that was chosen. A test error that the study already holds is
        reported without it too.
    seed : the same seed gives the same draws; with "tpe", on one process.
    study : a file that keeps every draw, or the URL of a database; an interrupted search continues where it stopped.
        Several processes and machines may share it.
    sampler : Optuna's: "random", or "tpe", which learns from the draws before.
    device : "cpu", "cuda", or "auto" for the GPU if there is one.
    dtype : precision of the kernels, "float32" or "float64".
    threads : CPU threads, as in `Kernel`.
    kind : "nngp", or "ntk" to score networks by their tangent kernel.
    processes : worker processes on this machine. Scripts that ask for more than one need an
        `if __name__ == "__main__":`.
    scheduler : a Dask client or the address of a scheduler, whose workers compute the draws and see `study`.
    before_test : called with the result before the test images are used, so that it is not lost if that fails.

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
    if not isinstance(data, (str, Path, Dataset)):
        raise DatasetError(
            f"data is a {type(data).__name__}; expected a name such as 'digits', or "
            "cnngp.datasets.Dataset(name, X, y, X_test, y_test)"
        )
    if scheduler is not None and processes != 1:
        raise ValueError(f"processes={processes} with a scheduler; the scheduler's workers are the processes")
    drawn_from = find_space(space)
    if processes > 1 or scheduler is not None:
        check_sendable(drawn_from)
    dataset = data if isinstance(data, Dataset) else datasets.load(data, split=split_for(str(data)))
    problems = Problems(dataset, validation, device=device, dtype=dtype, threads=threads, kind=kind)
    rungs = [(count, problems.at(size)) for count, size in _checked(full)]
    base = problems.at(train)
    if test:  # refuses labels that cannot be predicted, before the long work
        problems.on_test(len((rungs[-1][1] if rungs else base).X))
    if scheduler is None:
        engine_device(base)
    identity = {
        "space": f"{drawn_from.name} (version {drawn_from.version})",
        "sampler": sampler,
        "seed": seed,
        "images": str(base),
        "content": base.fingerprint(),
        "dtype": dtype,
        "kind": kind,
    }
    with on_cluster(scheduler) as cluster, _place(study) as where:
        kept = Study(where)
        kept.require(identity)
        level = Level(where, NAME, base, draws, drawn_from, sampler, seed)
        run(level, kept, processes, cluster, progress)
        result = _result(level, kept)
        for count, problem in rungs:
            chosen = best(result.rungs[-1].trials if result.rungs else result.trials, count)
            again = _again(level, problem, chosen)
            rung = Study(where, again.name)
            run(again, rung, processes, cluster, progress)
            scores = {t.draw: t.score for t in rung.trials()}
            rescored = best([replace(t, score=scores[t.draw]) for t in chosen])
            result = replace(result, rungs=(*result.rungs, Rung(len(problem.X), tuple(rescored))))
        look = _seen(kept, result.best, problems)
        if look is None and test:
            if before_test is not None:
                before_test(replace(result, seconds=time.perf_counter() - start))
            problem = problems.on_test(result.best.score.train)
            if cluster is None:
                found = score(result.best.network, problem, progress=progress)
            else:
                [found] = cluster.computed(_scored, [result.best.network_json], problem)
            kept.note(_key(result.best, problem), asdict(found))
            look = _seen(kept, result.best, problems)
    return replace(result, test=look, seconds=time.perf_counter() - start)


def _result(level: Level, study: Study) -> SearchResult:
    trials = study.trials()[: level.draws]
    failures = study.failures()
    if not trials:
        raise RuntimeError(f"no draw gave a result; {next(iter(failures.values()))}")
    last = trials[-1].draw
    invalid = {t.user_attrs["draw"] for t in study.records("PRUNED") if t.user_attrs["draw"] < last}
    failures = {draw: failure for draw, failure in failures.items() if draw < last}
    return SearchResult(level.space.name, str(level.problem), tuple(trials), len(invalid), failures)


def _again(level: Level, problem: Problem, chosen: Sequence[Trial]) -> Level:
    """Networks that were drawn before, with other training images: a study of its own at the same place."""
    name = f"{NAME}, {len(problem.X)} training images, {problem.fingerprint()[:12]}"
    networks = {t.draw: t.network_json for t in chosen}
    return replace(level, name=name, problem=problem, draws=len(chosen), networks=networks)


def _seen(study: Study, chosen: Trial, problems: Problems) -> Look | None:
    """The look at the test images with this network, if the study knows of one."""
    notes = study.notes("test/")
    try:
        found = notes.get(_key(chosen, problems.on_test(chosen.score.train))) if notes else None
    except DatasetError:  # labels that cannot be predicted: nobody has looked
        return None
    if found is None:
        return None
    known = Score(**found)
    return Look(chosen.draw, known.train, known.error, known.validation, len(notes))


def _key(chosen: Trial, problem: Problem) -> str:
    return f"test/{problem.fingerprint()[:16]}/{chosen.draw}"


def _scored(network_json: str, problem: Problem) -> Score:
    return score(from_json(network_json), problem)


def _check(**counts: int) -> None:
    for name, value in counts.items():
        least = 0 if name == "seed" else 1
        if not is_whole(value, least):
            raise ValueError(f"{name}={value!r}: expected an integer of {least} or more")


def _checked(full: Sequence[tuple[int, int | None]]) -> Sequence[tuple[int, int | None]]:
    for entry in full:
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise ValueError(f"full={full!r}: expected pairs (how many, training images or None for all)")
        _check(full=entry[0])
    return full


@contextmanager
def _place(study: str | Path | None) -> Iterator[str]:
    """The file or URL that was asked for, or a file that is gone afterwards."""
    if study is not None:
        yield str(study)
        return
    with tempfile.TemporaryDirectory(prefix="cnngp-search-") as folder:
        yield str(Path(folder) / "search.journal")
