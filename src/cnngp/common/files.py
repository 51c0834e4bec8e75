"""Files: atomic writing, the models and checkpoints that we save, the user's cache, and which files are regular.

A model, or the checkpoint of a solve, is an .npz file of plain arrays and a JSON header, without pickle. Reading one
runs no code, and a file that is cut short, damaged or of another kind is refused before anything is built from it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import secrets
import stat
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import DatasetError, ModelFileError, one_line

log = logging.getLogger("cnngp")

LockState = Literal["locked", "taken", "no locks"]

_POLL_SECONDS = 0.2
# What systems answer where the file system has no locks, such as some network mounts.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)

_open: set[int] = set()
"""Files that this process has open to lock them."""

FORMAT = 2
_HEADER = "header"
# What files of /proc and /sys are said to hold; a look at the size is quicker than one at the whole path.
_MADE_UP = (0, 4096)


def user_cache() -> Path:
    """The package's folder for what it can make again; `RuntimeError` for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cnngp"


def check_regular(path: Path, error: type[ValueError] = DatasetError) -> None:
    """Refuse what is not a file with content of its own: a pipe, a device or one of /proc may wait for ever."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except OSError as failed:
        raise error(f"{path} cannot be read ({failed.strerror})") from None
    made_up = found.st_size in _MADE_UP and is_of_the_system(path)
    if not stat.S_ISREG(found.st_mode) or made_up:
        raise error(f"{path} is not a regular file, but a folder, a pipe, a device or a file of the system")


def is_of_the_system(path: Path) -> bool:
    """Whether it is in a folder whose files the kernel of the operating system makes up when they are read."""
    return path.resolve().parts[:2] in (("/", "proc"), ("/", "sys"))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write in the place of `path`: readers see the old content or the new, never a part of it.

    It is written beside `path` under a random name, takes over the mode of the file that it replaces, and is on the
    disk before it takes its name.
    """
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.part")
    try:
        with temporary.open("xb") as file:
            with suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | str) -> None:
    """A whole file, text as UTF-8, in a folder that is made where there is none; see `replacing`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write(path: str | Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]], what: str = "model") -> None:
    """Write a model or a checkpoint, which `read` reads: an .npz file, whose first array is the header as JSON."""
    path = Path(path).resolve()  # of a link, what it points to
    if not path.parent.is_dir():
        raise ModelFileError(f"{path.parent}: no such folder to save {path.name} in")
    if path.exists() and not path.is_file():
        raise ModelFileError(f"{path} exists and is not a file; give another name to save the {what} under")
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ModelFileError(f"{name} holds Python objects, which are not saved; use text or numbers")
    text = json.dumps({f"cnngp_{what}": FORMAT} | header | {"arrays": [*arrays]}, default=_plain).encode()
    with replacing(path) as file:
        np.savez(file, **{_HEADER: np.frombuffer(text, np.uint8)}, **arrays)  # type: ignore[arg-type]


def read(path: str | Path, what: str = "model") -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the arrays that `write` wrote."""
    path = Path(path)
    arrays = read_arrays(path, f"a {what} saved by cnngp", ModelFileError)
    header: Any = {}
    with suppress(ValueError, RecursionError):
        header = json.loads(arrays.pop(_HEADER, np.zeros(0)).tobytes())
    header = header if isinstance(header, dict) else {}
    if header.get(f"cnngp_{what}") != FORMAT:
        raise ModelFileError(f"{path} has {what} format {header.get(f'cnngp_{what}')!r}; this version reads {FORMAT}")
    if header.pop("arrays", None) != [*arrays]:
        raise ModelFileError(f"{path} is damaged: it holds other arrays than it says; write or copy it again")
    return header, arrays


def read_arrays(path: Path, what: str, error: type[ValueError] = DatasetError) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by their names; nothing is unpickled. Each file that is bad is an `error`."""
    check_regular(path, error)
    arrays, name = {}, ""
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise error(f"{path} is not {what}, or is cut short; write it or copy it again")
            file.seek(0)
            with np.load(file, allow_pickle=False) as held:
                for name in held.files:
                    arrays[name] = np.asarray(held[name])
    except error:
        raise
    except OSError as failed:
        raise error(f"{path} cannot be read ({failed.strerror or failed})") from None
    except Exception as failed:  # zip, zlib and headers each have a type of their own
        if "Object arrays" in str(failed):
            said = f"{path}: {name} holds Python objects, which are never unpickled; save it as numbers or text"
            raise error(said) from None
        raise error(f"{path} is damaged ({one_line(failed)}); write or copy it again") from None
    return arrays


def packed(upper: NDArray[np.float64], diagonal: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """A symmetric matrix by rows from the diagonal on, in `dtype` where that loses nothing, else in float64.

    Only what stands above the diagonal of `upper` is read.
    """
    n, i = len(upper), np.arange(len(upper))
    entries = upper[~np.tri(n, k=-1, dtype=bool)]
    entries[i * (2 * n + 1 - i) // 2] = diagonal
    short = entries.astype(dtype)
    return np.asarray(short if np.array_equal(short, entries) else entries)


def unpacked(entries: NDArray[Any], n: int) -> NDArray[np.float64]:
    """The whole symmetric matrix again, in float64."""
    if entries.shape != (n * (n + 1) // 2,):
        raise ValueError(f"{entries.shape} kernel entries for {n} images")
    A, there = np.empty((n, n)), ~np.tri(n, k=-1, dtype=bool)
    A[there] = A.T[there] = entries
    return A


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise ModelFileError(f"{value!r} cannot be saved; use plain numbers and text")


# ---- locks ----


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[bool]:
    """Hold the lock file `path`, which is made where it is not there; wait, and say so, while another process has it.

    The operating system holds the lock for an open file, so a killed process leaves none. A forked child has the open
    file too and would keep the lock of its dead parent: it closes the file at once. Where the file system has no locks
    the work goes on without: tiles are written whole and are the same from every process, so two that fill one store
    only do some tiles twice. Gives whether the lock is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, told = open_file(path), False
    try:
        while (state := try_lock(descriptor)) == "taken":
            if not told:
                log.warning("%s is being filled by another process; waiting until it is done", what)
            told = True
            time.sleep(_POLL_SECONDS)
        if state == "no locks":
            log.warning("%s: this file system has no locks; let only one process at a time grow a store", what)
        yield state == "locked"
    finally:
        close_file(descriptor)


def open_file(path: Path) -> int:
    """A file to lock, made where it is not there. Links are not followed: what they point to is somebody else's."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
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


def try_lock(descriptor: int) -> LockState:
    """Take the lock of an open file, without waiting."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return "no locks"
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return "taken"
        raise
    return "locked"


def _close_all() -> None:
    for descriptor in list(_open):
        with suppress(OSError):
            close_file(descriptor)


os.register_at_fork(after_in_child=_close_all)
