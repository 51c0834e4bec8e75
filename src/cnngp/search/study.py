"""Storage of a search, an Optuna study that any number of processes fill, and the result read from it.

Optuna draws and stores; only this file uses it. A draw that was interrupted is repeated with the same random numbers
by a new trial, which records the draw that it repeats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cnngp.common.errors import one_line
from cnngp.common.optional import need
from cnngp.common.tables import aligned, percent
from cnngp.network.layers import Network
from cnngp.network.serialize import from_json

from .scoring import Score

NAME = "cnngp search"
SAMPLERS = {"random": "RandomSampler", "tpe": "TPESampler"}
"""Optuna's samplers by name: the paper's, and one that learns from earlier draws."""


class StudyError(ValueError):
    """Error for a study that cannot be used: it is of another search, damaged, or not a study."""


@dataclass(frozen=True)
class Trial:
    """One drawn network with its score."""

    draw: int
    params: dict[str, Any]
    network_json: str
    score: Score

    @property
    def error(self) -> float:
        """The validation error, as a fraction."""
        return self.score.error

    @property
    def network(self) -> Network:
        return from_json(self.network_json)


class Study:
    """The draws of one search, stored at `where`, a file or a URL."""

    def __init__(self, where: str, sampler: str, seed: int) -> None:
        self.where, self._sampler, self._seed = where, sampler, seed
        with _reported(where) as optuna:
            self._study = optuna.create_study(storage=_storage(where), study_name=NAME, load_if_exists=True)

    def require(self, identity: dict[str, Any]) -> None:
        """Raise `StudyError` if this is the study of another search."""
        held = self.notes("").get("identity", identity)
        self.note("identity", held)
        differ = [key for key in identity | held if held.get(key) != identity.get(key)]
        told = [f"{key}: {held.get(key)} there, {identity.get(key)} now" for key in differ if key != "content"]
        if differ == ["content"]:
            told.append("it has other images, or others of them were held out for validation")
        if differ:
            raise StudyError(f"{self.where} holds another search: {'; '.join(told)}. Give another study")

    def notes(self, prefix: str) -> dict[str, Any]:
        """Noted values whose keys begin with `prefix`."""
        return {key: value for key, value in self._study.user_attrs.items() if key.startswith(prefix)}

    def note(self, key: str, value: Any) -> None:
        """Store a value, unless the key exists."""
        if key not in self.notes(key):
            with _reported(self.where):
                self._study.set_user_attr(key, value)

    def draws(self) -> list[tuple[int, Any]]:
        """Optuna's trials, each with the number of its draw; a trial that repeats a draw has that draw's number."""
        found, repeats = [], 0
        for t in self._study.get_trials(deepcopy=False):
            repeats += "draw" in t.user_attrs
            found.append((t.user_attrs.get("draw", t.number - repeats), t))
        return found

    def finished(self, state: str = "COMPLETE") -> dict[int, Any]:
        """Optuna's trials in this state, by the number of their draw."""
        return {draw: t for draw, t in sorted(self.draws(), key=lambda each: each[0]) if t.state.name == state}

    def trials(self) -> list[Trial]:
        """Draws with a score, in the order of their numbers."""
        return [
            Trial(draw, dict(t.params), t.user_attrs["network"], Score(**t.user_attrs["score"]))
            for draw, t in self.finished().items()
        ]

    def result(self, space: str, images: str, draws: int) -> SearchResult:
        """Result with the first `draws` draws that have a score, and with the invalid and failed ones among them."""
        trials = self.trials()[:draws]
        before = range(trials[-1].draw)
        invalid = [draw for draw in self.finished("PRUNED") if draw in before]
        failed = {draw: t.user_attrs["failure"] for draw, t in self.finished("FAIL").items() if draw in before}
        failures = {draw: f"draw {draw}: {failure}" for draw, failure in failed.items()}
        return SearchResult(space, images, tuple(trials), len(invalid), failures)

    def resume(self) -> None:
        """Queue draws that were begun but not finished, because their process was killed, to be done again.

        If another process is still working on one, both get the same result.
        """
        found = self.draws()
        over = {draw for draw, t in found if t.state.name != "RUNNING"}
        with _reported(self.where):
            for draw in sorted({draw for draw, _ in found} - over):
                self._study.enqueue_trial({}, user_attrs={"draw": draw})

    def ask(self) -> Any:
        """Start a trial for the next draw; its random numbers depend on the seed and the number of the draw."""
        with _reported(self.where) as optuna:
            trial = self._study.ask()
            draw, _ = self.draws()[trial.number]
            state = int(np.random.SeedSequence([self._seed, draw]).generate_state(1)[0])
            self._study.sampler = getattr(optuna.samplers, SAMPLERS[self._sampler])(seed=state)
        return trial

    def tell(self, trial: Any, state: str, score: Score | None = None, **attributes: str) -> None:
        """End a trial, with its score if it is "COMPLETE"."""
        with _reported(self.where) as optuna:
            for key, value in (attributes if score is None else attributes | {"score": asdict(score)}).items():
                trial.set_user_attr(key, value)
            error = None if score is None else score.error
            self._study.tell(trial.number, error, state=optuna.trial.TrialState[state])


