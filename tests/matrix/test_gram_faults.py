"""Stores of kernel matrices that are killed at random moments or damaged come back whole."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import FsspecStore, LocalStore, MemoryStore, StorePath

from cnngp import Dense, ReLU, Sequential, gram
from cnngp.common import locks as locking
from cnngp.common.errors import StoreError
from cnngp.kernel.engines.cpu.engine import CpuEngine
from cnngp.matrix.store.store import opened
from helpers.stores import KERNEL, TILE, TILES, X, expected
from helpers.tile_count import computed


def files(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in (store / "K" / "c").rglob("*") if p.is_file()}


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


def test_a_damaged_tile_is_gone_before_it_is_computed_again(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in between, a later run without verification must not take it for good."""
    flip(store / "K/c/2/5")

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(CpuEngine, "cross", killed)
        with pytest.raises(KeyboardInterrupt):
            gram(KERNEL, X, store=store)
    np.testing.assert_array_equal(gram(KERNEL, X, store=store, verify=False)[:], expected())


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
