"""One process at a time on a local store, by a lock that dies with the process that holds it.

The operating system holds the lock for an open file, so a killed process leaves none. The lock's file only says who
holds it. A forked child has the open file too and would keep the lock of its dead parent: it closes the file at once.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

log = logging.getLogger("cnngp")

State = Literal["locked", "taken", "no locks"]

_POLL_SECONDS = 0.2
# What systems answer where the file system has no locks, such as some network mounts.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)

_open: set[int] = set()


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[bool]:
    """Hold the lock file `path`, which is made where it is not there; wait, and say so, while another process has it.

    Where the file system has no locks the work goes on without: tiles are written whole and are the same from every
    process, so two that fill one store only do some tiles twice. Gives whether the lock is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = open_file(path)
    try:
        locked = _wait(descriptor, what)
        _sign(descriptor)
        yield locked
    finally:
        close_file(descriptor)


def open_file(path: Path, new: bool = False) -> int:
    """A file to lock, made where it is not there. Links are not followed: what they point to is somebody else's."""
    flags = os.O_RDWR | os.O_CREAT | (os.O_EXCL if new else 0) | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o666)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.ELOOP, f"{path} is not a file of its own but a link or a device; delete it")
    _open.add(descriptor)
    return descriptor


def close_file(descriptor: int) -> None:
    """Close it, and so let go of its lock; in a forked child it is closed already, and the number may be another's."""
    if descriptor in _open:
        _open.remove(descriptor)
        os.close(descriptor)


def try_lock(descriptor: int) -> State:
    """Take the lock of an open file, without waiting."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return "no locks"
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return "taken"
        raise
    return "locked"


def _wait(descriptor: int, what: str) -> bool:
    told = False
    while (state := try_lock(descriptor)) == "taken":
        if not told:
            log.warning("%s is being filled by %s; waiting until it is done", what, _holder(descriptor))
            told = True
        time.sleep(_POLL_SECONDS)
    if state == "no locks":
        log.warning(
            "%s: this file system has no locks; processes share the work, but let only one at a time grow a store", what
        )
    return state == "locked"


def _sign(descriptor: int) -> None:
    """Write who holds the lock, unless the file says something that is not ours."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    if os.read(descriptor, 1) not in (b"", b"{"):
        return
    with suppress(OSError):  # a full disk: the lock holds without its note
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())


def _holder(descriptor: int) -> str:
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        who = json.loads(os.read(descriptor, 4096))
        return f"process {who['pid']} on {who['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _close_all() -> None:
    for descriptor in list(_open):
        with suppress(OSError):
            close_file(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
