"""Processes that fill stores are killed, interrupted, or at the same store together; nothing is lost."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
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

# Imports once, then forks a child for each attempt: no start-up time between a kill and the next attempt. The parent
# runs everything on one thread, because threads do not survive a fork.
VICTIM = """
import os, random, signal, sys, time
import numpy as np, tqdm.auto, zarr
import cnngp.matrix.store.verified, cnngp.matrix.gram
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


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_killed_at_random_moments(seed: int, tmp_path: Path, calls: list[int]) -> None:
    """While it begins, writes tiles, grows and verifies; then one run that computes just what is missing."""
    place = tmp_path / "K.zarr"
    rounds, longest = (24, 0.3) if seed == 1 else (60, 0.04 * seed)
    command = [sys.executable, "-c", VICTIM, str(place), str(seed), str(rounds), str(longest)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 8
    with opened(place) as s:
        missing, grown = len(s.missing()), s.spec.shape == (200, 200)
    K = gram(KERNEL, X, store=place, tile=16)
    assert len(calls) == missing or not grown
    np.testing.assert_array_equal(K[:], expected())
    assert not list(place.rglob("*.partial"))


# A kernel slowed down, so that the test has time to act in the middle; says how many tiles it computed.
SLOW = """
import errno, fcntl, sys, time
import numpy as np
from cnngp import Dense, Kernel, gram
from cnngp.kernel.engines.cpu.engine import CpuEngine
place, delay, tile, locks = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "True"
def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")
if not locks:
    fcntl.flock = no_locks
calls = []
def slowly(original):
    def call(*args):
        calls.append(time.sleep(delay))
        return original(*args)
    return call
X = np.random.default_rng(0).random((200, 5))
kernel = Kernel(Dense(), device="cpu", threads=1)
wanted = kernel(X)
CpuEngine.cross, CpuEngine.symmetric = slowly(CpuEngine.cross), slowly(CpuEngine.symmetric)
print("ready", flush=True)
input()
K = gram(kernel, X, store=place, tile=tile)
print(len(calls), bool((K[:] == wanted).all()))
"""


def start(place: Path, delay: float, tile: int = TILE, locks: bool = True) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW, str(place), str(delay), str(tile), str(locks)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def go(*processes: Any) -> None:
    """Let them begin at the same time."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def wait_for_tiles(place: Path, tiles: int) -> None:
    for _ in range(3000):
        if sum(p.suffix != ".partial" for p in place.glob("K/c/*/*")) >= tiles:
            return
        time.sleep(0.01)
    raise AssertionError("no tiles came")


def test_one_waits_says_so_and_is_killed_or_interrupted(
    tmp_path: Path, calls: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The second process waits for the first; the lock of one that ends in any way is free at once."""
    place = tmp_path / "K.zarr"
    killed, interrupted, first = (start(place, 0.05) for _ in range(3))
    go(killed)
    wait_for_tiles(place, 5)
    killed.kill()
    killed.communicate()
    go(interrupted)
    wait_for_tiles(place, 20)
    began = time.monotonic()
    interrupted.send_signal(signal.SIGINT)
    _, errors = interrupted.communicate(timeout=300)
    assert time.monotonic() - began < 4
    last = errors.strip().splitlines()[-1]
    found = re.search(r"interrupted; (\d+) of 28 tiles are there and stay valid in \S+\. Run it again to contin", last)
    assert found, errors
    go(first)
    wait_for_tiles(place, 2 * int(found[1]))
    K = gram(KERNEL, X, store=place)
    assert not calls
    np.testing.assert_array_equal(K[:], expected())
    assert f"{place} is being filled by process {first.pid} on" in caplog.text
    made, right = first.communicate(timeout=300)[0].split()
    assert (int(made) <= TILES - int(found[1]), right) == (True, "True")


def test_processes_without_locks_share_the_work(tmp_path: Path) -> None:
    """In one order they would compute every tile twice: 182 for 91."""
    together = [start(tmp_path / "K.zarr", 0.02, 16, locks=False) for _ in range(2)]
    go(*together)
    results = [process.communicate(timeout=120)[0].split() for process in together]
    assert [right for _, right in results] == ["True", "True"]
    assert 91 <= sum(int(calls) for calls, _ in results) < 130


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
