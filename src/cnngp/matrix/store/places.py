"""Where a store is, a folder of this machine, an fsspec URL or a place in a Zarr store, and the bytes under its keys.

Zarr's own functions are coroutines; here each is one call that returns when it is done, and errors of the disk are one
line.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cnngp.common.errors import StoreError

FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
# Nothing takes so long to write: what is older was left by a process that was killed.
_LEFT_SECONDS = 3600.0
# What may be in a folder without a matrix of its own: parts of fits and predictions inside an estimator's store.
_PARTS = ("K", "inducing-", "cross-")


def local_path(where: Any) -> Path | None:
    """The folder of a store, or None where it is not on a file system of this machine."""
    if isinstance(where, Path):
        return where.expanduser()
    if isinstance(where, str):
        where = where.removeprefix("file://")
        return None if "://" in where or "::" in where else Path(where).expanduser()
    from zarr.storage import LocalStore, StorePath

    if isinstance(where, LocalStore):
        return where.root
    if isinstance(where, StorePath) and isinstance(where.store, LocalStore):
        return where.store.root / where.path
    return None


def child(where: Any, name: str) -> Any:
    """A store inside a store. One that is a link was not made by cnngp: it is refused, as any link in a store."""
    from zarr.abc.store import Store
    from zarr.storage import StorePath

    local = local_path(where)
    if local is not None and (local / name).is_symlink():
        raise _is_link(local / name)
    if isinstance(where, (Store, StorePath)):
        return StorePath(where, name) if isinstance(where, Store) else where / name
    return f"{str(where).rstrip('/')}/{name}" if local is None else local / name


def locate(where: Any, read_only: bool) -> tuple[Any, str, Path | None, str]:
    """The Zarr store, the path of the group in it, the local folder if any, and a name for messages."""
    from zarr.abc.store import Store
    from zarr.storage import FsspecStore, LocalStore, StorePath

    local = local_path(where)
    if isinstance(where, (Store, StorePath)):
        store, path = (where, "") if isinstance(where, Store) else (where.store, where.path)
        if local is not None and read_only and not store.read_only:
            store = store.with_read_only(True)
        return store, path, local, str(where if local is None else local)
    if local is not None:
        return LocalStore(local, read_only=read_only), "", local, str(local)
    if not isinstance(where, str):
        raise StoreError(f"store={where!r}: expected a path, a URL such as s3://bucket/name, or a Zarr store")
    try:
        return FsspecStore.from_url(where, read_only=read_only), "", None, where
    except ImportError as error:
        raise StoreError(f"store={where!r}: {error}") from None
    except (ValueError, OSError) as error:
        raise StoreError(f"store={where!r} cannot be opened: {error}") from None


def same_for_all_machines(where: Any) -> str:
    """A place that means the same on every machine: an absolute path or a URL."""
    local = local_path(where)
    if local is not None or isinstance(where, str):
        return str(where if local is None else local.absolute())
    raise StoreError(f"store={where!r}: with client= give a path or a URL that every worker can open")


class HeldFolder:
    """A folder that stays the same one while it is in use, whatever becomes of its name.

    What is read or written `inside` is so in the folder that was there at first, not in another one that has its name
    by now, or that a link leads to.
    """

    def __init__(self, path: Path) -> None:
        self.path = self.inside = path
        self._held: os.stat_result | None = None
        if hasattr(os, "O_DIRECTORY"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            self._close = weakref.finalize(self, os.close, descriptor)
            self._held = os.fstat(descriptor)
            by_number = Path(f"/proc/self/fd/{descriptor}")
            if by_number.is_dir():  # of Linux; elsewhere `check` alone, before each write, tells
                self.inside = by_number

    def close(self) -> None:
        """Let go of it; nothing may be read or written inside any more."""
        if self._held is not None:
            self._close()

    def check(self) -> None:
        """`StoreError` where the name does not lead to this folder any more."""
        same = self._held is None
        with suppress(OSError):
            same = same or os.path.samestat(self._held, self.path.stat())  # type: ignore[arg-type]
        if not same:
            raise StoreError(
                f"{self.path} was moved, deleted or replaced while it was in use; nothing was written to what has its "
                "name now. Run the same again"
            )


class Keys:
    """The keys below one path of a Zarr store. A local folder is held: see `HeldFolder`."""

    def __init__(self, where: Any, read_only: bool, folder: HeldFolder | None = None) -> None:
        from zarr.storage import LocalStore

        self.zarr_store, self.path, self.local, self.name = locate(where, read_only)
        self.read_only = read_only or bool(self.zarr_store.read_only)
        if folder is None and not self.read_only and self.local is not None and self.local.is_dir():
            folder = HeldFolder(self.local)
        self.folder = folder
        self._inside, self._prefix = self.zarr_store, f"{self.path}/" if self.path else ""
        if folder is not None and type(self.zarr_store) is LocalStore:
            self._inside, self._prefix = LocalStore(folder.inside), ""
        # For reading: a store that may be written makes its folder when it is first looked at.
        self._source = self._inside if self._inside.read_only else self._inside.with_read_only(True)

    def names(self, key: str) -> tuple[str, ...]:
        """What is in a folder of the store, also what other processes have just put there."""
        from zarr.core.sync import collect_aiterator

        fs = getattr(self.zarr_store, "fs", None)
        if fs is not None:
            fs.invalidate_cache()
        return collect_aiterator(self._source.list_dir(self._prefix + key))

    def exists(self, key: str) -> bool:
        return bool(wait(self._source.exists(self._prefix + key)))

    def get_bytes(self, key: str) -> bytes | None:
        """Read, not only looked for: network file systems may remember that a file was there."""
        try:
            buffer = wait(self._source.get(self._prefix + key, prototype()))
        except FileNotFoundError:  # not even the folder
            return None
        return None if buffer is None else bytes(buffer.to_bytes())

    def set_bytes(self, key: str, data: bytes) -> None:
        self.set_all([(key, prototype().buffer.from_bytes(data))])

    def set_all(self, parts: list[tuple[str, Any]]) -> None:
        """Write buffers at the same time. An error is raised when all have ended."""
        self.check_folder()

        async def put() -> None:
            writes = (self._inside.set(self._prefix + key, data) for key, data in parts)
            for result in await asyncio.gather(*writes, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

        wait(put())

    def delete(self, key: str) -> None:
        self.check_folder()
        wait(self._inside.delete(self._prefix + key))

    def delete_folder(self, key: str) -> None:
        self.check_folder()
        wait(self._inside.delete_dir(self._prefix + key))

    def new_array(self, key: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any) -> Any:
        """A Zarr array, with a checksum on every chunk, and NaN where a chunk is not seen."""
        import zarr
        from zarr.codecs import Crc32cCodec

        self.check_folder()
        options: dict[str, Any] = {"fill_value": float("nan"), "filters": None, "compressors": [Crc32cCodec()]}
        options |= {"shape": shape, "chunks": chunks, "dtype": dtype, "zarr_format": 3}
        return zarr.create_array(self._inside, name=self._prefix + key, **options)

    def open_array(self, key: str) -> Any:
        """A Zarr array for reading."""
        import zarr

        return zarr.open_array(self._source, path=self._prefix + key, mode="r", zarr_format=3)

    def check_folder(self) -> None:
        """`StoreError` where another folder has the name of the one that is held."""
        if self.folder is not None:
            self.folder.check()

    @contextmanager
    def writing(self, state: str) -> Iterator[None]:
        """Errors of the disk as one line with what to do."""
        try:
            yield
        except OSError as error:
            raise self.fault(error, state) from error

    def fault(self, error: OSError, state: str) -> StoreError:
        self.check_folder()
        reason = error.strerror or str(error)
        if error.errno in FULL:
            return StoreError(f"{self.name}: the disk is full; {state}. Free some space and run the same again")
        if error.errno in NOT_WRITABLE:
            return StoreError(f"{self.name} cannot be written ({reason}); {state}. Choose a place where you may write")
        return StoreError(f"{self.name}: {reason}; {state}. Run it again to continue")


def prototype() -> Any:
    from zarr.core.buffer import default_buffer_prototype

    return default_buffer_prototype()


def wait(coroutine: Any) -> Any:
    from zarr.core.sync import sync

    return sync(coroutine)


# ---- folders of this machine -----------------------------------------------------------------------------------------


def check_place(local: Path) -> None:
    """Refuse, before anything is put there, a folder that holds something else, and a store in which a folder, or a
    file that is written to, is a link: what is written or deleted there would be in a place that somebody else chose.
    """
    if local.exists() and not local.is_dir():
        raise StoreError(f"store={str(local)!r} is a file; expected a folder, or a name that is not taken yet")
    if local.is_dir() and not (local / "zarr.json").exists():
        strange = sorted(p.name for p in local.iterdir() if not p.name.startswith(_PARTS) and p.suffix != ".partial")
        if strange:
            raise StoreError(
                f"store={str(local)!r} is a folder that cnngp did not make (it holds {', '.join(strange[:3])}); give a "
                "name that is not taken yet"
            )
    folders = [local / "K" / "c", local / "K" / "seals", local / "images"]
    for path in (local / "K", *folders, local / "zarr.json", local / "K" / "zarr.json", local / "K" / ".lock"):
        if path.is_symlink():
            raise _is_link(path)
    for folder in filter(Path.is_dir, folders):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_symlink():
                    raise _is_link(Path(entry.path))


def _is_link(path: Path) -> StoreError:
    return StoreError(
        f"{path} is a link to {path.readlink()}; cnngp makes no links in a store and follows none. Put a copy of the "
        "folder in its place, or give another store"
    )


def remove_leftovers(local: Path, locked: bool) -> None:
    """What a killed process was writing. Without the lock only what is old: another process may be writing the rest."""
    newest = float("inf") if locked else time.time() - _LEFT_SECONDS
    for pattern in ("zarr.*.partial", "K/*.partial", "K/c/*/*.partial", "K/seals/*/*.partial"):
        for path in local.glob(pattern):
            with suppress(OSError):
                if path.lstat().st_mtime < newest:
                    path.unlink()
