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
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common import files
from cnngp.common.arrays import to_numpy
from cnngp.common.errors import DatasetError
from cnngp.common.files import write_atomically
from cnngp.common.tables import csv_cell, csv_text, read_csv

ACTIONS = ("keep", "relabel", "drop")
COLUMNS = ("row", "name", "given", "proposed", "decision", "label", "image")
Line = dict[str, str]


def fingerprint(image: NDArray[Any]) -> str:
    """Of an image's pixels, whatever type they are kept in; with a letter first, so that it is no number anywhere."""
    pixels = np.ascontiguousarray(image, dtype=np.float32) + np.float32(0.0)  # of which −0 becomes 0
    return f"x{hashlib.blake2b(pixels.tobytes(), digest_size=8).hexdigest()}"


class Decisions:
    """Decisions about images X with labels y, by row; `path` is their file, which may be there already."""

    def __init__(self, path: Path, X: Any, y: Sequence[Any] | NDArray[Any], names: Any = None) -> None:
        self.path = path
        self._images = [fingerprint(image) for image in X]
        self._given = [str(label) for label in y]
        self._names = [""] * len(self._given) if names is None else [str(name) for name in names]
        self._rows: dict[tuple[str, str], list[int]] = defaultdict(list)
        for row, (image, given) in enumerate(zip(self._images, self._given, strict=True)):
            self._rows[image, given.removesuffix(".0")].append(row)
        self.lines: dict[int, Line] = {}
        self.others: list[Line] = []
        """Lines about other images, which stay in the file."""
        self.refresh()

    def __len__(self) -> int:
        return len(self.lines)

    def refresh(self) -> None:
        """Read the file, which other viewers and people may have changed: it is what counts."""
        lines, others = {}, []
        for line in _read(self.path) if self.path.exists() else []:
            row = self._row_of(line)
            if row is None or row in lines:
                others.append(line)
            else:
                lines[row] = line | {"row": str(row)}
        self.lines, self.others = lines, others

    def _row_of(self, line: Line) -> int | None:
        """Where the image of a decision is, with the label that it was decided about; None where it is not, or where
        several images could be meant."""
        rows = self._rows.get((line["image"], line["given"].removesuffix(".0")), [])
        if int(line["row"]) in rows:
            return int(line["row"])
        if len(rows) > 1:
            rows = [row for row in rows if self._names[row] == line["name"] != ""]
        return rows[0] if len(rows) == 1 else None

    def set_others_aside(self) -> None:
        """If there are decisions about other images, keep the file under another name, with a warning, and begin a new
        one without them."""
        with files.exclusive(self._lock, str(self.path)):
            self.refresh()
            if not self.others:
                return
            free = (self.path.with_name(f"{self.path.name}.old-{number}") for number in itertools.count(1))
            aside = self.path.rename(next(name for name in free if not name.exists()))
            n = len(self.others)
            warnings.warn(
                f"{n} of {n + len(self.lines)} decisions in {self.path} {'is' if n == 1 else 'are'} about other images "
                f"or labels than this model was fitted on, and not used; the file with all of them is now {aside}",
                UserWarning,
                stacklevel=3,
            )
            if self.lines:
                write_atomically(self.path, _text(self.lines.values()))
            self.others = []

    def decide(self, row: int, action: str | None, *, proposed: str = "", label: str = "") -> None:
        """Keep, relabel or drop a training image; None takes the decision back. It counts once it is in the file."""
        given = self._given[row]
        kept = {"keep": given, "relabel": label, "drop": ""}
        if action is not None and action not in kept:
            raise ValueError(f"decision {action!r}: expected one of {', '.join(ACTIONS)}")
        with files.exclusive(self._lock, str(self.path)):
            self.refresh()
            lines = {other: line for other, line in self.lines.items() if other != row}
            if action is not None:
                values = (str(row), self._names[row], given, proposed, action, kept[action], self._images[row])
                lines[row] = dict(zip(COLUMNS, values, strict=True))
            write_atomically(self.path, _text([*lines.values(), *self.others]))
            self.lines = lines

    def text(self) -> str:
        """The file's content, by row."""
        self.refresh()
        return _text([*self.lines.values(), *self.others])

    @property
    def _lock(self) -> Path:
        """For one viewer at a time between reading the file and writing it."""
        return self.path.with_name(f".{self.path.name}.lock")


def apply_decisions(path: str | Path, X: Any, y: Any, names: Any = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels after the decisions in a file that `cnngp view` wrote: some labels changed, some images gone.

    X, y and the `names`, where there are any, are those that the model was fitted on, in any order. A decision about an
    image or a label that is not there is an error, and nothing is changed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from cnngp.report import apply_decisions
    >>> from cnngp.report.viewer.decisions import Decisions
    >>> X, y = np.arange(3.0)[:, None, None, None] * np.ones((3, 1, 8, 8)), np.array([3, 5, 6])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     decisions = Decisions(Path(folder) / "digits.labels.csv", X, y)  # as `cnngp view` does
    ...     decisions.decide(0, "relabel", label="5")
    ...     decisions.decide(2, "drop")
    ...     X, y = apply_decisions(decisions.path, X, y)
    >>> X.shape, y
    ((2, 1, 8, 8), array([5, 5]))
    """
    path, X, y = Path(path), to_numpy(X), to_numpy(y, "y")
    if len(X) != len(y) or (names is not None and len(names) != len(y)):
        raise DatasetError(f"{len(X)} images, {len(y)} labels{'' if names is None else f' and {len(names)} names'}")
    if not path.is_file():
        raise DatasetError(f"{path}: no such file of decisions; `cnngp view` writes it beside the model")
    decisions = Decisions(path, X, y, names)
    if decisions.others:
        other = decisions.others[0]
        raise DatasetError(
            f"{path}: the decision about row {other['row']}, labelled {other['given']}, is about another image or "
            "label than those that were given; apply decisions to the images and labels that the model was fitted on"
        )
    labels, y = {str(label): label for label in y}, y.copy()
    for row, line in decisions.lines.items():
        if line["decision"] == "drop":
            continue
        try:
            y[row] = float(line["label"]) if y.dtype.kind == "f" else labels[line["label"]]
        except (KeyError, ValueError):
            said = f"row {line['row']} is to have the label {line['label']!r}, which no image has"
            raise DatasetError(f"{path}: {said}") from None
    keep = np.ones(len(y), dtype=bool)
    keep[[row for row, line in decisions.lines.items() if line["decision"] == "drop"]] = False
    return X[keep], y[keep]


def _text(lines: Iterable[Line]) -> str:
    in_order = sorted(lines, key=lambda line: int(line["row"]))
    return csv_text(COLUMNS, [[line[column] for column in COLUMNS] for line in in_order])


def _read(path: Path) -> list[Line]:
    """The lines of a file; of two about one image in one row, the last."""
    try:
        heads, rows = read_csv(path)
        if tuple(heads) != COLUMNS:
            raise ValueError(f"its columns are {', '.join(heads)}")
        lines = [dict(zip(COLUMNS, map(csv_cell, row), strict=True)) for row in rows]
        lines = [line | {"decision": line["decision"].strip().lower()} for line in lines]
        if any(line["decision"] not in ACTIONS for line in lines):
            raise ValueError("it holds other decisions than keep, relabel and drop")
        return list({(int(line["row"]), line["image"]): line for line in lines}.values())
    except ValueError as error:
        raise DatasetError(
            f"{path} exists and is not a file of decisions ({error}); give another place with --labels"
        ) from None
