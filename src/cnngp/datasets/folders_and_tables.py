"""Loading folders and tables of image files, with labels or regression targets, groups, splits and noise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.common.errors import DatasetError
from cnngp.common.files import check_regular, is_of_the_system
from cnngp.common.tables import csv_cell, read_csv

from . import images
from .dataset import Dataset, Labels, Part, Pixels, unit_scale
from .images import Aspect, Reader, Size, is_regular

TABLES = (".csv", ".tsv")
_FILES = ("file", "filename", "file_name", "image", "path")
_LABELS = ("label", "labels", "class", "target", "y")
_PARTS = {"": "train", "train": "train", "training": "train", "test": "test", "val": "validation"}
_PARTS |= {"valid": "validation", "validation": "validation"}
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?")
_LISTED = 5


def folder(
    path: str | Path,
    *,
    size: Size | None = None,
    aspect: Aspect = "squash",
    skip_bad: bool = False,
    max_pixels: int = images.MAX_PIXELS,
    whole: bool = False,
) -> Dataset:
    """Load images from one sub-folder per class, resized to one size; the labels are the sub-folders' names.

    PNG, JPEG, TIFF, WebP, GIF, BMP and similar files are read, also from folders inside the sub-folders; `notes` counts
    those that are left out. Sub-folders `train` and `test` that hold such folders are the two sets, `val`,
    `valid` or `validation` the validation images; without `test`, a fifth of each class is kept for testing. The images
    of each set are in a reproducible mixed order, so that the first ones include all classes.

    Parameters
    ----------
    size : height and width, or one number for both; by default the size that at least half of the images have, else
        one of their median proportions, at most 64 on the longer side.
    aspect : "squash" resizes images of other proportions without keeping these; "pad" keeps them and fills the rest
        with black.
    skip_bad : skip files that cannot be read, instead of listing them in an error.
    max_pixels : limit of one image file; larger ones are not decoded, because a small file may claim any size.
    whole : keep no images for testing if there is no `test`: all are training images.
    """
    path = Path(path)
    reader = Reader(path, size, aspect, skip_bad, max_pixels)
    if not path.is_dir() or is_of_the_system(path):
        raise DatasetError(f"{path} is not a folder{' of files' if path.is_dir() else ''}")
    names = {"train": ("train",), "test": ("test",), "validation": ("val", "valid", "validation")}
    found = {part: [path / name for name in of if (path / name).is_dir()] for part, of in names.items()}
    where = {part: folders[0] for part, folders in found.items() if folders}
    if "train" not in where or len(where) == 1:
        where = {"train": path}
    else:
        reader.unused += [entry.name for entry in _class_folders(reader, path) if entry not in where.values()]
    parts = {part: _listed(reader, sub, least=2 if part == "train" else 1) for part, sub in where.items()}
    return reader.dataset(path.resolve().name, parts, path, whole)


def image_files(paths: Sequence[Path]) -> Iterator[Path]:
    """Yield the files as given, and for each folder all images in it, sorted by name."""
    for path in paths:
        if path.is_dir():
            found = [p for p in sorted(path.rglob("*")) if _is_readable_image(p, path)]
            if not found:
                raise DatasetError(f"{path} holds no images that can be read")
            yield from found
        else:
            yield path


def _listed(reader: Reader, path: Path, least: int) -> Part:
    """List the image files in `path`'s sub-folders, whose names are the classes."""
    files: list[Path] = []
    labels: list[str] = []
    for folder in _class_folders(reader, path):
        before = len(files)
        for file in sorted(folder.rglob("*")):
            if _is_readable_image(file, folder):
                files.append(file)
            elif not file.is_dir():
                reader.skip(file)
        labels += [folder.name] * (len(files) - before)
        if len(files) == before:
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
    """Return the folders in `path`; files beside them are skipped."""
    found = []
    for entry in sorted(path.iterdir()):
        if not entry.is_dir():
            reader.skip(entry, outside=True)
        elif not entry.name.startswith("."):
            found.append(entry)
    return found


