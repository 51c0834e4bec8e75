"""Faults of stores at random, each kind of `benchmarks/faults` some times: the right numbers, or one line."""

import contextlib
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.faults.campaign import SAME, Trial
from benchmarks.faults.clusters import Workers
from benchmarks.faults.stores import Flips, FullDisks, Kills, Links, Losses, Metadata, Moves, Replaced, Stores
from benchmarks.faults.victim import Victim

from cnngp import gram
from cnngp.matrix.store.store import opened
from helpers.stores import KERNEL, X, expected


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


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    made = Victim()
    with made.process:
        yield made


@pytest.mark.parametrize("times", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_at_any_moment_with_one_or_two_processes_at_it(times: int, victim: Victim, tmp_path: Path) -> None:
    run(Kills(victim), times, tmp_path)


def finished(place: Path) -> set[tuple[Path, int]]:
    """The tiles with a seal and when it was written, but for row and column 7: at 120 images growth cuts them."""
    return {(p, p.stat().st_mtime_ns) for p in place.glob("K/seals/*/*") if p.suffix == "" and "7" not in p.parts[-2:]}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_after_kills_just_the_missing_tiles_are_computed(seed: int, victim: Victim, tmp_path: Path, calls: Any) -> None:
    """Killed while it begins, writes tiles, grows and verifies: no finished tile is lost or written again."""
    rng, place, killed = random.Random(seed), tmp_path / "K.zarr", 0
    for n, times in ((120, 16), (200, 2 + 3 * seed)):
        longest = 0.06 + 0.04 * (seed % 4)
        for _ in range(times):
            before = finished(place)
            (code,) = victim.kill_one("gram", str(place), n, rng.uniform(0.0, longest))
            assert code in (0, -signal.SIGKILL)
            killed += code != 0
            longest *= 0.6 if code == 0 else 1.1  # a fast machine is done first and must be killed sooner
            assert before <= finished(place)
    assert killed >= 8
    assert finished(place)
    with opened(place) as store:
        missing, grown = len(store.missing()), store.spec.shape == (200, 200)
    K = gram(KERNEL, X, store=place, tile=16)
    assert len(calls) == missing or not grown
    np.testing.assert_array_equal(K[:], expected())
    assert not list(place.rglob("*.partial"))
