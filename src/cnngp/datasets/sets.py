"""Labelled images, ready for a kernel: (N, channels, height, width) in [0, 1] as float32, with labels of any kind.

`load` takes a name or a path. The classic sets are read from their original files (`classics.py`), image folders with
Pillow (`images.py`); nothing here ever unpickles.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import DatasetError

from . import classics, images

Images = NDArray[np.float32]
Labels = NDArray[Any]
Split = Literal["standard", "paper"]

NAMES = ("digits", "mnist", "fashion_mnist", "cifar10")


@dataclass(frozen=True)
class Dataset:
    """Training and test images with their labels, and validation ones where the split has them."""

    name: str
    X: Images
    y: Labels
    X_test: Images
    y_test: Labels
    X_validation: Images | None = None
    y_validation: Labels | None = None

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return self.X.shape[1:]

    def take(self, train: int | None = None, test: int | None = None) -> Dataset:
        """The first `train` and `test` images; None takes all."""
        for what, asked, held in (("training", train, len(self.X)), ("test", test, len(self.X_test))):
            if asked is not None and not 1 <= asked <= held:
                raise DatasetError(f"{self.name} has {held:,} {what} images, but {asked:,} were asked for")
        return replace(self, X=self.X[:train], y=self.y[:train], X_test=self.X_test[:test], y_test=self.y_test[:test])

    def some(self, train: int | None = None, test: int | None = None) -> Dataset:
        """`take`, but of all classes where the images stand by class. A set that is wanted whole keeps its order."""
        mixed, data = self.mixed(), self
        if train is not None:
            data = replace(data, X=mixed.X, y=mixed.y)
        if test is not None:
            data = replace(data, X_test=mixed.X_test, y_test=mixed.y_test)
        return data.take(train, test)

    def mixed(self) -> Dataset:
        """Training and test images that stand by class in a mixed order, the same every time; others as they are.

        The first images of a set in class order, as `take` gives them, are of a few classes only; of mixed ones they
        are of all classes in proportion.

        >>> X, y = np.zeros((20, 1, 2, 2), np.float32), np.repeat([0, 1], 10)
        >>> data = Dataset("by class", X, y, X, y)
        >>> [len(set(d.take(10).y)) for d in (data, data.mixed())]
        [1, 2]
        """
        mixed = self
        if _in_class_order(self.y):
            X, y = _mixed(self.X, self.y)
            mixed = replace(mixed, X=X, y=y)
        if _in_class_order(self.y_test):
            X, y = _mixed(self.X_test, self.y_test)
            mixed = replace(mixed, X_test=X, y_test=y)
        return mixed

    def hold_out(self, images: int) -> Dataset:
        """Make `images` of the training images validation images, each class in proportion; the same ones every time.

        Both sets come in a mixed order. Every class keeps an image for training as long as there are enough.

        >>> digits().hold_out(297)
        <digits: 1,000 training, 297 validation, 500 test images of 1 × 8 × 8>
        """
        if self.X_validation is not None:
            raise DatasetError(f"{self.name} has validation images of its own, so none are held out")
        if not 1 <= images < len(self.X):
            raise DatasetError(
                f"{self.name} has {len(self.X):,} training images, of which {images:,} cannot be held out"
            )
        X, y = _mixed(self.X, self.y)
        return replace(self, X=X[:-images], y=y[:-images], X_validation=X[-images:], y_validation=y[-images:])

    def __repr__(self) -> str:
        sizes = f"{len(self.X):,} training"
        if self.X_validation is not None:
            sizes += f", {len(self.X_validation):,} validation"
        return f"<{self.name}: {sizes}, {len(self.X_test):,} test images of {' × '.join(map(str, self.image_shape))}>"


def load(
    source: str | Path,
    *,
    split: Split = "standard",
    size: int | tuple[int, int] | None = None,
    data: Path | None = None,
) -> Dataset:
    """A set by name ("digits", "mnist", "fashion_mnist", "cifar10"), an .npz file or a folder of images.

    `size` is the height and width that a folder's images are brought to, `data` the folder that holds the files of
    the named sets, instead of `$CNNGP_DATA`.

    >>> load("digits")
    <digits: 1,297 training, 500 test images of 1 × 8 × 8>
    """
    if split not in ("standard", "paper"):
        raise DatasetError(f"split={split!r}: expected 'standard' or 'paper'")
    path = Path(source)
    named = str(source) in NAMES
    if split == "paper" and str(source) not in ("mnist", "fashion_mnist"):
        raise DatasetError(f"split='paper' is of 60,000 training images (mnist, fashion_mnist), which {source} has not")
    if size is not None and not path.is_dir():
        raise DatasetError(f"size={size!r} is for folders of images; {source} has a size of its own")
    if named:
        return digits() if str(source) == "digits" else _classic(str(source), split, data)
    if path.is_dir():
        return folder(path, size=size)
    if path.suffix == ".npz" and path.is_file():
        return npz(path)
    raise DatasetError(
        f"no data {str(source)!r}: expected one of {', '.join(NAMES)}, an .npz file, or a folder with one "
        "sub-folder of images per class"
    )


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
    scaled, scaled_test = _unit(X), _unit(X_test)
    if split == "standard":
        return Dataset(name, scaled, y, scaled_test, y_test)
    validation = np.r_[55_000:60_000, 0:5_000]
    return Dataset(name, scaled[5_000:55_000], y[5_000:55_000], scaled_test, y_test, scaled[validation], y[validation])


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
    return _with_test_set(path.stem, *_checked(arrays["x"], arrays["y"], str(path)))


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


def folder(path: str | Path, *, size: int | tuple[int, int] | None = None) -> Dataset:
    """PNG and JPEG images in one sub-folder per class, brought to one size; the labels are the sub-folders' names.

    Sub-folders `train` and `test` that hold such folders are the two sets, otherwise a fifth of each class is kept for
    testing. Both sets come in a mixed order, the same every time, so that the first images are of all classes.
    Without `size`, images take the commonest size, at most 64 on a side.
    """
    path = Path(path)
    name = path.resolve().name
    if (path / "train").is_dir() and (path / "test").is_dir():
        X, y = images.read_classes(path / "train", size)
        X_test, y_test = images.read_classes(path / "test", X.shape[2:], channels=X.shape[1])
        unknown = sorted(set(y_test) - set(y))
        if unknown:
            raise DatasetError(f"{path / 'test'} has classes that {path / 'train'} has not: {', '.join(unknown)}")
        return Dataset(name, *_mixed(_unit(X), y), *_mixed(_unit(X_test), y_test))
    X, y = images.read_classes(path, size)
    return _with_test_set(name, _unit(X), y)


def _mixed(X: Images, y: Labels) -> tuple[Images, Labels]:
    """In a random order with a fixed seed in which the classes come up evenly: one image of each class first."""
    order = np.random.default_rng(0).permutation(len(y))
    before = np.zeros(len(y))  # the share of its class that stands before an image
    for label in np.unique(y):
        rows = np.flatnonzero(y[order] == label)
        before[rows[1:]] = (np.arange(1, len(rows)) + 0.5) / len(rows)
    order = order[np.argsort(before, kind="stable")]
    return X[order], y[order]


def _in_class_order(y: Labels) -> bool:
    """Whether the class changes from a row to the next less than half as often as in a random order."""
    counts = np.unique(y, return_counts=True)[1]
    by_chance = len(y) - float(np.sum(counts.astype(np.float64) ** 2)) / max(len(y), 1)
    return 2 * int(np.count_nonzero(y[1:] != y[:-1])) < by_chance


def _with_test_set(name: str, X: Images, y: Labels) -> Dataset:
    """A fifth of each class, and at least one image of it, for testing; shuffled with a fixed seed."""
    rng = np.random.default_rng(0)
    test = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        if len(rows) < 2:
            raise DatasetError(f"{name}: class {label} has {len(rows)} image; at least 2 are needed, one to test on")
        test[rows[: max(1, len(rows) // 5)]] = True
    order = rng.permutation(len(y))
    train, held = order[~test[order]], order[test[order]]
    return Dataset(name, X[train], y[train], X[held], y[held])


def _checked(X: NDArray[Any], y: NDArray[Any], where: str) -> tuple[Images, Labels]:
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
    return _unit(X), y


def _unit(X: NDArray[Any]) -> Images:
    """Bytes to [0, 1]; other numbers are taken as they are."""
    if X.dtype == np.uint8:
        return X.astype(np.float32) / np.float32(255.0)
    if X.dtype.kind not in "fiub":
        raise DatasetError(f"images of type {X.dtype}; expected numbers")
    return np.ascontiguousarray(X, dtype=np.float32)
