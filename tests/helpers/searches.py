"""Small searches over digits, and what must not depend on how a search was run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from cnngp import datasets, random_search
from cnngp.search import SearchResult
from cnngp.search.study import NAME

optuna = pytest.importorskip("optuna")
SMALL: dict[str, Any] = {"train": 60, "validation": 60, "device": "cpu", "threads": 1}
DIGITS = datasets.digits()


@functools.cache
def alone() -> SearchResult:
    """The search that nothing disturbs."""
    return random_search(DIGITS, "paper-cnn", 10, **SMALL)


def records_of(study: Path) -> list[Any]:
    """The study as any user of Optuna reads it."""
    return optuna.load_study(storage=f"sqlite:///{study}", study_name=NAME).trials  # type: ignore[no-any-return]
