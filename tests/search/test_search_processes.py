"""Searches that are killed, interrupted or shared by several processes give what one quiet run gives."""

import os
import signal
import subprocess
import sys
import threading
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
    time.sleep(float(sys.argv[4]))
    return SPACES["paper-cnn"].build(trial)

if __name__ == "__main__":
    options = {"train": 60, "validation": 60, "study": sys.argv[1], "device": "cpu", "threads": 1}
    space, draws = Space("slow", 1, slow), int(sys.argv[2])
    found = random_search(datasets.digits(), space, draws, processes=int(sys.argv[3]), **options)
    print(found.best.draw, [trial.draw for trial in found.trials])
"""


def start(study: Path, draws: int, processes: int, nap: float) -> subprocess.Popen[str]:
    script = study.parent / "script.py"
    script.write_text(SLOW)
    command = [sys.executable, script, study, *map(str, (draws, processes, nap))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_and_run_again_by_two_processes(tmp_path: Path) -> None:
    """Also the draw that was being done, with the same numbers; the processes of one that is killed end with it."""
    study = tmp_path / "s.journal"
    first = start(study, 4, 2, 0.5)
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


@pytest.mark.slow
def test_two_commands_and_their_processes_share_one_study(tmp_path: Path) -> None:
    study, quiet = tmp_path / "s.journal", alone()
    for command in [start(study, 10, processes, 0.1) for processes in (1, 2)]:
        out, err = command.communicate(timeout=300)
        told = f"{quiet.best.draw} {[trial.draw for trial in quiet.trials]}\n"
        assert (out, command.returncode) == (told, 0), err
    assert_kept(quiet.trials, study)
    # Alone they would do 20. What one is at when the other starts or ends comes on top of ten.
    assert 10 <= _count(study) <= 15


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
@pytest.mark.parametrize("kill", [False, True])
def test_on_a_dask_cluster(kill: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a worker is killed: its draw is done by another."""
    distributed = pytest.importorskip("distributed")
    arguments: dict[str, Any] = SMALL | {"full": [(2, 80)], "test": True}
    quiet = random_search(DIGITS, "paper-cnn", 8, **arguments)
    monkeypatch.setattr(scoring, "score", None)  # the client may have no card: nothing is scored in it
    study = tmp_path / "s.journal"
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(**settings) as local, distributed.Client(local) as client:
        worker = next(iter(client.run(os.getpid).values()))

        def kill_at_work() -> None:
            until = time.monotonic() + 120
            while _count(study) < 2 and time.monotonic() < until:
                time.sleep(0.01)
            os.kill(worker, signal.SIGKILL)

        killing = threading.Thread(target=kill_at_work if kill else int)
        killing.start()
        result = random_search(DIGITS, "paper-cnn", 8, **arguments, study=study, scheduler=local.scheduler_address)
        killing.join()
        assert kill != (worker in client.run(os.getpid).values())
    assert len(result.rungs[0]) == 2
    assert result.test is not None
    assert quiet.test is not None
    assert (result.best.draw, result.test.error) == (quiet.best.draw, quiet.test.error)
    assert_kept(quiet.trials, study)
    assert _count(study) == 8


@pytest.mark.gpu
def test_on_a_card() -> None:
    on_cpu = random_search(DIGITS, "pooled", 6, **SMALL)
    on_card = random_search(DIGITS, "pooled", 6, train=60, validation=60, device="cuda", processes=2)
    for a, b in zip(on_cpu.trials, on_card.trials, strict=True):
        assert a.network == b.network
        assert b.error == pytest.approx(a.error, abs=1.5 / 60)  # rounding may tip an image that is on the edge
        assert b.score.engine.startswith("cuda")
