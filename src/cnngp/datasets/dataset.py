"""`Dataset`: training, validation and test images with labels and names, and methods to select and split them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import DatasetError, is_whole

Pixels = NDArray[np.float32]
Labels = NDArray[Any]
Names = NDArray[np.str_]
_WHOLE = "--test 0 of `cnngp classify` and `cnngp regress`, or whole=True in Python"


class Part(NamedTuple):
    """Images with their labels and, if known, names, groups and noise.

    If `X` holds features, `pictures` are the images to show.
    """

    X: Any
    y: Labels
    names: Names | None = None
    groups: Labels | None = None
    image_noise: NDArray[np.float64] | None = None
    pictures: Any = None

    def at(self, rows: Any) -> Part:
        return Part(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]

    @property
    def in_classes(self) -> bool:
        """True if labels are classes: one per image, and not measured numbers, which rarely repeat."""
        y = self.y
        return y.ndim == 1 and y.dtype.kind != "f" and (y.dtype.kind not in "iu" or 2 * len(np.unique(y)) <= len(y))


@dataclass(frozen=True)
class Dataset:
    """Training and test images with their labels, and validation images if the split has them.

    `names` are the names of the image files. `notes` describe how they were read, such as files that were left out and
    the chosen size. `groups` and `image_noise` of the training images are arguments for `fit`. If `X` holds rows of
    features (N, F), for example of a pretrained network, `pictures` are their images, for reports and viewers.
    """

    name: str
    X: Pixels
    y: Labels
    X_test: Pixels
    y_test: Labels
    X_validation: Pixels | None = None
    y_validation: Labels | None = None
    names: Names | None = None
    names_test: Names | None = None
    names_validation: Names | None = None
    notes: tuple[str, ...] = ()
    groups: Labels | None = None
    image_noise: NDArray[np.float64] | None = None
    aspect: str | None = None
    """How image files were brought to one size: "squash" or "pad"."""
    pictures: Pixels | None = None
    pictures_test: Pixels | None = None

    @property
    def train(self) -> Part:
        return Part(self.X, self.y, self.names, self.groups, self.image_noise, self.pictures)

    @property
    def test(self) -> Part:
        return Part(self.X_test, self.y_test, self.names_test, pictures=self.pictures_test)

    def _with(self, train: Part, test: Part, validation: Part | None = None) -> Dataset:
        """Return the data set with other parts in place of its own."""
        changed: dict[str, Any] = {"groups": train.groups, "image_noise": train.image_noise}
        changed |= {"pictures": train.pictures, "pictures_test": test.pictures}
        for part, suffix in ((train, ""), (test, "_test"), (validation, "_validation")):
            if part is not None:
                changed |= {f"X{suffix}": part.X, f"y{suffix}": part.y, f"names{suffix}": part.names}
        return replace(self, **changed)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Shape of one image: (channels, height, width), (channels, length) for signals, (features,) for rows."""
        return self.X.shape[1:]

    def take(self, train: int | None = None, test: int | None = None) -> Dataset:
        """Return the first `train` and `test` images; None keeps all in their order, and `test=0` leaves no test set.

        If images are sorted by class, they are taken in the order of `mixed`, so that all classes are among them.
        """
        parts = []
        for name, part, n, least in (("train", self.train, train, 1), ("test", self.test, test, 0)):
            what = "training" if name == "train" else "test"
            if n is not None and not is_whole(n, least):
                raise DatasetError(f"{name}={n!r}: expected how many {what} images to take, {least} or more")
            if n is not None and n > len(part.y):
                raise DatasetError(f"{self.name} has {len(part.y):,} {what} images, but {n:,} were asked for")
            parts.append(part if n is None else _of_all_classes(part).at(slice(n)))
        return self._with(*parts)

    def mixed(self) -> Dataset:
        """Shuffle images that are sorted by class, reproducibly, so that the first ones include all classes.

        >>> X, y = np.zeros((20, 1, 2, 2), np.float32), np.repeat([0, 1], 10)
        >>> data = Dataset("by class", X, y, X, y).mixed()
        >>> data.y[:4].tolist()
        [0, 1, 0, 1]
        """
        return self._with(_of_all_classes(self.train), _of_all_classes(self.test))

    def hold_out(self, images: int) -> Dataset:
        """Split off `images` of the training images for validation, stratified by class and reproducible.

        Both sets come in a mixed order. Every class keeps an image for training as long as there are enough. Images of
        one group stay together, so that their number may differ a little.

        >>> from cnngp import datasets
        >>> datasets.digits().hold_out(297)
        <digits: 1,000 training, 297 validation, 500 test images of 1 × 8 × 8>
        """
        if self.X_validation is not None:
            raise DatasetError(f"{self.name} has validation images of its own, so none are held out")
        if not 1 <= images < len(self.X):
            raise DatasetError(
                f"{self.name} has {len(self.X):,} training images, of which {images:,} cannot be held out"
            )
        part = mixed(self.train)
        if part.groups is not None:
            out = _whole_groups(part, images)
            return self._with(part.at(~out), self.test, part.at(out))
        return self._with(part.at(slice(None, -images)), self.test, part.at(slice(-images, None)))

    def __repr__(self) -> str:
        parts = (("training", self.X), ("validation", self.X_validation), ("test", self.X_test))
        sizes = ", ".join(f"{len(X):,} {part}" for part, X in parts if X is not None and len(X))
        shape = " × ".join(map(str, self.image_shape))
        return f"<{self.name}: {sizes} images of {shape}{' features' if len(self.image_shape) == 1 else ''}>"


