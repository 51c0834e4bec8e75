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

from .places import locate

FULL = (errno.ENOSPC, errno.EDQUOT)
NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


class Keys:
    """The keys below one path of a Zarr store."""

    def __init__(self, where: Any, read_only: bool) -> None:
        self.zarr_store, self.path, self.local, self.name = locate(where, read_only)
        self.read_only = read_only or bool(self.zarr_store.read_only)
        # For reading: a store that may be written makes its folder when it is first looked at.
        self._source = self.zarr_store if self.zarr_store.read_only else self.zarr_store.with_read_only(True)

    def key(self, key: str) -> str:
        return f"{self.path}/{key}" if self.path else key

    def names(self, key: str) -> tuple[str, ...]:
        """What is in a folder of the store."""
        return _list(self.zarr_store.list_dir(self.key(key)))

    def forget_listings(self) -> None:
        """A listing from before would miss what other processes wrote."""
        fs = getattr(self.zarr_store, "fs", None)
        if fs is not None:
            fs.invalidate_cache()

    def get_bytes(self, key: str) -> bytes | None:
        """Read, not only looked for: network file systems may remember that a file was there."""
        try:
            buffer = wait(self._source.get(self.key(key), prototype()))
        except FileNotFoundError:  # not even the folder
            return None
        return None if buffer is None else bytes(buffer.to_bytes())

    def set_bytes(self, key: str, data: bytes) -> None:
        wait(self.zarr_store.set(self.key(key), prototype().buffer.from_bytes(data)))

    def delete(self, key: str) -> None:
        wait(self.zarr_store.delete(self.key(key)))

    @contextmanager
    def writing(self, state: str) -> Iterator[None]:
        """Errors of the disk as one line with what to do."""
        try:
            yield
        except OSError as error:
            raise self.fault(error, state) from error

    def fault(self, error: OSError, state: str) -> StoreError:
        reason = error.strerror or str(error)
        if error.errno in FULL:
            return StoreError(f"{self.name}: the disk is full; {state}. Free some space and run the same again")
        if error.errno in NOT_WRITABLE:
            return StoreError(f"{self.name} cannot be written ({reason}); {state}. Choose a place where you may write")
        return StoreError(f"{self.name}: {reason}; {state}. Run it again to continue")


def prototype() -> Any:
    from zarr.core.buffer import default_buffer_prototype

    return default_buffer_prototype()


async def set_all(store: Any, chunks: list[tuple[str, Any]]) -> None:
    """Written at the same time. An error is raised when all of them have ended."""
    for result in await asyncio.gather(*(store.set(*chunk) for chunk in chunks), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def wait(coroutine: Any) -> Any:
    from zarr.core.sync import sync

    return sync(coroutine)


def _list(names: Any) -> tuple[str, ...]:
    from zarr.core.sync import collect_aiterator

    return collect_aiterator(names)
