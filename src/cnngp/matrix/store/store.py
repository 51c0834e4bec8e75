"""A kernel matrix on disk: a Zarr group that any Zarr reader opens, with checks against damaged or misplaced tiles.

    STORE/zarr.json        identity of the matrix: network, data, engine, type, tile (`spec.py`)
    STORE/K/zarr.json      the array: a chunk is a tile, with a checksum; NaN where nothing was computed
    STORE/K/c, STORE/K/seals   the tiles, and a seal for each that ties it to its place (`tile_bytes.py`)
    STORE/K/.lock          held by the process that fills it

A chunk is either absent or complete: on a disk it is written to a temporary file and renamed, and object stores write
it atomically. Later damage shows in its checksum and its seal, which are compared at every read (`verified.py`). The
metadata of the group is authoritative: that of the array is rewritten to match it, never the other way round.
"""

from __future__ import annotations

import errno
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import kind
from cnngp.common.errors import StoreError
from cnngp.common.files import exclusive
from cnngp.common.progress import progress_bar
from cnngp.common.tiles import Grid, Tile

from .places import FULL, NOT_WRITABLE, HeldFolder, Keys, check_place, local_path, prototype, remove_leftovers, wait
from .spec import Spec, array_differs, array_document, group_attributes, group_document
from .tile_bytes import CHECKSUM_BYTES, decoded_chunk, encoded_chunk, is_mirror, seal, tile_of

log = logging.getLogger("cnngp")


