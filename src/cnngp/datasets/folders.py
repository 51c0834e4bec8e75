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
    reader = Reader(path, size, aspect, skip_bad, max_pixels)
    if not path.is_dir() or is_of_the_system(path):
        raise DatasetError(f"{path} is not a folder{' of files' if path.is_dir() else ''}")
    names = {"train": ("train",), "test": ("test",), "validation": ("val", "validation")}
    found = {part: [path / name for name in of if (path / name).is_dir()] for part, of in names.items()}
    where = {part: folders[0] for part, folders in found.items() if folders}
    if "train" not in where or len(where) == 1:
        where = {"train": path}
    else:
        reader.unused += [entry.name for entry in _class_folders(reader, path) if entry not in where.values()]
    parts = {part: _listed(reader, sub, least=2 if part == "train" else 1) for part, sub in where.items()}
    return reader.dataset(path.resolve().name, parts, path, whole)


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


def _listed(reader: Reader, path: Path, least: int) -> Part:
    """The image files in `path`'s sub-folders, each of the class that the sub-folder is named after."""
    files: list[Path] = []
    labels: list[str] = []
    for folder in _class_folders(reader, path):
        inside = sorted(folder.rglob("*"))
        here = [file for file in inside if _is_readable_image(file, folder)]
        for file in set(inside).difference(here):
            if not file.is_dir():
                reader.skip(file)
        files += here
        labels += [folder.name] * len(here)
        if not here:
            reader.unused.append(str(folder.relative_to(reader.root)))
    classes = sorted(set(labels))
    if len(classes) < least:
        held = f"images of one class only ({classes[0]})" if classes else "no sub-folders with images"
        account = f"; {reader.account()}" if reader.account() else ""
        raise DatasetError(
            f"{path} has {held}; expected one sub-folder of images per class, and at least two classes{account}"
        )
    return Part(np.array(files, dtype=object), np.array(labels))


def _class_folders(reader: Reader, path: Path) -> list[Path]:
    """The folders in `path`; what lies beside them is left out."""
    entries = sorted(path.iterdir())
    for entry in entries:
        if not entry.is_dir():
            reader.skip(entry, outside=True)
    return [entry for entry in entries if entry.is_dir() and not entry.name.startswith(".")]


def _is_readable_image(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return is_regular(file) and not hidden and images.is_image(file)
