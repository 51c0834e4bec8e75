"""Kernel matrices on a Dask cluster of real processes: the same bits, whoever dies, whoever does not belong."""

from __future__ import annotations

import errno
import functools
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

pytest.importorskip("distributed")

import dask
from distributed import Client, LocalCluster, Status

import cnngp
from cnngp import Kernel, datasets, gram, solve, zoo
from cnngp.cli import run
from cnngp.common.errors import StoreError
from cnngp.gp.solving.matrices import SymmetricMatrix
from cnngp.matrix.cluster import cluster
from cnngp.matrix.cluster import mark as store_run
from cnngp.matrix.cluster import roster as cluster_roster
from cnngp.matrix.cluster import run as cluster_run
from cnngp.matrix.cluster import worker as cluster_worker
from cnngp.matrix.cluster.cluster import ClusterError, connect
from cnngp.matrix.cluster.worker import Done, Job, Refused, work
from cnngp.matrix.images import ImageRows
from cnngp.matrix.plan import status
from cnngp.matrix.store.store import GramStore, opened
from helpers.tile_count import computed

X = np.random.default_rng(0).random((150, 1, 8, 8), dtype=np.float32)
KERNEL = Kernel(zoo.small_cnn(), device="cpu", threads=1)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """Two processes with one thread each. A process that dies is replaced."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with LocalCluster(**options) as local, Client(local) as made:
        yield made


@pytest.fixture(scope="module")
def expected() -> Any:
    return KERNEL(X)


def chunks(place: Path) -> int:
    return len(list(place.glob("K/c/*/*")))


def names(place: Path) -> list[str]:
    return sorted(p.name for folder in (place, place / "K") for p in folder.iterdir())


def wait_for_chunks(place: Path, least: int) -> None:
    until = time.monotonic() + 120
    while chunks(place) < least:
        assert time.monotonic() < until, "no tiles were written"
        time.sleep(0.005)


def seen_by_worker() -> tuple[int, int, int]:
    """Sites on this worker, images that it holds, and the threads of its engine."""
    sites = cluster_worker._sites
    held = sum(len(block) for block in sites[0].x._kept.values()) if sites else 0
    return len(sites), held, sites[0].lanes[0].engine.threads if sites else 0


def test_the_matrix_of_a_cluster_is_the_kernels_own(
    client: Client, tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, int]] = []
    let_go = cluster.Crew._release

    def look_first(crew: Any) -> None:
        seen.extend(client.run(seen_by_worker).values())
        let_go(crew)

    monkeypatch.setattr(cluster.Crew, "_release", look_first)
    place = tmp_path / "K.zarr"
    K = gram(KERNEL, X, store=place, tile=16, client=client)
    assert isinstance(K, zarr.Array)
    np.testing.assert_array_equal(K[:], expected)
    assert status(place).whole
    assert names(place) == [".lock", "K", "c", "seals", "zarr.json", "zarr.json"]  # images and mark are gone
    assert [site for site, _, _ in seen] == [1, 1]  # both took part
    assert all(0 < held <= len(X) for _, held, _ in seen)  # no image twice
    assert [threads for _, _, threads in seen] == [1, 1]
    assert [site for site, _, _ in client.run(seen_by_worker).values()] == [0, 0]  # the images are let go


def with_memory(dask_worker: Any, limit: int | None) -> int | None:
    """A machine of 64 TB, and a limit for the worker; gives the limit before. None for the machine's own memory."""
    before: int | None = dask_worker.memory_manager.memory_limit
    if limit is None:
        cluster_worker.memory = cnngp.common.memory
    else:
        cluster_worker.memory = types.SimpleNamespace(available=lambda device: 64 << 40)
        dask_worker.memory_manager.memory_limit = limit
    return before


def room_for_images() -> list[int]:
    """Bytes of images that each set may take."""
    site = cluster_worker._sites[0]
    return [r.room + sum(b.nbytes for b in r._kept.values()) for r in (site.x, site.z) if r is not None]


