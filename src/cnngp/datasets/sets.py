"""`load`: labelled images by name, path or object, (N, channels, height, width) in [0, 1] as float32."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cnngp.common.errors import DatasetError

from . import classics
from .arrays import Shape, from_pairs, npz
from .dataset import Dataset, unit_scale
from .folders import folder
from .image_tables import SUFFIXES as TABLES
from .image_tables import table
from .images import Aspect, Size

Split = Literal["standard", "paper"]

NAMES = ("digits", "mnist", "fashion_mnist", "cifar10")
_SOURCES = (
    f"one of {', '.join(NAMES)}, an .npz file, a folder with one sub-folder of images per class, or a table (.csv) of "
    "image files"
)
_READERS: dict[str, Callable[..., Dataset]] = {"folders": folder, "tables of image files": table, ".npz files": npz}


def load(
    source: str | Path | Iterable[Any],
    *,
    split: Split = "standard",
    columns: str | Sequence[str] | None = None,
    features: Any = None,
    size: Size | None = None,
    aspect: Aspect = "squash",
    skip_bad: bool = False,
    max_pixels: int | None = None,
    input_shape: Shape | None = None,
    whole: bool = False,
    data: Path | None = None,
) -> Dataset:
    """A set by name ("digits", "mnist", "fashion_mnist", "cifar10"), an .npz file, a folder or a table of images.

    `size`, `aspect`, `skip_bad` and `max_pixels` are for image files, see `folder`; `columns` and `features` for
    tables, see `table`; `input_shape` for .npz files, see `npz`. What has no test set keeps a fifth of each class for
    one, unless the
    `whole` is wanted for training. `data` is the folder that holds the files of the named sets, instead of
    `$CNNGP_DATA`. An iterable of (image, label) or a PyTorch dataset is read by `from_pairs`.

    >>> load("digits")
    <digits: 1,297 training, 500 test images of 1 × 8 × 8>
    """
    if split not in ("standard", "paper"):
        raise DatasetError(f"split={split!r}: expected 'standard' or 'paper'")
    path = Path(source) if isinstance(source, str | os.PathLike) else None
    if path is not None and not str(source).strip():
        raise DatasetError(f"no data was named (''): expected {_SOURCES}; this folder itself is '.'")
    if path is not None and split == "paper" and str(source) not in ("mnist", "fashion_mnist"):
        raise DatasetError(
            f"the paper's split needs 60,000 training images (mnist, fashion_mnist), which {source} does not have"
        )
    read: Any  # a function that makes a data set
    if path is None:
        read = from_pairs
    elif str(source) in NAMES:
        read = functools.partial(_named, split=split, data=data)
    elif path.is_dir():
        read = folder
    elif path.suffix.lower() in TABLES and path.exists():
        read = table
    elif path.suffix == ".npz" and path.exists():
        read = npz
    else:
        raise DatasetError(f"no data {str(source)!r}: expected {_SOURCES}")
    given: dict[str, Any] = {"size": size, "aspect": None if aspect == "squash" else aspect, "columns": columns}
    given |= {"features": features, "skip_bad": skip_bad or None, "max_pixels": max_pixels, "input_shape": input_shape}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if not _takes(read, name):
            kinds = " and ".join(kind for kind, reader in _READERS.items() if _takes(reader, name))
            what = type(source).__name__ if path is None else source
            raise DatasetError(f"{name} (--{name.replace('_', '-')}) is for {kinds}, and {what} is none")
    found: Dataset = read(source, whole=whole, **given)
    return found


def _takes(read: Callable[..., Dataset], option: str) -> bool:
    return option in inspect.signature(read).parameters


def _named(name: str, whole: bool, split: Split, data: Path | None) -> Dataset:
    return digits() if name == "digits" else _classic(name, split, data)


def digits() -> Dataset:
    """1,797 handwritten digits of 8 × 8 that come with scikit-learn, in a fixed random order; 500 are for tests.

    >>> digits().image_shape
    (1, 8, 8)
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    X = (pixels.reshape(-1, 1, 8, 8) / 16.0).astype(np.float32)[order]
    y = labels[order]
    return Dataset("digits", X[:-500], y[:-500], X[-500:], y[-500:])


def mnist(split: Split = "standard") -> Dataset:
    """70,000 handwritten digits of 28 × 28.

    `split="paper"`: training rows 5,000 to 54,999 of the 60,000, validation 55,000 to 59,999 then 0 to 4,999.
    """
    return _classic("mnist", split)


def fashion_mnist(split: Split = "standard") -> Dataset:
    """70,000 pictures of clothing, 28 × 28, with the splits of `mnist`."""
    return _classic("fashion_mnist", split)


def cifar10() -> Dataset:
    """60,000 colour pictures of 32 × 32 in ten classes."""
    return _classic("cifar10", "standard")


def _classic(name: str, split: Split, data: Path | None = None) -> Dataset:
    X, y, X_test, y_test = classics.read(name, data)
    scaled, scaled_test = unit_scale(X), unit_scale(X_test)
    if split == "standard":
        return Dataset(name, scaled, y, scaled_test, y_test)
    validation = np.r_[55_000:60_000, 0:5_000]
    return Dataset(name, scaled[5_000:55_000], y[5_000:55_000], scaled_test, y_test, scaled[validation], y[validation])
