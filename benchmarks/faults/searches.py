"""Searches killed and run again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from .campaign import FOUND, SAME, expect
from .victim import DRAWS, Victim, search


class SearchKills:
    name = "a search killed at any moment, and run again"
    promise = "nothing lost"

    def __init__(self, victim: Victim) -> None:
        self.victim = victim
        self.wanted = self._outcome(None)

    def _outcome(self, study: Path | None) -> list[tuple[Any, ...]]:
        return [(t.draw, t.params, t.error) for t in search(study).trials]

    def __call__(self, rng: random.Random, folder: Path) -> str:
        study, killed = folder / "study.journal", 0
        for _ in range(rng.randint(1, 3)):
            killed += self.victim.kill_one("search", str(study), DRAWS, rng.uniform(0.0, 0.4)).count(-9)
        expect(self._outcome(study) == self.wanted, "other draws or scores after a kill")
        return FOUND if killed else SAME
