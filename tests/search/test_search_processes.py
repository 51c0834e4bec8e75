"""Searches that are killed, interrupted or shared by several processes give what one quiet run gives."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cnngp.search import Space, random_search, scoring
from cnngp.search.space import SPACES
from helpers.searches import DIGITS, SMALL, alone, assert_kept, fails_at

optuna = pytest.importorskip("optuna")


SLOW = """
import sys, time
from cnngp import datasets
from cnngp.search import Space, random_search
from cnngp.search.space import SPACES

def slow(trial):
    time.sleep(0.5)
    return SPACES["paper-cnn"].build(trial)

if __name__ == "__main__":
    data, space = datasets.digits(), Space("slow", 1, slow)
    random_search(data, space, 4, train=60, validation=60, study=sys.argv[1], device="cpu", threads=1, processes=2)
"""


def test_killed_and_run_again_by_two_processes(tmp_path: Path) -> None:
    """Also the draw that was being done, with the same numbers; the processes of one that is killed end with it."""
    study = tmp_path / "s.journal"
    script = tmp_path / "script.py"
    script.write_text(SLOW)
    first = subprocess.Popen([sys.executable, script, study], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while _count(study) < 1:
        assert first.poll() is None, first.stderr.read()  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.kill()
    first.communicate(timeout=30)  # its processes have its pipes too
    assert 1 <= _count(study) < 4
    space = Space("slow", 1, SPACES["paper-cnn"].build)
    assert len(random_search(DIGITS, space, 4, **SMALL, study=study, processes=2).trials) == 4
    assert_kept(alone().trials[:4], study)


def _count(study: Path) -> int:
    """Finished draws, in a file that another process may be writing."""
    return study.read_text().count('"state":1') if study.exists() else 0


def test_interrupted_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draw in progress is done by the next run."""
    alone()
    monkeypatch.setattr(scoring, "score", fails_at(2, KeyboardInterrupt()))
    study = tmp_path / "s.journal"
    with pytest.raises(KeyboardInterrupt, match=r"\d of 5 networks are in .*s\.journal\. Run it again to continue"):
        random_search(DIGITS, "paper-cnn", 5, **SMALL, study=study)
    random_search(DIGITS, "paper-cnn", 5, **SMALL, study=study)
    assert_kept(alone().trials[:5], study)


@pytest.mark.slow
def test_on_a_dask_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone()
    monkeypatch.setattr(scoring, "score", None)  # the client may have no card: nothing is scored in it
    distributed = pytest.importorskip("distributed")
    study = tmp_path / "s.journal"
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    arguments: dict[str, Any] = SMALL | {"study": study, "full": [(2, 80)], "test": True}
    with distributed.LocalCluster(**settings) as local:
        result = random_search(DIGITS, "paper-cnn", 8, **arguments, scheduler=local.scheduler_address)
    assert result.test is not None
    assert len(result.rungs[0]) == 2
    assert_kept(alone().trials[:8], study)


@pytest.mark.gpu
def test_on_a_card() -> None:
    on_cpu = random_search(DIGITS, "pooled", 6, **SMALL)
    on_card = random_search(DIGITS, "pooled", 6, train=60, validation=60, device="cuda", processes=2)
    for a, b in zip(on_cpu.trials, on_card.trials, strict=True):
        assert a.network == b.network
        assert b.error == pytest.approx(a.error, abs=1.5 / 60)  # rounding may tip an image that is on the edge
        assert b.score.engine.startswith("cuda")
