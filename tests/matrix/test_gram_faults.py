"""A store of kernel matrices after everything that can happen to it, each done for real."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
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
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath

from cnngp import Dense, Kernel, ReLU, Sequential, gram
from cnngp.common import locks as locking
from cnngp.common.errors import StoreError
from cnngp.kernel.engines.cpu.engine import CpuEngine
from cnngp.matrix.store.store import GramStore, opened
from helpers.tile_count import computed

X = np.random.default_rng(0).random((200, 5))
TILE = 32
TILES = 7 * 8 // 2
KERNEL = Kernel(Dense(), device="cpu", threads=1)
SYSTEM_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def expected() -> Any:
    return KERNEL(X)


def files(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in (store / "K" / "c").rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished") / "K.zarr"
    gram(KERNEL, X, store=place, tile=TILE)
    return place


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> Path:
    """A whole store to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "K.zarr"))


# ---- killed ---------------------------------------------------------------------------------------------------------

# Imports once, then forks a child for each attempt: no start-up time between a kill and the next attempt. The parent
# runs everything on one thread, because threads do not survive a fork.
VICTIM = """
import os, random, signal, sys, time
import numpy as np, tqdm.auto, zarr
import cnngp.matrix.store.store, cnngp.matrix.gram
from cnngp import Dense, Kernel, gram
folder, seed, rounds, longest = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
rng = random.Random(seed)
X = np.random.default_rng(0).random((200, 5))
kernel = Kernel(Dense(), device="cpu", threads=1)
kernel(X)
kills = 0
for attempt in range(rounds):
    child = os.fork()
    if not child:
        gram(kernel, X[:120] if attempt < rounds // 3 else X, store=folder, tile=16)
        os._exit(0)
    time.sleep(rng.uniform(0.0, longest))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    kills += os.WIFSIGNALED(status)
    if not os.WIFSIGNALED(status):
        longest *= 0.6  # it was done first: a fast machine must be killed sooner
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        sys.exit("a child failed")
print(kills)
"""


