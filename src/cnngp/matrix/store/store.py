"""A kernel matrix on disk: a Zarr group that any Zarr reader opens, and that no accident makes wrong.

    STORE/zarr.json        what the matrix is: network, data, engine, type, tile (`spec.py`)
    STORE/K/zarr.json      the array: a chunk is a tile, with a checksum, NaN where nothing was computed (`metadata.py`)
    STORE/K/c/i/j          tile (i, j)
    STORE/K/seals/i/j      says that the chunks of tile (i, j) are those of this tile (`seals.py`)
    STORE/K/.lock          held by the process that fills it

On a disk a chunk is written to a temporary file and renamed, and object stores put it there at once: it is absent or
whole. What disks and people do to it later shows in its checksum and its seal, which every reader compares
(`verified.py`). The metadata of the group is the truth: that of the array is brought to it, never the other way round.
"""

from __future__ import annotations

import errno
import logging
import math
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import StoreError
from cnngp.common.locks import exclusive
from cnngp.common.tiles import Grid, Tile

from .chunks import CHECKSUM_BYTES, chunk_bytes, decoded_chunk, device_of, encoded_chunk, is_mirror
from .keys import FULL, NOT_WRITABLE, Keys, prototype, wait
from .metadata import REMEDY, array_differs, array_document, group_attributes, group_document
from .places import HeldFolder, check_place, local_path, refuse_links, remove_leftovers
from .seals import seal, tile_of
from .spec import Spec

log = logging.getLogger("cnngp")