def best(trials: Sequence[Trial], n: int | None = None) -> list[Trial]:
    """The `n` best trials: lowest validation error first; ties by leave-one-out error, then by earlier draw."""
    return sorted(trials, key=lambda t: (t.error, t.score.loo_error, t.draw))[:n]


@dataclass(frozen=True)
class SearchResult:
    """Result of a search: `trials` are the draws; `best` has the lowest validation error, in the last rung if any.

    The validation error of the best of many draws is slightly optimistic, because the network was chosen by it.
    """

    space: str
    images: str
    trials: tuple[Trial, ...]
    invalid: int
    """Number of invalid draws (images too small, a variance out of range), which were replaced by other draws."""
    failures: dict[int, str]
    rungs: tuple[tuple[Trial, ...], ...] = ()
    """For each entry of `full`, the networks scored again with its number of images, the best first."""
    test: Score | None = None
    """The chosen network's score on the test images, if the study has looked at them."""
    looks: int = 0
    """Number of networks with which the study has looked at the test images."""
    seconds: float = 0.0

    @property
    def best(self) -> Trial:
        return best(self.rungs[-1] if self.rungs else self.trials)[0]

    @property
    def network(self) -> Network:
        """The best network."""
        return self.best.network

    def table(self, n: int = 10) -> str:
        """Text table of the `n` best draws."""
        heads = ("draw", "validation", "leave-one-out", "seconds", "Mpairs/s", "operations a pair", "jitter")
        rows = [(*heads, "hyperparameters")]
        for t in best(self.trials, n):
            s = t.score
            errors = (percent(s.error, 2), percent(s.loo_error, 2))
            cost = (f"{s.seconds:.1f}", f"{s.pairs_per_second / 1e6:.2f}", f"{s.operations:,}", f"{s.jitter:g}")
            drawn = (f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in t.params.items())
            rows.append((str(t.draw), *errors, *cost, " ".join(drawn)))
        return aligned(rows, right=range(len(heads)))

    def as_dict(self) -> dict[str, Any]:
        """All values for JSON."""

        def facts(trial: Trial) -> dict[str, Any]:
            return {"draw": trial.draw, **asdict(trial.score), "params": trial.params}

        return {
            "space": self.space,
            "images": self.images,
            "draws": len(self.trials),
            "invalid": self.invalid,
            "failures": {str(k): v for k, v in self.failures.items()},
            "best": facts(self.best),
            "trials": [facts(t) for t in self.trials],
            "rungs": [[facts(t) for t in rung] for rung in self.rungs],
            "test": None if self.test is None else asdict(self.test) | {"looks": self.looks},
            "seconds": self.seconds,
        }


@contextmanager
def _reported(where: str) -> Iterator[Any]:
    """Optuna with its logging silenced; its errors, such as of a full disk or a damaged file, become `StudyError`."""
    optuna = need("optuna", "a search")
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield optuna
    except StudyError:
        raise
    except Exception as error:
        raise StudyError(f"{where} cannot be read or written as a study: {one_line(error)[:200]}") from error
    finally:
        optuna.logging.set_verbosity(before)


def _storage(where: str) -> Any:
    from optuna.storages import RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock, JournalStorage

    if "://" in where:
        return RDBStorage(where)
    path = Path(where).resolve()  # so that a link leads to the same file and the same lock
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = JournalFileSymlinkLock(str(path), grace_period=10)  # normally held for milliseconds; older ones are stale
    if path.exists() and path.stat().st_size:
        _mend(path, lock)
    return JournalStorage(JournalFileBackend(str(path), lock))


def _mend(path: Path, lock: Any) -> None:
    """Raise if the file is not a journal; remove an incomplete last line left by a full disk or a killed process."""
    lock.acquire()
    try:
        with path.open("rb+") as file, suppress(ValueError, TypeError):
            data = file.read()
            if "op_code" in json.loads(data.partition(b"\n")[0]):
                file.truncate(data.rfind(b"\n") + 1)
                return
    finally:
        lock.release()
    raise StudyError(f"{path} is not a journal of Optuna; give another file, or a URL such as sqlite:///a.db")
