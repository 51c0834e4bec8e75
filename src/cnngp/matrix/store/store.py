"""A kernel matrix on disk: a Zarr group that any Zarr reader opens, and that no accident makes wrong.

    STORE/zarr.json        what the matrix is: network, data, engine, type, tile (`Spec`)
    STORE/K/zarr.json      the array: a chunk is a tile, with a checksum, NaN where nothing was computed
    STORE/K/c/i/j          tile (i, j)
    STORE/K/.lock          held by the process that fills it

On a disk a chunk is written to a temporary file and renamed, and object stores put it there at once: it is absent or
whole. What disks and people do to it later shows in its checksum. The metadata of the group is the truth: the array's
shape is brought to it, never the other way round.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import StoreError
from cnngp.common.locks import exclusive

from ..grid import Grid, Tile
from .chunks import chunk_bytes, decoded_chunk, device_of, encoded_chunk, is_mirror
from .places import check_place, local_path, locate, remove_leftovers
from .spec import Spec

log = logging.getLogger("cnngp")

FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


class GramStore:
    """One kernel matrix in a store; made by `opened`."""

    def __init__(self, where: Any, read_only: bool = False, locked: bool = False) -> None:
        self.store, self.path, self.local, self.name = locate(where, read_only)
        self.read_only = read_only or bool(self.store.read_only)
        self._locked = locked
        self._noted: Any = None
        self._memory = threading.local()
        self._look()

    # ---- metadata ------------------------------------------------------------------------------------------------

    def _look(self) -> Spec | None:
        self.found = self._read_spec()
        self.grid = Grid((0, 0), (1, 1), False) if self.found is None else self.found.grid
        self._dtype = "float32" if self.found is None else self.found.dtype
        return self.found

    def _read_spec(self) -> Spec | None:
        import zarr

        try:
            group = zarr.open_group(self.store, path=self.path, mode="r", zarr_format=3)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self.name}: its zarr.json cannot be read ({error}); bring it back from a copy, or delete the store"
            ) from None
        attributes = group.attrs.asdict()
        self._noted = attributes.get("progress")
        return Spec.of_attributes(attributes, self.name)

    def refuse_unknown_tiles(self) -> None:
        """`StoreError` where there are tiles without metadata: they could be those of any matrix."""
        if self.found is None:
            self._forget_listings()
            tiles = self.names("K/c")
            # The metadata after the tiles: another process, which may have begun both meanwhile, writes it before them.
            if self._look() is None and tiles:
                raise StoreError(
                    f"{self.name} holds tiles, but no zarr.json that says of what; give a place that is not taken yet"
                )

    def prepare(self, spec: Spec) -> None:
        """Make the store one for `spec`: new, as it is, or grown. Refuses one that is of something else."""
        if self.found is not None:
            self.found.refuse_unless_same_or_grown(spec, self.name)
        if self.read_only:
            if self.found is None or self.found.shape != spec.shape:
                raise StoreError(f"{self.name} cannot be written; choose a place where you may write")
            return
        import zarr
        from zarr.errors import ContainsGroupError

        with self.writing("it was not begun"):
            if self.found is None:
                try:
                    zarr.create_group(self.store, path=self.path, attributes=spec.attributes(), zarr_format=3)
                except ContainsGroupError:  # another process was faster: no lock holds on an object store
                    if self._look() is None:
                        raise
                    self.prepare(spec)
                    return
            elif self.found.shape != spec.shape:
                # Chunks that growth cuts go first: killed here, the old matrix lacks them, and no chunk is ever
                # taken for one that covers more than was computed.
                for i, j in self.grid.cut_by_growth(spec.shape):
                    self.delete(f"K/c/{i}/{j}")
                self._update(spec.attributes())
            self.grid = spec.grid
            self._open_array(spec)
            self._dtype = spec.dtype
        if self.local is not None:
            remove_leftovers(self.local, self._locked)

    def _open_array(self, spec: Spec) -> None:
        """Make the array what the metadata says."""
        import zarr
        from zarr.codecs import Crc32cCodec
        from zarr.errors import ContainsArrayError

        try:
            array = zarr.open_array(self.store, path=self.key("K"), mode="r+", zarr_format=3)
        except FileNotFoundError:
            with suppress(ContainsArrayError):  # another process was faster
                zarr.create_array(
                    self.store,
                    name=self.key("K"),
                    shape=spec.shape,
                    chunks=spec.tile,
                    dtype=spec.dtype,
                    fill_value=float("nan"),
                    filters=None,
                    compressors=[Crc32cCodec()],
                    zarr_format=3,
                )
            array = zarr.open_array(self.store, path=self.key("K"), mode="r+", zarr_format=3)
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self.name}: K/zarr.json cannot be read ({error}); delete that file, the tiles stay"
            ) from None
        if array.chunks != spec.tile or str(array.dtype) != spec.dtype:
            raise StoreError(
                f"{self.name}: K has chunks {array.chunks} of {array.dtype}, its metadata says {spec.tile} of "
                f"{spec.dtype}; it was changed by something else, delete the store"
            )
        if array.shape != spec.shape:
            array.resize(spec.shape)

    def _update(self, attributes: dict[str, Any]) -> None:
        import zarr

        zarr.open_group(self.store, path=self.path, mode="r+", zarr_format=3).attrs.update(attributes)

    def note_progress(self, done: int) -> None:
        """For people who look at the metadata; the tiles themselves say what is done."""
        note = {"tiles": done, "of": len(self.grid)}
        if note != self._noted and not self.read_only:
            try:
                self._update({"progress": note})
            except OSError as error:  # a full disk, say: what is written for people ends no run
                log.warning("%s: its progress could not be noted (%s)", self.name, error.strerror or error)
                return
            self._noted = note

    # ---- tiles ---------------------------------------------------------------------------------------------------

    def array(self) -> Any:
        """The matrix for reading."""
        import zarr

        store = self.store if self.store.read_only else self.store.with_read_only(True)
        return zarr.open_array(store, path=self.key("K"), mode="r", zarr_format=3)

    def write(self, tile: Tile, block: Any) -> None:
        """A tile, in host memory or on a card, and its mirror image. Several threads may write, each its own tile."""
        with device_of(block):
            if not (math.isfinite(float(block.max())) and math.isfinite(float(block.min()))):
                raise StoreError(
                    f"rows {tile.rows.start}–{tile.rows.stop - 1}, columns {tile.columns.start}–"
                    f"{tile.columns.stop - 1} of the kernel came out as NaN or infinite; nothing of it was written. "
                    "Please report this"
                )
            scratch = self._scratch(chunk_bytes(self.grid.tile, block.dtype))
            chunks = []
            for k, (place, part) in enumerate(zip(self.grid.chunks_of(tile.i, tile.j), (block, block.T), strict=False)):
                data = encoded_chunk(part, self.grid.tile, scratch[k])
                chunks.append((self._chunk_key(*place), _prototype().buffer.from_array_like(data)))
        _wait(_set_all(self.store, chunks))

    def _scratch(self, size: int) -> list[NDArray[np.uint8]] | list[None]:
        """A thread's memory for two chunks, used again for every tile; other stores may keep what they are given."""
        if self.local is None:
            return [None, None]
        kept: list[NDArray[np.uint8]] | None = getattr(self._memory, "chunks", None)
        if kept is None or len(kept[0]) != size:
            kept = self._memory.chunks = [np.empty(size, np.uint8) for _ in range(2)]
        return kept

    def read(self, i: int, j: int) -> NDArray[Any]:
        """The numbers of chunk (i, j) that belong to the matrix. `ValueError` where it is damaged or not there."""
        buffer = _wait(self.store.get(self._chunk_key(i, j), _prototype()))
        if buffer is None:
            raise ValueError("no such chunk")
        tile = self.grid.at(i, j)
        chunk = decoded_chunk(buffer.as_numpy_array(), self.grid.tile, self._dtype)
        return chunk[: tile.rows.stop - tile.rows.start, : tile.columns.stop - tile.columns.start]

    def present(self) -> NDArray[np.bool_]:
        """Which chunks there are, without reading them."""
        self._forget_listings()
        a, b = self.grid.counts
        there = np.zeros((a, b), np.bool_)
        for i in range(a):
            for name in self.names(f"K/c/{i}"):
                if name.isdigit() and int(name) < b:
                    there[i, int(name)] = True
        return there

    def damaged(self, places: Iterable[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], bool]]:
        """Each tile (i, j) with whether it is damaged: by its checksum, by NaN, or by not being its mirror image."""
        for i, j in places:
            try:
                block = self.read(i, j)
                if self.grid.symmetric:
                    good = is_mirror(block, block if i == j else self.read(j, i))
                else:
                    good = not bool(np.isnan(block).any())
                yield (i, j), not good
            except ValueError:
                yield (i, j), True
            except OSError as error:
                # A sector that a disk cannot read is lost. A network, or a permission, may be better tomorrow.
                if self.local is None or error.errno != errno.EIO:
                    reason = error.strerror or error
                    raise StoreError(
                        f"{self.name}: tile {(i, j)} could not be read ({reason}). Run the same again when it can"
                    ) from error
                yield (i, j), True

    def missing(self, there: NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Tiles of which a chunk is not there, row by row."""
        lacking = np.triu(~(there & there.T)) if self.grid.symmetric else ~there
        return [(i, j) for i, j in np.argwhere(lacking).tolist()]

    def has(self, tile: Tile) -> bool:
        """Whether a tile is there, with its mirror image."""
        return all(_wait(self.store.exists(self._chunk_key(*at))) for at in self.grid.chunks_of(tile.i, tile.j))

    def forget(self, i: int, j: int) -> None:
        """Delete a tile, so that it is missing for everyone."""
        for a, b in self.grid.chunks_of(i, j):
            self.delete(f"K/c/{a}/{b}")

    # ---- keys ----------------------------------------------------------------------------------------------------

    def _chunk_key(self, i: int, j: int) -> str:
        return self.key(f"K/c/{i}/{j}")

    def key(self, key: str) -> str:
        return f"{self.path}/{key}" if self.path else key

    def names(self, key: str) -> tuple[str, ...]:
        """What is in a folder of the store."""
        return _list(self.store.list_dir(self.key(key)))

    def _forget_listings(self) -> None:
        """A listing from before would miss what other processes wrote."""
        fs = getattr(self.store, "fs", None)
        if fs is not None:
            fs.invalidate_cache()

    def has_bytes(self, key: str) -> bool:
        """Read, not only looked for: network file systems may remember that a file was there."""
        return _wait(self.store.get(self.key(key), _prototype())) is not None

    def set_bytes(self, key: str, data: bytes) -> None:
        _wait(self.store.set(self.key(key), _prototype().buffer.from_bytes(data)))

    def delete(self, key: str) -> None:
        _wait(self.store.delete(self.key(key)))

    # ---- faults --------------------------------------------------------------------------------------------------

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
        if error.errno in _NOT_WRITABLE:
            return StoreError(f"{self.name} cannot be written ({reason}); {state}. Choose a place where you may write")
        return StoreError(f"{self.name}: {reason}; {state}. Run the same again to go on")


@contextmanager
def opened(where: Any) -> Iterator[GramStore]:
    """The store at a path, an fsspec URL or in a Zarr store, locked where it is local.

    Where nothing can be written it is opened for reading: enough for a matrix that is whole.
    """
    local = local_path(where)
    read_only = bool(getattr(getattr(where, "store", where), "read_only", False))  # that of a Zarr store
    locked = False
    with ExitStack() as stack:
        if local is not None and not read_only:
            check_place(local)
            try:
                locked = stack.enter_context(exclusive(local / "K" / ".lock", str(local)))
            except OSError as error:
                if error.errno in _NOT_WRITABLE and (local / "zarr.json").exists():
                    read_only = True
                else:
                    advice = "free some space" if error.errno in FULL else "choose a place where you may write"
                    raise StoreError(f"store={str(local)!r} cannot be made: {error.strerror}; {advice}") from None
        place = GramStore(where, read_only, locked)
        place.refuse_unknown_tiles()
        yield place


def _prototype() -> Any:
    from zarr.core.buffer import default_buffer_prototype

    return default_buffer_prototype()


async def _set_all(store: Any, chunks: list[tuple[str, Any]]) -> None:
    """Written at the same time. An error is raised when all of them have ended."""
    for result in await asyncio.gather(*(store.set(*chunk) for chunk in chunks), return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _wait(coroutine: Any) -> Any:
    from zarr.core.sync import sync

    return sync(coroutine)


def _list(names: Any) -> tuple[str, ...]:
    from zarr.core.sync import collect_aiterator

    return collect_aiterator(names)