class GramStore(Keys):
    """One kernel matrix in a store; made by `opened`. `found` is the identity in its metadata, None for a new store."""

    def __init__(
        self, where: Any, read_only: bool = False, locked: bool = False, folder: HeldFolder | None = None
    ) -> None:
        super().__init__(where, read_only, folder)
        self.locked = locked
        self._look()

    # ---- metadata ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        try:
            attributes = group_attributes(self.get_bytes("zarr.json"), self.name)
        except OSError as error:
            raise StoreError(f"{self.name}: its zarr.json could not be read ({error.strerror or error})") from None
        self.found = None if attributes is None else Spec.of_attributes(attributes, self.name)
        self._reader: Any = None

    @property
    def spec(self) -> Spec:
        """Identity of the matrix; raises `StoreError` if the store has no metadata."""
        if self.found is None:
            raise StoreError(
                f"{self.name} has no zarr.json, so it is not known what matrix it holds; "
                "bring zarr.json back from a copy, or delete the store"
            )
        return self.found

    @property
    def grid(self) -> Grid:
        return self.spec.grid

    def refuse_unknown_tiles(self) -> None:
        """Raise `StoreError` if there are tiles without metadata, which could belong to any matrix."""
        if self.found is None:
            tiles = self.names("K/c")
            # Metadata is read after the tiles: another process that has just begun the store writes it before them.
            self._look()
            if self.found is None and tiles:
                raise StoreError(
                    f"{self.name} holds tiles, but no zarr.json that says of what; give a place that is not taken yet"
                )

    def prepare(self, spec: Spec, any_tile: bool = False) -> None:
        """Prepare the store for `spec`: create, keep or grow it; raise `StoreError` if it holds another matrix.

        `any_tile`: accept the tile size of another process that has just begun the store.
        """
        new = self.found is None
        if new and not self.read_only:
            self._look()
            if self.found is not None:  # another process was faster: an object store has no locks
                spec = replace(spec, id=self.found.id, tile=self.found.tile if any_tile else spec.tile)
        if self.found is not None:
            self.found.refuse_unless_same_or_grown(spec, self.name)
        if self.read_only:
            if self.found is None or self.found.shape != spec.shape:
                raise StoreError(f"{self.name} cannot be written; choose a place where you may write")
            return
        with self.writing("it was not begun"):
            if self.found is None:
                self.set_bytes("zarr.json", group_document(spec.attributes()))
                self.found = spec
            elif self.found.shape != spec.shape:
                # Chunks that growth makes incomplete are deleted first: if the process is killed here, the old matrix
                # lacks them, and no chunk ever appears to cover more than was computed.
                for i, j in self.grid.cut_by_growth(spec.shape):
                    self.forget(*tile_of(self.grid, i, j))
                self._update(spec.attributes())
                self.found, self._reader = spec, None
            self._open_array()
        if self.local is not None:
            remove_leftovers(self.local if self.folder is None else self.folder.inside, self.locked)

    def _open_array(self) -> None:
        """Make the array's document match the metadata."""
        there = self.get_bytes("K/zarr.json")
        damage = None if there is None else array_differs(there, self.spec, but=["shape"])  # the matrix may grow
        if damage is not None:
            log.warning("%s: K/zarr.json was damaged (%s) and is written anew; the tiles stay", self.name, damage)
        if array_differs(there, self.spec) is not None:
            self.set_bytes("K/zarr.json", array_document(self.spec))

    def check_array(self, growing: bool = False) -> None:
        """Raise `StoreError` if Zarr would misread the array; the old shape is accepted while the matrix grows."""
        differs = array_differs(self.get_bytes("K/zarr.json"), self.spec, but=["shape"] if growing else [])
        if differs is not None:
            raise StoreError(
                f"{self.name}: K/zarr.json does not fit the matrix: {differs}; run gram on the store again: it writes "
                "that file anew, and the tiles stay"
            )

    def _update(self, attributes: dict[str, Any]) -> None:
        before = group_attributes(self.get_bytes("zarr.json"), self.name) or {}
        if before != before | attributes:
            self.set_bytes("zarr.json", group_document(before | attributes))

    def note(self, name: str, note: dict[str, Any]) -> None:
        """Add a note for people to the metadata, which is rewritten if it was lost."""
        try:
            self._update(self.spec.attributes() | {name: note})
        except OSError as error:  # a full disk, say: failing to write a note must not end a run
            log.warning("%s: its %s could not be noted (%s)", self.name, name, error.strerror or error)

    # ---- tiles ---------------------------------------------------------------------------------------------------

    def array(self) -> Any:
        """Return the matrix as a read-only Zarr array; every tile is verified when it is read."""
        import zarr

        from .verified import VerifiedStore

        self.check_array()
        self.check_folder()
        by_name = self.zarr_store if self.zarr_store.read_only else self.zarr_store.with_read_only(True)
        reading = VerifiedStore(by_name, self.path, self.spec, self.name)
        return zarr.open_array(reading, path=f"{self.path}/K".lstrip("/"), mode="r", zarr_format=3)

    def write(self, tile: Tile, block: Any) -> None:
        """Write a tile, in host memory or on a GPU, and its mirror image. Threads may write different tiles at once."""
        chunks, sums = [], []
        with block.device if kind(block) == "cupy" else nullcontext():
            if not (math.isfinite(float(block.max())) and math.isfinite(float(block.min()))):
                raise StoreError(
                    f"rows {tile.rows.start}–{tile.rows.stop - 1}, columns {tile.columns.start}–"
                    f"{tile.columns.stop - 1} of the kernel came out as NaN or infinite; nothing of it was written. "
                    "Please report this"
                )
            for (i, j), part in zip(self.grid.chunks_of(tile.i, tile.j), (block, block.T), strict=False):
                data = encoded_chunk(part, self.grid.tile)
                sums.append(data[-CHECKSUM_BYTES:].tobytes())
                chunks.append((f"K/c/{i}/{j}", prototype().buffer.from_array_like(data)))
        self.set_all(chunks)
        # The seal is written last: a tile with a seal is complete.
        self.set_bytes(f"K/seals/{tile.i}/{tile.j}", seal(self.spec.id, self.grid, tile.i, tile.j, sums))

    def read(self, i: int, j: int) -> NDArray[Any]:
        """Return the entries of chunk (i, j) inside the matrix; raise `DamagedTile` if it is damaged or missing."""
        if self._reader is None:
            from .verified import VerifiedStore

            self._reader = VerifiedStore(self._source, self._prefix.rstrip("/"), self.spec, self.name)
        buffer = wait(self._reader.get(f"{self._prefix}K/c/{i}/{j}"))
        height, width = self.grid.at(i, j).shape
        return decoded_chunk(buffer.as_numpy_array(), self.grid.tile, self.spec.dtype)[:height, :width]

    def present(self) -> NDArray[np.bool_]:
        """Boolean array of the chunks that exist and whose tiles have a seal, without reading them."""
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

    def missing(self, there: NDArray[np.bool_] | None = None) -> list[tuple[int, int]]:
        """Tiles that lack a chunk or their seal, row by row."""
        there = self.present() if there is None else there
        lacking = np.triu(~(there & there.T)) if self.grid.symmetric else ~there
        return [(i, j) for i, j in np.argwhere(lacking).tolist()]

    def damaged(self, missing: list[tuple[int, int]], progress: bool) -> list[tuple[int, int]]:
        """Tiles with a wrong checksum, seal or mirror image, or with a NaN. Reads all tiles except `missing`."""
        absent = set(missing)
        bad = []
        with progress_bar(len(self.grid) - len(absent), "verifying", "tile", wanted=progress, keep=True) as bar:
            for t in self.grid:
                if (t.i, t.j) in absent:
                    continue
                if not self._is_good(t):
                    bad.append((t.i, t.j))
                bar.update(1)
        return bad

    def _is_good(self, tile: Tile) -> bool:
        try:
            block = self.read(tile.i, tile.j)
            if not tile.symmetric:
                return not bool(np.isnan(block).any())
            return is_mirror(block, block if tile.on_diagonal else self.read(tile.j, tile.i))
        except StoreError:
            return False
        except OSError as error:
            # A sector that a disk cannot read is lost; a network or permission error may be temporary.
            if self.local is not None and error.errno == errno.EIO:
                return False
            raise StoreError(
                f"{self.name}: tile {(tile.i, tile.j)} could not be read ({error.strerror or error}). Run the same "
                "again when it can"
            ) from error

    def has(self, tile: Tile) -> bool:
        """True if a tile, its mirror image and its seal exist."""
        keys = [f"K/c/{a}/{b}" for a, b in self.grid.chunks_of(tile.i, tile.j)]
        return all(self.exists(key) for key in [*keys, f"K/seals/{tile.i}/{tile.j}"])

    def forget(self, i: int, j: int) -> None:
        """Delete a tile for all processes: its seal first, without which the rest does not count."""
        self.delete(f"K/seals/{i}/{j}")
        for a, b in self.grid.chunks_of(i, j):
            self.delete(f"K/c/{a}/{b}")


