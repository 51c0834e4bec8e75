"""Random search over networks: draw, score on validation images, keep the best; resumable, on any number of processes.

draws at a small training size  ──best──▶  those few at larger sizes  ──best──▶  the network, and the test set once
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.checks import is_whole
from cnngp.common.devices import Device
from cnngp.common.errors import DatasetError
from cnngp.datasets import sets as datasets
from cnngp.datasets.dataset import Dataset
from cnngp.kernel.program import Kind

from .result import Look, Rung, SearchResult
from .runs import (
    check_cluster,
    engine_device,
    on_cluster,
    on_processes,
    run_token,
    score_on_cluster,
)
from .scoring import Problem, score
from .space import Draw, Space, SpaceError, check_sendable, find_space
from .study import Study, StudyError, Trial, best, require, score_from
from .work import Level

__all__ = ["Draw", "SearchResult", "Space", "SpaceError", "StudyError", "Trial", "random_search"]


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
) -> SearchResult:
    """Draw networks from a space, score each by the validation error of its exact GP, and keep the best.

    Parameters
    ----------
    data : a `Dataset` or the name of one. Without validation images of its own, a quarter of the training images, or
        `validation`, are held out: each class in proportion, always the same ones.
    space : "paper-cnn", "paper-residual", "wide", "pooled", or a `Space` of your own.
    draws : number of networks in all; those already in the study are not repeated.
    train, validation : how many images of each, the first ones; None takes all.
    full : what to score again, in turn: (3, None) the best three with all training images, (20, 10_000) the best
        twenty with 10,000. Each takes the best of the one before, by validation error.
    test : also compute the test error of the network that was chosen. A test error that the study already holds is
        reported without it too.
    seed : the same seed gives the same draws, on any number of processes.
    study : an SQLite file that keeps every draw; an interrupted search continues where it stopped. Several searches
        may share it.
    device, dtype, threads, kind : as in `Kernel`; kind="ntk" scores networks by their tangent kernel.
    processes : worker processes on this machine. Scripts that ask for more than one need an
        `if __name__ == "__main__":`.
    scheduler : a Dask client or the address of a scheduler, to compute all of it on its workers.
    before_test : called with the result before the test images are used, so that it is not lost if that fails.

    >>> from cnngp import datasets, random_search
    >>> result = random_search(datasets.digits(), draws=3, train=100, validation=100, device="cpu")
    >>> len(result.trials), result.best.error < 0.5
    (3, True)
    """
    require()
    start = time.perf_counter()
    _check_counts(draws=draws, processes=processes, seed=seed)
    if not isinstance(data, (str, Path, Dataset)):
        raise DatasetError(
            f"data is a {type(data).__name__}; expected a name such as 'digits', or "
            "cnngp.datasets.Dataset(name, X, y, X_test, y_test)"
        )
    if scheduler is not None and processes != 1:
        raise ValueError(f"processes={processes} with a scheduler; the scheduler's workers are the processes")
    drawn_from = find_space(space)
    if processes > 1:
        check_sendable(drawn_from)
    dataset = data if isinstance(data, Dataset) else datasets.load(data, split=split_for(str(data)))
    problems = _Problems(dataset, validation, Problem(dataset.name, *_NOTHING, 0, device, dtype, threads, kind))
    rungs = [(count, problems.at(size)) for count, size in _check_full(full)]
    base = problems.at(train)
    if test:  # refuses labels that cannot be predicted, before the long work
        problems.on_test(len((rungs[-1][1] if rungs else base).X))
    if scheduler is None:
        engine_device(base)
    else:
        check_cluster(scheduler)  # before a study is made
    identity = {
        "space": f"{drawn_from.name} (version {drawn_from.version})",
        "seed": seed,
        "images": str(base),
        "content": base.fingerprint(),
        "dtype": dtype,
    }
    if kind != "nngp":
        identity["kind"] = kind
    with _study_path(study) as path, Study(path, identity) as opened:
        level = Level(path, identity, base, run_token(), tuple(range(draws)), drawn_from, seed)
        search = _Search(opened, processes, scheduler, progress)
        result = search.draw(level)
        for count, problem in rungs:
            candidates = result.rungs[-1].trials if result.rungs else result.trials
            rung = search.again(level, problem, best(candidates, count))
            result = replace(result, rungs=(*result.rungs, rung))
        look = search.seen(result.best, problems)
        if look is None and test:
            if before_test is not None:
                before_test(replace(result, seconds=time.perf_counter() - start))
            look = search.look(result.best, problems)
    result = replace(result, test=look)
    return replace(result, seconds=time.perf_counter() - start)


@dataclass
class _Search:
    """A study, and where the work for it is done."""

    study: Study
    processes: int
    scheduler: Any
    progress: bool

    def draw(self, level: Level) -> SearchResult:
        trials = self._run(level)
        failures = {k: v for k, v in self.study.failures().items() if k in level.draws}
        if not trials:
            raise RuntimeError(f"no draw gave a result; {next(iter(failures.values()))}")
        invalid = sum(len(t.invalid) for t in trials)
        return SearchResult(level.space.name, str(level.problem), tuple(trials), invalid, failures)

    def again(self, level: Level, problem: Problem, chosen: Sequence[Trial]) -> Rung:
        """The scores of networks that were drawn before, with other training images."""
        networks = {t.draw: t.network_json for t in chosen}
        content = problem.fingerprint()[:16]
        trials = self._run(replace(level, problem=problem, draws=tuple(networks), networks=networks, content=content))
        scores = {t.draw: t.score for t in trials}
        return Rung(len(problem.X), tuple(best([replace(t, score=scores[t.draw]) for t in chosen])))

    def seen(self, chosen: Trial, problems: _Problems) -> Look | None:
        """The study's earlier look at the test images with this network, if there was one."""
        notes = self.study.notes("test")
        if not notes:
            return None
        try:
            key = self._key(chosen, problems.on_test(chosen.score.train))
        except DatasetError:  # labels that cannot be predicted: nobody has looked
            return None
        if key not in notes:
            return None
        found = score_from(notes[key])
        return Look(chosen.draw, chosen.score.train, found.error, found.validation, len(notes))

    def look(self, chosen: Trial, problems: _Problems) -> Look:
        """Score on the test images, and have the study remember it."""
        problem = problems.on_test(chosen.score.train)
        if self.scheduler is not None:
            found = score_on_cluster(chosen.network_json, problem, self.study, self.scheduler)
        else:
            found = score(chosen.network, problem, progress=self.progress)
        self.study.note("test", self._key(chosen, problem), {"draw": chosen.draw, **asdict(found)})
        return Look(chosen.draw, chosen.score.train, found.error, found.validation, len(self.study.notes("test")))

    def _key(self, chosen: Trial, problem: Problem) -> str:
        return f"{problem.fingerprint()[:16]}/{chosen.draw}"

    def _run(self, level: Level) -> list[Trial]:
        if self.scheduler is not None:
            on_cluster(level, self.study, self.scheduler, self.progress)
        else:
            on_processes(level, self.study, self.processes, self.progress)
        return [t for t in level.trials(self.study) if t.draw in level.draws]