class GramStore(Keys):
    """One kernel matrix in a store; made by `opened`."""

    def __init__(
        self, where: Any, read_only: bool = False, locked: bool = False, folder: HeldFolder | None = None
    ) -> None:
        super().__init__(where, read_only, folder)
        self.locked = locked
        self._noted: Any = None
        self._memory = threading.local()
        self._look()

    # ---- metadata ------------------------------------------------------------------------------------------------

    def _look(self) -> Spec | None:
        self.found = self._read_spec()
        self._adopt(self.found)
        return self.found

    def _adopt(self, spec: Spec | None) -> None:
        """Work on the matrix of `spec` from now on."""
        self._spec = spec
        self.grid = Grid((0, 0), (1, 1), False) if spec is None else spec.grid
        self._verified: Any = None

    @property
    def spec(self) -> Spec:
        """What the store holds. `StoreError` where nothing says so."""
        if self._spec is None:
            raise StoreError(
                f"{self.name} has no zarr.json, so it is not known what matrix it holds; "
                "bring zarr.json back from a copy, or delete the store"
            )
        return self._spec

    def _read_spec(self) -> Spec | None:
        try:
            attributes = group_attributes(self.get_bytes("zarr.json"), self.name)
        except OSError as error:
            raise StoreError(f"{self.name}: its zarr.json could not be read ({error.strerror or error})") from None
        if attributes is None:
            return None
        self._noted = attributes.get("progress")
        return Spec.of_attributes(attributes, self.name)

    def refuse_unknown_tiles(self) -> None:
        """`StoreError` where there are tiles without metadata: they could be those of any matrix."""
        if self.found is None:
            self.forget_listings()
            tiles = self.names("K/c")
            # The metadata after the tiles: another process, which may have begun both meanwhile, writes it before them.
            if self._look() is None and tiles:
                raise StoreError(
                    f"{self.name} holds tiles, but no zarr.json that says of what; give a place that is not taken yet"
                )

    def prepare(self, spec: Spec, any_tile: bool = False) -> None:
        """Make the store one for `spec`: new, as it is, or grown. Refuses one that is of something else.

        `any_tile`: take the tile of another process that has just begun the store.
        """
        if self.found is not None:
            self.found.refuse_unless_same_or_grown(spec, self.name)
        if self.read_only:
            if self.found is None or self.found.shape != spec.shape:
                raise StoreError(f"{self.name} cannot be written; choose a place where you may write")
            return
        with self.writing("it was not begun"):
            if self.found is None:
                if self._look() is not None:  # another process was faster: no lock holds on an object store
                    there = self.spec
                    self.prepare(replace(spec, id=there.id, tile=there.tile if any_tile else spec.tile))
                    return
                self.set_bytes("zarr.json", group_document(spec.attributes()))
                self.found = spec
            elif self.found.shape != spec.shape:
                # Chunks that growth cuts go first: killed here, the old matrix lacks them, and no chunk is ever
                # taken for one that covers more than was computed.
                for i, j in self.grid.cut_by_growth(spec.shape):
                    self.forget(*tile_of(self.grid, i, j))
                self._update(spec.attributes())
                self.found = spec
            self._adopt(self.found)
            self._open_array(self.spec)
        if self.local is not None:
            remove_leftovers(self.local if self._folder is None else self._folder.inside, self.locked)

    def _open_array(self, spec: Spec) -> None:
        """Make the array's document what the metadata says."""
        differs = array_differs(self.get_bytes("K/zarr.json"), spec)
        if differs is None:
            return
        if differs not in ("it is missing", "shape"):
            log.warning("%s: K/zarr.json was damaged (%s) and is written anew; the tiles stay", self.name, differs)
        self.set_bytes("K/zarr.json", array_document(spec))

    def check_array(self, growing: bool = False) -> None:
        """`StoreError` where Zarr would read the matrix wrongly or not at all. While it grows its old shape will do."""
        differs = array_differs(self.get_bytes("K/zarr.json"), self.spec)
        if differs is not None and not (growing and differs == "shape"):
            what = "changed in shape" if differs == "shape" else differs
            raise StoreError(f"{self.name}: K/zarr.json does not fit the matrix: {what}; {REMEDY}")

    def _update(self, attributes: dict[str, Any]) -> None:
        before = group_attributes(self.get_bytes("zarr.json"), self.name) or {}
        self.set_bytes("zarr.json", group_document(before | attributes))

    def note_progress(self, done: int) -> None:
        """For people who look at the metadata; the tiles themselves say what is done."""
        note = {"tiles": done, "of": len(self.grid)}
        if note != self._noted and not self.read_only and self._note("progress", note):
            self._noted = note

    def note_check(self, note: dict[str, Any]) -> None:
        """How the engine that fills the store was compared with the reference, for people too."""
        self._note("check", note)

    def _note(self, name: str, note: dict[str, Any]) -> bool:
        try:
            self._update(self.spec.attributes() | {name: note})  # all of it, should the file have been lost
        except OSError as error:  # a full disk, say: what is written for people ends no run
            log.warning("%s: its %s could not be noted (%s)", self.name, name, error.strerror or error)
            return False
        return True

    # ---- tiles ---------------------------------------------------------------------------------------------------

    def array(self) -> Any:
        """The matrix for reading, every tile of it verified when it is read."""
        import zarr

        from .verified import VerifiedStore

        self.check_array()
        self.check_folder()
        by_name = self.zarr_store if self.zarr_store.read_only else self.zarr_store.with_read_only(True)
        reading = VerifiedStore(by_name, self.path, self.spec, self.name)
        return zarr.open_array(reading, path=self.key("K"), mode="r", zarr_format=3)

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
            chunks, sums = [], []
            for k, (at, part) in enumerate(zip(self.grid.chunks_of(tile.i, tile.j), (block, block.T), strict=False)):
                data = encoded_chunk(part, self.grid.tile, scratch[k])
                sums.append(data[-CHECKSUM_BYTES:].tobytes())
                chunks.append((f"K/c/{at[0]}/{at[1]}", prototype().buffer.from_array_like(data)))
        self.set_all(chunks)
        # Last: a tile with a seal is whole.
        self.set_bytes(f"K/seals/{tile.i}/{tile.j}", seal(self.spec.id, self.grid, tile.i, tile.j, sums))

    def _scratch(self, size: int) -> list[NDArray[np.uint8]] | list[None]:
        """A thread's memory for two chunks, used again for every tile; other stores may keep what they are given."""
        if self.local is None:
            return [None, None]
        kept: list[NDArray[np.uint8]] | None = getattr(self._memory, "chunks", None)
        if kept is None or len(kept[0]) != size:
            kept = self._memory.chunks = [np.empty(size, np.uint8) for _ in range(2)]
        return kept

    def read(self, i: int, j: int) -> NDArray[Any]:
        """The numbers of chunk (i, j) that belong to the matrix. `DamagedTile` where it is damaged or not there."""
        if self._verified is None:
            from .verified import VerifiedStore

            self._verified = VerifiedStore(self._source, self._prefix.rstrip("/"), self.spec, self.name)
        buffer = wait(self._verified.get(f"{self._prefix}K/c/{i}/{j}"))
        tile = self.grid.at(i, j)
        chunk = decoded_chunk(buffer.as_numpy_array(), self.grid.tile, self.spec.dtype)
        return chunk[: tile.rows.stop - tile.rows.start, : tile.columns.stop - tile.columns.start]

    def present(self) -> NDArray[np.bool_]:
        """Which chunks there are, with the seals of their tiles, without reading them."""
        self.forget_listings()
        there, sealed = self._listed("K/c"), self._listed("K/seals")
        return there & ((sealed | sealed.T) if self.grid.symmetric else sealed)

    def _listed(self, folder: str) -> NDArray[np.bool_]:
        a, b = self.grid.counts
        there = np.zeros((a, b), np.bool_)
        for i in range(a):
            for name in self.names(f"{folder}/{i}"):
                if name.isdigit() and int(name) < b:
                    there[i, int(name)] = True
        return there

    def damaged(self, tiles: Iterable[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], bool]]:
        """Each tile (i, j) with whether it is damaged: by its checksum, by NaN, or by not being its mirror image."""
        for i, j in tiles:
            try:
                block = self.read(i, j)
                if self.grid.symmetric:
                    good = is_mirror(block, block if i == j else self.read(j, i))
                else:
                    good = not bool(np.isnan(block).any())
                yield (i, j), not good
            except StoreError:
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
        keys = [f"K/c/{a}/{b}" for a, b in self.grid.chunks_of(tile.i, tile.j)]
        return all(self.exists(key) for key in [*keys, f"K/seals/{tile.i}/{tile.j}"])

    def forget(self, i: int, j: int) -> None:
        """Delete a tile, so that it is missing for everyone: the seal first, without which the rest does not count."""
        self.delete(f"K/seals/{i}/{j}")
        for a, b in self.grid.chunks_of(i, j):
            self.delete(f"K/c/{a}/{b}")


