"""A search on a Dask cluster: workers that die, that come back or do not, and a scheduler that goes."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cnngp import datasets, random_search
from cnngp.matrix.cluster import roster as cluster_roster
from cnngp.matrix.cluster.cluster import ClusterError
from cnngp.search import tasks
from cnngp.search.study import NAME

optuna = pytest.importorskip("optuna")
dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
DIGITS = datasets.digits()
SMALL: dict[str, Any] = {"train": 60, "validation": 60, "device": "cpu", "threads": 1}


@contextmanager
def cluster_of(workers: int, processes: bool) -> Iterator[Any]:
    """Workers with one thread each; a process that dies is replaced."""
    options = {"n_workers": workers, "threads_per_worker": 1, "processes": processes, "protocol": "tcp://"}
    with distributed.LocalCluster(**options, dashboard_address=":0", silence_logs=logging.CRITICAL) as local:
        yield local


def states(study: Path) -> list[str]:
    """The study as any user of Optuna reads it."""
    return [t.state.name for t in optuna.load_study(storage=f"sqlite:///{study}", study_name=NAME).trials]


def after_giving(monkeypatch: pytest.MonkeyPatch, numbers: set[int], then: Callable[[Any], None]) -> None:
    """Do something right after the n-th task, for each n of `numbers`, is in a worker's hands."""
    give = tasks.Hands.give
    given: list[int] = []

    def give_and_then(self: Any, *arguments: Any) -> None:
        give(self, *arguments)
        given.append(0)
        if len(given) in numbers:
            then(self.client)

    monkeypatch.setattr(tasks.Hands, "give", give_and_then)


def kill_all(client: Any) -> None:
    before = set(client.nthreads())
    for pid in client.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)
    until = time.monotonic() + 60
    while before & set(client.nthreads()) and time.monotonic() < until:
        time.sleep(0.01)


def test_the_only_worker_dies_and_another_joins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its draw and the images died with it: both are given again, for draws and for the look at the test images."""
    study = tmp_path / "s.db"
    after_giving(monkeypatch, {2, 5}, kill_all)  # draws 0, 1, 1 again, 2; then the look, twice
    with cluster_of(1, processes=True) as local:
        result = random_search(
            DIGITS, "paper-cnn", 3, **SMALL, study=study, scheduler=local.scheduler_address, test=True
        )
    assert states(study) == ["COMPLETE"] * 3  # no draw was blamed
    alone = random_search(DIGITS, "paper-cnn", 3, **SMALL, test=True)
    assert [t.error for t in result.trials] == [t.error for t in alone.trials]
    assert result.test == alone.test
    assert not list(tmp_path.glob("*.claims"))


def test_without_workers_it_warns_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    study = tmp_path / "s.db"
    monkeypatch.setattr(cluster_roster, "PATIENCE", 1.0)
    with cluster_of(1, processes=False) as local:
        after_giving(monkeypatch, {2}, lambda client: local.sync(local.workers[0].close))
        with pytest.raises(ClusterError, match=r"no workers at .*; start them with `dask worker.*s\.db keeps what is"):
            random_search(DIGITS, "paper-cnn", 3, **SMALL, study=study, scheduler=local.scheduler_address)
    assert caplog.text.count("waiting for one") == 1
    assert states(study) == ["COMPLETE"]
    assert not list(tmp_path.glob("*.claims"))
    assert len(random_search(DIGITS, "paper-cnn", 3, **SMALL, study=study).trials) == 3


def test_the_scheduler_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "s.db"
    soon = dask.config.set({"distributed.comm.timeouts.connect": "1s"})  # the cluster's own end waits for it
    with soon, cluster_of(1, processes=False) as local:
        address = local.scheduler_address
        after_giving(monkeypatch, {2}, lambda client: local.sync(local.scheduler.close))
        with pytest.raises(
            ClusterError, match=rf"^the scheduler {address} is gone; .*s\.db keeps.* run the same again$"
        ):
            random_search(DIGITS, "paper-cnn", 3, **SMALL, study=study, scheduler=address)
    assert states(study) == ["COMPLETE"]
    assert not list(tmp_path.glob("*.claims"))


class Future:
    def __init__(self, status: str) -> None:
        self.status = status

    def cancel(self) -> None:
        self.status = "cancelled"


def hands_of(client: Any) -> tasks.Hands:
    client.scheduler = SimpleNamespace(address="tcp://s:1", ncores_running=None)
    client.sync = lambda _: {"tcp://a": 1}
    problem: Any = SimpleNamespace()
    return tasks.Hands(client, problem, Path("s.db"))


def test_a_draw_that_kills_every_worker_is_blamed() -> None:
    hands = hands_of(SimpleNamespace(status="running"))
    for _ in range(3):
        hands.running[7] = "tcp://a", Future("cancelled")
        assert hands.ended() == []
        assert hands.again.popleft() == 7
    hands.running[7] = "tcp://a", Future("cancelled")
    [(number, outcome)] = hands.ended()
    assert number == 7
    with pytest.raises(ClusterError, match="4 workers died, one after the other, with it in hand"):
        outcome()
    assert not hands.again
    assert not hands.running


def test_images_that_cannot_be_sent() -> None:
    """A worker that dies meanwhile is no reason to end; a failure each time is."""
    sent: list[bool] = []

    def scatter(data: Any, broadcast: bool, hash: bool) -> Any:
        sent.append(broadcast)
        raise OSError("no room")

    hands = hands_of(SimpleNamespace(status="running", scatter=scatter))
    for number in range(3):
        hands.give(number, "tcp://a", len)
    assert list(hands.again) == [0, 1, 2]
    with pytest.raises(ClusterError, match=r"the images cannot be sent to the workers: .*no room.*s\.db keeps"):
        hands.give(3, "tcp://a", len)
    assert sent == [True] * 4  # to every worker, so that the death of one does not take them away


@pytest.mark.parametrize("heard", [True, False])
def test_images_that_are_gone_are_sent_again(heard: bool) -> None:
    """The client hears that they are gone, or only that a draw was cancelled because they are."""
    sent: list[Future] = []

    def scatter(data: Any, broadcast: bool, hash: bool) -> Any:
        sent.append(Future("finished"))
        return sent[-1]

    def submit(function: Any, images: Any, workers: list[str], pure: bool) -> Any:
        assert images is sent[-1]
        return Future("pending")

    hands = hands_of(SimpleNamespace(status="running", scatter=scatter, submit=submit))
    hands.give(0, "tcp://a", len)
    hands.give(1, "tcp://a", len)
    assert len(sent) == 1
    if heard:
        sent[0].status = "lost"
    else:
        hands.running[0][1].status = "cancelled"
        assert hands.ended() == []
    hands.give(2, "tcp://a", len)
    assert len(sent) == 2


@pytest.mark.parametrize("step", ["free", "give", "ended"])
def test_a_connection_that_breaks_at_any_step(step: str) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ConnectionResetError("in <TCP (closed)>")

    future = SimpleNamespace(status="finished", result=broken)
    hands = hands_of(SimpleNamespace(status="running", nthreads=broken, submit=broken, run=lambda *_, **__: {}))
    hands._images = Future("finished")
    hands.running[0] = "tcp://a", future
    steps: dict[str, Callable[[], Any]] = {
        "free": hands.free,
        "give": lambda: hands.give(1, "tcp://a", len),
        "ended": hands.ended,
    }
    with pytest.raises(ClusterError, match=r"^the scheduler tcp://s:1 is gone; s\.db keeps what is finished, run the"):
        steps[step]()
