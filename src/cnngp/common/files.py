"""Files: atomic writes, the format of saved models and checkpoints, locks, the user's cache, checks of regular files.

A model, or the checkpoint of a solve, is a zip of plain arrays and a JSON header, with a checksum over all of it and
without pickle. Reading one runs no code, and a file that is truncated, altered or of another kind is rejected before
anything is built from it.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import io
import json
import logging
import math
import os
import secrets
import socket
import stat
import struct
import time
import tokenize
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from .errors import DatasetError, ModelFileError

log = logging.getLogger("cnngp")

LockState = Literal["locked", "taken", "no locks"]

_POLL_SECONDS = 0.2
# Error codes of file systems without locks, such as some network mounts.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)

_open: set[int] = set()
"""Descriptors of the files that this process has opened to lock them."""

FORMAT = 1
# Length of the fixed part of the header before each member of a zip.
_LOCAL_HEADER = 30
# No write takes this long: without locks, an older temporary file was left by a killed process.
_LEFT_SECONDS = 3600.0
# Random part of the name of a temporary file, so that no other file matches the pattern.
_TOKEN_BYTES = 8
_TOKEN = "[0-9a-f]" * (2 * _TOKEN_BYTES)
_HEADER = "header.json"
_CHECKSUM = "sha256"
# Reported sizes of files in /proc and /sys; checking the size first is quicker than resolving the whole path.
_MADE_UP = (0, 4096)


def user_cache() -> Path:
    """Return the package's cache folder; `RuntimeError` for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cnngp"


def check_regular(path: Path) -> None:
    """Raise `DatasetError` unless `path` is a regular file: reading a pipe, a device or /proc could block forever."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file") from None
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror})") from None
    made_up = found.st_size in _MADE_UP and is_of_the_system(path)
    if not stat.S_ISREG(found.st_mode) or made_up:
        raise DatasetError(f"{path} is not a regular file, but a folder, a pipe, a device or a file of the system")


def is_of_the_system(path: Path) -> bool:
    """True for a file in /proc or /sys, whose content the operating system generates when it is read."""
    return path.resolve().parts[:2] in (("/", "proc"), ("/", "sys"))


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that atomically replaces `path`: readers see the old content or the new, never a part of it.

    It is written beside `path` under a random name, takes the mode of the file that it replaces, and is synced to disk
    before it is renamed. Temporary files that killed processes left are removed first.
    """
    _sweep(path)
    descriptor, temporary = _temporary(path)
    try:
        with suppress(FileNotFoundError):
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        with open(descriptor, "wb", closefd=False) as file:
            yield file
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
        close_file(descriptor)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a whole file atomically (see `replacing`), text as UTF-8; make its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def _temporary(path: Path) -> tuple[int, Path]:
    """Create a temporary file beside `path`, locked so that no other process removes it as a leftover."""
    while True:
        temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(_TOKEN_BYTES)}.part")
        descriptor = open_file(temporary, new=True)
        try_lock(descriptor)
        if temporary.exists():  # another process may have swept it before it was locked
            return descriptor, temporary
        close_file(descriptor)


def _sweep(path: Path) -> None:
    """Remove temporary files of killed processes; a locked one, or a recent one without locks, is still in use."""
    for left in path.parent.glob(f".{glob.escape(path.name[:100])}.{_TOKEN}.part"):
        with suppress(OSError):
            descriptor = open_file(left)
            try:
                state = try_lock(descriptor)
                if state == "locked" or (state == "no locks" and time.time() - left.stat().st_mtime > _LEFT_SECONDS):
                    left.unlink()
            finally:
                close_file(descriptor)


def write(path: str | Path, header: dict[str, Any], arrays: dict[str, NDArray[Any]], what: str = "model") -> None:
    """Write a model or a checkpoint for `read`."""
    path = Path(path).resolve()  # a link is followed to its target
    if not path.parent.is_dir():
        raise ModelFileError(f"{path.parent}: no such folder to save {path.name} in")
    if path.exists() and not path.is_file():
        raise ModelFileError(f"{path} exists and is not a file; give another name to save the {what} under")
    members = {_HEADER: json.dumps({f"cnngp_{what}": FORMAT} | header, sort_keys=True, default=_plain).encode()}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise ModelFileError(f"{name} holds Python objects, which are not saved; use text or numbers")
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        members[f"{name}.npy"] = buffer.getvalue()
    with replacing(path) as whole, zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as file:
        for name, data in members.items():
            file.writestr(name, data)
        file.writestr(_CHECKSUM, _digest(members))


