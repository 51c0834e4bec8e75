"""Small searches over digits, and what must not depend on how a search was run."""

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cnngp import datasets, from_json
from cnngp.search import SearchResult, Trial, random_search
from cnngp.search.scoring import score
from cnngp.search.study import NAME

optuna = pytest.importorskip("optuna")
SMALL: dict[str, Any] = {"train": 60, "validation": 60, "device": "cpu", "threads": 1}
DIGITS = datasets.digits()


def asked(seed: int) -> Any:
    """A trial of Optuna with numbers of its own for each seed."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()


@functools.cache
def alone() -> SearchResult:
    """The search that nothing disturbs."""
    return random_search(DIGITS, "paper-cnn", 10, **SMALL)


def fails_at(call: int, error: BaseException) -> Any:
    """What stands for `score` and fails the one time: the first call has number 0."""
    calls = itertools.count()

    def scored(*arguments: Any) -> Any:
        if next(calls) == call:
            raise error
        return score(*arguments)

    return scored


def records_of(study: Path, state: str = "COMPLETE") -> dict[int, Any]:
    """The trials of a study in a state, as any user of Optuna reads it, by the number of their draw."""
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(study)))
    records = optuna.load_study(storage=storage, study_name=NAME).trials
    repeats = [t.number for t in records if "draw" in t.user_attrs]
    numbers = (t.user_attrs.get("draw", t.number - sum(n < t.number for n in repeats)) for t in records)
    return {draw: t for draw, t in zip(numbers, records, strict=True) if t.state.name == state}


def assert_kept(trials: Sequence[Trial], study: Path) -> None:
    """These draws are in the study with all that they gave."""
    records = records_of(study)
    for trial in trials:
        record = records[trial.draw]
        assert (record.params, record.value) == (trial.params, trial.error)
        assert from_json(record.user_attrs["network"]) == trial.network
        assert record.user_attrs["score"]["loo_error"] == trial.score.loo_error
