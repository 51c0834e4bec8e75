"""What a person decided about suspect labels, in a CSV file that is written after every decision.

Read again when the viewer is started again, so that a long list can be gone through in several sittings.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Literal, get_args

from cnngp.common.errors import DatasetError
from cnngp.common.files import write_atomically

Action = Literal["keep", "relabel", "drop"]
COLUMNS = ("row", "name", "given", "proposed", "decision", "label")


class Decisions:
    """Decisions by row of the training images; `path` is their file, which may be there already."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[int, dict[str, str]] = {}
        if path.exists():
            self._rows = _read(path)

    def __len__(self) -> int:
        return len(self._rows)

    def action(self, row: int) -> str | None:
        found = self._rows.get(row)
        return found["decision"] if found else None

    def label(self, row: int) -> str | None:
        found = self._rows.get(row)
        return found["label"] if found else None

    def decide(self, row: int, name: str, given: str, proposed: str, action: str | None, label: str) -> None:
        """Keep, relabel or drop a training image; None takes the decision back. The file is written at once."""
        if action is None:
            self._rows.pop(row, None)
        else:
            kept = {"keep": given, "relabel": label, "drop": ""}
            if action not in kept:
                raise ValueError(f"decision {action!r}: expected one of {', '.join(get_args(Action))}")
            values = (str(row), name, given, proposed, action, kept[action])
            self._rows[row] = dict(zip(COLUMNS, values, strict=True))
        write_atomically(self.path, self.text())

    def text(self) -> str:
        """The file's content, by row."""
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows[row] for row in sorted(self._rows))
        return out.getvalue()


def _read(path: Path) -> dict[int, dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                raise ValueError(f"its columns are {', '.join(reader.fieldnames or ['none'])}")
            rows = {int(line["row"]): line for line in reader}
            if any(line["decision"] not in get_args(Action) for line in rows.values()):
                raise ValueError("it holds other decisions than keep, relabel and drop")
            return rows
    except (ValueError, TypeError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(
            f"{path} exists and is not a file of decisions ({error}); give another place with --labels"
        ) from None
