"""Folders of photographs: which files are images of which class, what is left out and why, and one size for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cnngp.common.errors import DatasetError
from cnngp.common.progress import progress_bar

from . import images
from .dataset import Dataset, Part, kept_for_testing, mixed, unit_scale, with_test_set
from .images import Aspect, Head, Size

_LARGEST = 64
_VALIDATION = ("val", "validation")
# Of 16: with this many bits or fewer, the brightest pixel of all is at most a sixteenth of white.
_DARK_BITS = 12
# Names of files that one message lists.
_LISTED = 50


def folder(
    path: str | Path,
    *,
    size: Size | None = None,
    aspect: Aspect = "squash",
    skip_bad: bool = False,
    whole: bool = False,
) -> Dataset:
    """Images in one sub-folder per class, brought to one size; the labels are the sub-folders' names.

    Every format that Pillow reads is taken, also from folders inside the sub-folders; what is left out is counted in
    `notes`. Sub-folders `train` and `test` that hold such folders are the two sets, `val` or `validation` the
    validation images; without `test` a fifth of each class is kept for testing. Sets come in a mixed order, the same
    every time, so that the first images are of all classes.

    Parameters
    ----------
    size : height and width, or one number for both; by default the size that at least half of the images have, else
        one of their median proportions, at most 64 on the longer side.
    aspect : "squash" gives an image of another shape that size whatever becomes of its proportions, "pad" keeps them
        and fills the rest with black.
    skip_bad : go on without files that cannot be read, instead of listing them in an error.
    whole : keep no images for testing where there is no `test`: all are training images.
    """
    path = Path(path)
    images.check_aspect(aspect)
    shape = None if size is None else images.check_size(size)
    if not path.is_dir():
        raise DatasetError(f"{path} is not a folder")
    name = path.resolve().name
    reader = _Reader(path, aspect, skip_bad)
    validation_folder = next((path / v for v in _VALIDATION if (path / v).is_dir()), None)
    if not (path / "train").is_dir() or not ((path / "test").is_dir() or validation_folder):
        return reader.split(name, reader.read(reader.find(path), shape), whole)
    used = {"train", "test"} | ({validation_folder.name} if validation_folder else set())
    reader.leave_out(path, used)
    part = reader.read(reader.find(path / "train"), shape)
    others = {}
    for key, where in (("test", path / "test"), ("validation", validation_folder)):
        if where is not None and where.is_dir():
            found = reader.find(where, least=1)
            unknown = sorted(set(found.labels) - set(part.y))
            if unknown:
                raise DatasetError(f"{where} has classes that are missing from {path / 'train'}: {', '.join(unknown)}")
            others[key] = mixed(reader.read(found, part.X.shape[2:], part.X.shape[1]))
    validation = others.get("validation")
    if "test" in others:
        return Dataset.of(name, mixed(part), others["test"], validation, notes=reader.notes(), aspect=aspect)
    return reader.split(name, part, whole, validation)


def image_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Files as they are, and of folders all images in them, in the order of their names."""
    for path in paths:
        if path.is_dir():
            found = [p for p in sorted(path.rglob("*")) if p.is_file() and images.is_image(p) and not _hidden(p, path)]
            if not found:
                raise DatasetError(f"{path} holds no images that Pillow reads")
            yield from found
        else:
            yield path


@dataclass
class _Found:
    """Image files and their classes."""

    where: Path
    files: list[Path] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)


