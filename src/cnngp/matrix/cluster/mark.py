"""What a store holds while the workers of a cluster fill it: the images, and the mark of the run.

    STORE/images/X, Z      the images in the working precision; every worker reads them from here
    STORE/K/.run-…         an empty file with a name of its own for each run

A worker looks for the mark before it writes a tile. Without it, it writes nothing: it does not see the store that the
run fills but another one at the same path, or the run has ended, was interrupted, or was taken over by a later one.
"""

from __future__ import annotations

import uuid
from typing import Any

from cnngp.common.errors import StoreError

from ..images import ImageRows
from ..store.places import local_path
from ..store.store import GramStore

_MARK = ".run-"
_IMAGES = "images"


class RunEnded(StoreError):
    """The store has not, or no longer, the mark of this run."""


def address_for_workers(where: Any) -> str:
    """A place that means the same on every machine: an absolute path or a URL."""
    local = local_path(where)
    if local is not None:
        return str(local.absolute())
    if isinstance(where, str):
        return where
    raise StoreError(f"store={where!r}: with client= give a path or a URL that every worker can open")


def begin(store: GramStore, x: ImageRows, z: ImageRows | None) -> str:
    """Put the images there, then the mark, which is returned."""
    import zarr
    from zarr.codecs import Crc32cCodec

    end(store)
    mark = uuid.uuid4().hex
    with store.writing("its tiles stay valid"):
        zarr.create_group(store.zarr_store, path=store.key(_IMAGES), zarr_format=3, overwrite=True)
        for name, rows, step in (("X", x, store.grid.tile[0]), ("Z", z, store.grid.tile[1])):
            if rows is None:
                continue
            array = zarr.create_array(
                store.zarr_store,
                name=store.key(f"{_IMAGES}/{name}"),
                shape=rows.shape,
                chunks=(min(step, len(rows)), *rows.image_shape),
                dtype=rows.dtype,
                fill_value=float("nan"),  # a chunk that a worker does not see must not pass for black images
                filters=None,
                compressors=[Crc32cCodec()],
                zarr_format=3,
            )
            for start in range(0, len(rows), step):
                part = slice(start, min(start + step, len(rows)))
                array[part] = rows.block(part).reshape(-1, *rows.image_shape)
        store.set_bytes(f"K/{_MARK}{mark}", b"")
    return mark


def images(store: GramStore, name: str) -> Any:
    """The images that the run put there."""
    import zarr

    return zarr.open_array(store.zarr_store, path=store.key(f"{_IMAGES}/{name}"), mode="r", zarr_format=3)


def check(store: GramStore, mark: str) -> None:
    """`RunEnded` unless this is the store of the run with that mark, and the run goes on."""
    if store.get_bytes(f"K/{_MARK}{mark}") is None:
        raise RunEnded(f"{store.name} is not the store of this run here, or the run has ended")


def end(store: GramStore) -> None:
    """Take away the mark, so that workers write nothing any more, and the images."""
    import zarr

    with store.writing("its tiles stay valid"):
        for name in store.names("K"):
            if name.startswith(_MARK):
                store.delete(f"K/{name}")
        try:
            group = zarr.open_group(store.zarr_store, path=store.path, mode="r+", zarr_format=3)
        except FileNotFoundError:
            return
        if _IMAGES in group:
            del group[_IMAGES]
