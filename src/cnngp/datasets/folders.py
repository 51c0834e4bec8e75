"""Folders of photographs: which files are images of which class, and which of them are for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from cnngp.common.errors import DatasetError
from cnngp.common.files import is_of_the_system

from . import images
from .dataset import Dataset, Part
from .images import Aspect, Size
from .reading import Reader, is_regular


def folder(
    path: str | Path,
    *,
    size: Size | None = None,
    aspect: Aspect = "squash",
    skip_bad: bool = False,
    max_pixels: int = images.MAX_PIXELS,
    whole: bool = False,
) -> Dataset:
    """Images in one sub-folder per class, brought to one size; the labels are the sub-folders' names.

    PNG, JPEG, TIFF, WebP, GIF, BMP and the like are taken, also from folders inside the sub-folders; what is left out
    is counted in `notes`. Sub-folders `train` and `test` that hold such folders are the two sets, `val` or
    `validation` the validation images; without `test` a fifth of each class is kept for testing. Sets come in a mixed
    order, the same every time, so that the first images are of all classes.

    Parameters
    ----------
    size : height and width, or one number for both; by default the size that at least half of the images have, else
        one of their median proportions, at most 64 on the longer side.
    aspect : "squash" gives an image of another shape that size whatever becomes of its proportions, "pad" keeps them
        and fills the rest with black.
    skip_bad : go on without files that cannot be read, instead of listing them in an error.
    max_pixels : an image file that says it has more is not decoded: a few bytes may say so, and memory be taken for it.
    whole : keep no images for testing where there is no `test`: all are training images.
    """
    path = Path(path)
    reader = Reader(path, aspect, skip_bad, max_pixels)
    shape = None if size is None else images.check_size(size)
    if not path.is_dir() or is_of_the_system(path):
        raise DatasetError(f"{path} is not a folder{' of files' if path.is_dir() else ''}")
    validation = path / next((name for name in ("val", "validation") if (path / name).is_dir()), "val")
    where = {"train": path / "train", "test": path / "test", "validation": validation}
    where = {part: sub for part, sub in where.items() if sub.is_dir()}
    if "train" not in where or len(where) == 1:
        return reader.dataset(path.resolve().name, {"train": _read(reader, path, shape)}, whole)
    for entry in sorted(path.iterdir()):
        if not entry.is_dir():
            reader.skip(entry, outside=True)
        elif entry not in where.values() and not entry.name.startswith("."):
            reader.empty.append(entry.name)
    parts: dict[str, Part] = {}
    for part, sub in where.items():
        parts[part] = _read(reader, sub, shape, least=2 if part == "train" else 1)
        shape = parts[part].X.shape[2:]
    return reader.dataset(path.resolve().name, parts, whole)


def image_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Files as they are, and of folders all images in them, in the order of their names."""
    for path in paths:
        if path.is_dir():
            found = [p for p in sorted(path.rglob("*")) if _is_readable_image(p, path)]
            if not found:
                raise DatasetError(f"{path} holds no images that can be read")
            yield from found
        else:
            yield path


def _read(reader: Reader, path: Path, shape: tuple[int, ...] | None, least: int = 2) -> Part:
    """The images in `path`'s sub-folders, each of the class that the sub-folder is named after."""
    files: list[Path] = []
    labels: list[str] = []
    for entry in sorted(path.iterdir()):
        if not entry.is_dir():
            reader.skip(entry, outside=True)
        elif not entry.name.startswith("."):
            inside = sorted(entry.rglob("*"))
            here = [file for file in inside if _is_readable_image(file, entry)]
            for file in set(inside).difference(here):
                if not file.is_dir():
                    reader.skip(file)
            files += here
            labels += [entry.name] * len(here)
            if not here:
                reader.empty.append(str(entry.relative_to(reader.root)))
    classes = sorted(set(labels))
    if len(classes) < least:
        held = f"images of one class only ({classes[0]})" if classes else "no sub-folders with images"
        raise DatasetError(
            f"{path} has {held}; expected one sub-folder of images per class, and at least two classes"
            f"{reader.account()}"
        )
    X, kept = reader.read(files, path, shape)
    y = np.array([labels[i] for i in kept])
    gone = sorted(set(classes) - set(y))
    if gone:
        raise DatasetError(f"{path}: no image of these classes can be read: {', '.join(gone)}")
    return Part(X, y, reader.names([files[i] for i in kept]))


def _is_readable_image(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return is_regular(file) and not hidden and images.is_image(file)
