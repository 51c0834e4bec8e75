"""Locks that die with their process, and that touch nothing but their own file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cnngp.common.files import close_file, exclusive, open_file, try_lock

# A process that takes a lock, forks a child that lives on, and dies.
PARENT = """
import os, signal, sys, time
from pathlib import Path
from cnngp.common.files import exclusive
held = exclusive(Path(sys.argv[1]) / ".lock", "it")
held.__enter__()
child = os.fork()
if not child:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    child = int(done.stdout)
    try:
        os.kill(child, 0)  # it lives
        descriptor = open_file(tmp_path / ".lock")
        assert try_lock(descriptor) == "locked"
        close_file(descriptor)
    finally:
        os.kill(child, signal.SIGKILL)


# A child that leaves the block in which its parent holds the lock, with a file open that has the number of the lock's.
LEAVES = """
import os, sys
from pathlib import Path
from cnngp.common.files import exclusive, open_file, try_lock
folder = Path(sys.argv[1])
held = exclusive(folder / ".lock", "it")
held.__enter__()
child = os.fork()
if not child:
    mine = os.open(folder / "mine", os.O_RDWR | os.O_CREAT)
    held.__exit__(None, None, None)
    os.write(mine, b"still open")
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), try_lock(open_file(folder / ".lock")))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_leaves_the_lock_with_its_parent_and_closes_no_file_of_its_own(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert done.stdout == "0 taken\n"
    assert (tmp_path / "mine").read_text() == "still open"


@pytest.mark.parametrize("kind", ["symbolic", "hard", "dangling"])
def test_a_lock_that_is_a_link_is_neither_followed_nor_written(kind: str, tmp_path: Path) -> None:
    theirs, lock = tmp_path / "thesis.tex", tmp_path / ".lock"
    if kind != "dangling":
        theirs.write_text("chapter 1")
    if kind == "hard":
        os.link(theirs, lock)
    else:
        lock.symlink_to(theirs)
    with pytest.raises(OSError), exclusive(lock, "it"):
        pass
    assert theirs.exists() == (kind != "dangling")
    assert kind == "dangling" or theirs.read_text() == "chapter 1"


def test_a_lock_file_with_other_content_keeps_it(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("a file of somebody else")
    with exclusive(tmp_path / ".lock", "it") as held:
        assert held
    assert (tmp_path / ".lock").read_text() == "a file of somebody else"