def _is_readable_image(file: Path, folder: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
    return is_regular(file) and not hidden and images.is_image(file)


# ---- tables ----


def table(
    path: str | Path,
    *,
    columns: str | Sequence[str] | None = None,
    features: Any = None,
    size: Size | None = None,
    aspect: Aspect = "squash",
    skip_bad: bool = False,
    max_pixels: int = images.MAX_PIXELS,
    whole: bool = False,
) -> Dataset:
    """Load the image files listed in a CSV or TSV file, one per row, with class labels or regression targets.

    The column of files is called file, filename, image or path, or is the only one that holds names of images; paths
    are relative to the table. `columns` names the columns of labels; by default label, class, target or y, or the only
    column left. Several columns give labels (N, columns), of 0 and 1 or numbers. A column split holds train, test or
    val; without test images, a fifth of each class is kept for testing, or whole groups if there is a column group.
    A column noise is the `image_noise` of a fit. Sizes and files that cannot be read are handled as in `folder`.

    `features` (N, F), an array or an .npy file, has one row for each row of the table, for example from a pretrained
    network. The model is then fitted to the features, and the images are only shown.
    """
    path = Path(path)
    reader = Reader(path.parent, size, aspect, skip_bad, max_pixels)
    heads, lines = read_csv(path)
    twice = [head for head, count in Counter(heads).items() if count > 1]
    if twice or not lines:
        raise DatasetError(f"{path} has {'columns of one name: ' + ', '.join(twice) if twice else 'no rows'}")
    cells = dict(zip(heads, map(list, zip(*lines, strict=True)), strict=True))
    by_word = {head.lower(): head for head in heads}

    def named(*words: str) -> str | None:
        return next((by_word[word] for word in words if word in by_word), None)

    file = _column_of_files(path, cells, named(*_FILES))
    asked = columns.split(",") if isinstance(columns, str) else columns
    others = (named("group", "groups"), named("split"), named("noise", "image_noise"))
    group, split, noise = (None if head in (asked or ()) else head for head in others)
    rest = [head for head in heads if head not in (file, group, split, noise)]
    wanted = _columns_of_labels(path, asked, rest, named(*_LABELS))
    labels = np.stack([_values(path, head, cells[head]) for head in wanted], axis=1)
    if len(wanted) > 1 and labels.dtype.kind not in "if":
        raise DatasetError(
            f"{path}: columns {', '.join(wanted)} hold words; several columns of labels are 0 and 1, or numbers"
        )
    files = np.array([_file(path.parent, cell) for cell in cells[file]], dtype=object)
    variances = None
    if noise is not None:
        variances = _numbers([cell.strip() or "0" for cell in cells[noise]])
        if variances is None or not np.isfinite(variances).all() or (variances < 0.0).any():
            raise DatasetError(f"{path}: column {noise} holds something else than variances of 0 or more")
    listed = Part(
        files if features is None else _features(features, len(files)),
        labels[:, 0] if len(wanted) == 1 else labels,
        groups=None if group is None else _values(path, group, cells[group]),
        image_noise=variances,
        pictures=None if features is None else files,
    )
    said = [""] * len(files) if split is None else cells[split]
    unknown = [cell for cell in said if cell.strip().lower() not in _PARTS]
    if unknown:
        raise DatasetError(f"{path}: split {unknown[0]!r}; expected train, test, val or nothing")
    belongs = np.array([_PARTS[cell.strip().lower()] for cell in said])
    parts = {part: listed.at(belongs == part) for part in ("train", "test", "validation") if part in belongs}
    if "train" not in parts:
        raise DatasetError(f"{path} has no images for training; its column split holds other parts only")
    return reader.dataset(path.stem, parts, path, whole)


def _features(given: Any, rows: int) -> Pixels:
    """Read features (N, F) from an array or a file."""
    if isinstance(given, str | Path):
        check_regular(Path(given))
        try:
            given = np.load(given, allow_pickle=False)
        except (ValueError, EOFError):
            raise DatasetError(f"{given} is no .npy file of numbers; write it with numpy.save") from None
    found = to_numpy(given, "features")
    if found.ndim != 2 or len(found) != rows or found.dtype.kind not in "fiu" or not np.isfinite(found).all():
        seen = f"features of shape {found.shape} and type {found.dtype}"
        raise DatasetError(f"{seen}; expected {rows:,} rows of finite numbers, as many as the table has")
    return unit_scale(found)


def _column_of_files(path: Path, cells: dict[str, list[str]], named: str | None) -> str:
    """Find the column of files by its name, or as the only one that holds names of images."""
    held = [head for head, column in cells.items() if all(images.is_image(_path(cell)) for cell in column)]
    if named is not None or len(held) == 1:
        return named or held[0]
    raise DatasetError(
        f"{path} has the columns {', '.join(cells)}, of which {', '.join(held) or 'none'} hold names of image files; "
        "call the one that is meant file"
    )


def _columns_of_labels(path: Path, asked: Sequence[str] | None, rest: list[str], named: str | None) -> Sequence[str]:
    if asked is not None:
        unknown = [head for head in asked if head not in rest]
        if unknown or not asked:
            raise DatasetError(
                f"{path} has no column {', '.join(unknown)} of labels (columns=, --columns); it has {', '.join(rest)}"
            )
        return asked
    if named is not None or len(rest) == 1:
        return [named or rest[0]]
    held = f"the columns {', '.join(rest)}" if rest else "no column"
    raise DatasetError(f"{path} has {held} for labels; say which with columns= (--columns), or call one label")


def _values(path: Path, head: str, column: list[str]) -> Labels:
    """Convert a column to integers, to floats or to text, the first that suits all cells."""
    cells = [cell.strip() for cell in column]
    empty = [i for i, cell in enumerate(cells, 2) if not cell]
    if empty:
        more = f" and {len(empty) - _LISTED} more" if len(empty) > _LISTED else ""
        listed = ", ".join(map(str, empty[:_LISTED]))
        raise DatasetError(f"{path}: column {head} is empty in line {listed}{more}; every image needs one")
    if all(_WHOLE.fullmatch(cell) for cell in cells):
        return np.array(cells).astype(np.int64)
    numbers = _numbers(cells)
    if numbers is None:
        comma = next((cell for cell in cells if "," in cell), None)
        if comma is not None and all(_DECIMAL_COMMA.fullmatch(cell) for cell in cells):
            point = comma.replace(",", ".")
            raise DatasetError(f"{path}: column {head} holds {comma}; write decimals with a point, as in {point}")
        return np.array([csv_cell(cell) for cell in cells])
    if not np.isfinite(numbers).all():
        line = 2 + int((~np.isfinite(numbers)).argmax())
        raise DatasetError(f"{path}: column {head} holds {cells[line - 2]} in line {line}; expected finite numbers")
    return numbers


def _numbers(cells: list[str]) -> NDArray[np.float64] | None:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return None


def _path(cell: str) -> Path:
    """Path of a file whose name was written on any system."""
    return Path(PureWindowsPath(cell).as_posix()) if "\\" in cell and "/" not in cell else Path(cell)


def _file(folder: Path, cell: str) -> Path:
    """Path of a cell's file: as written, as `csv_text` escapes names, or with Windows separators."""
    for name in (Path(cell), Path(csv_cell(cell)), _path(cell)):
        if (folder / name).exists():
            return folder / name
    return folder / cell
