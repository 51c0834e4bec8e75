"""Decisions about suspect labels, in a CSV file that is written after each of them.

A long list can be gone through in several sittings, by several people and in a spreadsheet: the file is read again,
under a lock, before each change, and only the line that was decided is changed. A decision is about one image with one
label, not about a row: after a fit of other images, or of one more, another image may stand in its row. So each line
has a fingerprint of its image, and is used for that image alone.
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cnngp.common import locks
from cnngp.common.arrays import to_numpy
from cnngp.common.errors import DatasetError
from cnngp.common.files import write_atomically
from cnngp.common.tables import csv_cell, csv_text, read_csv

Action = Literal["keep", "relabel", "drop"]
COLUMNS = ("row", "name", "given", "proposed", "decision", "label", "image")
Line = dict[str, str]


def fingerprint(image: NDArray[Any]) -> str:
    """Of an image's pixels, whatever type they are kept in; with a letter first, so that it is no number anywhere."""
    pixels = np.ascontiguousarray(image, dtype=np.float32) + np.float32(0.0)  # of which −0 becomes 0
    return f"x{hashlib.blake2b(pixels.tobytes(), digest_size=8).hexdigest()}"


class LabelledImages:
    """Images with their labels, and names where there are any, in which decisions find their rows."""

    def __init__(self, X: Any, y: Sequence[Any] | NDArray[Any], names: Sequence[str] | NDArray[Any] | None) -> None:
        self._X, self._y, self._names = X, y, names
        self._rows: dict[tuple[str, str], list[int]] | None = None

    def fingerprint(self, row: int) -> str:
        return fingerprint(self._X[row])

    def row_of(self, line: Line) -> int | None:
        """Where the image of a decision is, with the label that it was decided about; None where it is not, or where
        several images could be meant."""
        row, image, given = int(line["row"]), line["image"], line["given"]
        if 0 <= row < len(self._X) and str(self._y[row]) == given and self.fingerprint(row) == image:
            return row
        others = self._found(image, given)
        if len(others) > 1 and self._names is not None:
            others = [other for other in others if str(self._names[other]) == line["name"]]
        return others[0] if len(others) == 1 else None

    def _found(self, image: str, given: str) -> list[int]:
        if self._rows is None:
            self._rows = {}
            for row in range(len(self._X)):
                self._rows.setdefault((self.fingerprint(row), str(self._y[row])), []).append(row)
        return self._rows.get((image, given), [])


class Decisions:
    """Decisions by row of the training images; `path` is their file, which may be there already."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._images: LabelledImages | None = None
        self._rows: dict[int, Line] = {}
        self._others: list[Line] = []
        """Lines about other images, which stay in the file."""
        self.refresh()

    def __len__(self) -> int:
        return len(self._rows)

    def action(self, row: int) -> str | None:
        found = self._rows.get(row)
        return found["decision"] if found else None

    def label(self, row: int) -> str | None:
        found = self._rows.get(row)
        return found["label"] if found else None

    def refresh(self) -> None:
        """Read the file, which other viewers and people may have changed: it is what counts."""
        lines = _read(self.path) if self.path.exists() else []
        if self._images is None:
            self._rows = {int(line["row"]): line for line in lines}
        else:
            self._rows, self._others = _placed(lines, self._images)

    def only_about(self, images: LabelledImages) -> None:
        """Go on with the decisions about these images, each in the row that its image has now.

        If there are others, the file is kept under another name, with a warning, and the new one begins without them.
        """
        before, self._images = self._rows, images
        if not before:
            return
        with self._locked():
            self.refresh()
            if self._others:
                aside = _set_aside(self.path)
                are = "is" if len(self._others) == 1 else "are"
                warnings.warn(
                    f"{len(self._others)} of {len(before)} decisions in {self.path} {are} about other images or labels "
                    f"than this model was fitted on, and not used; the file with all of them is now {aside}",
                    UserWarning,
                    stacklevel=3,
                )
                self._others = []
            if self._rows and self._rows != before:
                write_atomically(self.path, self.text())

    def decide(
        self, row: int, name: str, given: str, proposed: str, action: str | None, label: str, image: str
    ) -> None:
        """Keep, relabel or drop a training image; None takes the decision back. It counts once it is in the file."""
        kept = {"keep": given, "relabel": label, "drop": ""}
        if action is not None and action not in kept:
            raise ValueError(f"decision {action!r}: expected one of {', '.join(get_args(Action))}")
        with self._locked():
            self.refresh()
            rows = {other: line for other, line in self._rows.items() if other != row}
            if action is not None:
                values = (str(row), name, given, proposed, action, kept[action], image)
                rows[row] = dict(zip(COLUMNS, values, strict=True))
            write_atomically(self.path, _text([*rows.values(), *self._others]))
            self._rows = rows

    def text(self) -> str:
        """The file's content, by row."""
        return _text([*self._rows.values(), *self._others])

    def _locked(self) -> AbstractContextManager[bool]:
        """One viewer at a time between reading the file and writing it."""
        return locks.exclusive(self.path.with_name(f".{self.path.name}.lock"), str(self.path))


