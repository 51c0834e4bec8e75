"""Kernel matrices on a Dask cluster of real processes: the same bits, whichever of them join, die, freeze or misfit."""

import functools
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

pytest.importorskip("distributed")

import dask
from distributed import Client, LocalCluster

import cnngp
from cnngp import Kernel, datasets, gram, zoo
from cnngp.cli import run
from cnngp.cluster import ClusterError, connect
from cnngp.common.errors import StoreError
from cnngp.gp import solve
from cnngp.gp.solving.matrices import SymmetricMatrix
from cnngp.matrix.cluster import cluster as clusters
from cnngp.matrix.cluster import filling
from cnngp.matrix.images import ImageRows, begin_run, end_run
from cnngp.matrix.plan import status
from cnngp.matrix.store.store import opened
from helpers.stores import remove_chunks

X = np.random.default_rng(0).random((150, 1, 8, 8), dtype=np.float32)
KERNEL = Kernel(zoo.small_cnn(), device="cpu", threads=1)
SLOW = Kernel(zoo.resnet(14), device="cpu", threads=1)
WHOLE = [".lock", "K", "c", "seals", "zarr.json", "zarr.json"]
HERE: dict[str, Any] = {"processes": False, "protocol": "tcp://"}


@contextmanager
def cluster(workers: int = 2, **options: Any) -> Iterator[Client]:
    """Processes, or with `processes=False` threads of this one, with one thread each. One that dies is replaced."""
    options |= {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"} if "processes" in options else {}),
        LocalCluster(**options, silence_logs=logging.CRITICAL) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Client]:
    with cluster() as made:
        yield made


@pytest.fixture
def client(two_workers: Client) -> Client:
    """A process that another test has killed is there again."""
    two_workers.wait_for_workers(2, timeout=300)
    return two_workers


def chunks(place: Path) -> list[Path]:
    return list(place.glob("K/c/*/*"))


def names(place: Path) -> list[str]:
    return sorted(p.name for folder in (place, place / "K") for p in folder.iterdir())


def wait_for_chunks(place: Path, least: int = 12) -> None:
    until = time.monotonic() + 120
    while len(chunks(place)) < least:
        assert time.monotonic() < until, "no tiles were written"
        time.sleep(0.005)


def close_scheduler(client: Any) -> None:
    client.cluster.sync(client.cluster.scheduler.close)


def when_at_work(place: Path, do: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: (wait_for_chunks(place), do()))
    thread.start()
    return thread


def test_the_matrix_of_a_cluster_is_the_kernels_own(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Only what is missing or damaged is computed, also when the matrix grows."""
    place = tmp_path / "K.zarr"
    expected = KERNEL(X)
    np.testing.assert_array_equal(gram(KERNEL, X[:100], store=place, tile=32, client=client)[:], expected[:100, :100])
    (place / "K/c/1/0").unlink()
    (place / "K/c/2/2").write_bytes(b"broken")
    kept = (place / "K/c/0/0").stat().st_mtime_ns
    np.testing.assert_array_equal(gram(KERNEL, X, store=place, client=client)[:], expected)
    assert "1 of 15 tiles were damaged" in caplog.text
    assert (place / "K/c/0/0").stat().st_mtime_ns == kept
    assert status(place).whole
    assert names(place) == WHOLE  # the images are gone


@pytest.mark.slow
def test_two_sets_a_url_a_relative_path_a_python_function_and_a_tangent_kernel(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    K = gram(KERNEL, X, X[:40], store=f"file://{tmp_path}/cross.zarr", tile=(32, 16), client=client)
    np.testing.assert_array_equal(K[:], KERNEL(X, X[:40]))
    function = cnngp.Sequential(cnngp.Conv(3), cnngp.Elementwise(lambda v: np.tanh(v)), cnngp.Dense())
    theta = Kernel(KERNEL.network, device="cpu", threads=1, kind="ntk")
    for k, kernel in enumerate((Kernel(function, device="cpu"), theta, KERNEL)):
        np.testing.assert_array_equal(gram(kernel, X, store=f"{k}.zarr", tile=48, client=client)[:], kernel(X))


# ---- what dies, freezes or joins ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_workers_are_killed(client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Those that replace the dead join in."""
    place, images = tmp_path / "K.zarr", np.concatenate([X, X + 1])
    pids = client.run(os.getpid).values()
    harming = when_at_work(place, lambda: [os.kill(pid, signal.SIGKILL) for pid in pids])
    np.testing.assert_array_equal(gram(SLOW, images, store=place, tile=8, client=client)[:], SLOW(images))
    harming.join()
    assert caplog.text.count("others do its work") <= len(pids)
    assert names(place) == WHOLE


@pytest.mark.slow
def test_the_scheduler_dies_and_the_run_goes_on_without_it(tmp_path: Path) -> None:
    place, images = tmp_path / "K.zarr", np.concatenate([X, X + 1, X + 2])
    with cluster(1, **HERE) as client:
        closing = when_at_work(place, lambda: close_scheduler(client))
        gone = r"the scheduler tcp://\S+ is gone; [\d,]+ of 1,653 tiles are there"
        with pytest.raises(ClusterError, match=gone) as caught:
            gram(SLOW, images, store=place, tile=8, client=client)
        closing.join()
    assert "\n" not in str(caught.value)
    assert not (place / "images").exists()
    np.testing.assert_array_equal(gram(SLOW, images, store=place)[:], SLOW(images))


@pytest.mark.slow
def test_the_scheduler_dies_under_solve_and_the_iterations_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, Y = tmp_path / "K.zarr", np.random.default_rng(0).standard_normal((150, 2))
    gram(KERNEL, X, store=place, tile=32)
    passes, multiply = [], SymmetricMatrix.multiply

    def multiply_and_close(self: Any, V: Any) -> Any:
        passes.append(1)
        if len(passes) == 4:
            close_scheduler(client)
        return multiply(self, V)

    with cluster(1, **HERE) as client, monkeypatch.context() as m:
        m.setattr(SymmetricMatrix, "multiply", multiply_and_close)
        with pytest.raises(ClusterError, match=r"is gone; iteration \d is kept in .*\. Run it again to continue"):
            solve(place, Y, 1e-4, client=client, device="cpu", rank=5)
    found = solve(place, Y, 1e-4, "cg", device="cpu", rank=5)
    alone = solve(place, Y, 1e-4, "cholesky", device="cpu")
    np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-5)


