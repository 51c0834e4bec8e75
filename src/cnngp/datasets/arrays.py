"""Images and labels in .npz files. Nothing is ever unpickled."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.checks import is_whole
from cnngp.common.errors import DatasetError
from cnngp.common.regular_files import check_regular

from .dataset import Dataset, Labels, Part, Pixels, kept_for_testing, unit_scale, with_test_set

Shape = Sequence[int]
"""Of one image, signal or volume, channels first: (C, H, W), (C, length) or (C, depth, H, W)."""
# A last axis that is so many times as long as one of at most four may be the length of a signal in as many channels.
_SIGNAL = 4


def npz(path: str | Path, *, shape: Shape | None = None, whole: bool = False) -> Dataset:
    """An .npz with `X`, `y`, and perhaps `X_test`, `y_test`, without which `X` is split here; or `x_train`, `y_train`,
    `x_test`, `y_test`. Rows of files with test images keep their order.

    Images are (N, H, W), (N, C, H, W) or (N, H, W, C) with 1, 3 or 4 channels; uint8 is divided by 255.

    Parameters
    ----------
    shape : of one image, channels first, where the array does not tell: (1, 128) for signals of 128 samples, (1, 8, 8)
        for rows of 64 pixels.
    whole : keep no images of `X` for testing: all are training images, in their order in the file.
    """
    path = Path(path)
    if shape is not None:
        shape = check_shape(shape)
    arrays, named = _read_npz(path)
    parts: list[NDArray[Any]] = []
    for names in (("x_train", "y_train"), ("x", "y")):
        if {*names, "x_test", "y_test"} <= set(arrays):
            parts = [arrays[name] for name in (*names, "x_test", "y_test")]
            break
    if not parts and (not {"x", "y"} <= set(arrays) or {"x_test", "y_test"} & set(arrays)):
        raise DatasetError(
            f"{path} holds {', '.join(sorted(named)) or 'nothing'}; expected X and y, with or without X_test and "
            "y_test, or x_train, y_train, x_test and y_test"
        )
    if parts:
        X, y = _checked(parts[0], parts[1], shape, str(path))
        X_test, y_test = _checked(parts[2], parts[3], shape, str(path))
        if X_test.shape[1:] != X.shape[1:]:
            raise DatasetError(f"{path}: training images are {X.shape[1:]}, test images {X_test.shape[1:]}")
        if (parts[0].dtype == np.uint8) != (parts[2].dtype == np.uint8):
            raise DatasetError(
                f"{path}: training images are {parts[0].dtype} and test images {parts[2].dtype}, of which uint8 alone "
                "is divided by 255; save both as one type"
            )
        return Dataset(path.stem, X, y, X_test, y_test)
    part = Part(*_checked(arrays["x"], arrays["y"], shape, str(path)))
    if whole:
        return Dataset.of(path.stem, part, part.at(slice(0)))
    train, test = with_test_set(path.stem, part)
    return Dataset.of(path.stem, train, test, notes=(kept_for_testing(test, train),))


def check_shape(shape: Any) -> tuple[int, ...]:
    """`shape=` of a user.

    >>> check_shape([1, 128])
    (1, 128)
    """
    if not isinstance(shape, (tuple, list)) or not 2 <= len(shape) <= 4 or not all(is_whole(n, 1) for n in shape):
        raise DatasetError(
            f"shape={shape!r}: expected the channels first, then the sizes, such as (1, 128) for signals or "
            "(3, 32, 32) for images"
        )
    return tuple(int(n) for n in shape)


def _read_npz(path: Path) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """The arrays by their names in small letters, and the names as they are.

    NumPy's own advice for files of other kinds is to unpickle them.
    """
    check_regular(path)
    if not zipfile.is_zipfile(path):
        raise DatasetError(f"{path} is not an .npz file, or is cut short; write it with numpy.savez or copy it again")
    arrays: dict[str, NDArray[Any]] = {}
    named: list[str] = []
    try:
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                try:
                    arrays[key.lower()] = np.asarray(file[key])
                    named.append(key)
                except ValueError as error:
                    if "pickle" not in str(error):
                        raise
                    raise DatasetError(
                        f"{path}: {key} holds Python objects, which are never unpickled; save it as numbers or text"
                    ) from None
    except DatasetError:
        raise
    except Exception as error:  # zip, zlib and headers each have a type of their own
        raise DatasetError(f"{path} is damaged ({error}); write or copy it again") from None
    return arrays, named


def _checked(X: NDArray[Any], y: NDArray[Any], shape: Shape | None, where: str) -> tuple[Pixels, Labels]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or X.ndim == 0 or len(X) != len(y) or len(y) == 0:
        raise DatasetError(
            f"{where}: images of shape {X.shape} and labels of shape {y.shape}; expected a label for each image, as in "
            "(N, H, W) and (N,)"
        )
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise DatasetError(f"{where}: label {int(np.isnan(y).argmax())} is NaN; every image needs a label")
    return unit_scale(_channels_first(X, where) if shape is None else _of_shape(X, tuple(shape), where)), y


def _of_shape(X: NDArray[Any], shape: tuple[int, ...], where: str) -> NDArray[Any]:
    """X as (N, *shape): as it is, with the channels moved from the end, or from rows of as many numbers."""
    if X.shape[1:] == shape:
        return X
    if X.shape[1:] == (*shape[1:], shape[0]):
        return np.moveaxis(X, -1, 1)
    if X.ndim < len(shape) + 1 and math.prod(X.shape[1:]) == math.prod(shape):
        return X.reshape(len(X), *shape)
    raise DatasetError(
        f"{where}: X has shape {X.shape}, which does not hold images of {shape}, {math.prod(shape):,} numbers each; "
        "give another shape (--shape)"
    )


def _channels_first(X: NDArray[Any], where: str) -> NDArray[Any]:
    """(N, C, H, W) of an array that no shape was given for."""
    if X.ndim == 4:
        return np.moveaxis(X, 3, 1) if X.shape[1] not in (1, 3, 4) and X.shape[3] in (1, 3, 4) else X
    if X.ndim == 3 and not (X.shape[1] <= 4 and X.shape[2] >= _SIGNAL * X.shape[1]):
        return X[:, None]
    told = f"{where}: X has shape {X.shape}"
    if X.ndim == 3:
        c, length = X.shape[1:]
        raise DatasetError(
            f"{told}, which could be signals or images; say which: shape=({c}, {length}) (--shape {c},{length}) for "
            f"signals of {length:,} samples in {c} channel{'' if c == 1 else 's'}, shape=(1, {c}, {length}) "
            f"(--shape 1,{c},{length}) for grey images of {c} × {length}"
        )
    if X.ndim == 2:
        n = X.shape[1]
        side = math.isqrt(n)
        square = f", or shape=(1, {side}, {side}) (--shape 1,{side},{side}) for images" if side * side == n > 1 else ""
        raise DatasetError(
            f"{told}: rows of {n:,} numbers; say what they are, such as shape=(1, {n}) (--shape 1,{n}) for signals"
            f"{square}"
        )
    raise DatasetError(
        f"{told}; expected (N, H, W), (N, C, H, W) or (N, H, W, C), or the shape of one, channels first (--shape)"
    )