def test_images_take_an_eighth_of_a_workers_memory_limit(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask pauses a worker that comes near its limit, whatever the machine has."""
    monkeypatch.setattr(cluster.Crew, "_release", lambda crew: None)
    limit = 32 << 30
    before = client.run(with_memory, limit=limit)
    try:
        for z, rooms in ((None, [limit // 8]), (X[:8], [limit // 16] * 2)):
            gram(KERNEL, X, z, store=tmp_path / f"{z is None}", tile=(8, 8), client=client)
            assert list(client.run(room_for_images).values()) == [rooms, rooms]
    finally:
        for worker, own in before.items():
            client.run(with_memory, limit=own, workers=[worker])
        client.run(with_memory, limit=None)
        client.run(cluster_worker.release)


def test_only_what_is_missing_or_damaged_is_computed(
    client: Client, tmp_path: Path, expected: Any, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "K.zarr"
    gram(KERNEL, X[:100], store=place, tile=32)
    (place / "K/c/1/0").unlink()
    (place / "K/c/2/2").write_bytes(b"broken")
    kept = (place / "K/c/0/1").stat().st_mtime_ns
    np.testing.assert_array_equal(gram(KERNEL, X[:100], store=place, client=client)[:], expected[:100, :100])
    assert "1 of 10 tiles were damaged" in caplog.text
    (place / "K/c/0/2").unlink()
    unmoved = (place / "K/c/1/1").stat().st_mtime_ns
    np.testing.assert_array_equal(gram(KERNEL, X, store=place, client=client)[:], expected)  # grown
    assert (place / "K/c/1/1").stat().st_mtime_ns == unmoved
    assert (place / "K/c/0/1").stat().st_mtime_ns != kept  # its mirror image was missing


def test_two_sets_and_a_url(client: Client, tmp_path: Path) -> None:
    K = gram(KERNEL, X, X[:40], store=f"file://{tmp_path}/K.zarr", tile=(32, 16), client=client)
    np.testing.assert_array_equal(K[:], KERNEL(X, X[:40]))
    assert not (tmp_path / "K.zarr/images").exists()


def test_a_relative_path_and_a_python_function(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    network = cnngp.Sequential(cnngp.Conv(3), cnngp.Elementwise(lambda v: np.tanh(v)), cnngp.Dense())
    kernel = Kernel(network, device="cpu")
    K = gram(kernel, X[:40], store="K.zarr", tile=16, client=client)
    np.testing.assert_array_equal(K[:], kernel(X[:40]))


# ---- who dies -------------------------------------------------------------------------------------------------------

SLOW = Kernel(zoo.resnet(14), device="cpu", threads=1)


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
    client.wait_for_workers(2, timeout=60)
    place = tmp_path / "K.zarr"
    before = set(client.nthreads())
    killing = kill_when_at_work(client, place, everyone)
    K = gram(SLOW, X, store=place, tile=8, client=client)
    killing.join()
    np.testing.assert_array_equal(K[:], SLOW(X))
    assert set(client.nthreads()) != before
    assert "is gone; others do its work" in caplog.text
    assert names(place) == [".lock", "K", "c", "seals", "zarr.json", "zarr.json"]
    client.wait_for_workers(2, timeout=60)


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


def test_a_frozen_worker_is_told_of_after_seconds_and_others_do_its_tiles(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The scheduler itself would wait for minutes, and the last tiles with it."""
    monkeypatch.setattr(cluster_roster, "SILENT_SECONDS", 3.0)
    client.wait_for_workers(2, timeout=60)
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
    client.wait_for_workers(2, timeout=60)
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
            said = r"^the scheduler .* (is gone|does not answer any more); \d+ of 190 tiles are there .* Run the same"
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
            said = r"^the scheduler .*; iteration \d+ is kept in .*K\.zarr\.solve-.*\. Run the same again to go on"
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


# ---- who does not belong --------------------------------------------------------------------------------------------


def other_engine(on: bool) -> None:
    import cnngp.kernel.engines.cpu.engine as engine

    engine.VERSION = f"other-{engine.VERSION}" if on else int(engine.VERSION.removeprefix("other-"))


def other_version(on: bool) -> None:
    import cnngp

    cnngp.__version__ = f"{cnngp.__version__}.other" if on else cnngp.__version__.removesuffix(".other")


def not_installed(on: bool) -> None:
    import sys

    if on:
        sys.modules["hidden"], sys.modules["cnngp"] = sys.modules["cnngp"], None  # type: ignore[assignment]
    else:
        sys.modules["cnngp"] = sys.modules.pop("hidden")


@pytest.mark.parametrize(
    ("pretend", "said"),
    [
        (other_engine, "its engine is cpu-other-"),
        (other_version, f"it has cnngp {cnngp.__version__}.other, the client {cnngp.__version__}"),
        (not_installed, "it cannot import cnngp (import of cnngp halted"),
    ],
)
def test_workers_that_do_not_fit_stand_aside(
    client: Client, tmp_path: Path, expected: Any, caplog: pytest.LogCaptureFixture, pretend: Any, said: str
) -> None:
    client.wait_for_workers(2, timeout=60)
    first, second = client.nthreads()
    place = tmp_path / "K.zarr"
    gram(KERNEL, X, store=place, tile=32)
    for path in place.glob("K/c/*/*"):
        path.unlink()
    client.run(pretend, True, workers=[first])
    pretending = [first]
    try:
        np.testing.assert_array_equal(gram(KERNEL, X, store=place, client=client)[:], expected)
        assert f"worker {first} takes no part: {said}" in caplog.text
        client.run(pretend, True, workers=[second])
        pretending.append(second)
        (place / "K/c/0/0").unlink()
        with pytest.raises((ClusterError, StoreError)) as refused:
            gram(KERNEL, X, store=place, client=client)
        assert "\n" not in str(refused.value)
        assert not (place / "K/c/0/0").exists()
        assert names(place) == [".lock", "K", "c", "seals", "zarr.json", "zarr.json"]
    finally:
        client.run(pretend, False, workers=pretending)


def engine_fails(on: bool) -> None:
    """With an error of a package that the client does not have."""
    import sys
    import types

    from cnngp.kernel.engines.cpu.engine import CpuEngine

    if not on:
        CpuEngine.cross = CpuEngine.kept
        return
    module = sys.modules["cupy_of_the_worker"] = types.ModuleType("cupy_of_the_worker")
    error = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy_of_the_worker"})
    module.OutOfMemoryError = error  # type: ignore[attr-defined]

    def fail(*args: Any) -> None:
        raise error("allocating 8 bytes")

    CpuEngine.kept, CpuEngine.cross = CpuEngine.cross, fail


def no_site(on: bool) -> None:
    from cnngp.matrix.cluster import worker as cluster_worker

    def fail(kernel: Any) -> int:
        raise RuntimeError("the card has fallen off the bus")

    if on:
        cluster_worker.kept, cluster_worker._room = cluster_worker._room, fail
    else:
        cluster_worker._room = cluster_worker.kept


@pytest.mark.parametrize(
    ("fault", "said"),
    [(engine_fails, "OutOfMemoryError: allocating 8 bytes"), (no_site, "the card has fallen off the bus")],
)
def test_a_worker_that_fails_stands_aside(
    client: Client, tmp_path: Path, expected: Any, caplog: pytest.LogCaptureFixture, fault: Any, said: str
) -> None:
    client.wait_for_workers(2, timeout=60)
    first, second = client.nthreads()
    client.run(fault, True, workers=[first])
    failing = [first]
    try:
        np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / "K", tile=8, client=client)[:], expected)
        assert f"worker {first} takes no part: {said}" in caplog.text
        assert "is gone" not in caplog.text
        client.run(fault, True, workers=[second])
        failing.append(second)
        with pytest.raises(ClusterError, match=rf"can do the work: {said} \(2 of them\); \d+ of 190 tiles are there"):
            gram(KERNEL, X, store=tmp_path / "other", tile=8, client=client)
    finally:
        client.run(fault, False, workers=failing)


