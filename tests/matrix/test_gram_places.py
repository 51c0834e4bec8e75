"""Stores on full disks and in read-only places, and several processes that fill one store."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore, MemoryStore, StorePath

from cnngp import Dense, ReLU, Sequential, gram
from cnngp.common.errors import StoreError
from cnngp.kernel.engines.cpu.engine import CpuEngine
from cnngp.matrix.store.store import GramStore
from helpers.stores import KERNEL, TILE, TILES, X, expected
from helpers.tile_count import computed

SYSTEM_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


class FullStore(zarr.storage.LocalStore):
    """A disk with room for a given number of chunks."""

    room = 12

    async def set(self, key: str, value: Any) -> None:
        if "/c/" in f"/{key}":
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.room -= 1
        await super().set(key, value)


def test_a_store_that_runs_full_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = FullStore(tmp_path / "K.zarr")
    with pytest.raises(StoreError, match=r"the disk is full; (\d+) of 28 tiles are there and stay valid\. Free some"):
        gram(KERNEL, X, store=full, tile=TILE)
    calls = computed(monkeypatch)
    np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / "K.zarr")[:], expected())
    assert 20 <= len(calls) <= TILES - 4


def test_progress_that_cannot_be_noted_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither a run nor the opening of a matrix that is whole."""

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(GramStore, "_update", full)
    for _ in range(2):
        np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / "K", tile=TILE)[:], expected())
    assert "its progress could not be noted (No space left on device)" in caplog.text


@pytest.mark.parametrize("local", [False, True])
def test_a_zarr_store_that_is_read_only(local: bool, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "K") if local else MemoryStore()
    with pytest.raises(StoreError, match="cannot be written; choose a place where you may write"):
        gram(KERNEL, X, store=store.with_read_only(True))
    gram(KERNEL, X, store=store, tile=TILE)
    (tmp_path / "K/K/.lock").unlink(missing_ok=True)
    reading = store.with_read_only(True)
    for place in (reading, StorePath(reading)):
        np.testing.assert_array_equal(gram(KERNEL, X, store=place)[:], expected())
        with pytest.raises(StoreError, match="lacks tiles and cannot be written"):
            gram(KERNEL, np.concatenate([X, X]), store=place)
    assert not (tmp_path / "K/K/.lock").exists()


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if not SYSTEM_ROOT or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("cannot mount here")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "disk"
    with mounted(folder, "size=140k"):
        with pytest.raises(StoreError, match=r"the disk is full; \d+ of 28 tiles are there and stay valid") as caught:
            gram(KERNEL, X, store=folder / "K.zarr", tile=TILE)
        assert "\n" not in str(caught.value)
        assert not list(folder.rglob("*.partial"))
        subprocess.run(["mount", "-o", "remount,size=10m", str(folder)], check=True)
        calls = computed(monkeypatch)
        np.testing.assert_array_equal(gram(KERNEL, X, store=folder / "K.zarr")[:], expected())
        assert 0 < len(calls) < TILES


def test_a_read_only_place(store: Path, tmp_path: Path) -> None:
    """A whole matrix can be read there; anything else says that it cannot be written."""
    folder = tmp_path / "disk"
    with mounted(folder, "size=10m"):
        shutil.copytree(store, folder / "whole")
        shutil.copytree(store, folder / "part")
        (folder / "part/K/c/2/5").unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        np.testing.assert_array_equal(gram(KERNEL, X, store=folder / "whole")[:], expected())
        with pytest.raises(StoreError, match="part lacks tiles and cannot be written; copy it"):
            gram(KERNEL, X, store=folder / "part")
        with pytest.raises(StoreError, match="whole lacks tiles and cannot be written"):
            gram(KERNEL, np.concatenate([X, X]), store=folder / "whole")
        with pytest.raises(StoreError, match=r"cannot be made: Read-only file system; choose a place"):
            gram(KERNEL, X, store=folder / "new.zarr")


@pytest.mark.skipif(SYSTEM_ROOT, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="cannot be made: Permission denied"):
            gram(KERNEL, X, store=tmp_path / "K.zarr")
    finally:
        tmp_path.chmod(0o700)


def test_a_tile_that_is_not_finite_is_never_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuEngine, "cross", lambda self, a, b, *_: np.full((len(a), len(b)), np.nan, np.float32))
    with pytest.raises(StoreError, match="columns 32–63 of the kernel came out as NaN"):
        gram(KERNEL, X, store=tmp_path / "K.zarr", tile=TILE)
    monkeypatch.undo()
    np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / "K.zarr")[:], expected())


# A kernel slowed down, so that the test has time to act in the middle.
SLOW = """
import sys, time
import numpy as np
from cnngp import Dense, Kernel, gram
from cnngp.kernel.engines.cpu.engine import CpuEngine
cross = CpuEngine.cross
def slowly(*args):
    time.sleep(float(sys.argv[2]))
    return cross(*args)
CpuEngine.cross = slowly
X = np.random.default_rng(0).random((200, 5))
kernel = Kernel(Dense(), device="cpu", threads=1)
print("ready", flush=True)
K = gram(kernel, X, store=sys.argv[1], tile=32)
print(bool((K[:] == kernel(X)).all()))
"""


