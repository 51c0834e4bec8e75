"""Images that were checked at the door of a fit; nothing behind it looks at them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import as_images

Array = NDArray[Any]

# Of images that stay where they are, those by which preparations are fitted and terms scaled.
_FEW = 2000


@dataclass(frozen=True)
class Images:
    """Training images (N, C, …) in the kernel's type: an array, or a source that is read and checked block by block."""

    pixels: Any
    dtype: np.dtype[Any]
    streamed: bool = False
    """Whether `pixels` is a memory map, a Zarr array or a view, of which no copy is made."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.pixels.shape)

    def __len__(self) -> int:
        return int(self.pixels.shape[0])

    def at(self, rows: slice | NDArray[np.intp]) -> Array:
        """Images of a slice, or of row numbers."""
        if not self.streamed:
            return np.asarray(self.pixels[rows])
        if isinstance(rows, slice):
            return np.asarray(as_images(self.pixels[rows], self.dtype, "X", first=rows.start))
        at, back = np.unique(rows, return_inverse=True)  # files give rows in order
        return np.asarray(as_images(getattr(self.pixels, "oindex", self.pixels)[at], self.dtype, "X", first=at)[back])

    def some(self) -> Array:
        """All images that are in memory; of others as many as need not be few, spread evenly."""
        if not self.streamed:
            return np.asarray(self.pixels)
        return self.at(np.unique(np.linspace(0, len(self) - 1, _FEW).astype(np.intp)))
