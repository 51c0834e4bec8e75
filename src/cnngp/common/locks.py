"""One process at a time on a local store, by a lock that dies with the process that holds it.

The kernel of the operating system holds the lock for an open file, so there are no stale locks: a process that is
killed, or a machine that loses power, leaves none. The lock's file only says who holds it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

log = logging.getLogger("cnngp")

_POLL_SECONDS = 0.2
# What systems answer where the file system has no locks, such as some network mounts.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[bool]:
    """Hold the lock file `path`, which is made where it is not there; wait, and say so, while another process has it.

    Where the file system has no locks the work goes on without: tiles are written whole and are the same from every
    process, so two that fill one store only do some tiles twice. Gives whether the lock is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        locked = _wait(descriptor, what)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        with suppress(OSError):  # a full disk: the lock holds without its note
            os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
        yield locked
    finally:
        os.close(descriptor)


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file, without waiting; False where another process has it.

    Also True where the file system has no locks.
    """
    return _state(descriptor) != "taken"


def _wait(descriptor: int, what: str) -> bool:
    told = False
    while (state := _state(descriptor)) == "taken":
        if not told:
            log.warning("%s is being filled by %s; waiting until it is done", what, _holder(descriptor))
            told = True
        time.sleep(_POLL_SECONDS)
    return state == "locked"


def _state(descriptor: int) -> Literal["locked", "taken", "no locks"]:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            log.warning("this file system has no locks; run one process at a time on a store that grows")
            return "no locks"
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return "taken"
        raise
    return "locked"


def _holder(descriptor: int) -> str:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        who = json.loads(os.read(descriptor, 4096))
        return f"process {who['pid']} on {who['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
