"""Bytes under keys in a Zarr store on a disk, at an fsspec URL or in memory, and errors of the disk as one line.

Zarr's own functions are coroutines; here each is one call that returns when it is done.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cnngp.common.errors import StoreError

from .places import HeldFolder, locate

FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


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