def kill_many_times(folder: Path, seed: int, rounds: int, longest: float) -> int:
    command = [sys.executable, "-c", VICTIM, str(folder), str(seed), str(rounds), str(longest)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it begins, writes tiles, grows and verifies; then one run that computes just what is missing."""
    place = tmp_path / "K.zarr"
    assert kill_many_times(place, 1, 24, 0.3) >= 8
    with opened(place) as s:
        assert s.found is not None
        missing = len(s.missing(s.present()))
        grown = s.found.shape == (200, 200)
    calls = computed(monkeypatch)
    K = gram(KERNEL, X, store=place, tile=16)
    assert len(calls) == missing or not grown
    np.testing.assert_array_equal(K[:], expected())
    assert not list(place.rglob("*.partial"))


@pytest.mark.slow
def test_killed_hundreds_of_times(tmp_path: Path) -> None:
    for seed in range(10):
        place = tmp_path / f"{seed}.zarr"
        kill_many_times(place, seed, 60, 0.04 * (seed + 1))
        np.testing.assert_array_equal(gram(KERNEL, X, store=place, tile=16)[:], expected())


# ---- damaged --------------------------------------------------------------------------------------------------------


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[random.Random(0).randrange(len(data))] ^= 4
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zeros(path: Path) -> None:
    """What a file system can leave of a file after a loss of power."""
    path.write_bytes(b"\0" * path.stat().st_size)


def four_zeros(path: Path) -> None:
    """The checksum of nothing is 0."""
    path.write_bytes(b"\0\0\0\0")


def other_tile(path: Path) -> None:
    """A good chunk in the wrong place, as a mixed-up copy leaves."""
    shutil.copy(path.parents[1] / "1" / "1", path)


@pytest.mark.parametrize("damage", [flip, truncate, empty, zeros, four_zeros, other_tile])
@pytest.mark.parametrize("chunk", ["2/5", "5/2", "3/3", "6/6", "0/6"])
def test_a_damaged_chunk_is_found_reported_and_computed_again(
    store: Path, damage: Any, chunk: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = files(store)
    damage(store / "K" / "c" / chunk)
    assert files(store) != whole
    calls = computed(monkeypatch)
    with caplog.at_level(logging.WARNING, "cnngp"):
        gram(KERNEL, X, store=store)
    assert len(calls) == 1
    i, j = sorted(map(int, chunk.split("/")))
    assert f"1 of {TILES} tiles were damaged and are computed again: ({i}, {j})" in caplog.text
    assert files(store) == whole


def test_verify_false_trusts_what_is_there_and_computes_what_is_not(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = files(store)
    flip(store / "K/c/2/5")
    (store / "K/c/6/3").unlink()
    (store / "K/c/0/0").unlink()
    calls = computed(monkeypatch)
    gram(KERNEL, X, store=store, verify=False)
    assert len(calls) == 2
    assert [k for k, v in files(store).items() if v != whole[k]] == ["K/c/2/5"]


def test_deleted_chunks_and_the_array_metadata_come_back(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = files(store)
    for path in ("K/c/2/5", "K/c/5/2", "K/c/6/0", "K/zarr.json"):
        (store / path).unlink()
    shutil.rmtree(store / "K/c/4")
    for path in ("zarr.0a.partial", "K/zarr.0b.partial", "K/c/2/5.0c.partial"):  # of a process killed while writing
        (store / path).write_bytes(b"half")
    calls = computed(monkeypatch)
    K = gram(KERNEL, X, store=store)
    assert len(calls) == 2 + 7
    np.testing.assert_array_equal(K[:], expected())
    assert files(store) == whole


def test_metadata_that_cannot_be_read_is_refused_and_tiles_are_kept(store: Path) -> None:
    whole = files(store)
    text = (store / "zarr.json").read_text()
    for broken in (text[: len(text) // 2], text.replace('"sha256"', '"sha"'), text.replace('"dtype"', '"type"')):
        (store / "zarr.json").write_text(broken)
        with pytest.raises(StoreError, match=r"K\.zarr: its (zarr\.json cannot be read|metadata is damaged)"):
            gram(KERNEL, X, store=store)
    (store / "zarr.json").unlink()
    with pytest.raises(StoreError, match=r"tiles, but no zarr\.json that says of what"):
        gram(KERNEL, X, store=store)
    (store / "zarr.json").write_text(text)
    assert files(store) == whole


@pytest.mark.parametrize("kind", ["url", "memory", "path in memory", "local", "path in local"])
def test_tiles_without_metadata_are_those_of_any_matrix(kind: str, tmp_path: Path) -> None:
    """Not to be given out as those of the matrix that is asked for, wherever they are."""
    store = LocalStore(tmp_path / "K") if "local" in kind else MemoryStore()
    place = {"url": "memory://cnngp-faults/K", "memory": store, "local": store}.get(kind, StorePath(store, "a/b"))
    gram(KERNEL, X, store=place, tile=64)
    root, path = (FsspecStore.from_url(place), "") if kind == "url" else (store, getattr(place, "path", ""))
    group = zarr.open_group(root, path=path, mode="r+")
    metadata = f"{path}/zarr.json".lstrip("/")
    zarr.core.sync.sync(group.store.delete(metadata))
    with pytest.raises(StoreError, match=r"holds tiles, but no zarr\.json that says of what; give a place"):
        gram(Sequential(Dense(), ReLU(), Dense()), X, store=place, tile=64)
    assert not zarr.core.sync.sync(group.store.exists(metadata))


def test_a_local_zarr_store_is_checked_and_locked_as_its_path_is(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    for theirs in (LocalStore(tmp_path / "full"), StorePath(LocalStore(tmp_path), "full")):
        with pytest.raises(StoreError, match=r"did not make \(it holds thesis\.tex"):
            gram(KERNEL, X, store=theirs)
    for where, lock in ((LocalStore(tmp_path / "a"), "a"), (StorePath(LocalStore(tmp_path / "b"), "in/it"), "b/in/it")):
        with opened(where):
            descriptor = os.open(tmp_path / lock / "K/.lock", os.O_RDWR)
            assert locking.try_lock(descriptor) == "taken"
            os.close(descriptor)
        np.testing.assert_array_equal(gram(KERNEL, X, store=where, tile=TILE)[:], expected())
        np.testing.assert_array_equal(gram(KERNEL, X, store=tmp_path / lock)[:], expected())


def failing_reads(monkeypatch: pytest.MonkeyPatch, chunk: str, number: int) -> None:
    get = LocalStore.get

    async def fail(self: Any, key: str, *args: Any, **kwargs: Any) -> Any:
        if key == chunk:
            raise OSError(number, os.strerror(number))
        return await get(self, key, *args, **kwargs)

    monkeypatch.setattr(LocalStore, "get", fail)


def test_a_chunk_that_the_disk_cannot_read_is_damaged(
    store: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = files(store)
    with monkeypatch.context() as m:
        failing_reads(m, "K/c/5/2", errno.EIO)
        calls = computed(m)
        gram(KERNEL, X, store=store)
        assert len(calls) == 1
    assert "1 of 28 tiles were damaged and are computed again: (2, 5)" in caplog.text
    assert files(store) == whole


def test_a_chunk_that_may_not_be_read_now_is_kept(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = files(store)
    with monkeypatch.context() as m:
        failing_reads(m, "K/c/5/2", errno.EACCES)
        with pytest.raises(StoreError, match=r"K\.zarr: tile \(2, 5\) could not be read \(Permission denied\)\. Run"):
            gram(KERNEL, X, store=store)
    assert files(store) == whole


# ---- a full disk, a read-only place ---------------------------------------------------------------------------------


class FullStore(zarr.storage.LocalStore):
    """A disk with room for so many chunks."""

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
    monkeypatch.setattr("cnngp.matrix.gram._NOTE_SECONDS", 0.0)
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


# ---- processes beside each other, and Ctrl-C ------------------------------------------------------------------------

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
    assert process.communicate(timeout=60)[0] == "ready\nTrue\n"


def test_processes_started_together_all_have_the_matrix(tmp_path: Path) -> None:
    together = [start(tmp_path / "K.zarr", 0.01) for _ in range(3)]
    results = [process.communicate(timeout=120)[0] for process in together]
    assert results == ["ready\nTrue\n"] * 3


@pytest.mark.parametrize("step", ["create_group", "create_array"])
def test_two_processes_begin_a_store_without_locks(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second has found nothing there; before it writes, the first does it all."""
    store = MemoryStore()
    create = getattr(zarr, step)

    def late(*args: Any, **kwargs: Any) -> Any:
        with monkeypatch.context() as m:
            m.setattr(zarr, step, create)
            gram(KERNEL, X, store=store, tile=TILE)
        return create(*args, **kwargs)

    monkeypatch.setattr(zarr, step, late)
    np.testing.assert_array_equal(gram(KERNEL, X, store=store, tile=TILE)[:], expected())


def test_one_of_two_that_begin_a_store_together_wants_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    create = zarr.create_group

    def late(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(zarr, "create_group", create)
        gram(Sequential(Dense(), ReLU(), Dense()), X, store=store, tile=TILE)
        return create(*args, **kwargs)

    monkeypatch.setattr(zarr, "create_group", late)
    with pytest.raises(StoreError, match="was made for something else: the network"):
        gram(KERNEL, X, store=store, tile=TILE)


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
    results = [process.communicate("go\n", timeout=120)[0].split() for process in together]
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
    _, errors = process.communicate(timeout=30)
    last = errors.strip().splitlines()[-1]
    assert "of 28 tiles are there and stay valid in" in last
    assert last.endswith("Run the same again to go on")
    done = int(last.split("interrupted; ")[1].split()[0])
    calls = computed(monkeypatch)
    np.testing.assert_array_equal(gram(KERNEL, X, store=place)[:], expected())
    assert done + len(calls) >= TILES + 1  # this process's own kernel(X) is one more call