def test_a_disk_that_is_full_before_the_first_tile(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The images that were put there go again."""
    place = tmp_path / "K.zarr"

    put = GramStore.set_bytes

    def full(self: GramStore, key: str, data: bytes) -> None:
        if "/.run-" not in key:  # all but the mark, which is the last before the tiles
            put(self, key, data)
            return
        assert (place / "images/X").exists()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GramStore, "set_bytes", full)
    with pytest.raises(StoreError, match="the disk is full; its tiles stay valid"):
        gram(KERNEL, X, store=place, tile=64, client=client)
    assert names(place) == [".lock", "K", "zarr.json", "zarr.json"]


def test_a_store_that_workers_do_not_see(client: Client) -> None:
    with pytest.raises(ClusterError, match="does not see the store memory://cnngp-cluster/K"):
        gram(KERNEL, X, store="memory://cnngp-cluster/K", client=client)
    with pytest.raises(StoreError, match="a path or a URL that every worker can open"):
        gram(KERNEL, X, store=zarr.storage.MemoryStore(), client=client)


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="client= needs store="):
        gram(KERNEL, X, client=object())
    with pytest.raises(ClusterError, match=r"expected a dask\.distributed\.Client"):
        gram(KERNEL, X, store=tmp_path / "K", client="tcp://127.0.0.1:8786")
    assert not (tmp_path / "K").exists()


def test_a_client_that_is_closed(client: Client, tmp_path: Path) -> None:
    with Client(client.scheduler.address, set_as_default=False) as closed:
        pass
    with pytest.raises(ClusterError, match=r"^client= is closed; give one that is connected to its scheduler$"):
        gram(KERNEL, X, store=tmp_path / "K", client=closed)
    assert not (tmp_path / "K").exists()


# ---- schedulers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """Something that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_a_scheduler_that_is_not_there(
    silent: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    for address in (nobody, silent):
        began = time.monotonic()
        with pytest.raises(ClusterError, match=rf"{address}: no scheduler answers within 0.5 s; start one with"):
            connect(address, timeout=0.5)
        assert time.monotonic() - began < 30
    for address in ("somewhere", "http://host:80", "tcp://host", "tcp://host:port"):
        with pytest.raises(ClusterError, match="expected the address of a Dask scheduler, such as tcp://host:8786"):
            connect(address)
    monkeypatch.setattr("cnngp.matrix.cluster.cluster.connect", functools.partial(connect, timeout=0.5))
    assert run(["gram", "--store", str(tmp_path / "K"), "--scheduler", nobody]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "no scheduler answers" in error
    assert not (tmp_path / "K").exists()


def test_dask_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r"pip install 'cnngp\[dask\]'"):
        connect("tcp://127.0.0.1:8786")


def test_no_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(cluster_roster, "PATIENCE", 0.2)
    options = {"n_workers": 0, "processes": False, "dashboard_address": ":0"}
    refused = pytest.raises(ClusterError, match=r"no workers at \S+; start them with `dask worker")
    with LocalCluster(**options) as local, Client(local) as nobody, refused:
        gram(KERNEL, X, store=tmp_path / "K.zarr", client=nobody)
    assert "waiting for one" in caplog.text


# ---- the command line -----------------------------------------------------------------------------------------------


def test_the_command_is_interrupted_and_goes_on(client: Client, tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "K.zarr"
    arguments = ["gram", "--store", str(place), "--scheduler", client.scheduler.address, "--device", "cpu"]
    arguments += ["--network", "resnet14", "--train", "200", "--tile", "8"]
    command = [sys.executable, "-m", "cnngp", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_chunks(place, 12)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"cluster +tcp://\S+, 2 workers, 2 threads", out)
    assert errors.count("\n") == 1
    assert re.search(r"interrupted; \d+ of 325 tiles are there and stay valid", errors)
    assert not (place / "images").exists()
    assert run([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["shape"] == [200, 200]
    K = zarr.open_array(place, path="K", mode="r")
    np.testing.assert_array_equal(K[:], SLOW(datasets.digits().X[:200]))


# ---- scale ----------------------------------------------------------------------------------------------------------

# Pairs per second of resnet(32) on one H200 (docs/gpu.md).
RATE = 98.9e6
MILLION = 1_000_000


@pytest.mark.parametrize("images", [200_000, pytest.param(MILLION, marks=pytest.mark.slow)])
def test_a_million_images_cost_the_client_little(images: int, tmp_path: Path) -> None:
    """Client, scheduler and workers in one process, an engine that computes nothing: all of it under 1 GB, and for one
    million images under 1 % of the time of one card, by processor time, which other programs disturb little.
    """
    script = Path(__file__).parents[1] / "helpers" / "cluster_scale.py"
    command = [sys.executable, str(script), str(images), "4096", str(tmp_path / "K.zarr")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    side = -(-images // 4096)
    assert found["tiles"] == side * (side + 1) // 2
    assert found["once"]
    assert found["shape"] == [images, images]
    assert found["peak_bytes"] < 1e9
    assert found["tasks"] < 200 + found["tiles"] / 16
    expected = images * (images - 1) / 2 / RATE
    print(f"{found}; {found['processor'] / expected:.2%} of {expected:.0f} s")
    if images == MILLION:
        assert found["processor"] < 0.01 * expected
