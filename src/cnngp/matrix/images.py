"""Images read in blocks of rows, from an array or from a memory map larger than memory, without copying the whole."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np

from cnngp.common.arrays import as_images, check_images_shape, in_place
from cnngp.kernel.engines.base import RangeError, check_pixels
from cnngp.kernel.kernel import Kernel

from .store.store import GramStore

# Bytes of images per block where the block size does not follow from a tile.
_BLOCK_BYTES = 16 << 20


class ImageRows:
    """Images (N, C, …) in the form that engines take: blocks of (n, channels, locations) in the working precision."""

    def __init__(self, X: Any, kernel: Kernel, name: str) -> None:
        self.X, self.name, self.kernel = in_place(X, name), name, kernel
        self.dtype = np.dtype(kernel.dtype)
        self.shape: tuple[int, ...] = tuple(int(s) for s in self.X.shape)
        check_images_shape(self.shape, name)
        self.room = 0
        """Bytes of blocks to keep for reuse; none by default, so that memory use does not grow."""
        self._kept: dict[tuple[int, int, int | None], Any] = {}

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def image_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    def block(self, rows: slice, card: int | None = None) -> Any:
        """Return the images `rows` in host memory, or on GPU number `card`, which must be the current one."""
        key = (rows.start, rows.stop, card)
        if key in self._kept:
            return self._kept[key]
        x = as_images(self.X[rows], self.dtype, self.name, card is not None, rows.start)
        check_pixels(x, self.dtype, self.name, rows.start)
        x = x.reshape(x.shape[0], x.shape[1], -1)
        if x.nbytes <= self.room:
            self.room -= x.nbytes
            self._kept[key] = x
        return x

    def fingerprints(self, stop: int | None = None) -> tuple[str | None, str]:
        """SHA-256 of the first `stop` images (None if there are fewer) and of all, in the working precision.

        The same pass over the data raises an error for pixels that are not finite.
        """
        digest = hashlib.sha256(f"cnngp images {self.dtype.name} {self.image_shape}".encode())
        first: str | None = None
        start = 0
        for end in sorted({min(stop or 0, len(self)), len(self)}):
            for rows in self._parts(start, end):
                digest.update(self.block(rows).data)
            start = end
            if end == stop:
                first = digest.hexdigest()
        return first, digest.hexdigest()

    def check_range(self, start: int = 0) -> None:
        """Raise `RangeError` for images whose variances exceed the working precision, before hours of work."""
        engine = self.kernel.engine_for(self.image_shape)
        for rows in self._parts(start, len(self)):
            try:
                engine.diagonal(self.block(rows))
            except RangeError as error:
                counted = f"{self.name}: {error} (counted from image {rows.start})" if rows.start else str(error)
                raise RangeError(counted) from None

    def _parts(self, start: int, end: int) -> Iterator[slice]:
        """Split rows into blocks of some megabytes."""
        step = max(1, _BLOCK_BYTES // (self.dtype.itemsize * int(np.prod(self.image_shape))))
        return (slice(a, min(a + step, end)) for a in range(start, end, step))


# ---- images in the store, for the workers of a cluster ---------------------------------------------------------------
#
#     STORE/images/X, Z      the images in the working precision; every worker reads them from here
#     STORE/images/run       the name of the current run; without it workers write nothing


def begin_run(store: GramStore, x: ImageRows, z: ImageRows | None) -> bytes:
    """Write the images and then the name of the run, which is returned."""
    end_run(store)
    with store.writing("its tiles stay valid"):
        for rows, step in zip((x, z), store.grid.tile, strict=True):
            if rows is None:
                continue
            shape = (min(step, len(rows)), *rows.image_shape)
            array = store.new_array(f"images/{rows.name}", rows.shape, shape, rows.dtype)
            for start in range(0, len(rows), step):
                part = slice(start, min(start + step, len(rows)))
                array[part] = rows.block(part).reshape(-1, *rows.image_shape)
        run = uuid.uuid4().hex.encode()
        store.set_bytes("images/run", run)
    return run


def end_run(store: GramStore) -> None:
    """Delete the name of the run, after which workers write nothing, and the images."""
    with store.writing("its tiles stay valid"):
        store.delete("images/run")
        store.delete_folder("images")
