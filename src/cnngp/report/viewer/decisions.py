"""What a person decided about suspect labels, in a CSV file that is written after every decision.

Read again when the viewer is started again, so that a long list can be gone through in several sittings. A decision is
about one image with one label, not about a row: after a fit of other images, or of one more, another image may stand in
its row. So each line has a fingerprint of its image, and is used for that image alone.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import to_numpy
from cnngp.common.errors import DatasetError
from cnngp.common.files import write_atomically

Action = Literal["keep", "relabel", "drop"]
COLUMNS = ("row", "name", "given", "proposed", "decision", "label", "image")
Line = dict[str, str]


def fingerprint(image: NDArray[Any]) -> str:
    """Of an image's pixels, whatever type they are kept in."""
    pixels = np.ascontiguousarray(image, dtype=np.float32) + np.float32(0.0)  # of which −0 becomes 0
    return hashlib.blake2b(pixels.tobytes(), digest_size=8).hexdigest()


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
        row, image = int(line["row"]), line.get("image")
        here = 0 <= row < len(self._X) and str(self._y[row]) == line["given"]
        if not image:  # of a file without fingerprints
            return row if here and self._is_named(row, line["name"]) else None
        if here and self.fingerprint(row) == image:
            return row
        others = self._found(image, line["given"])
        if len(others) > 1 and self._names is not None:
            others = [other for other in others if self._is_named(other, line["name"])]
        return others[0] if len(others) == 1 else None

    def _is_named(self, row: int, name: str) -> bool:
        return self._names is None or str(self._names[row]) == name

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
        self._rows: dict[int, Line] = {}
        if path.exists():
            self._rows = {int(line["row"]): line for line in _read(path)}

    def __len__(self) -> int:
        return len(self._rows)

    def action(self, row: int) -> str | None:
        found = self._rows.get(row)
        return found["decision"] if found else None

    def label(self, row: int) -> str | None:
        found = self._rows.get(row)
        return found["label"] if found else None

    def only_about(self, images: LabelledImages) -> None:
        """Go on with the decisions about these images, each in the row that its image has now.

        If there are others, the file is kept under another name, with a warning, and the new one begins without them.
        """
        placed, others = _placed(self._rows.values(), images)
        found = {row: line | {"row": str(row), "image": images.fingerprint(row)} for row, line in placed.items()}
        if others:
            aside = _set_aside(self.path)
            are = "is" if len(others) == 1 else "are"
            warnings.warn(
                f"{len(others)} of {len(self._rows)} decisions in {self.path} {are} about other images or labels than "
                f"this model was fitted on, and not used; the file with all of them is now {aside}",
                UserWarning,
                stacklevel=3,
            )
        if found and found != self._rows:
            write_atomically(self.path, _text(found))
        self._rows = found

    def decide(
        self, row: int, name: str, given: str, proposed: str, action: str | None, label: str, image: str
    ) -> None:
        """Keep, relabel or drop a training image; None takes the decision back. The file is written at once."""
        if action is None:
            self._rows.pop(row, None)
        else:
            kept = {"keep": given, "relabel": label, "drop": ""}
            if action not in kept:
                raise ValueError(f"decision {action!r}: expected one of {', '.join(get_args(Action))}")
            values = (str(row), name, given, proposed, action, kept[action], image)
            self._rows[row] = dict(zip(COLUMNS, values, strict=True))
        write_atomically(self.path, self.text())

    def text(self) -> str:
        """The file's content, by row."""
        return _text(self._rows)


def apply_decisions(path: str | Path, X: Any, y: Any, names: Any = None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and labels after the decisions in a file that `cnngp view` wrote: some labels changed, some images gone.

    X, y and the `names`, where there are any, are those that the model was fitted on, in any order. A decision about an
    image or a label that is not there is an error, and nothing is changed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from cnngp import apply_decisions
    >>> table = "row,name,given,proposed,decision,label\\n0,,3,5,relabel,5\\n1,,5,3,drop,\\n"
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "digits.labels.csv"
    ...     _ = file.write_text(table)  # as `cnngp view` does
    ...     X, y = apply_decisions(file, np.zeros((3, 1, 8, 8)), np.array([3, 5, 5]))
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


def _text(rows: dict[int, Line]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows[row] for row in sorted(rows))
    return out.getvalue()


def _placed(lines: Iterable[Line], images: LabelledImages) -> tuple[dict[int, Line], list[Line]]:
    """Decisions by the row that their image has, and those without one."""
    placed: dict[int, Line] = {}
    others = []
    for line in lines:
        row = images.row_of(line)
        if row is None or row in placed:
            others.append(line)
        else:
            placed[row] = line
    return placed, others


def _set_aside(path: Path) -> Path:
    """Another name for a file, which no file has yet."""
    for number in itertools.count(1):
        aside = path.with_name(f"{path.name}.old-{number}")
        if not aside.exists():
            break
    return path.rename(aside)


def _read(path: Path) -> list[Line]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) not in (COLUMNS, COLUMNS[:-1]):  # the first files had no fingerprints
                raise ValueError(f"its columns are {', '.join(reader.fieldnames or ['none'])}")
            lines = list({int(line["row"]): line for line in reader}.values())
            if any(line["decision"] not in get_args(Action) for line in lines):
                raise ValueError("it holds other decisions than keep, relabel and drop")
            return lines
    except (ValueError, TypeError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(
            f"{path} exists and is not a file of decisions ({error}); give another place with --labels"
        ) from None
