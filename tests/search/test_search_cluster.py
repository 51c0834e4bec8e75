"""A search on a Dask cluster: workers that die, that come back or do not, and a scheduler that goes."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cnngp import datasets, random_search
from cnngp.matrix.cluster import roster as cluster_roster
from cnngp.matrix.cluster.cluster import ClusterError
from cnngp.matrix.cluster.hands import Hands
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
    give = Hands.give
    given: list[int] = []

    def give_and_then(self: Any, *arguments: Any) -> None:
        give(self, *arguments)
        given.append(0)
        if len(given) in numbers:
            then(self.client)

    monkeypatch.setattr(Hands, "give", give_and_then)


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
            ClusterError, match=rf"^the scheduler {address} is gone; .*s\.db keeps.* run the same command again$"
        ):
            random_search(DIGITS, "paper-cnn", 3, **SMALL, study=study, scheduler=address)
    assert states(study) == ["COMPLETE"]
    assert not list(tmp_path.glob("*.claims"))


@pytest.mark.slow
def test_a_worker_dies_while_the_images_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that sends them may fail, or hang: they are sent again to those that are left."""
    study = tmp_path / "s.db"
    scatter, sent = distributed.Client.scatter, []

    def scatter_and_kill(self: Any, data: Any, workers: list[str], **options: Any) -> Any:
        sent.append(workers)
        if len(sent) == 1:
            [pid] = self.run(os.getpid, workers=workers[:1]).values()
            os.kill(pid, signal.SIGKILL)
        return scatter(self, data, workers=workers, **options)

    monkeypatch.setattr(distributed.Client, "scatter", scatter_and_kill)
    with cluster_of(2, processes=True) as local:
        result = random_search(DIGITS, "paper-cnn", 3, **SMALL, study=study, scheduler=local.scheduler_address)
    assert len(sent) >= 1
    assert states(study) == ["COMPLETE"] * 3
    alone = random_search(DIGITS, "paper-cnn", 3, **SMALL)
    assert [t.error for t in result.trials] == [t.error for t in alone.trials]
