"""A search's memory: an Optuna study in an SQLite file that many processes fill, and that a kill cannot harm.

A draw is written when it is finished, whole or not at all. While it is being computed only a lock says so
(`claims.py`), which dies with its process: a killed draw leaves no trace and is drawn again. SQLite finds out when the
file's structure is damaged, but not when a number in it is, so every record has a checksum of its own; one with a wrong
checksum is as if it were not there. The one file that knows Optuna.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cnngp.common.errors import one_line
from cnngp.common.optional import need
from cnngp.network.layers import Network
from cnngp.network.serialize import from_json

from .checksums import digest
from .claims import Claims
from .scoring import Score
from .space import Choice, Draw, Range, Value

log = logging.getLogger("cnngp")

NAME = "cnngp search"
_CHECKSUM = "sha256"
# Set in studies whose records all have checksums; those of earlier versions have records without.
_CHECKED = "checksums"


class StudyError(ValueError):
    """A study that cannot be used as asked: of something else, damaged, or not a study."""


@dataclass(frozen=True)
class Trial:
    """One draw with its score: what a study keeps."""

    draw: int
    params: dict[str, Value]
    network_json: str
    score: Score
    invalid: tuple[str, ...] = ()
    """Why each draw before this one, under the same number, was drawn again."""

    @property
    def error(self) -> float:
        """The validation error, as a fraction."""
        return self.score.error

    @property
    def network(self) -> Network:
        return from_json(self.network_json)


class Study:
    """The draws of one search: `identity` says of what, and a file with another one is refused."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        if path.is_symlink():
            path = _followed(path)
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.claims = Claims(path.with_name(path.name + ".claims"))
        with self._writing():
            _check_file(path)
            self._storage, self._study = _open(path)
            held = self._study.user_attrs.get("identity")
            if held is None:
                self._study.set_user_attr(_CHECKED, True)
                self._study.set_user_attr("identity", identity)
        self._checked = bool(self._study.user_attrs.get(_CHECKED, False))
        self._told: set[str] = set()
        if held is not None and held != identity:
            self.close()
            raise StudyError(f"{path} holds another search: {_difference(held, identity)}; give another study file")

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file and of what was claimed."""
        self.claims.drop_all()
        self._storage.remove_session()
        self._storage.engine.dispose()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One writer at a time, among all processes: two that begin to read and then write would stop each other."""
        with self.claims.waiting("write"), _reported(self.path):
            yield

    # ---- draws -------------------------------------------------------------------------------------------------------

    def trials(self) -> list[Trial]:
        """Finished draws, by their number."""
        return sorted(
            (_trial(t.params, t.user_attrs) for t in self._sound("COMPLETE")),
            key=lambda trial: trial.draw,
        )

    def finished(self) -> set[int]:
        return {t.user_attrs["draw"] for t in self._sound("COMPLETE")}

    def failures(self, run: str | None = None) -> dict[int, str]:
        """Draws that no result came of, with their errors: in one run, or in all and in none since."""
        failed = [t.user_attrs for t in self._sound("FAIL")]
        finished = self.finished()
        return {a["draw"]: a["failure"] for a in failed if run in (None, a["run"]) and a["draw"] not in finished}

    def add(self, trial: Trial, draw: Draw) -> None:
        import optuna

        attributes = {
            "draw": trial.draw,
            "network": trial.network_json,
            "invalid": list(trial.invalid),
            **asdict(trial.score),
        }
        record = optuna.trial.create_trial(
            value=trial.error,
            params=trial.params,
            distributions={name: _distribution(r) for name, r in draw.ranges.items()},
            user_attrs=attributes | {_CHECKSUM: digest([trial.error, trial.params, attributes])},
        )
        with self._writing():
            self._study.add_trial(record)
            self._study.set_user_attr("invalid", sum(len(t.user_attrs.get("invalid", ())) for t in self._records()))

    def fail(self, draw: int, failure: str, run: str) -> None:
        """Note a failure; `run` will not try the draw again, a later one will."""
        import optuna

        attributes = {"draw": draw, "failure": failure, "run": run}
        attributes[_CHECKSUM] = digest([None, {}, attributes])
        record = optuna.trial.create_trial(state=optuna.trial.TrialState.FAIL, user_attrs=attributes)
        with self._writing():
            self._study.add_trial(record)

    def _records(self) -> list[Any]:
        with _reported(self.path):
            return self._study.get_trials(deepcopy=False)  # type: ignore[no-any-return]

    def _sound(self, state: str) -> list[Any]:
        """The records in a state whose checksums are right."""
        return [t for t in self._records() if t.state.name == state and self._is_sound(t)]

    def _is_sound(self, record: Any) -> bool:
        attributes = dict(record.user_attrs)
        kept = attributes.pop(_CHECKSUM, None)
        if kept is None and not self._checked:
            return True
        if kept == digest([record.value, record.params, attributes]):
            return True
        self._tell(f"the record {record.number} (draw {attributes.get('draw')})")
        return False

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("%s: %s is damaged, its checksum does not match; it is not used", self.path, what)

    # ---- what comes after the draws ----------------------------------------------------------------------------------

    def notes(self, kind: str) -> dict[str, Any]:
        """What was noted under `kind`, by key."""
        prefix = f"{kind}/"
        with _reported(self.path):
            noted = self._study.user_attrs
        found = {}
        for name, value in noted.items():
            if not name.startswith(prefix):
                continue
            if isinstance(value, dict) and (_CHECKSUM in value or self._checked):
                kept = value.get(_CHECKSUM)
                value = {k: v for k, v in value.items() if k != _CHECKSUM}
                if kept != digest([name, value]):
                    self._tell(f"the note {name}")
                    continue
            found[name.removeprefix(prefix)] = value
        return found

    def note(self, kind: str, key: str, value: dict[str, Any]) -> None:
        name = f"{kind}/{key}"
        with self._writing():
            self._study.set_user_attr(name, value | {_CHECKSUM: digest([name, value])})