def read(path: str | Path, what: str = "model") -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read and check the header and the arrays that `write` wrote."""
    path = Path(path)
    try:
        if not path.is_file():
            raise ModelFileError(f"{path}: no such {what} file")
        with zipfile.ZipFile(path) as file:
            if not _is_plain(file):
                raise ModelFileError(f"{path} is not a {what} saved by cnngp")
            members = {info.filename: file.read(info) for info in file.infolist()}
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read ({error.strerror or error})") from None
    except ModelFileError:
        raise
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError, struct.error) as error:
        with path.open("rb") as content:
            is_zip = content.read(2) == b"PK"
        if not is_zip:
            raise ModelFileError(f"{path} is not a cnngp {what}, but a file of another kind") from None
        raise ModelFileError(f"{path} is not a whole {what} file ({error}); save or copy it again") from None
    checksum = members.pop(_CHECKSUM, b"")
    if _HEADER not in members:
        raise ModelFileError(f"{path} is not a {what} saved by cnngp")
    if checksum.decode(errors="replace") != _digest(members):
        raise ModelFileError(f"{path} has been altered: its checksum does not match; save or copy it again")
    header: Any = {}
    with suppress(ValueError, RecursionError):
        header = json.loads(members.pop(_HEADER))
    header = header if isinstance(header, dict) else {}
    if header.get(f"cnngp_{what}") != FORMAT:
        raise ModelFileError(f"{path} has {what} format {header.get(f'cnngp_{what}')!r}; this version reads {FORMAT}")
    try:
        arrays = {name.removesuffix(".npy"): _array(data) for name, data in members.items()}
    except (ValueError, EOFError, SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ModelFileError(f"{path} holds an array that cannot be read ({error})") from None
    return header, arrays


def _is_plain(file: zipfile.ZipFile) -> bool:
    """True if the members are uncompressed and do not overlap: others could expand to any amount of memory."""
    end, names = 0, set()
    for info in sorted(file.infolist(), key=lambda i: i.header_offset):
        stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
        if not stored or info.header_offset < end or info.filename in names:
            return False
        end = info.header_offset + _LOCAL_HEADER + len(info.filename.encode()) + info.file_size
        names.add(info.filename)
    return end <= file.start_dir


def packed(upper: NDArray[np.float64], diagonal: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """Pack a symmetric matrix: its rows from the diagonal on, in `dtype` if that is lossless, else in float64.

    Only the entries above the diagonal of `upper` are read.
    """
    n, i = len(upper), np.arange(len(upper))
    entries = upper[~np.tri(n, k=-1, dtype=bool)]
    entries[i * (2 * n + 1 - i) // 2] = diagonal
    short = entries.astype(dtype)
    return np.asarray(short if np.array_equal(short, entries) else entries)


def unpacked(entries: NDArray[Any], n: int) -> NDArray[np.float64]:
    """Undo `packed`: the full symmetric matrix in float64."""
    if entries.shape != (n * (n + 1) // 2,):
        raise ValueError(f"{entries.shape} kernel entries for {n} images")
    A, there = np.empty((n, n)), ~np.tri(n, k=-1, dtype=bool)
    A[there] = A.T[there] = entries
    return A


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise ModelFileError(f"{value!r} cannot be saved; use plain numbers and text")


def _array(data: bytes) -> NDArray[Any]:
    """Parse an array in NumPy's format. Its length must match its header: no memory is allocated for missing data."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of NumPy's format")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError("Python objects")
    rest = data[file.tell() :]
    entries = math.prod(shape)
    if not dtype.itemsize and entries:  # strings of length 0, for which NumPy would allocate a character each
        raise ValueError(f"{entries:,} entries of type {dtype} in no bytes")
    if len(rest) != entries * dtype.itemsize or any(n < 0 for n in shape):
        raise ValueError(f"{len(rest):,} bytes for an array of shape {shape} and type {dtype}")
    flat = np.frombuffer(rest, dtype) if dtype.itemsize else np.empty(shape, dtype)
    return flat.reshape(shape, order="F" if by_columns else "C").copy(order="K")


def _digest(members: dict[str, bytes]) -> str:
    total = hashlib.sha256()
    for name in sorted(members):
        total.update(f"{name} {len(members[name])} ".encode())
        total.update(members[name])
    return total.hexdigest()


# ---- locks ----


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[bool]:
    """Hold the lock file `path`, made if missing; wait, with a warning, while another process holds it.

    The operating system ties the lock to an open file, so a killed process leaves none. A forked child inherits the
    open file and would keep the lock of its dead parent, so it closes the file at once. On a file system without locks
    the work goes on unlocked: tiles are written whole and are the same from every process, so two processes that fill
    one store only compute some tiles twice. Yields True if the lock is held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, told = open_file(path), False
    try:
        while (state := try_lock(descriptor)) == "taken":
            if not told:
                log.warning("%s is being filled by %s; waiting until it is done", what, _holder(descriptor))
            told = True
            time.sleep(_POLL_SECONDS)
        if state == "no locks":
            log.warning("%s: this file system has no locks; let only one process at a time grow a store", what)
        _sign(descriptor)
        yield state == "locked"
    finally:
        close_file(descriptor)


def open_file(path: Path, new: bool = False) -> int:
    """Open a file to lock, made if missing. Links are not followed, because they may lead to another user's file."""
    flags = os.O_RDWR | os.O_CREAT | (os.O_EXCL if new else 0) | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o666)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(errno.ELOOP, f"{path} is not a file of its own but a link or a device; delete it")
    _open.add(descriptor)
    return descriptor


def close_file(descriptor: int) -> None:
    """Close a file and so release its lock. A forked child has closed it already and may have reused the descriptor."""
    if descriptor in _open:
        _open.remove(descriptor)
        os.close(descriptor)


def try_lock(descriptor: int) -> LockState:
    """Try to lock an open file, without waiting."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return "no locks"
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return "taken"
        raise
    return "locked"


def _sign(descriptor: int) -> None:
    """Write into the lock file which process holds it, unless the file has other content."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    if os.read(descriptor, 1) not in (b"", b"{"):
        return
    with suppress(OSError):  # a full disk, say: the lock is valid without its note
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


os.register_at_fork(after_in_child=_close_all)
