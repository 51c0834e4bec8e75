"""Searches that are killed, interrupted or shared by several processes give what one quiet run gives."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cnngp import GPClassifier, random_search, search
from cnngp.search import Draw, Space
from cnngp.search import work as search_work
from cnngp.search.claims import Claims
from helpers.searches import DIGITS, SMALL, alone, records_of

optuna = pytest.importorskip("optuna")


_SCRIPT = """
import sys, time
from cnngp import datasets, random_search
from cnngp.search import Space
from cnngp.search.space import SPACES

def slow(draw):
    time.sleep({nap})
    return SPACES["paper-cnn"].build(draw)

if __name__ == "__main__":
    result = random_search(
        datasets.digits(), Space("slow", 1, slow, ""), {draws}, train=60, validation=60, study=sys.argv[1],
        device="cpu", threads=1, processes={processes},
    )
    print(len(result.trials))
"""


def _start(tmp_path: Path, nap: float, draws: int, processes: int = 1) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(nap=nap, draws=draws, processes=processes))
    command = [sys.executable, str(script), str(tmp_path / "s.db")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _same_as_alone(study: Path, draws: int) -> None:
    """Each draw is there exactly once, and is what an undisturbed search gives."""
    records = records_of(study)
    assert sorted(r.user_attrs["draw"] for r in records) == list(range(draws))
    by_draw = {r.user_attrs["draw"]: r for r in records}
    for trial in alone().trials[:draws]:
        record = by_draw[trial.draw]
        assert (record.params, record.value) == (trial.params, trial.error)
        assert record.user_attrs["network"] == trial.network_json
        assert record.user_attrs["loo_error"] == trial.score.loo_error


def test_killed_and_run_again_by_two_processes(tmp_path: Path) -> None:
    study = tmp_path / "s.db"
    first = _start(tmp_path, nap=0.2, draws=6)
    deadline = time.monotonic() + 300
    while not (study.exists() and _count(study) >= 2):
        assert first.poll() is None, first.stderr.read()  # type: ignore[union-attr]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    first.kill()
    first.communicate()
    done = _count(study)
    assert 2 <= done < 6
    second = _start(tmp_path, nap=0.0, draws=6, processes=2)
    out, err = second.communicate(timeout=300)
    assert (out.strip(), second.returncode) == ("6", 0), err
    _same_as_alone(study, 6)


def _count(study: Path) -> int:
    try:
        with sqlite3.connect(study, timeout=10) as file:
            return int(file.execute("SELECT COUNT(*) FROM trials").fetchone()[0])
    except sqlite3.OperationalError:  # the tables are not there yet
        return 0


@pytest.mark.slow
def test_two_commands_and_their_processes_share_one_study(tmp_path: Path) -> None:
    commands = [_start(tmp_path, nap=0.1, draws=10), _start(tmp_path, nap=0.1, draws=10, processes=2)]
    for command in commands:
        out, err = command.communicate(timeout=120)
        assert (out.strip(), command.returncode) == ("10", 0), err
    _same_as_alone(tmp_path / "s.db", 10)
    assert not list(tmp_path.glob("*.claims"))


def _deadly(draw: Draw) -> Any:
    os._exit(7)


@pytest.mark.slow
def test_a_process_that_dies_is_reported(tmp_path: Path) -> None:
    deadly = Space("deadly", 1, _deadly, "")
    with pytest.raises(RuntimeError, match=r"ended with exit code 7.*what is finished is kept"):
        random_search(DIGITS, deadly, 4, train=60, validation=60, device="cpu", study=tmp_path / "s.db", processes=2)


def test_threads_share_one_study(tmp_path: Path) -> None:
    results = []

    def search_here() -> None:
        results.append(random_search(DIGITS, "paper-cnn", 8, **SMALL, study=tmp_path / "s.db"))

    threads = [threading.Thread(target=search_here) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    _same_as_alone(tmp_path / "s.db", 8)


def test_a_claim_dies_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from cnngp.search.claims import Claims;"
        "c = Claims(Path(sys.argv[1])); print(c.take('a'), flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "c")], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "True"
    claims = Claims(tmp_path / "c")
    assert not claims.take("a")
    assert claims.take("b")
    os.kill(holder.pid, signal.SIGKILL)
    holder.communicate()
    assert claims.take("a")
    assert not Claims(tmp_path / "c").take("a")  # nor twice in one process
    claims.drop_all()
    assert Claims(tmp_path / "c").take("a")


def test_interrupted_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = search_work.compute

    def interrupted(*arguments: Any) -> Any:
        if arguments[3] == 2:
            raise KeyboardInterrupt
        return compute(*arguments)

    monkeypatch.setattr(search_work, "compute", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"2 of 5 networks are in .*s\.db\. Run it again to continue"):
        random_search(DIGITS, "paper-cnn", 5, **SMALL, study=tmp_path / "s.db")


@pytest.mark.slow
def test_on_a_dask_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "score", None)  # the client may have no card: nothing is scored in it
    distributed = pytest.importorskip("distributed")
    study = tmp_path / "s.db"
    settings = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    settings |= {"protocol": "tcp://", "silence_logs": 50}
    with distributed.LocalCluster(**settings) as cluster:
        result = random_search(
            DIGITS, "paper-cnn", 4, **SMALL, study=study, full=[(2, 80)], scheduler=cluster.scheduler_address, test=True
        )
    assert len(result.trials) == 4
    assert result.test is not None
    split = DIGITS.hold_out(60)
    clf = GPClassifier(result.network, device="cpu").fit(split.X[:80], split.y[:80])
    assert result.test.error == pytest.approx(1 - clf.score(DIGITS.X_test, DIGITS.y_test), abs=1e-12)
    assert len(result.rungs[0].trials) == 2
    _same_as_alone(study, 4)


@pytest.mark.gpu
def test_on_a_card() -> None:
    on_cpu = random_search(DIGITS, "wide", 6, **SMALL)
    on_card = random_search(DIGITS, "wide", 6, train=60, validation=60, device="cuda", processes=2)
    for a, b in zip(on_cpu.trials, on_card.trials, strict=True):
        assert a.network == b.network
        assert b.error == pytest.approx(a.error, abs=1.5 / 60)  # rounding may tip an image that is on the edge
        assert b.score.engine.startswith("cuda")
