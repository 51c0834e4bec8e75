"""Processes that fill stores wait for one another, are interrupted, or share the work; nothing is lost."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.storage import LocalStore, MemoryStore, StorePath

from cnngp import Dense, ReLU, Sequential, gram
from cnngp.common import files as locking
from cnngp.common.errors import StoreError
from cnngp.matrix.store.store import GramStore, opened
from helpers.stores import KERNEL, TILE, TILES, X, expected


def wait_for_tiles(place: Path, tiles: int) -> None:
    for _ in range(6000):
        if sum(p.suffix != ".partial" for p in place.glob("K/c/*/*")) >= tiles:
            return
        time.sleep(0.01)
    raise AssertionError("no tiles came")


def no_locks(*_: Any) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_second_run_waits_for_the_first_and_says_so(tmp_path: Path, calls: Any, caplog: Any) -> None:
    """Here both are in this process: a lock is that of an open file."""
    place, wanted = tmp_path / "K.zarr", expected()
    calls.clear()
    calls.seconds = 0.02
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(gram, KERNEL, X, store=place, tile=TILE)
        wait_for_tiles(place, 5)
        for K in (gram(KERNEL, X, store=place), first.result()):
            np.testing.assert_array_equal(K[:], wanted)
    assert len(calls) == TILES
    assert f"{place} is being filled by process {os.getpid()} on" in caplog.text


def test_runs_without_locks_share_the_work(tmp_path: Path, calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one order they would compute every tile twice: 182 for 91."""
    wanted = expected()
    calls.clear()
    calls.seconds = 0.02
    monkeypatch.setattr("fcntl.flock", no_locks)
    with ThreadPoolExecutor(2) as pool:
        together = [pool.submit(gram, KERNEL, X, store=tmp_path / "K.zarr", tile=16) for _ in range(2)]
        for run in together:
            np.testing.assert_array_equal(run.result()[:], wanted)
    assert 91 <= len(calls) < 130


def test_an_interrupted_command_says_what_there_is_and_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "K.zarr"
    words = f"gram --network resnet14 --train 500 --tile 16 --threads 1 --device cpu --store {place}"
    command = [sys.executable, "-m", "cnngp", *words.split()]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for_tiles(place, 5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    told = r"error: interrupted; (\d+) of 528 tiles are there and stay valid in \S+\. Run it again to continue\n"
    found = re.fullmatch(told, errors)
    assert found, errors
    with opened(place) as store:
        assert len(store.missing()) == 528 - int(found[1]) > 0


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

    with monkeypatch.context() as m:
        m.setattr("fcntl.flock", no_locks)
        gram(KERNEL, X, store=store)
    assert "this file system has no locks" in caplog.text
    assert (new.exists(), old.exists()) == (True, False)
    gram(KERNEL, X, store=store)
    assert not new.exists()


def test_a_local_zarr_store_is_locked_as_its_path_is(tmp_path: Path) -> None:
    for where, folder in (
        (LocalStore(tmp_path / "a"), tmp_path / "a"),
        (StorePath(LocalStore(tmp_path / "b"), "in/it"), tmp_path / "b/in/it"),
    ):
        with opened(where):
            descriptor = os.open(folder / "K/.lock", os.O_RDWR)
            assert locking.try_lock(descriptor) == "taken"
            os.close(descriptor)
        for place in (where, folder):
            np.testing.assert_array_equal(gram(KERNEL, X, store=place, tile=TILE)[:], expected())


MEMORY = """
import resource, sys, numpy as np
from cnngp import Dense, Kernel, gram
n, folder = int(sys.argv[1]), sys.argv[2]
X = np.load(folder + "/X.npy", mmap_mode="r")[:n]
kernel = Kernel(Dense(), device="cpu", threads=1)
gram(kernel, X[:600], store=folder + "/warm", tile=256)
gram(kernel, X, store=folder + f"/{n}", tile=256)
gram(kernel, X, store=folder + f"/{n}")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_images(tmp_path: Path) -> None:
    """144 MB of matrix more, and not a tenth of it in memory; verification included."""
    np.save(tmp_path / "X.npy", np.random.default_rng(0).random((6000, 4), dtype=np.float32))
    peaks = []
    for n in (1000, 6000):
        command = [sys.executable, "-c", MEMORY, str(n), str(tmp_path)]
        peaks.append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] - peaks[0] < 14