def start(place: Path, delay: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW, str(place), str(delay)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_tiles(place: Path, tiles: int) -> None:
    for _ in range(3000):
        if sum(p.suffix != ".partial" for p in place.glob("K/c/*/*")) >= tiles:
            return
        time.sleep(0.01)
    raise AssertionError("no tiles came")


def test_the_second_process_waits_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "K.zarr"
    process = start(place, 0.1)
    wait_for_tiles(place, 2)
    calls = computed(monkeypatch)
    K = gram(KERNEL, X, store=place)
    assert not calls
    np.testing.assert_array_equal(K[:], expected())
    assert f"{place} is being filled by process {process.pid} on" in caplog.text
    assert process.communicate(timeout=300)[0] == "ready\nTrue\n"


def test_processes_started_together_all_have_the_matrix(tmp_path: Path) -> None:
    together = [start(tmp_path / "K.zarr", 0.01) for _ in range(3)]
    results = [process.communicate(timeout=120)[0] for process in together]
    assert results == ["ready\nTrue\n"] * 3


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("step", ["prepare", "_open_array"])
def test_two_processes_begin_a_store_without_locks(step: str, same: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second has found nothing there; before it writes, the first does it all, perhaps in other tiles."""
    store = MemoryStore()
    original = getattr(GramStore, step)

    def late(self: GramStore, *args: Any, **kwargs: Any) -> Any:
        with monkeypatch.context() as m:
            m.setattr(GramStore, step, original)
            gram(KERNEL if same else Sequential(Dense(), ReLU(), Dense()), X, store=store, tile=TILE)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(GramStore, step, late)
    tile = None if step == "prepare" else TILE
    if same:
        np.testing.assert_array_equal(gram(KERNEL, X, store=store, tile=tile)[:], expected())
        return
    with pytest.raises(StoreError, match="was made for something else: the network"):
        gram(KERNEL, X, store=store, tile=tile)


def test_what_another_process_may_be_writing_is_left_alone(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a file system without locks; an old one was left by a process that was killed."""
    new, old = store / "K/c/2/5.0a.partial", store / "K/c/3/3.0b.partial"
    for path in (new, old):
        path.write_bytes(b"half")
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))

    def no_locks(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as m:
        m.setattr("fcntl.flock", no_locks)
        gram(KERNEL, X, store=store)
    assert "this file system has no locks" in caplog.text
    assert (new.exists(), old.exists()) == (True, False)
    gram(KERNEL, X, store=store)
    assert not new.exists()


# Where no lock holds: says how many tiles it computed.
SHARING = """
import errno, fcntl, sys, time
import numpy as np
from cnngp import Dense, Kernel, gram
from cnngp.kernel.engines.cpu.engine import CpuEngine
def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")
fcntl.flock = no_locks
calls = 0
def counted(original):
    def call(*args):
        global calls
        calls += 1
        time.sleep(0.02)
        return original(*args)
    return call
X = np.random.default_rng(0).random((200, 5))
kernel = Kernel(Dense(), device="cpu", threads=1)
wanted = kernel(X)
CpuEngine.cross, CpuEngine.symmetric = counted(CpuEngine.cross), counted(CpuEngine.symmetric)
print("ready", flush=True)
sys.stdin.readline()
K = gram(kernel, X, store=sys.argv[1], tile=16)
print(calls, bool((K[:] == wanted).all()))
"""


def test_processes_without_locks_share_the_work(tmp_path: Path) -> None:
    """In one order they would compute every tile twice: 182 for 91."""
    command = [sys.executable, "-c", SHARING, str(tmp_path / "K.zarr")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    together = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    for process in together:
        assert process.stdout.readline() == "ready\n"
    for process in together:
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [process.communicate(timeout=120)[0].split() for process in together]
    assert [right for _, right in results] == ["True", "True"]
    assert 91 <= sum(int(calls) for calls, _ in results) < 130


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "K.zarr"
    process = start(place, 0.05)
    wait_for_tiles(place, 5)
    process.kill()
    process.communicate()
    np.testing.assert_array_equal(gram(KERNEL, X, store=place)[:], expected())
    assert "waiting" not in caplog.text


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "K.zarr"
    process = start(place, 0.05)
    wait_for_tiles(place, 5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    last = errors.strip().splitlines()[-1]
    assert "of 28 tiles are there and stay valid in" in last
    assert last.endswith("Run it again to continue")
    done = int(last.split("interrupted; ")[1].split()[0])
    calls = computed(monkeypatch)
    np.testing.assert_array_equal(gram(KERNEL, X, store=place)[:], expected())
    assert done + len(calls) >= TILES + 1  # this process's own kernel(X) is one more call
