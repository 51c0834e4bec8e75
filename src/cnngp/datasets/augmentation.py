"""More training images than are held: views that make an image when it is read.

Estimators with `inducing=` read their images a block at a time, so anything with a `shape` that gives images for slices
and arrays of row numbers will do: a memory map, a Zarr array, or a class like the one below.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, refuse_masked, to_numpy


class Shifted:
    """Images (N, C, H, W) and their copies shifted by some pixels, (N·shifts, C, H, W), made when they are read."""

    def __init__(self, X: Any, shifts: tuple[tuple[int, int], ...]) -> None:
        if len(getattr(X, "shape", ())) != 4:
            raise DataError(f"X has shape {getattr(X, 'shape', None)}; expected images (N, channels, height, width)")
        refuse_masked(X, "X")
        self.X = X
        self.shifts = shifts
        self._n = int(X.shape[0])
        self.shape = (self._n * len(shifts), *X.shape[1:])
        self.dtype = X.dtype

    @property
    def ndim(self) -> int:
        return 4

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """An image by its number, or images by a slice or an array of numbers."""
        rows = np.arange(len(self))[key]
        flat = np.atleast_1d(rows)
        which, at = np.divmod(flat, self._n)
        images = np.zeros((len(flat), *self.shape[1:]), self.dtype)
        for k in np.unique(which):
            here = np.flatnonzero(which == k)
            images[here] = _shift(_take(self.X, at[here]), self.shifts[int(k)])
        return images.reshape(*np.shape(rows), *self.shape[1:])

    def __repr__(self) -> str:
        return f"<{self._n:,} images, each shifted by {', '.join(map(str, self.shifts))}: {len(self):,}>"


def shifted(X: Any, y: Any, pixels: int = 1) -> tuple[Shifted, NDArray[Any]]:
    """The images and their copies shifted by `pixels` up, down, left and right, five times as many, and their labels.

    >>> import numpy as np
    >>> X = np.arange(4.0).reshape(1, 1, 2, 2)
    >>> X5, y5 = shifted(X, [7])
    >>> X5.shape, y5
    ((5, 1, 2, 2), array([7, 7, 7, 7, 7]))
    >>> X5[1][0]
    array([[2., 3.],
           [0., 0.]])
    """
    moves = ((0, 0), (-pixels, 0), (pixels, 0), (0, -pixels), (0, pixels))
    labels = to_numpy(y, "y")
    view = Shifted(X, moves)
    if len(labels) * len(moves) != len(view):
        raise DataError(f"{X.shape[0]} images but {len(labels)} labels in y; give one label per image")
    return view, np.concatenate([labels] * len(moves))


def flipped(X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The images and their mirror images, left for right, twice as many, and their labels.

    `cnngp.flip_averaged` gives the kernel of functions that do not tell the two apart, without more images.

    >>> import numpy as np
    >>> X2, y2 = flipped(np.arange(4.0).reshape(1, 1, 2, 2), [7])
    >>> X2[1, 0], y2
    (array([[1., 0.],
           [3., 2.]]), array([7, 7]))
    """
    images, labels = to_numpy(X, "X"), to_numpy(y, "y")
    if images.ndim != 4 or len(images) != len(labels):
        raise DataError(
            f"X has shape {images.shape} and y {labels.shape}; expected images (N, channels, height, width) and a "
            "label for each"
        )
    return np.concatenate([images, images[..., ::-1]]), np.concatenate([labels, labels])


def _take(X: Any, rows: NDArray[np.intp]) -> NDArray[Any]:
    """Rows of an array, in one slice where they follow each other: stores and memory maps read those much faster."""
    if rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return np.asarray(X[int(rows[0]) : int(rows[-1]) + 1])
    return np.stack([np.asarray(X[int(i)]) for i in rows])


def _shift(images: NDArray[Any], move: tuple[int, int]) -> NDArray[Any]:
    """Down and to the right by `move`, zeros where nothing was."""
    out = np.zeros_like(images)
    (a, b), (h, w) = move, images.shape[2:]
    to = (slice(max(a, 0), h + min(a, 0)), slice(max(b, 0), w + min(b, 0)))
    of = (slice(max(-a, 0), h + min(-a, 0)), slice(max(-b, 0), w + min(-b, 0)))
    out[:, :, to[0], to[1]] = images[:, :, of[0], of[1]]
    return out
