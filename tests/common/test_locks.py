"""Locks that die with their process, and that touch nothing but their own file."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cnngp.common.files import close_file, exclusive, open_file, try_lock

# A process that takes a lock, forks two children, looks at the lock, and dies. One child lives on; the other leaves the
# block in which its parent holds the lock, with a file open that has the number of the lock's.
PARENT = """
import os, signal, sys, time
from pathlib import Path
from cnngp.common.files import exclusive, open_file, try_lock
folder = Path(sys.argv[1])
held = exclusive(folder / ".lock", "it")
held.__enter__()
living = os.fork()
if not living:
    os.close(1)
    time.sleep(60)
    os._exit(0)
leaving = os.fork()
if not leaving:
    mine = os.open(folder / "mine", os.O_RDWR | os.O_CREAT)
    held.__exit__(None, None, None)
    os.write(mine, b"still open")
    os._exit(0)
code = os.waitstatus_to_exitcode(os.waitpid(leaving, 0)[1])
print(living, code, try_lock(open_file(folder / ".lock")), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_is_that_of_the_process_that_took_it_and_of_no_forked_child(tmp_path: Path) -> None:
    """A child does not keep it when its parent dies, does not let go of it, and closes no file of its own for it."""
    done = subprocess.run([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    living, *found = done.stdout.split()
    try:
        os.kill(int(living), 0)
        assert found == ["0", "taken"]
        assert (tmp_path / "mine").read_text() == "still open"
        descriptor = open_file(tmp_path / ".lock")
        assert try_lock(descriptor) == "locked"
        close_file(descriptor)
    finally:
        os.kill(int(living), signal.SIGKILL)


@pytest.mark.parametrize("make", [os.link, os.symlink])
def test_a_lock_that_is_a_link_is_neither_followed_nor_written(make: Any, tmp_path: Path) -> None:
    theirs, lock = tmp_path / "thesis.tex", tmp_path / ".lock"
    theirs.write_text("chapter 1")
    make(theirs, lock)
    with pytest.raises(OSError), exclusive(lock, "it"):
        pass
    assert theirs.read_text() == "chapter 1"
    if lock.is_symlink():
        theirs.unlink()
        with pytest.raises(OSError), exclusive(lock, "it"):
            pass
        assert not theirs.exists()


def test_a_lock_file_with_other_content_keeps_it(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("a file of somebody else")
    with exclusive(tmp_path / ".lock", "it") as held:
        assert held
    assert (tmp_path / ".lock").read_text() == "a file of somebody else"
