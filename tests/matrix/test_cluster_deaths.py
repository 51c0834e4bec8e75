"""Workers, clients and schedulers of a cluster that die, freeze or pause: the matrix is the same."""

from __future__ import annotations

import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("distributed")

import dask
from distributed import Client, LocalCluster, Status

from cnngp import Kernel, gram, solve, zoo
from cnngp.gp.solving.matrices import SymmetricMatrix
from cnngp.matrix.cluster import cluster
from cnngp.matrix.cluster import mark as store_run
from cnngp.matrix.cluster import roster as cluster_roster
from cnngp.matrix.cluster import run as cluster_run
from cnngp.matrix.cluster.cluster import ClusterError, connect
from cnngp.matrix.cluster.worker import Done, Job, Refused, work
from cnngp.matrix.images import ImageRows
from cnngp.matrix.plan import status
from cnngp.matrix.store.store import opened
from helpers.clusters import KERNEL, SLOW, X, chunks, names, wait_for_chunks
from helpers.tile_count import computed


def kill_when_at_work(client: Client, place: Path, everyone: bool) -> threading.Thread:
    pids = list(client.run(os.getpid).values())

    def kill() -> None:
        wait_for_chunks(place, 12)
        for pid in pids if everyone else pids[:1]:
            os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


@pytest.mark.parametrize("everyone", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_workers_are_killed(client: Client, tmp_path: Path, everyone: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The other one does the tiles; the one that replaces it joins in."""
    client.wait_for_workers(2, timeout=300)
    place = tmp_path / "K.zarr"
    before = set(client.nthreads())
    killing = kill_when_at_work(client, place, everyone)
    K = gram(SLOW, X, store=place, tile=8, client=client)
    killing.join()
    np.testing.assert_array_equal(K[:], SLOW(X))
    assert set(client.nthreads()) != before
    assert "is gone; others do its work" in caplog.text
    assert names(place) == [".lock", "K", "c", "seals", "zarr.json", "zarr.json"]
    client.wait_for_workers(2, timeout=300)


def test_a_worker_that_dask_pauses_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is still listed, and never begins what it has in hand."""
    give = cluster_run.Run.give
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    # without a limit of memory Dask does not let it go on by itself
    with LocalCluster(**options, memory_limit=0, silence_logs=logging.CRITICAL) as local, Client(local) as made:
        paused = local.workers[1]

        def give_and_pause(self: Any) -> None:
            give(self)
            if paused.status == Status.running:
                local.loop.add_callback(setattr, paused, "status", Status.paused)
                while paused.address in made.sync(made.scheduler.ncores_running):
                    time.sleep(0.01)

        monkeypatch.setattr(cluster_run.Run, "give", give_and_pause)
        place = tmp_path / "K.zarr"
        arguments = {"store": place, "tile": 8, "client": made}
        run_ = threading.Thread(target=gram, args=(SLOW, X), kwargs=arguments, daemon=True)
        run_.start()
        run_.join(60)
        assert not run_.is_alive()
        assert paused.address in made.nthreads()
    assert status(place).whole
    assert f"worker {paused.address} begins no more tasks" in caplog.text
    assert "is gone" not in caplog.text


FROZEN = Kernel(zoo.resnet(20), device="cpu", threads=1)


def test_a_frozen_worker_is_reported_after_seconds_and_others_do_its_tiles(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler itself would wait for minutes, and the last tiles with it."""
    monkeypatch.setattr(cluster_roster, "SILENT_SECONDS", 3.0)
    client.wait_for_workers(2, timeout=300)
    place = tmp_path / "K.zarr"
    pid = next(iter(client.run(os.getpid).values()))

    def freeze() -> None:
        wait_for_chunks(place, 12)
        os.kill(pid, signal.SIGSTOP)

    freezing = threading.Thread(target=freeze)
    freezing.start()
    try:
        K = gram(FROZEN, X, store=place, tile=8, client=client)
    finally:
        freezing.join()
        os.kill(pid, signal.SIGCONT)
    np.testing.assert_array_equal(K[:], FROZEN(X))
    assert "s (frozen, or cut off); others do its work" in caplog.text
    assert "is gone" not in caplog.text


def test_a_worker_that_is_frozen_from_the_start_takes_no_part(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: Any
) -> None:
    monkeypatch.setattr(cluster_roster, "ANSWER_SECONDS", 1.0)
    client.wait_for_workers(2, timeout=300)
    pid = next(iter(client.run(os.getpid).values()))
    os.kill(pid, signal.SIGSTOP)
    try:
        K = gram(KERNEL, X, store=tmp_path / "K.zarr", tile=32, client=client)
    finally:
        os.kill(pid, signal.SIGCONT)
    np.testing.assert_array_equal(K[:], expected)


def scheduler_of_its_own() -> tuple[Any, Any]:
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    local = LocalCluster(**options, protocol="tcp://", silence_logs=logging.CRITICAL)
    return local, connect(local.scheduler_address)


def test_the_scheduler_dies_under_gram_and_the_run_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "K.zarr"
    finish = cluster_run.Run._finish
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        local, made = scheduler_of_its_own()

        def finish_and_close(self: Any, task: Any, result: Any) -> None:
            finish(self, task, result)
            if self.given > 20:
                local.sync(local.scheduler.close)

        with monkeypatch.context() as m:
            m.setattr(cluster_run.Run, "_finish", finish_and_close)
            said = r"^the scheduler .* (is gone|does not answer any more); \d+ of 190 tiles are there .* Run it again"
            with pytest.raises(ClusterError, match=said) as caught:
                gram(KERNEL, X, store=place, tile=8, client=made)
        assert "\n" not in str(caught.value)
        made.close()
        local.close()
    calls = computed(monkeypatch)
    np.testing.assert_array_equal(gram(KERNEL, X, store=place)[:], KERNEL(X))
    assert 0 < len(calls) < 190


def test_the_scheduler_dies_under_a_solve_that_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, targets = tmp_path / "K.zarr", np.random.default_rng(1).standard_normal((150, 2))
    gram(KERNEL, X, store=place, tile=32)
    alone = solve(place, targets, 1e-6, "cg", device="cpu", rank=5)
    passes: list[int] = []
    product = SymmetricMatrix._on_cluster
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        local, made = scheduler_of_its_own()

        def multiply(self: Any, V: Any) -> Any:
            passes.append(1)
            if len(passes) == 5:
                local.sync(local.scheduler.close)
            return product(self, V)

        with monkeypatch.context() as m:
            m.setattr(SymmetricMatrix, "_on_cluster", multiply)
            said = r"^the scheduler .*; iteration \d+ is kept in .*K\.zarr\.solve-.*\. Run it again to continue"
            with pytest.raises(ClusterError, match=said):
                solve(place, targets, 1e-6, "cg", device="cpu", rank=5, client=made)
        made.close()
        local.close()
    found = solve(place, targets, 1e-6, "cg", device="cpu", rank=5)
    np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-6)
    assert found.iterations == alone.iterations
    assert not list(tmp_path.glob("*.solve-*"))


CLIENT = """
import sys, numpy as np
from distributed import Client
from cnngp import Kernel, gram, zoo
X = np.random.default_rng(0).random((150, 1, 8, 8), dtype=np.float32)
gram(Kernel(zoo.resnet(14), device="cpu"), X[:140], store=sys.argv[1], tile=8, client=Client(sys.argv[2]))
"""


def test_the_client_is_killed_and_the_data_grow(client: Client, tmp_path: Path) -> None:
    """Tasks of a dead client are still at work when the next run changes the matrix: they must write nothing more."""
    place = tmp_path / "K.zarr"
    process = subprocess.Popen([sys.executable, "-c", CLIENT, str(place), client.scheduler.address])
    wait_for_chunks(place, 12)
    process.kill()
    process.wait()
    assert (place / "images").exists()
    np.testing.assert_array_equal(gram(SLOW, X, store=place)[:], SLOW(X))
    assert not (place / "images").exists()
    assert status(place).whole


def test_a_task_without_the_mark_of_its_run_writes_nothing(client: Client, tmp_path: Path) -> None:
    place = tmp_path / "K.zarr"
    gram(KERNEL, X, store=place, tile=64)
    (place / "K/c/0/0").unlink()
    kernel = cluster.Crew(client, KERNEL, X.shape[1:], place)._kernel
    for where, said in ((place, "is not the store of this run"), (tmp_path / "other", "does not see the store")):
        answer = client.submit(work, Job(kernel, str(where), "f" * 32), [(0, 0)], False, pure=False).result()
        assert isinstance(answer, Refused)
        assert said in answer.reason
    assert not (place / "K/c/0/0").exists()
    assert not (tmp_path / "other").exists()


def test_a_run_that_ends_leaves_its_tasks_nothing_to_write(client: Client, tmp_path: Path) -> None:
    """A worker that has the run open, and did tiles of it, writes none once the mark is gone."""
    place = tmp_path / "K.zarr"
    gram(KERNEL, X, store=place, tile=64)
    worker = next(iter(client.nthreads()))
    submit = functools.partial(client.submit, work, workers=[worker], pure=False)
    with opened(place) as store:
        mark = store_run.begin(store, ImageRows(X, KERNEL, "X"), None)
        job = Job(cluster.Crew(client, KERNEL, X.shape[1:], place)._kernel, str(place), mark)
        for path in place.glob("K/c/*/*"):
            path.unlink()
        assert isinstance(submit(job, [(0, 0), (0, 1)], False).result(), Done)
        assert chunks(place) == 3
        (place / "images/X/c/2/0/0/0").unlink()
        blind = submit(job, [(2, 2)], False).result()
        assert isinstance(blind, Refused)
        assert "it does not see all images of the run (X[128] has NaN pixels" in blind.reason
        store_run.end(store)
        ended = submit(job, [(1, 1)], False).result()
        assert isinstance(ended, Refused)
        assert "the run has ended" in ended.reason
    assert chunks(place) == 3


def test_tiles_that_are_given_again_are_computed_only_where_they_are_missing(client: Client, tmp_path: Path) -> None:
    """Whoever had them in hand before may have written some: these stay as they are."""
    place = tmp_path / "K.zarr"
    gram(KERNEL, X, store=place, tile=64)
    worker = next(iter(client.nthreads()))
    with opened(place) as store:
        mark = store_run.begin(store, ImageRows(X, KERNEL, "X"), None)
        job = Job(cluster.Crew(client, KERNEL, X.shape[1:], place)._kernel, str(place), mark)
        (place / "K/c/1/0").unlink()  # half of (0, 1)
        (place / "K/seals/1/1").unlink()  # written, but not sealed
        before = {path: path.stat().st_mtime_ns for path in place.glob("K/c/*/*")}
        places = [(0, 0), (0, 1), (1, 1), (2, 2)]
        assert isinstance(client.submit(work, job, places, True, workers=[worker], pure=False).result(), Done)
        store_run.end(store)
    again = sorted(p.parent.name + "/" + p.name for p, at in before.items() if p.stat().st_mtime_ns != at)
    assert again == ["0/1", "1/1"]
    assert status(place).whole