def score_from(values: dict[str, Any]) -> Score:
    return Score(**{f.name: values[f.name] for f in fields(Score) if f.name in values})  # old ones did not count costs


def _trial(params: dict[str, Any], attributes: dict[str, Any]) -> Trial:
    return Trial(
        attributes["draw"], params, attributes["network"], score_from(attributes), tuple(attributes["invalid"])
    )


def _distribution(drawn_from: Range | Choice) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    match drawn_from:
        case Choice(options):
            return CategoricalDistribution(options)
        case Range(low, high, _, integer=True):
            return IntDistribution(int(low), int(high))
        case Range(low, high, log):
            return FloatDistribution(low, high, log=log)


def _optuna() -> Any:
    return need("optuna", "a search")


def require() -> None:
    """`ImportError` with what to install, unless Optuna is there."""
    _optuna()


# What Optuna's own reading of a record that was altered comes to.
_OF_DAMAGE = (LookupError, ValueError, TypeError, AssertionError, AttributeError)


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """What goes wrong with the file, such as a full disk, in one line."""
    optuna = _optuna()
    from sqlalchemy.exc import SQLAlchemyError  # Optuna's own dependency, whose errors it lets through in part

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # no line for each study made, nor of what is told below
    try:
        yield
    except StudyError:
        raise
    except (optuna.exceptions.OptunaError, SQLAlchemyError, *_OF_DAMAGE) as error:
        reason = error.__cause__ if isinstance(error.__cause__, SQLAlchemyError) else error
        text = one_line(getattr(reason, "orig", reason))
        raise StudyError(f"{path} cannot be read or written as a study: {text[:200]}") from error
    finally:
        optuna.logging.set_verbosity(before)


def _open(path: Path) -> tuple[Any, Any]:
    """The storage and the study in it."""
    optuna = _optuna()
    try:
        storage = optuna.storages.RDBStorage(
            f"sqlite:///{path.absolute()}", engine_kwargs={"connect_args": {"timeout": 60}}
        )
        study = optuna.create_study(storage=storage, study_name=NAME, direction="minimize", load_if_exists=True)
        return storage, study
    except RuntimeError as error:  # tables of another version of Optuna
        raise StudyError(f"{path} cannot be used as a study: {one_line(error)[:200]}") from None


def _followed(path: Path) -> Path:
    """The study that a link leads to, so that both names have the same claims. None is begun behind a link."""
    target = path.resolve()
    if not target.exists() or (target.is_file() and target.stat().st_size == 0):
        raise StudyError(f"{path} is a link to {path.readlink()}, where there is no study; give the file itself")
    return target


def _check_file(path: Path) -> None:
    """Refuse what is not ours before Optuna writes its tables into it."""
    if "?" in str(path):
        raise StudyError(f"{path}: Optuna cannot open a file with a question mark in its name; give another")
    if path.is_dir():
        raise StudyError(f"{path} is a folder; give a file such as search.db")
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        # Not read-only: after a kill in the middle of a write, SQLite has to take that write back first.
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=60)) as file:
            names = [name for (name,) in file.execute("SELECT study_name FROM studies")]
            whole = [row[0] for row in file.execute("PRAGMA quick_check(1)")]
    except sqlite3.Error as error:
        raise StudyError(f"{path} is not a study of Optuna ({one_line(error)[:200]}); give another file") from None
    if whole != ["ok"]:
        raise StudyError(f"{path} is damaged ({one_line(whole[0])[:200]}); restore it or give another file")
    if names not in ([], [NAME]):
        raise StudyError(f"{path} already holds other studies ({', '.join(map(repr, names[:3]))}); choose another file")


def _difference(held: dict[str, Any], asked: dict[str, Any]) -> str:
    usual = {"kind": "nngp"}  # recorded where it is another
    held, asked = usual | held, usual | asked
    differ = [key for key in asked | held if held.get(key) != asked.get(key)]
    told = [
        f"its {key} is {_short(held.get(key))} and not {_short(asked.get(key))}"
        for key in differ
        if key != "content" or differ == ["content"]  # a hash of the other things too
    ]
    if differ == ["content"]:
        told.append("so it has other images, or others of them were held out for validation")
    return ", ".join(told) or f"made by another version ({json.dumps(held)[:80]})"


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else str(value)


def best(trials: Sequence[Trial], n: int | None = None) -> list[Trial]:
    """The lowest validation errors first; among equals the lower leave-one-out error, then the earlier draw."""
    return sorted(trials, key=lambda t: (t.error, t.score.loo_error, t.draw))[:n]
