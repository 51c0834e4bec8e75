"""The campaign of faults runs, judges, and says when something is wrong."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.faults.campaign import FOUND, REFUSED, SAME, Wrong, campaign, expect, refused, table

from cnngp.common.errors import StoreError

ROOT = Path(__file__).parents[1]


class Fault:
    name = "a fault"
    promise = "none"

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, rng: random.Random, folder: Path) -> str:
        assert not list(folder.iterdir())
        self.times += 1
        expect(self.times != 2, "a wrong number")
        if self.times == 3:
            raise KeyError("raw")
        return (SAME, FOUND, REFUSED)[self.times % 3]


def test_a_campaign_counts_what_came_of_its_faults() -> None:
    said: list[str] = []
    [row] = campaign([Fault()], 0.01, 1, said.append)
    assert row.outcomes[FOUND] >= 1
    assert [text.split(": ")[1] for text in row.wrong] == ["Wrong", "KeyError"]
    assert len(said) == 2
    assert table([row]).splitlines()[-1].endswith("| 2 |")


def test_an_error_is_a_refusal_only_if_it_is_one_line_of_ours() -> None:
    def fail(error: Exception) -> None:
        raise error

    assert refused(lambda: 3) == 3
    assert refused(lambda: fail(StoreError("it is full"))) is None
    with pytest.raises(Wrong, match="not one line"):
        refused(lambda: fail(StoreError("two\nlines")))
    with pytest.raises(KeyError):
        refused(lambda: fail(KeyError("raw")))


def test_the_command_prints_a_table() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.faults",
        "--minutes",
        "0.03",
        "--seed",
        "3",
        "--only",
        "in a model file",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| one bit flipped in a model file |" in done.stdout
    assert "seed 3" in done.stdout
