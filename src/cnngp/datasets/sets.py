"""Labelled images, ready for a kernel: (N, channels, height, width) in [0, 1] as float32, with labels of any kind.

`load` takes a name or a path. The classic sets are read from their original files (`classics.py`), image folders with
Pillow (`folders.py`, `images.py`), arrays from .npz files (`arrays.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from cnngp.common.errors import DatasetError

from . import classics
from .arrays import Shape, npz
from .dataset import Dataset, unit_scale
from .folders import folder
from .images import MAX_PIXELS, Aspect, Size

Split = Literal["standard", "paper"]

NAMES = ("digits", "mnist", "fashion_mnist", "cifar10")
_SOURCES = f"one of {', '.join(NAMES)}, an .npz file, or a folder with one sub-folder of images per class"


def load(
    source: str | Path,
    *,
    split: Split = "standard",
    size: Size | None = None,
    aspect: Aspect = "squash",
    skip_bad: bool = False,
    max_pixels: int | None = None,
    shape: Shape | None = None,
    whole: bool = False,
    data: Path | None = None,
) -> Dataset:
    """A set by name ("digits", "mnist", "fashion_mnist", "cifar10"), an .npz file or a folder of images.

    `size`, `aspect`, `skip_bad` and `max_pixels` are for folders, see `folder`; `shape` is for .npz files, see `npz`.
    Folders and files without a test set keep a fifth of each class for one, unless the `whole` is wanted for training.
    `data` is the folder that holds the files of the named sets, instead of `$CNNGP_DATA`.

    >>> load("digits")
    <digits: 1,297 training, 500 test images of 1 × 8 × 8>
    """
    if split not in ("standard", "paper"):
        raise DatasetError(f"split={split!r}: expected 'standard' or 'paper'")
    if not str(source).strip():
        raise DatasetError(f"no data was named (''): expected {_SOURCES}; this folder itself is '.'")
    path = Path(source)
    named = str(source) in NAMES
    if not named and not path.is_dir() and not (path.suffix == ".npz" and path.exists()):
        raise DatasetError(f"no data {str(source)!r}: expected {_SOURCES}")
    if split == "paper" and str(source) not in ("mnist", "fashion_mnist"):
        raise DatasetError(
            f"the paper's split needs 60,000 training images (mnist, fashion_mnist), which {source} does not have"
        )
    if shape is not None and (named or path.is_dir()):
        raise DatasetError(f"shape (--shape) is for .npz files; {source} has a shape of its own")
    if not path.is_dir() or named:
        if size is not None:
            raise DatasetError(f"size (--size) is for folders of images; {source} has a size of its own")
        if aspect != "squash" or skip_bad or max_pixels is not None:
            raise DatasetError(
                "aspect (--aspect), skip_bad (--skip-bad) and max_pixels (--max-pixels) are for folders of images, and "
                f"{source} is not one"
            )
    if named:
        return digits() if str(source) == "digits" else _classic(str(source), split, data)
    if path.is_dir():
        most = MAX_PIXELS if max_pixels is None else max_pixels
        return folder(path, size=size, aspect=aspect, skip_bad=skip_bad, max_pixels=most, whole=whole)
    return npz(path, shape=shape, whole=whole)


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
