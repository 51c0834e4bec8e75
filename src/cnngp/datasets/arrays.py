"""Images and labels in .npz files. Nothing is ever unpickled."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import DatasetError

from .dataset import Dataset, Labels, Part, Pixels, unit_scale, with_test_set


def npz(path: str | Path) -> Dataset:
    """An .npz with `X`, `y` (split here) or `x_train`, `y_train`, `x_test`, `y_test` (their rows keep their order).

    Images are (N, H, W), (N, C, H, W) or (N, H, W, C) with 1, 3 or 4 channels; uint8 is divided by 255.
    """
    path = Path(path)
    arrays = _read_npz(path)
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        parts = [arrays[k] for k in ("x_train", "y_train", "x_test", "y_test")]
    elif {"x", "y"} <= set(arrays):
        parts = []
    else:
        raise DatasetError(
            f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; expected X and y, or x_train, y_train, x_test "
            "and y_test"
        )
    if parts:
        X, y = _checked(parts[0], parts[1], str(path))
        X_test, y_test = _checked(parts[2], parts[3], str(path))
        if X_test.shape[1:] != X.shape[1:]:
            raise DatasetError(f"{path}: training images are {X.shape[1:]}, test images {X_test.shape[1:]}")
        if (parts[0].dtype == np.uint8) != (parts[2].dtype == np.uint8):
            raise DatasetError(
                f"{path}: training images are {parts[0].dtype} and test images {parts[2].dtype}, of which uint8 alone "
                "is divided by 255; save both as one type"
            )
        return Dataset(path.stem, X, y, X_test, y_test)
    X, y = _checked(arrays["x"], arrays["y"], str(path))
    return Dataset.of(path.stem, *with_test_set(path.stem, Part(X, y)))


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays by their names in small letters. NumPy's own advice for files of other kinds is to unpickle them."""
    if not zipfile.is_zipfile(path):
        raise DatasetError(f"{path} is not an .npz file, or is cut short; write it with numpy.savez or copy it again")
    arrays: dict[str, NDArray[Any]] = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                try:
                    arrays[key.lower()] = np.asarray(file[key])
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
    return arrays


def _checked(X: NDArray[Any], y: NDArray[Any], where: str) -> tuple[Pixels, Labels]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if X.ndim == 3:
        X = X[:, None]
    elif X.ndim == 4 and X.shape[1] not in (1, 3, 4) and X.shape[3] in (1, 3, 4):
        X = np.moveaxis(X, 3, 1)
    if X.ndim != 4 or y.ndim != 1 or len(X) != len(y) or len(y) == 0:
        raise DatasetError(
            f"{where}: images of shape {X.shape} and labels of shape {y.shape}; expected (N, H, W), (N, C, H, W) or "
            "(N, H, W, C), and (N,)"
        )
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise DatasetError(f"{where}: label {int(np.isnan(y).argmax())} is NaN; every image needs a label")
    return unit_scale(X), y
