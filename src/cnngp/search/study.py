"""The memory of a search: an Optuna study in a journal file or a database, which any number of processes fill.

Optuna draws and stores; this is the one file that knows it. A record says which draw it is of, so that a draw that was
interrupted is done again, with the same numbers.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from cnngp.common.errors import one_line
from cnngp.common.optional import need
from cnngp.network.layers import Network
from cnngp.network.serialize import from_json

from .scoring import Score
from .space import Value

NAME = "cnngp search"
SAMPLERS = {"random": "RandomSampler", "tpe": "TPESampler"}
"""Optuna's samplers by name: the paper's, and one that learns from the draws before."""
# A draw of another machine that is older, and ten times as old as the longest ever took, was left behind.
_UNHEARD_SECONDS = 600.0
# A record that does not say of which draw it is after so long was left by a process that was killed.
_BEGIN_SECONDS = 5.0
# After so long without a change of the file the lock of a process counts as left behind: it is held for milliseconds.
_LOCK_SECONDS = 10


class StudyError(ValueError):
    """A study that cannot be used as asked: of something else, damaged, or not a study."""


@dataclass(frozen=True)
class Trial:
    """One draw with its score."""

    draw: int
    params: dict[str, Value]
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
    """The draws of one search at `where`, a file or a URL."""

    def __init__(self, where: str, sampler: str, seed: int) -> None:
        self.where, self._sampler, self._seed = where, sampler, seed
        with _reported(where) as optuna:
            self._study = optuna.create_study(storage=_storage(where), study_name=NAME, load_if_exists=True)

    def require(self, identity: dict[str, Any]) -> None:
        """`StudyError` where it is the study of another search."""
        held = self.notes("").get("identity", identity)
        self.note("identity", held)
        differ = [key for key in identity | held if held.get(key) != identity.get(key)]
        told = [f"{key}: {held.get(key)} there, {identity.get(key)} now" for key in differ if key != "content"]
        if differ == ["content"]:
            told.append("it has other images, or others of them were held out for validation")
        if differ:
            raise StudyError(f"{self.where} holds another search: {'; '.join(told)}. Give another study")

    def notes(self, prefix: str) -> dict[str, Any]:
        """What was noted under keys that begin with `prefix`."""
        return {key: value for key, value in self._study.user_attrs.items() if key.startswith(prefix)}

    def note(self, key: str, value: Any) -> None:
        """Keep a value, unless there is one under that key."""
        if key not in self.notes(key):
            with _reported(self.where):
                self._study.set_user_attr(key, value)

    def records(self, *states: str) -> list[Any]:
        """Optuna's trials of the given states, such as "COMPLETE", as far as they say of which draw they are."""
        found = self._study.get_trials(deepcopy=False)
        return [t for t in found if t.state.name in states and "draw" in t.user_attrs]

    def draws(self, *states: str) -> set[int]:
        return {t.user_attrs["draw"] for t in self.records(*states)}

    def trials(self) -> list[Trial]:
        """Finished draws, by their number."""
        found = {t.user_attrs["draw"]: t for t in self.records("COMPLETE")}
        return [
            Trial(draw, dict(t.params), t.user_attrs["network"], Score(**t.user_attrs["score"]))
            for draw, t in sorted(found.items())
        ]

    def failures(self) -> dict[int, str]:
        """Draws that no result came of, with their errors."""
        found = (t.user_attrs for t in self.records("FAIL"))
        return {notes["draw"]: notes["failure"] for notes in found if "failure" in notes}

    def ask(self, wanted: int) -> Any:
        """A trial for the lowest draw that is not done and that no process is at; None where as many draws as are
        `wanted` are done or in work. Its numbers depend on the seed and on the number of the draw.
        """
        with _reported(self.where) as optuna:
            complete, over, at_work = self._taken(None)
            if len(complete) + len(at_work) >= wanted:
                return None
            draw = next(number for number in itertools.count() if number not in complete | over | at_work)
            trial = self._study.ask()
            trial.set_user_attr("by", f"{socket.gethostname()} {os.getpid()}")
            trial.set_user_attr("draw", draw)
            while self._undecided(trial.number):
                time.sleep(0.01)
            if draw in set.union(*self._taken(trial.number)):  # another process was faster
                self.tell(trial, "FAIL")
                return self.ask(wanted)
            state = int(np.random.SeedSequence([self._seed, draw]).generate_state(1)[0])
            self._study.sampler = getattr(optuna.samplers, SAMPLERS[self._sampler])(seed=state)
        return trial

    def _undecided(self, before: int) -> bool:
        """Whether a process has just begun an earlier record, and not yet said of which draw it is."""
        recent = datetime.now() - timedelta(seconds=_BEGIN_SECONDS)
        found = self._study.get_trials(deepcopy=False)[:before]
        return any("draw" not in t.user_attrs and t.datetime_start and t.datetime_start > recent for t in found)

    def _taken(self, before: int | None) -> tuple[set[int], set[int], set[int]]:
        """The draws that are complete, those that were in vain, and those that processes are at, at one moment; of
        those in work only the ones whose record is before the given one.
        """
        found = self.records("COMPLETE", "PRUNED", "FAIL", "RUNNING")
        longest = max((t.user_attrs["score"]["seconds"] for t in found if t.state.name == "COMPLETE"), default=0.0)
        earliest = datetime.now() - timedelta(seconds=max(_UNHEARD_SECONDS, 10.0 * longest))
        complete, over, at_work = set[int](), set[int](), set[int]()
        for t in found:
            if t.state.name == "COMPLETE":
                complete.add(t.user_attrs["draw"])
            elif t.state.name == "PRUNED" or "failure" in t.user_attrs:
                over.add(t.user_attrs["draw"])
            elif t.state.name == "RUNNING" and (before is None or t.number < before) and _may_be_alive(t, earliest):
                at_work.add(t.user_attrs["draw"])
        return complete, over, at_work

    def tell(self, trial: Any, state: str, score: Score | None = None, **attributes: str) -> None:
        """End a trial, with its score if it is "COMPLETE"."""
        with _reported(self.where) as optuna:
            for key, text in attributes.items():
                trial.set_user_attr(key, text)
            if score is not None:
                trial.set_user_attr("score", asdict(score))
            error = None if score is None else score.error
            self._study.tell(trial.number, error, state=optuna.trial.TrialState[state])


