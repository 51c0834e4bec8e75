"""Lazy data augmentation: shifted, rotated and widened copies of images, computed when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, refuse_masked, to_numpy


@dataclass(frozen=True)
class Change:
    """Transformation of images: a shift down and right by whole pixels, a horizontal scaling by the factor `wider`, and
    a counterclockwise rotation about the centre by `turn` degrees; bilinear, with zeros outside the image."""

    down: int = 0
    right: int = 0
    turn: float = 0.0
    wider: float = 1.0

    def of(self, images: NDArray[Any]) -> NDArray[Any]:
        (a, b), (h, w) = (self.down, self.right), images.shape[2:]
        moved = np.zeros_like(images)
        moved[:, :, max(a, 0) : h + min(a, 0), max(b, 0) : w + min(b, 0)] = images[
            :, :, max(-a, 0) : h + min(-a, 0), max(-b, 0) : w + min(-b, 0)
        ]
        if self.turn == 0.0 and self.wider == 1.0:
            return moved
        from scipy.ndimage import affine_transform

        angle = np.deg2rad(self.turn)
        # Maps a location of the copy to one of the image: rotated back first, then made narrower.
        back = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        A = np.diag([1.0, 1.0 / self.wider]) @ back
        centre = (np.array([h, w]) - 1.0) / 2.0
        whole, offset = np.eye(3), np.zeros(3)
        whole[1:, 1:], offset[1:] = A, centre - A @ centre
        planes = moved.reshape(-1, h, w)
        precise = planes.astype(np.result_type(planes.dtype, np.float32), copy=False)
        found = affine_transform(precise, whole, offset, order=1).reshape(images.shape)
        return np.asarray((np.rint(found) if images.dtype.kind in "bui" else found).astype(images.dtype))


class Copies:
    """Images (N, C, H, W) with transformed copies, (N·copies, C, H, W), computed when they are read.

    Estimators with `inducing=` read images in blocks, by slices and arrays of row numbers.
    """

    ndim = 4

    def __init__(self, X: Any, changes: Sequence[Change]) -> None:
        if len(getattr(X, "shape", ())) != 4:
            raise DataError(f"X has shape {getattr(X, 'shape', None)}; expected images (N, channels, height, width)")
        refuse_masked(X, "X")
        self.X, self.changes, self.dtype = X, tuple(changes), X.dtype
        self._n = int(X.shape[0])
        self.shape = (self._n * len(self.changes), *X.shape[1:])

    @property
    def groups(self) -> NDArray[np.intp]:
        """Row of each copy's original image, so that leave-one-out leaves out an image with all its copies."""
        return np.tile(np.arange(self._n), len(self.changes))

    def __len__(self) -> int:
        return int(self.shape[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self[:] if dtype is None else self[:].astype(dtype)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Return an image by its number, or images by a slice or an array of numbers."""
        rows = np.arange(len(self))[key]
        flat = np.atleast_1d(rows)
        which, at = np.divmod(flat, self._n)
        images = np.zeros((len(flat), *self.shape[1:]), self.dtype)
        for k in np.unique(which):
            here = np.flatnonzero(which == k)
            images[here] = self.changes[int(k)].of(_take(self.X, at[here]))
        return images.reshape(*np.shape(rows), *self.shape[1:])

    def __repr__(self) -> str:
        return f"<{self._n:,} images, each {', '.join(map(str, self.changes))}: {len(self):,}>"


def shifted(X: Any, y: Any, pixels: int = 1) -> tuple[Copies, NDArray[Any]]:
    """Add copies shifted by `pixels` up, down, left and right: five times as many images, and their labels.

    >>> import numpy as np
    >>> X = np.arange(4.0).reshape(1, 1, 2, 2)
    >>> X5, y5 = shifted(X, [7])
    >>> X5.shape, y5
    ((5, 1, 2, 2), array([7, 7, 7, 7, 7]))
    >>> X5[1][0]
    array([[2., 3.],
           [0., 0.]])
    """
    return _copies(X, y, [Change(-pixels), Change(pixels), Change(0, -pixels), Change(0, pixels)])


def warped(X: Any, y: Any, turn: float = 12.0, wider: float = 1.2) -> tuple[Copies, NDArray[Any]]:
    """Add copies rotated by `turn` degrees either way, and wider and narrower by the factor `wider`.

    Returns five times as many images and their labels, or fewer if turn=0 or wider=1. The copies also help networks
    with pools (docs/classification.md). Leave-one-out leaves out an image and its copies together.

    >>> import numpy as np
    >>> X5, y5 = warped(np.ones((2, 1, 8, 8)), ["a", "b"])
    >>> X5.shape, y5[:4].tolist()
    ((10, 1, 8, 8), ['a', 'b', 'a', 'b'])
    """
    if not (np.isfinite(turn) and np.isfinite(wider) and wider > 0.0):
        raise DataError(f"turn={turn!r} and wider={wider!r}; expected degrees, and a factor above 0")
    turned = [Change(turn=degrees) for degrees in (turn, -turn) if turn]
    return _copies(X, y, turned + [Change(wider=factor) for factor in (wider, 1.0 / wider) if wider != 1.0])


def flipped(X: Any, y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Add horizontally mirrored images: twice as many images, and their labels.

    `Kernel(network, symmetry="flip")` is the kernel of functions that are equal on both, without more images.

    >>> import numpy as np
    >>> X2, y2 = flipped(np.arange(4.0).reshape(1, 1, 2, 2), [7])
    >>> X2[1, 0], y2
    (array([[1., 0.],
           [3., 2.]]), array([7, 7]))
    """
    images = to_numpy(X, "X")
    _, labels = _copies(images, y, [Change()])
    return np.concatenate([images, images[..., ::-1]]), labels


def _copies(X: Any, y: Any, changes: Sequence[Change]) -> tuple[Copies, NDArray[Any]]:
    """Images unchanged and with each of these changes, with their labels."""
    view = Copies(X, [Change(), *changes])
    labels = to_numpy(y, "y")
    if len(labels) != X.shape[0]:
        raise DataError(f"{X.shape[0]} images but {len(labels)} labels in y; give one label per image")
    return view, np.concatenate([labels] * len(view.changes))


def _take(X: Any, rows: NDArray[np.intp]) -> NDArray[Any]:
    """Return rows of an array, as one slice if they are consecutive, which stores and memory maps read much faster."""
    if rows[-1] - rows[0] + 1 == len(rows) and (np.diff(rows) == 1).all():
        return np.asarray(X[int(rows[0]) : int(rows[-1]) + 1])
    return np.stack([np.asarray(X[int(i)]) for i in rows])