def apply_decisions(path: str | Path, X: Any, y: Any, names: Any = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels after the decisions in a file that `cnngp view` wrote: some labels changed, some images gone.

    X, y and the `names`, where there are any, are those that the model was fitted on, in any order. A decision about an
    image or a label that is not there is an error, and nothing is changed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from cnngp.report import apply_decisions
    >>> from cnngp.report.viewer.decisions import Decisions, fingerprint
    >>> X, y = np.zeros((3, 1, 8, 8)), np.array([3, 5, 6])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     decisions = Decisions(Path(folder) / "digits.labels.csv")  # as `cnngp view` does
    ...     decisions.decide(0, "", "3", "5", "relabel", "5", fingerprint(X[0]))
    ...     decisions.decide(2, "", "6", "5", "drop", "", fingerprint(X[2]))
    ...     X, y = apply_decisions(decisions.path, X, y)
    >>> X.shape, y
    ((2, 1, 8, 8), array([5, 5]))
    """
    path, X, y = Path(path), to_numpy(X), to_numpy(y, "y")
    if len(X) != len(y) or (names is not None and len(names) != len(y)):
        raise DatasetError(f"{len(X)} images, {len(y)} labels{'' if names is None else f' and {len(names)} names'}")
    if not path.is_file():
        raise DatasetError(f"{path}: no such file of decisions; `cnngp view` writes it beside the model")
    placed, others = _placed(_read(path), LabelledImages(X, y, names))
    if others:
        raise DatasetError(
            f"{path}: the decision about row {others[0]['row']}, labelled {others[0]['given']}, is about another image "
            "or label than those that were given; apply decisions to the images and labels that the model was fitted on"
        )
    y = y.copy()
    keep = np.ones(len(y), dtype=bool)
    labels = {str(label): label for label in y}
    for row, line in placed.items():
        if line["decision"] == "drop":
            keep[row] = False
        elif line["label"] in labels:
            y[row] = labels[line["label"]]
        else:
            raise DatasetError(f"{path}: row {line['row']} is to have the label {line['label']!r}, which no image has")
    return X[keep], y[keep]


def _text(lines: Iterable[Line]) -> str:
    in_order = sorted(lines, key=lambda line: int(line["row"]))
    return csv_text(COLUMNS, [[line[column] for column in COLUMNS] for line in in_order])


def _placed(lines: Iterable[Line], images: LabelledImages) -> tuple[dict[int, Line], list[Line]]:
    """Decisions by the row that their image has, and those without one."""
    placed: dict[int, Line] = {}
    others = []
    for line in lines:
        row = images.row_of(line)
        if row is None or row in placed:
            others.append(line)
        else:
            placed[row] = line | {"row": str(row)}
    return placed, others


def _set_aside(path: Path) -> Path:
    """Another name for a file, which no file has yet."""
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}.old-{number}")
        if not aside.exists():
            break
    return path.rename(aside)


def _read(path: Path) -> list[Line]:
    """The lines of a file; of two about one image in one row, the last."""
    try:
        heads, rows = read_csv(path)
        if tuple(heads) != COLUMNS:
            raise ValueError(f"its columns are {', '.join(heads)}")
        lines = [dict(zip(COLUMNS, map(csv_cell, row), strict=True)) for row in rows]
        lines = [line | {"decision": line["decision"].strip().lower()} for line in lines]
        if any(line["decision"] not in get_args(Action) for line in lines):
            raise ValueError("it holds other decisions than keep, relabel and drop")
        return list({(int(line["row"]), line["image"]): line for line in lines}.values())
    except ValueError as error:
        raise DatasetError(
            f"{path} exists and is not a file of decisions ({error}); give another place with --labels"
        ) from None