@pytest.mark.slow
def test_solve_on_workers_that_are_killed(client: Client, tmp_path: Path) -> None:
    kernel, Y = Kernel(zoo.dense_nngp(), device="cpu", threads=1), np.random.default_rng(0).standard_normal((150, 2))
    gram(kernel, X, store=tmp_path / "K", tile=16)
    alone = solve(tmp_path / "K", Y, 1e-3, "cg", device="cpu", rank=0)
    pid = next(iter(client.run(os.getpid).values()))
    threading.Timer(0.5, lambda: os.kill(pid, signal.SIGKILL)).start()
    found = solve(tmp_path / "K", Y, 1e-3, "cg", device="cpu", rank=0, client=client)
    np.testing.assert_allclose(found.weights, alone.weights, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_the_command_is_interrupted_or_killed_and_goes_on(signum: int, client: Client, tmp_path: Path) -> None:
    """The workers of a dead client are still at work when the next run changes the matrix: they write nothing more."""
    place = tmp_path / "K.zarr"
    arguments = f"gram --store {place} --scheduler {client.scheduler.address} --network resnet14 --train 190 --tile 8"
    command = [sys.executable, "-m", "cnngp", *arguments.split(), "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_chunks(place)
    process.send_signal(signum)
    out, errors = process.communicate(timeout=300)
    assert re.search(r"cluster +tcp://\S+, 2 workers, 2 threads", out)
    if signum == signal.SIGINT:
        assert process.returncode == 130
        assert errors.count("\n") == 1
        assert re.search(r"interrupted; \d+ of 300 tiles are there and stay valid", errors)
    assert (place / "images").exists() == (signum == signal.SIGKILL)
    images = datasets.digits().X[:200]
    np.testing.assert_array_equal(gram(SLOW, images, store=place)[:], SLOW(images))
    assert not (place / "images").exists()
    assert status(place).whole


def test_without_the_name_of_its_run_a_worker_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a run has ended, or another begun, between two of its tiles, or while it reads images."""
    monkeypatch.setattr(filling, "_on_worker", lambda kernel, worker: KERNEL)
    monkeypatch.setattr("distributed.get_worker", lambda: None)
    place = tmp_path / "K.zarr"
    gram(KERNEL, X, store=place, tile=32)
    remove_chunks(place)

    def filled(name: bytes, where: Path = place) -> Any:
        return filling.fill_missing((0, 1), (b"", str(where), name))

    with opened(place) as store:
        name = begin_run(store, ImageRows(X, KERNEL, "X"), None)
        assert filled(b"another") is None
        assert not chunks(place)
        assert "does not see the store" in str(filled(name, tmp_path / "other"))
        assert not (tmp_path / "other").exists()
        write, read, written = type(store).write, ImageRows.block, []

        def write_and_end(self: Any, tile: Any, block: Any) -> None:
            write(self, tile, block)
            written.append(tile)
            if len(written) == 3:
                end_run(store)

        def end_and_read(self: Any, rows: slice, card: int | None = None) -> Any:
            end_run(store)
            return read(self, rows, card)

        monkeypatch.setattr(type(store), "write", write_and_end)
        assert filled(name) is None
        name = begin_run(store, ImageRows(X, KERNEL, "X"), None)
        monkeypatch.setattr(ImageRows, "block", end_and_read)
        assert filled(name) is None
        assert len(written) == 3
    assert names(place) == WHOLE


# ---- what does not fit ----------------------------------------------------------------------------------------------


# An error of a package that the client does not have.
FAILS = """
import sys, types
from cnngp.kernel.engines.cpu.engine import CpuEngine
error = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy_of_the_worker"})
sys.modules["cupy_of_the_worker"] = types.SimpleNamespace(OutOfMemoryError=error)
def fail(*args):
    raise error("allocating 8 bytes")
CpuEngine.cross = fail
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_worker", "said"),
    [
        ("from cnngp.kernel.engines.cpu import engine\nengine.VERSION = 'other'", "its engine is cpu-other-"),
        ("import cnngp\ncnngp.__version__ = 'other'", f"it has cnngp other, the client {cnngp.__version__}"),
        ("import sys\nsys.modules['cnngp'] = None", "it cannot run cnngp ("),
        (FAILS, "OutOfMemoryError: allocating 8 bytes"),
    ],
)
def test_workers_that_do_not_fit_stand_aside(
    on_worker: str, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "K.zarr"
    gram(KERNEL, X, store=place, tile=8)
    remove_chunks(place)
    with cluster() as client:
        first, second = client.nthreads()
        client.run(exec, on_worker, {}, workers=[first])
        np.testing.assert_array_equal(gram(KERNEL, X, store=place, client=client)[:], KERNEL(X))
        assert caplog.text.count(f"worker {first} takes no part: {said}") == 1
        assert "is gone" not in caplog.text
        client.run(exec, on_worker, {}, workers=[second])
        (place / "K/c/0/1").unlink()
        with pytest.raises((ClusterError, StoreError)) as refused:
            gram(KERNEL, X, store=place, client=client)
    assert "\n" not in str(refused.value)
    assert not (place / "K/c/0/1").exists()
    assert names(place) == WHOLE


def test_a_store_that_workers_do_not_see_and_a_client_that_cannot_be_used(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="does not see the store memory://cnngp-cluster/K"):
        gram(KERNEL, X, store="memory://cnngp-cluster/K", client=client)
    with pytest.raises(StoreError, match="a path or a URL that every worker can open"):
        gram(KERNEL, X, store=zarr.storage.MemoryStore(), client=client)
    with pytest.raises(ValueError, match="client= needs store="):
        gram(KERNEL, X, client=object())
    with pytest.raises(ClusterError, match=r"expected a dask\.distributed\.Client"):
        gram(KERNEL, X, store=tmp_path / "K", client="tcp://127.0.0.1:8786")
    with Client(client.scheduler.address, set_as_default=False) as closed:
        pass
    with pytest.raises(ClusterError, match=r"^client= is closed; give one that is connected to its scheduler$"):
        gram(KERNEL, X, store=tmp_path / "K", client=closed)
    assert not (tmp_path / "K").exists()


@pytest.mark.slow
def test_no_workers_and_one_that_joins_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(0, **HERE) as client:
        refused = pytest.raises(ClusterError, match=r"no workers at \S+; start them with `dask worker")
        with monkeypatch.context() as m, refused:
            m.setattr(clusters, "PATIENCE", 0.2)
            gram(KERNEL, X, store=tmp_path / "K", client=client)
        assert caplog.text.count("waiting for one") == 1
        threading.Timer(1.0, lambda: client.cluster.scale(1)).start()
        K = gram(KERNEL, X, store=tmp_path / "K", tile=32, client=client)
        np.testing.assert_array_equal(K[:], KERNEL(X))
    assert caplog.text.count("waiting for one") == 2


def test_an_address_that_cannot_be_read_leaves_no_half_open_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could block the process for ever when it is collected."""
    made: list[str] = []
    monkeypatch.setattr(Client, "__init__", lambda client, address, **_: made.append(address))
    for address in ("somewhere", "http://host:80", "tcp://host", "tcp://host:port"):
        with pytest.raises(ClusterError, match=r"expected an address such as tcp://host:8786\. Start one with"):
            connect(address, timeout=0.5)
    assert not made


def test_a_scheduler_that_is_not_there(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and never says a word
        for address in (nobody, f"tcp://127.0.0.1:{server.getsockname()[1]}"):
            with pytest.raises(ClusterError, match=rf"{address}: no Dask scheduler answers within 0.5 s; expected an"):
                connect(address, timeout=0.5)
    monkeypatch.setattr("cnngp.cluster.connect", functools.partial(connect, timeout=0.5))
    assert run(["gram", "--store", str(tmp_path / "K"), "--scheduler", nobody]) == 1
    assert re.fullmatch(r"error: tcp://\S+: no Dask scheduler answers .*\n", capsys.readouterr().err)
    assert not (tmp_path / "K").exists()
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ImportError, match=r'a cluster needs dask.distributed: pip install "cnngp\[dask\]"'):
        connect("tcp://127.0.0.1:8786")
