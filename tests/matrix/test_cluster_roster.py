"""Workers that do not belong to a run stand aside, and schedulers that are not there are said to be so."""

from __future__ import annotations

import errno
import functools
import socket
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

pytest.importorskip("distributed")

from distributed import Client, LocalCluster

import cnngp
from cnngp import gram
from cnngp.cli import run
from cnngp.common.errors import StoreError
from cnngp.matrix.cluster import roster as cluster_roster
from cnngp.matrix.cluster import worker as cluster_worker
from cnngp.matrix.cluster.cluster import ClusterError, connect
from cnngp.matrix.store.store import GramStore
from helpers.clusters import KERNEL, X, names


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
    client.wait_for_workers(2, timeout=300)
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
    client.wait_for_workers(2, timeout=300)
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
    with pytest.raises(ImportError, match=r'a cluster needs dask.distributed: pip install "cnngp\[dask\]"'):
        connect("tcp://127.0.0.1:8786")


def test_no_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(cluster_roster, "PATIENCE", 0.2)
    options = {"n_workers": 0, "processes": False, "dashboard_address": ":0"}
    refused = pytest.raises(ClusterError, match=r"no workers at \S+; start them with `dask worker")
    with LocalCluster(**options) as local, Client(local) as nobody, refused:
        gram(KERNEL, X, store=tmp_path / "K.zarr", client=nobody)
    assert "waiting for one" in caplog.text