# ---- images ---------------------------------------------------------------------------------------------------------

_NOTHING: tuple[NDArray[Any], NDArray[np.intp], NDArray[Any], NDArray[np.intp]] = (
    np.empty((0, 1)),
    np.empty(0, np.intp),
    np.empty((0, 1)),
    np.empty(0, np.intp),
)


class _Problems:
    """The same validation images with any number of training images; those are never validated on."""

    def __init__(self, data: Dataset, validation: int | None, template: Problem) -> None:
        if data.X_validation is None or data.y_validation is None:
            n = len(data.X)
            data = data.hold_out(_asked(data, "validation", n // 4 if validation is None else validation, n - 1))
        assert data.X_validation is not None
        assert data.y_validation is not None
        self._data, self._template = data, template
        self._classes = np.unique(np.concatenate([data.y, data.y_validation, data.y_test]))
        if len(self._classes) < 2:
            raise DatasetError(f"{data.name} holds one class only; a search needs at least two")
        self._y = self._codes(data.y)
        held = _asked(data, "validation", validation, len(data.X_validation))
        self._validation = data.X_validation[:held], self._codes(data.y_validation[:held])

    def at(self, train: int | None) -> Problem:
        n = _asked(self._data, "training", train, len(self._data.X))
        return self._problem(n, "validation", *self._validation)

    def on_test(self, train: int) -> Problem:
        """The test images in the place of the validation ones."""
        return self._problem(train, "test", self._data.X_test, self._codes(self._data.y_test))

    def _problem(self, train: int, what: str, X: NDArray[Any], y: NDArray[np.intp]) -> Problem:
        unknown = self._classes[np.setdiff1d(y, self._y[:train])]
        if len(unknown):
            raise DatasetError(
                f"the {what} images of {self._data.name} have labels that its first {train:,} training images do not "
                f"have: {unknown.tolist()[:5]}; use more training images"
            )
        return replace(
            self._template,
            X=self._data.X[:train],
            y=self._y[:train],
            X_validation=X,
            y_validation=y,
            classes=len(self._classes),
        )

    def _codes(self, labels: NDArray[Any]) -> NDArray[np.intp]:
        return np.searchsorted(self._classes, labels)


def _asked(data: Dataset, what: str, n: int | None, held: int) -> int:
    if n is not None and not 1 <= n <= held:
        raise DatasetError(f"{data.name} has {held:,} {what} images to give, but {n:,} were asked for")
    return held if n is None else n


def split_for(source: str) -> datasets.Split:
    """The paper's where there is one: it has validation images."""
    return "paper" if source in ("mnist", "fashion_mnist") else "standard"


# ---- arguments ------------------------------------------------------------------------------------------------------


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        least = 0 if name == "seed" else 1
        if not is_whole(value, least):
            raise ValueError(f"{name}={value!r}: expected an integer of {least} or more")


def _check_full(full: Sequence[tuple[int, int | None]]) -> Sequence[tuple[int, int | None]]:
    for entry in full:
        if not isinstance(entry, tuple) or len(entry) != 2:
            raise ValueError(f"full={full!r}: expected pairs (how many, training images or None for all)")
        _check_counts(full=entry[0])
    return full


@contextmanager
def _study_path(study: str | Path | None) -> Iterator[Path]:
    """The file that was asked for, or one that is gone afterwards."""
    if study is not None:
        yield Path(study)
        return
    with tempfile.TemporaryDirectory(prefix="cnngp-search-") as folder:
        yield Path(folder) / "study.db"
