"""What an experiment hands back: rows, each of one quantity, ours beside the published value; and tables made of them.

Tables on the page are made of rows alone, so nothing can be shown that is not in the JSON file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypeAlias, TypedDict

from cnngp.common.progress import duration

SCHEMA = 2
Row: TypeAlias = dict[str, Any]
Document: TypeAlias = dict[str, Any]
"""What EXPERIMENT.json holds."""


class ResultsError(ValueError):
    """A results file that is not what this version writes."""


class Results(TypedDict):
    """What `run(setting)` returns. `arrays` is for `draw` alone and is not written; all else is JSON."""

    rows: list[Row]
    details: dict[str, Any]
    captions: dict[str, str]
    """Of the figures, by the name of their file without suffix, in the order in which they are shown."""
    arrays: NotRequired[dict[str, Any]]


def row(
    table: str,
    result: str,
    quantity: str,
    *,
    unit: str = "",
    published: float | None = None,
    ours: float | None = None,
    seconds: float | None = None,
    note: str = "",
) -> Row:
    """A row; `table` is the heading under which it stands, `result` its line and `quantity` its column."""
    place = {"table": table, "result": result, "quantity": quantity, "unit": unit}
    return place | {"published": published, "ours": ours, "seconds": seconds, "note": note}


@dataclass(frozen=True)
class Table:
    """The rows of one heading: a line for each result, a column for each quantity, in the order in which they came."""

    name: str
    quantities: tuple[str, ...]
    lines: dict[str, dict[str, Row]]
    """By result, then by quantity."""

    def compared(self, quantity: str) -> bool:
        """Whether there is a published value in a column."""
        return any(line[quantity]["published"] is not None for line in self.lines.values() if quantity in line)


def tables(rows: Sequence[Row]) -> list[Table]:
    """Rows as tables."""
    made = []
    for name in dict.fromkeys(row["table"] for row in rows):
        of_it = [row for row in rows if row["table"] == name]
        lines: dict[str, dict[str, Row]] = {}
        for row in of_it:
            lines.setdefault(row["result"], {})[row["quantity"]] = row
        made.append(Table(name, tuple(dict.fromkeys(row["quantity"] for row in of_it)), lines))
    return made


def shown(value: float, unit: str) -> str:
    """A number for people, with its unit."""
    match unit:
        case "%":
            return f"{value:.2f} %"
        case "s":
            return duration(value)
        case "":
            return f"{value:,.4g}"
        case _:
            return f"{value:,.0f}{unit}"


def read(path: Path) -> Document:
    """The file of a finished experiment; `ResultsError` for any other."""
    try:
        doc = json.loads(path.read_bytes())
        if not isinstance(doc, dict) or doc.get("schema") != SCHEMA:
            raise ValueError(f"it holds no result of schema {SCHEMA}")
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} cannot be read: {error}; remove it and run `cnngp reproduce` again") from None
    return doc