@contextmanager
def opened(where: Any) -> Iterator[GramStore]:
    """The store at a path, an fsspec URL or in a Zarr store, locked where it is local.

    Where nothing can be written it is opened for reading: enough for a matrix that is whole.
    """
    local = local_path(where)
    read_only = bool(getattr(getattr(where, "store", where), "read_only", False))  # that of a Zarr store
    folder, locked = None, False
    with ExitStack() as stack:
        if local is not None and not read_only:
            check_place(local)
            refuse_links(local)
            if (local / "zarr.json").exists():
                GramStore(where, read_only=True)  # refuses what is not ours before the lock is made in it
            try:
                local.mkdir(parents=True, exist_ok=True)
                folder = HeldFolder(local)
                stack.callback(folder.close)
                locked = stack.enter_context(exclusive(folder.inside / "K" / ".lock", str(local)))
            except OSError as error:
                if error.errno in NOT_WRITABLE and (local / "zarr.json").exists():
                    read_only, folder = True, None
                else:
                    advice = "free some space" if error.errno in FULL else "choose a place where you may write"
                    raise StoreError(f"store={str(local)!r} cannot be made: {error.strerror}; {advice}") from None
        gram_store = GramStore(where, read_only, locked, folder)
        gram_store.refuse_unknown_tiles()
        yield gram_store


def store_of(K: Any) -> GramStore | None:
    """The store of `gram` that a Zarr array lies in; None for any other array."""
    zarr = sys.modules.get("zarr")  # an array of it cannot exist before it is imported
    if zarr is None or not isinstance(K, zarr.Array):
        return None
    from .verified import group_of

    where = group_of(K)
    store = None if where is None else GramStore(where, read_only=True)
    return None if store is None or store.found is None else store


def verified(K: Any) -> Any:
    """A Zarr array in a store of `gram`, opened so that every tile is checked when it is read; others as they are."""
    store = store_of(K)
    return K if store is None else store.array()