class _Reader:
    """Reads the parts of one folder and keeps account of what it leaves out."""

    def __init__(self, root: Path, aspect: Aspect, skip_bad: bool) -> None:
        self.root = root
        self.aspect: Aspect = aspect
        self.skip_bad = skip_bad
        self.said: list[str] = []
        self._skipped: Counter[str] = Counter()
        self._empty: list[str] = []
        self._outside = 0
        self._bad = 0

    def leave_out(self, path: Path, used: set[str]) -> None:
        """Account for what lies beside the folders in use."""
        for entry in sorted(path.iterdir()):
            if entry.is_dir() and entry.name not in used and not entry.name.startswith("."):
                self._empty.append(entry.name)
            elif entry.is_file():
                self._skip(entry, outside=True)

    def find(self, path: Path, least: int = 2) -> _Found:
        """The images in `path`'s sub-folders, each of the class that the sub-folder is named after."""
        found = _Found(path)
        for entry in sorted(path.iterdir()):
            if entry.is_file():
                self._skip(entry, outside=True)
            elif entry.is_dir() and not entry.name.startswith("."):
                here = self._images_in(entry)
                found.files += here
                found.labels += [entry.name] * len(here)
                if not here:
                    self._empty.append(str(entry.relative_to(self.root)))
        classes = sorted(set(found.labels))
        if len(classes) < least:
            held = f"images of one class only ({classes[0]})" if classes else "no sub-folders with images"
            raise DatasetError(
                f"{path} has {held}; expected one sub-folder of images per class, and at least two classes"
                f"{self._account()}"
            )
        return found

    def read(self, found: _Found, shape: tuple[int, ...] | None, channels: int | None = None) -> Part:
        """The pixels, in one size and one number of channels; those of the first part are chosen and said."""
        bad: list[DatasetError] = []
        heads: dict[Path, Head] = {}
        for file in found.files:
            try:
                heads[file] = images.read_head(file)
            except DatasetError as error:
                bad.append(error)
        chosen, why = shape, ""
        if chosen is None:
            chosen, why = _usual_size([(h.height, h.width) for h in heads.values()])
        first = channels is None
        if channels is None:
            channels = 1 if all(h.grey for h in heads.values()) else 3
        pixels: dict[Path, NDArray[np.uint8]] = {}
        largest: list[int] = []
        with progress_bar(len(heads), "reading", "image") as bar:
            for file in heads:
                try:
                    pixels[file], value = images.read_deep_image(file, (channels, *chosen), self.aspect)
                    largest += [] if value is None else [value]
                except DatasetError as error:
                    bad.append(error)
                bar.update()
        self._refuse(bad, found)
        if first:
            self._say_size([heads[file] for file in pixels], chosen, why)
            self._say_depth(largest)
        kept = [i for i, file in enumerate(found.files) if file in pixels]
        labels = np.array([found.labels[i] for i in kept])
        if len(set(labels)) < len(set(found.labels)):
            gone = ", ".join(sorted(set(found.labels) - set(labels)))
            raise DatasetError(f"{found.where}: no image of these classes can be read: {gone}")
        names = np.array([str(found.files[i].relative_to(self.root)) for i in kept])
        return Part(unit_scale(np.stack([pixels[found.files[i]] for i in kept])), labels, names)

    def split(self, name: str, part: Part, whole: bool, validation: Part | None = None) -> Dataset:
        """All images of a folder without a test set, some of them kept for one unless the `whole` is wanted."""
        if whole:
            train, test = mixed(part), part.at(slice(0))
        else:
            train, test = with_test_set(name, part)
            self.said.append(kept_for_testing(test, train))
        return Dataset.of(name, train, test, validation, notes=self.notes(), aspect=self.aspect)

    def notes(self) -> tuple[str, ...]:
        return (*self.said, *([self._account().removeprefix("; ")] if self._account() else []))

    def _images_in(self, folder: Path) -> list[Path]:
        here = []
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not _hidden(file, folder) and images.is_image(file):
                here.append(file)
            elif file.is_file():
                self._skip(file)
        return here

    def _skip(self, file: Path, outside: bool = False) -> None:
        if file.name.startswith("."):
            self._skipped["hidden"] += 1
        elif outside and images.is_image(file):
            self._outside += 1
        else:
            self._skipped[file.suffix.lower() or "without a suffix"] += 1

    def _refuse(self, bad: list[DatasetError], found: _Found) -> None:
        """All files that cannot be read at once, unless they are to be left out."""
        self._bad += len(bad)
        if not bad or self.skip_bad:
            return
        if len(bad) == 1:
            raise DatasetError(f"{bad[0]}, or leave it out with skip_bad=True (--skip-bad)")
        listed = "; ".join(str(error).removesuffix("; replace or remove it") for error in bad[:_LISTED])
        more = f"; and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
        raise DatasetError(
            f"{len(bad)} of {len(found.files):,} files in {found.where} cannot be read: {listed}{more}. Replace or "
            "remove them, or leave them out with skip_bad=True (--skip-bad)"
        )

    def _account(self) -> str:
        """What was left out, as the end of a sentence; empty where nothing was."""
        parts = [f"{n:,} {kind}" for kind, n in sorted(self._skipped.items())]
        told = []
        if parts:
            total = sum(self._skipped.values())
            told.append(f"left out {total:,} {'file' if total == 1 else 'files'} of other kinds: {', '.join(parts)}")
        if self._outside:
            told.append(f"left out {_images(self._outside)} outside of the class folders")
        if self._bad:
            told.append(f"left out {_images(self._bad)} that cannot be read")
        if self._empty:
            told.append(f"folders without images, or not used: {', '.join(self._empty)}")
        return "; " + "; ".join(told) if told else ""

    def _say_size(self, heads: list[Head], shape: tuple[int, ...], why: str) -> None:
        """How images of other sizes were brought to this one."""
        height, width = shape
        others = [h for h in heads if (h.height, h.width) != (height, width)]
        if not others:
            return
        told = f"{_images(len(others))} of {len(heads):,} brought to {height} × {width}{why}"
        # A rounding of one pixel is no other shape.
        bent = sum(abs(h.height * width - h.width * height) > max(h.height, h.width) for h in others)
        if bent:
            how = "padded with black" if self.aspect == "pad" else "squashed; aspect='pad' (--aspect pad) keeps theirs"
            told += f"; {bent:,} of another aspect ratio {how}"
        self.said.append(told)

    def _say_depth(self, largest: list[int]) -> None:
        """Cameras of 12 bits write files of 16, which a viewer and this program show as nearly black."""
        bits = max(largest, default=0).bit_length()
        if 0 < bits <= _DARK_BITS:
            self.said.append(
                f"the largest value of {_images(len(largest))} with 16 bits is {max(largest):,} of 65,535, as of "
                f"{bits}-bit data, so that they come out nearly black; multiply their values by {2 ** (16 - bits):,} "
                "and save them again, also those that are predicted later"
            )


def _images(n: int) -> str:
    return f"{n:,} {'image' if n == 1 else 'images'}"


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _usual_size(sizes: list[tuple[int, int]]) -> tuple[tuple[int, int], str]:
    """A size for all, and why: the one that half of them have, else one of their median proportions and longer side.

    Cost grows with the number of pixels, so photographs are brought down to at most 64 on their longer side.
    """
    if not sizes:
        return (1, 1), ""
    (height, width), count = Counter(sizes).most_common(1)[0]
    if 2 * count >= len(sizes):
        scale, why = min(1.0, _LARGEST / max(height, width)), "the commonest size"
        shape = height * scale, width * scale
    else:
        sides = np.array(sizes, np.float64)
        longer = min(float(_LARGEST), float(np.median(sides.max(1))))
        ratio = float(np.exp(np.median(np.log(sides[:, 0] / sides[:, 1]))))
        shape, why = (longer * min(1.0, ratio), longer * min(1.0, 1.0 / ratio)), "their median proportions"
    return (max(1, round(shape[0])), max(1, round(shape[1]))), f" ({why}, at most {_LARGEST} a side)"
