"""The memory of a search: an Optuna study in a journal file or a database, which any number of processes fill.

Optuna draws and stores; this is the one file that knows it. A record says which draw it is of, so that a draw that was
interrupted is done again, with the same numbers.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
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
    """The draws of one search at `where`, a file or a URL; `name` tells the studies there apart."""

    def __init__(self, where: str, name: str = NAME, new: bool = True) -> None:
        self.where = where
        with reported(where) as optuna:
            storage = _storage(where, new)
            if new:
                self._study = optuna.create_study(storage=storage, study_name=name, load_if_exists=True)
            else:
                self._study = optuna.load_study(storage=storage, study_name=name)

    def require(self, identity: dict[str, Any]) -> None:
        """`StudyError` where it is the study of another search."""
        held = self.notes("").get("identity", identity)
        self.note("identity", held)
        differ = [key for key in identity | held if held.get(key) != identity.get(key)]
        told = [f"its {key} is {_short(held.get(key))} and not {_short(identity.get(key))}" for key in differ]
        if differ == ["content"]:
            told.append("so it has other images, or others of them were held out for validation")
        elif "content" in differ:
            del told[differ.index("content")]  # a hash of the other things too
        if differ:
            raise StudyError(f"{self.where} holds another search: {', '.join(told)}; give another study")

    def notes(self, prefix: str) -> dict[str, Any]:
        return {key: value for key, value in self._study.user_attrs.items() if key.startswith(prefix)}

    def note(self, key: str, value: Any) -> None:
        if key not in self.notes(key):
            self._study.set_user_attr(key, value)

    def records(self, *states: str) -> list[Any]:
        """Optuna's trials of the given states, such as "COMPLETE", as far as they say of which draw they are."""
        found = self._study.get_trials(deepcopy=False)
        return [t for t in found if t.state.name in states and "draw" in t.user_attrs]

    def trials(self) -> list[Trial]:
        """Finished draws, by their number."""
        found = {t.user_attrs["draw"]: t for t in self.records("COMPLETE")}
        return [
            Trial(draw, dict(t.params), t.user_attrs["network"], Score(**t.user_attrs["score"]))
            for draw, t in sorted(found.items())
        ]

    def failures(self) -> dict[int, str]:
        """Draws that no result came of, with their errors."""
        return {
            t.user_attrs["draw"]: t.user_attrs["failure"] for t in self.records("FAIL") if "failure" in t.user_attrs
        }

    def ask(self, wanted: int, chosen: Sequence[int] | None, sampler: str, seed: int, by: str) -> Any:
        """A trial for the lowest draw that is not done and that no other is at, of those `chosen` if any; None where as
        many draws as are `wanted` are done or in work. The numbers of a draw depend on the seed and its own number.
        """
        done, at_work = self._taken(len(self._study.get_trials(deepcopy=False)))
        if len(done & {t.user_attrs["draw"] for t in self.records("COMPLETE")}) + len(at_work) >= wanted:
            return None
        numbers = itertools.count() if chosen is None else chosen
        draw = next((number for number in numbers if number not in done | at_work), None)
        if draw is None:
            return None
        with reported(self.where) as optuna:
            trial = self._study.ask()
            for key, value in {"by": by, "draw": draw}.items():
                trial.set_user_attr(key, value)
            if draw in set.union(*self._taken(trial.number)):  # another process was faster
                self.tell(trial, None, "FAIL")
                return self.ask(wanted, chosen, sampler, seed, by)
            state = int(np.random.SeedSequence([seed, draw]).generate_state(1)[0])
            self._study.sampler = getattr(optuna.samplers, SAMPLERS[sampler])(seed=state)
        return trial

    def _taken(self, before: int) -> tuple[set[int], set[int]]:
        """The draws that are done, also in vain, and those that others are at, among the first records."""
        done = {t.user_attrs["draw"] for t in self.records("COMPLETE", "PRUNED")} | set(self.failures())
        longest = max((t.user_attrs["score"]["seconds"] for t in self.records("COMPLETE")), default=0.0)
        earliest = datetime.now() - timedelta(seconds=max(_UNHEARD_SECONDS, 10.0 * longest))
        at_work = [t for t in self.records("RUNNING") if t.number < before and _may_be_alive(t, earliest)]
        return done, {t.user_attrs["draw"] for t in at_work}

    def tell(self, trial: Any, value: float | None, state: str = "COMPLETE", **attributes: Any) -> None:
        with reported(self.where) as optuna:
            for key, attribute in attributes.items():
                trial.set_user_attr(key, asdict(attribute) if isinstance(attribute, Score) else attribute)
            self._study.tell(trial.number, value, state=optuna.trial.TrialState[state])

    def give_up(self, workers: Sequence[str]) -> None:
        """Free the draws that workers of a cluster are at which are not among these."""
        for t in self.records("RUNNING"):
            worker = t.user_attrs["by"].split()[2:]
            if worker and worker[0] not in workers:
                with suppress(StudyError):  # it has just been told
                    self.tell(t, None, "FAIL")


def this_process(worker: str = "") -> str:
    """A process, and the address of the worker of a cluster that it is."""
    return f"{socket.gethostname()} {os.getpid()} {worker}".strip()


def _may_be_alive(record: Any, earliest: datetime) -> bool:
    """Whether a process may be at a draw: not if it was on this machine and is gone, nor if it began long ago."""
    host, pid = record.user_attrs["by"].split()[:2]
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
def reported(where: str) -> Iterator[Any]:
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


def _storage(where: str, new: bool) -> Any:
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock, JournalStorage

    if "://" in where:
        return optuna.storages.RDBStorage(where)
    path = Path(where).resolve()  # behind a link the same file, and the same lock
    if path.is_dir():
        raise StudyError(f"{where} is a folder; give a file such as search.journal")
    if not new and not path.exists():
        raise StudyError(f"{where} is not there")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = JournalFileSymlinkLock(str(path), _LOCK_SECONDS)
    if path.exists() and path.stat().st_size:
        _mend(path, lock)
    return JournalStorage(JournalFileBackend(str(path), lock))


def _mend(path: Path, lock: Any) -> None:
    """Refuse what is no journal; take away the half of a line that a process left which was killed while it wrote."""
    with path.open("rb+") as file:
        try:
            first = json.loads(file.readline())
        except ValueError:
            first = None
        if not isinstance(first, dict) or "op_code" not in first:
            raise StudyError(f"{path} is not a journal of Optuna; give another file, or a URL such as sqlite:///a.db")
        lock.acquire()
        try:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - (1 << 20)))
            tail = file.read()
            if not tail.endswith(b"\n"):
                file.truncate(end - len(tail) + tail.rfind(b"\n") + 1)
        finally:
            lock.release()


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else str(value)