def mixed(part: Part) -> Part:
    """Shuffle with a fixed seed so that the classes are evenly spread: one image of each class comes first."""
    y = part.y
    order = np.random.default_rng(0).permutation(len(y))
    if not part.in_classes:
        return part.at(order)
    before = np.zeros(len(y))  # share of its class that precedes an image
    for label in np.unique(y):
        rows = np.flatnonzero(y[order] == label)
        before[rows[1:]] = (np.arange(1, len(rows)) + 0.5) / len(rows)
    return part.at(order[np.argsort(before, kind="stable")])


def _of_all_classes(part: Part) -> Part:
    """Shuffle the part if its images are sorted by class: if the class changes between rows less than half as often as
    in a random order."""
    y = part.y
    if not part.in_classes:
        return part
    counts = np.unique(y, return_counts=True)[1]
    by_chance = len(y) - float(np.sum(counts.astype(np.float64) ** 2)) / max(len(y), 1)
    return mixed(part) if 2 * int(np.count_nonzero(y[1:] != y[:-1])) < by_chance else part


def with_test_set(name: str, part: Part) -> tuple[Part, Part]:
    """Split off a fifth of each class, and at least one image of it, for testing; shuffled with a fixed seed.

    Images in groups are split by whole groups; for numbers, a fifth of all images is taken.
    """
    y = part.y
    rng = np.random.default_rng(0)
    test = np.zeros(len(y), dtype=bool)
    if part.groups is not None:
        test = _whole_groups(part, max(1, len(y) // 5))
        if not test.any():
            raise DatasetError(
                f"{name}: no whole group can be kept for testing, as each holds more than a fifth of the images or the "
                f"last ones of a class; fit all images without a test set: {_WHOLE}"
            )
    elif not part.in_classes:
        test[rng.permutation(len(y))[: len(y) // 5]] = True
    for label in np.unique(y) if part.groups is None and part.in_classes else ():
        rows = rng.permutation(np.flatnonzero(y == label))
        if len(rows) < 2:
            raise DatasetError(
                f"{name}: class {label} has a single image, and one of each class is kept for testing; add another, "
                f"leave the class out, or fit all images without a test set: {_WHOLE}"
            )
        test[rows[: max(1, len(rows) // 5)]] = True
    order = rng.permutation(len(y))
    return part.at(order[~test[order]]), part.at(order[test[order]])


def assembled(name: str, parts: dict[str, Part], whole: bool, notes: tuple[str, ...] = (), **others: Any) -> Dataset:
    """Build a data set from its parts; without test images, a fifth of training is kept for testing unless `whole`."""
    train, test = parts["train"], parts.get("test")
    if test is None and whole:
        test = train.at(slice(0))
    elif test is None:
        train, test = with_test_set(name, train)
        of = " in whole groups" if train.groups is not None else " of each class" if train.in_classes else ""
        kept = f"{len(test.y):,} of {len(train.y) + len(test.y):,} images, about a fifth{of}, are kept for testing"
        notes = (*notes, f"{kept}; {_WHOLE}, fits all of them")
    return Dataset(name, train.X, train.y, test.X, test.y, notes=notes, **others)._with(
        train, test, parts.get("validation")
    )


def _whole_groups(part: Part, images: int) -> NDArray[np.bool_]:
    """Mask of about `images` images in whole groups, reproducible; no class loses its last group."""
    rng = np.random.default_rng(0)
    chosen = np.zeros(len(part.y), dtype=bool)
    assert part.groups is not None
    for group in rng.permutation(np.unique(part.groups)):
        here = part.groups == group
        left = ~chosen & ~here
        keeps = not part.in_classes or set(part.y[here]) <= set(part.y[left])
        if keeps and left.any() and chosen.sum() + here.sum() <= max(images, 1):
            chosen |= here
    return chosen


def unit_scale(X: NDArray[Any]) -> Pixels:
    """Scale bytes to [0, 1]; other numbers are not scaled."""
    if X.dtype == np.uint8:
        return X.astype(np.float32) / np.float32(255.0)
    if X.dtype.kind not in "fiub":
        raise DatasetError(f"images of type {X.dtype}; expected numbers")
    return np.ascontiguousarray(X, dtype=np.float32)