def _may_be_alive(record: Any, earliest: datetime) -> bool:
    """Whether a process may be at a draw: not if it was on this machine and is gone, nor if it began long ago."""
    host, pid = record.user_attrs["by"].split()
    if host != socket.gethostname():
        return bool(record.datetime_start is not None and record.datetime_start > earliest)
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def best(trials: Sequence[Trial], n: int | None = None) -> list[Trial]:
    """The lowest validation errors first; among equals the lower leave-one-out error, then the earlier draw."""
    return sorted(trials, key=lambda t: (t.error, t.score.loo_error, t.draw))[:n]


# What Optuna's own reading of a file that was altered, or of another kind, comes to.
_OF_DAMAGE = (LookupError, ValueError, TypeError, AssertionError, AttributeError, OSError, RuntimeError)


@contextmanager
def _reported(where: str) -> Iterator[Any]:
    """Optuna, with what goes wrong with a study, such as a full disk or a damaged file, in one line, and no others."""
    optuna = need("optuna", "a search")
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield optuna
    except StudyError:
        raise
    except (optuna.exceptions.OptunaError, *_OF_DAMAGE) as error:
        raise StudyError(f"{where} cannot be read or written as a study: {one_line(error)[:200]}") from error
    finally:
        optuna.logging.set_verbosity(before)


def _storage(where: str) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock, JournalStorage

    if "://" in where:
        return optuna.storages.RDBStorage(where)
    path = Path(where).resolve()  # behind a link the same file, and the same lock
    if path.is_dir():
        raise StudyError(f"{where} is a folder; give a file such as search.journal")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = JournalFileSymlinkLock(str(path), _LOCK_SECONDS)
    if path.exists() and path.stat().st_size:
        _mend(path, lock)
    return JournalStorage(JournalFileBackend(str(path), lock))


def _mend(path: Path, lock: Any) -> None:
    """Refuse what is no journal; take away the half of a line that a full disk or a killed process left."""
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
