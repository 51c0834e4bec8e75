"""Faults of stores at random, each kind of `benchmarks/faults` some times: the right numbers, or one line."""

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.faults.campaign import SAME, Trial
from benchmarks.faults.clusters import Workers
from benchmarks.faults.stores import Flips, FullDisks, Kills, Links, Losses, Metadata, Moves, Replaced, Stores
from benchmarks.faults.victim import Victim


def run(trial: Trial, times: int, folder: Path) -> None:
    """A trial raises where a number is wrong; some of them must have done harm."""
    outcomes = Counter[str]()
    for number in range(times):
        place = folder / str(number)
        place.mkdir()
        outcomes[trial(random.Random(number), place)] += 1
    assert outcomes[SAME] < times


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("kind", [Flips, Links, Losses, Metadata, Moves, Replaced])
def test_a_damaged_store_gives_no_wrong_number_and_is_made_whole(
    kind: type[Flips], whole: Stores, tmp_path: Path
) -> None:
    run(kind(whole), 6, tmp_path)


@pytest.mark.slow
def test_workers_killed_or_frozen_at_any_moment(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    with contextlib.closing(Workers()) as trial:
        run(trial, 8, tmp_path)


def test_a_disk_that_runs_full_at_any_byte(tmp_path: Path) -> None:
    run(FullDisks(), 6, tmp_path)


@pytest.fixture
def victim() -> Iterator[Victim]:
    made = Victim()
    with made.process:
        yield made


@pytest.mark.parametrize("times", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_at_any_moment_with_one_or_two_processes_at_it(times: int, victim: Victim, tmp_path: Path) -> None:
    run(Kills(victim), times, tmp_path)
