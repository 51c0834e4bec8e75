"""Folders of photographs: which files are images of which class, and which of them are for training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cnngp.common.errors import DatasetError
from cnngp.common.files import is_of_the_system

from . import images
from .dataset import Dataset, Part, mixed
from .images import Aspect, Size
from .reading import Reader, is_regular

_VALIDATION = ("val", "validation")


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
    name = path.resolve().name
    validation_folder = next((path / v for v in _VALIDATION if (path / v).is_dir()), None)
    if not (path / "train").is_dir() or not ((path / "test").is_dir() or validation_folder):
        return reader.split(name, _read(reader, _find(reader, path), shape), whole)
    _leave_out(reader, path, {"train", "test"} | ({validation_folder.name} if validation_folder else set()))
    part = _read(reader, _find(reader, path / "train"), shape)
    others = {}
    for key, where in (("test", path / "test"), ("validation", validation_folder)):
        if where is not None and where.is_dir():
            found = _find(reader, where, least=1)
            unknown = sorted(set(found.labels) - set(part.y))
            if unknown:
                raise DatasetError(f"{where} has classes that are missing from {path / 'train'}: {', '.join(unknown)}")
            others[key] = mixed(_read(reader, found, part.X.shape[2:]))
    validation = others.get("validation")
    if "test" in others:
        return Dataset.of(name, mixed(part), others["test"], validation, notes=reader.notes(), aspect=aspect)
    return reader.split(name, part, whole, validation)


def image_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Files as they are, and of folders all images in them, in the order of their names."""
    for path in paths:
        if path.is_dir():
            found = [
                p for p in sorted(path.rglob("*")) if images.is_image(p) and is_regular(p) and not _hidden(p, path)
            ]
            if not found:
                raise DatasetError(f"{path} holds no images that can be read")
            yield from found
        else:
            yield path


@dataclass
class _Found:
    """Image files and their classes."""

    where: Path
    files: list[Path] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


def _leave_out(reader: Reader, path: Path, used: set[str]) -> None:
    """Account for what lies beside the folders in use."""
    for entry in sorted(path.iterdir()):
        if not entry.is_dir():
            reader.skip(entry, outside=True)
        elif entry.name not in used and not entry.name.startswith("."):
            reader.empty.append(entry.name)


def _find(reader: Reader, path: Path, least: int = 2) -> _Found:
    """The images in `path`'s sub-folders, each of the class that the sub-folder is named after."""
    found = _Found(path)
    for entry in sorted(path.iterdir()):
        if not entry.is_dir():
            reader.skip(entry, outside=True)
        elif not entry.name.startswith("."):
            here = _images_in(reader, entry)
            found.files += here
            found.labels += [entry.name] * len(here)
            if not here:
                reader.empty.append(str(entry.relative_to(reader.root)))
    classes = sorted(set(found.labels))
    if len(classes) < least:
        held = f"images of one class only ({classes[0]})" if classes else "no sub-folders with images"
        raise DatasetError(
            f"{path} has {held}; expected one sub-folder of images per class, and at least two classes"
            f"{reader.account()}"
        )
    return found


def _read(reader: Reader, found: _Found, shape: tuple[int, ...] | None) -> Part:
    X, kept = reader.read(found.files, found.where, shape)
    labels = np.array([found.labels[i] for i in kept])
    gone = sorted(set(found.labels) - set(labels))
    if gone:
        raise DatasetError(f"{found.where}: no image of these classes can be read: {', '.join(gone)}")
    return Part(X, labels, reader.names([found.files[i] for i in kept]))


def _images_in(reader: Reader, folder: Path) -> list[Path]:
    here = []
    for file in sorted(folder.rglob("*")):
        if is_regular(file) and not _hidden(file, folder) and images.is_image(file):
            here.append(file)
        elif not file.is_dir():
            reader.skip(file)
    return here


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)
