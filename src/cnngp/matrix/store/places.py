"""Location of a store (a local folder, an fsspec URL or a path in a Zarr store), and access to the bytes of its keys.

Zarr's own functions are coroutines; here each is a blocking call, and an error of the disk becomes one line.
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
# No write takes this long: an older temporary file was left by a killed process.
_LEFT_SECONDS = 3600.0
# Names allowed in a folder without a matrix of its own: parts of fits and predictions inside an estimator's store.
_PARTS = ("K", "inducing-", "cross-")


def local_path(where: Any) -> Path | None:
    """Return the local folder of a store, or None if it is not on a file system of this machine."""
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
    """Return the location of a store inside a store; raise `StoreError` for a link, which cnngp never makes."""
    from zarr.abc.store import Store
    from zarr.storage import StorePath

    local = local_path(where)
    if local is not None and (local / name).is_symlink():
        raise _is_link(local / name)
    if isinstance(where, (Store, StorePath)):
        return StorePath(where, name) if isinstance(where, Store) else where / name
    return f"{str(where).rstrip('/')}/{name}" if local is None else local / name


def locate(where: Any, read_only: bool) -> tuple[Any, str, Path | None, str]:
    """Return the Zarr store, the path of the group in it, the local folder or None, and a name for messages."""
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
    """Return a location that is valid on every machine: an absolute path or a URL."""
    local = local_path(where)
    if local is not None or isinstance(where, str):
        return str(where if local is None else local.absolute())
    raise StoreError(f"store={where!r}: with client= give a path or a URL that every worker can open")


class HeldFolder:
    """A folder held open, so that its identity cannot change while it is in use.

    Reads and writes under `inside` go to the folder that was opened, not to another one that has its name by now or
    that a link leads to.
    """

    def __init__(self, path: Path) -> None:
        self.path = self.inside = path
        self._held: os.stat_result | None = None
        if hasattr(os, "O_DIRECTORY"):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            self._close = weakref.finalize(self, os.close, descriptor)
            self._held = os.fstat(descriptor)
            by_number = Path(f"/proc/self/fd/{descriptor}")
            if by_number.is_dir():  # on Linux; elsewhere only `check`, before each write, detects a change
                self.inside = by_number

    def close(self) -> None:
        """Release the folder; nothing may be read or written inside it afterwards."""
        if self._held is not None:
            self._close()

    def check(self) -> None:
        """Raise `StoreError` if the name no longer leads to this folder."""
        same = self._held is None
        with suppress(OSError):
            same = same or os.path.samestat(self._held, self.path.stat())  # type: ignore[arg-type]
        if not same:
            raise StoreError(
                f"{self.path} was moved, deleted or replaced while it was in use; nothing was written to what has its "
                "name now. Run the same again"
            )


class Keys:
    """The keys below one path of a Zarr store. A local folder that is written is held open: see `HeldFolder`."""

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
        # A read-only view for reading: a writable store would make its folder when it is first accessed.
        self._source = self._inside if self._inside.read_only else self._inside.with_read_only(True)

    def names(self, key: str) -> tuple[str, ...]:
        """List a folder of the store, including what other processes have just written."""
        from zarr.core.sync import collect_aiterator

        fs = getattr(self.zarr_store, "fs", None)
        if fs is not None:
            fs.invalidate_cache()
        return collect_aiterator(self._source.list_dir(self._prefix + key))

    def exists(self, key: str) -> bool:
        return bool(wait(self._source.exists(self._prefix + key)))

    def get_bytes(self, key: str) -> bytes | None:
        """Return the bytes of a key, or None. No existence check comes first: network file systems may cache one."""
        try:
            buffer = wait(self._source.get(self._prefix + key, prototype()))
        except FileNotFoundError:  # the folder is missing too
            return None
        return None if buffer is None else bytes(buffer.to_bytes())

    def set_bytes(self, key: str, data: bytes) -> None:
        self.set_all([(key, prototype().buffer.from_bytes(data))])

    def set_all(self, parts: list[tuple[str, Any]]) -> None:
        """Write buffers concurrently. An error is raised after all writes have ended."""
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
        """Create a Zarr array with a checksum on every chunk; a missing chunk reads as NaN."""
        import zarr
        from zarr.codecs import Crc32cCodec

        self.check_folder()
        options: dict[str, Any] = {"fill_value": float("nan"), "filters": None, "compressors": [Crc32cCodec()]}
        options |= {"shape": shape, "chunks": chunks, "dtype": dtype, "zarr_format": 3}
        return zarr.create_array(self._inside, name=self._prefix + key, **options)

    def open_array(self, key: str) -> Any:
        """Open a Zarr array for reading."""
        import zarr

        return zarr.open_array(self._source, path=self._prefix + key, mode="r", zarr_format=3)

    def check_folder(self) -> None:
        """Raise `StoreError` if the name of the held folder leads to another one."""
        if self.folder is not None:
            self.folder.check()

    @contextmanager
    def writing(self, state: str) -> Iterator[None]:
        """Context manager that turns an `OSError` into a `StoreError` with a remedy."""
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
    """Raise `StoreError`, before anything is written, for a folder that holds something else, and for a store in which
    a folder or a file that will be written is a link: writes and deletions could then happen anywhere.
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
    """Remove unfinished files of killed processes; without the lock only old ones, as others may still be in use."""
    newest = float("inf") if locked else time.time() - _LEFT_SECONDS
    for pattern in ("zarr.*.partial", "K/*.partial", "K/c/*/*.partial", "K/seals/*/*.partial"):
        for path in local.glob(pattern):
            with suppress(OSError):
                if path.lstat().st_mtime < newest:
                    path.unlink()