@contextmanager
def opened(where: Any) -> Iterator[GramStore]:
    """Open the store at a path, an fsspec URL or in a Zarr store, locked if it is local.

    A store that cannot be written is opened for reading, which is enough for a complete matrix.
    """
    local = local_path(where)
    read_only = bool(getattr(getattr(where, "store", where), "read_only", False))  # an attribute of Zarr stores
    folder, locked = None, False
    with ExitStack() as stack:
        if local is not None and not read_only:
            check_place(local)
            begun = (local / "zarr.json").exists()
            if begun:
                GramStore(where, read_only=True)  # raises for a foreign store before a lock file is made in it
            try:
                local.mkdir(parents=True, exist_ok=True)
                folder = HeldFolder(local)
                stack.callback(folder.close)
                locked = stack.enter_context(exclusive(folder.inside / "K" / ".lock", str(local)))
            except OSError as error:
                if error.errno in NOT_WRITABLE and begun:
                    read_only, folder = True, None
                else:
                    advice = "free some space" if error.errno in FULL else "choose a place where you may write"
                    raise StoreError(f"store={str(local)!r} cannot be made: {error.strerror}; {advice}") from None
        gram_store = GramStore(where, read_only, locked, folder)
        gram_store.refuse_unknown_tiles()
        yield gram_store


def store_of(K: Any) -> GramStore | None:
    """Return the store of `gram` that a Zarr array belongs to; None for any other array."""
    zarr = sys.modules.get("zarr")  # no Zarr array exists before it is imported
    if zarr is None or not isinstance(K, zarr.Array) or K.path.split("/")[-1] != "K":
        return None
    from .verified import VerifiedStore

    store = K.store.inner if isinstance(K.store, VerifiedStore) else K.store
    found = GramStore(zarr.storage.StorePath(store, K.path.removesuffix("K").rstrip("/")), read_only=True)
    return None if found.found is None else found


def verified(K: Any) -> Any:
    """Reopen a Zarr array in a store of `gram` so that every tile is checked when read; return others unchanged."""
    store = store_of(K)
    return K if store is None else store.array()
