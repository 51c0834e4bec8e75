"""Small searches over digits, and what must not depend on how a search was run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from cnngp import datasets
from cnngp.search import SearchResult, random_search
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


def records_of(study: Path) -> list[Any]:
    """The study as any user of Optuna reads it."""
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(study)))
    return optuna.load_study(storage=storage, study_name=NAME).trials  # type: ignore[no-any-return]
