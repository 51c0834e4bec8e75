"""Verified reads of tiles: no number of a chunk is returned before its checksum and its seal were checked.

This is a Zarr store that wraps another, so it serves every reader: `gram` when it verifies, a fit, a solve on any
machine, and a user who slices the array that `gram` returned.
"""

from __future__ import annotations

import re
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import WrapperStore

from cnngp.common.errors import StoreError

from .spec import Spec, array_document
from .tile_bytes import checked_sum, sealed_sum, tile_of


class DamagedTile(StoreError):
    """Error for a tile that is missing, damaged, or not the one that belongs at its place."""


class VerifiedStore(WrapperStore[Any]):
    """Zarr store in which reading a chunk of the matrix at `path` raises `DamagedTile` unless it is intact.

    The array's document is made from `spec`; the one in the store is ignored.
    """

    def __init__(self, store: Any, path: str, spec: Spec, name: str) -> None:
        super().__init__(store)
        self._path, self._spec, self._name = path, spec, name
        self._prefix = f"{path}/" if path else ""
        self._chunk = re.compile(re.escape(self._prefix) + r"K/c/(\d+)/(\d+)")
        self._seals: dict[tuple[int, int], bytes] = {}

    def _with_store(self, store: Any) -> VerifiedStore:
        return VerifiedStore(store, self._path, self._spec, self._name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VerifiedStore) and (self._store, self._spec) == (other._store, other._spec)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return str(self._store)

    @property
    def inner(self) -> Any:
        return self._store

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        prototype = prototype or default_buffer_prototype()
        if key == f"{self._prefix}K/zarr.json":
            return prototype.buffer.from_bytes(array_document(self._spec))
        chunk = self._chunk.fullmatch(key)
        if chunk is None:
            return await self._store.get(key, prototype, byte_range)
        i, j = int(chunk[1]), int(chunk[2])
        at = tile_of(self._spec.grid, i, j)
        whole = await self._store.get(key, prototype)
        try:
            if whole is None:
                raise ValueError("it is not there")
            found = checked_sum(whole.as_numpy_array(), self._spec.tile, self._spec.dtype)
            seal = self._seals.get(at)
            if seal is None:
                buffer = await self._store.get(f"{self._prefix}K/seals/{at[0]}/{at[1]}", prototype)
                if buffer is None:
                    raise ValueError("it has no seal")
                seal = buffer.to_bytes()
            if sealed_sum(seal, self._spec.id, self._spec.grid, i, j) != found:
                raise ValueError("it is another one than was written there")
        except ValueError as error:
            raise DamagedTile(
                f"{self._name}: chunk {(i, j)} of the kernel matrix cannot be used: {error}; run gram on the store "
                "again, which computes such tiles again"
            ) from None
        self._seals[at] = seal
        return whole if byte_range is None else await self._store.get(key, prototype, byte_range)
