"""What an experiment hands back, and the one form in which it is written: docs/reproduce.md describes it.

A result is a row: one quantity, ours beside the published value. Tables on the page are made of rows alone, so nothing
can be shown that is not in the JSON file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from cnngp.common.files import write_atomically

from .common import duration as duration
from .setting import Done

SCHEMA = 2


class Row(TypedDict):
    """One quantity of one result. `published` or `ours` is None where there is no such number."""

    table: str
    result: str
    quantity: str
    unit: str
    published: float | None
    ours: float | None
    seconds: float | None
    note: str


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
    return Row(
        table=table,
        result=result,
        quantity=quantity,
        unit=unit,
        published=published,
        ours=ours,
        seconds=seconds,
        note=note,
    )


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


class Document(TypedDict):
    """What is written to EXPERIMENT.json."""

    schema: int
    experiment: str
    title: str
    command: str
    quick: bool
    hardware: list[str]
    software: list[str]
    """Versions, as the pieces name them: one entry unless pieces were computed with others."""
    seconds: float
    """Of computing the pieces, whenever that was."""
    pieces: list[dict[str, Any]]
    rows: list[Row]
    details: dict[str, Any]
    figures: list[dict[str, str]]


class ResultsError(ValueError):
    """A results file that is not what this version writes."""


def document(
    experiment: str,
    title: str,
    results: Mapping[str, Any],
    done: Sequence[Done],
    figures: Sequence[Path],
    *,
    command: str,
    quick: bool,
) -> Document:
    """All that is known of a finished experiment."""
    pieces = {piece.name: piece for piece in done}  # one that two experiments use is listed once in each
    captions: Mapping[str, str] = results["captions"]
    return Document(
        schema=SCHEMA,
        experiment=experiment,
        title=title,
        command=command,
        quick=quick,
        hardware=sorted({piece.hardware for piece in pieces.values()}),
        software=sorted({piece.software for piece in pieces.values()}),
        seconds=sum(piece.seconds for piece in pieces.values()),
        pieces=[
            {"name": p.name, "seconds": p.seconds, "hardware": p.hardware, "software": p.software}
            for p in pieces.values()
        ],
        rows=list(results["rows"]),
        details=dict(results["details"]),
        figures=[{"file": path.name, "caption": captions.get(path.stem, "")} for path in figures],
    )


def write(path: Path, doc: Document) -> None:
    check(doc, path)
    write_atomically(path, (json.dumps(doc, indent=1, allow_nan=False) + "\n").encode())


def read(path: Path) -> Document:
    """A file that `write` made, in this version or an earlier one; `ResultsError` for any other."""
    try:
        doc = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} cannot be read: {error}; remove it and run `cnngp reproduce` again") from None
    if isinstance(doc, dict) and doc.get("schema") == 1:
        doc = _from_schema_1(doc, path)
    check(doc, path)
    return doc  # type: ignore[no-any-return]


def _from_schema_1(doc: dict[str, Any], where: object) -> dict[str, Any]:
    """Schema 1 named the versions once for the file, and none for its pieces."""
    kinds = {key: kind for key, kind in _KINDS.items() if key != "software"} | {"version": str, "python": str}
    _fields(doc, kinds, f"{where}")
    software = f"cnngp {doc.pop('version')}, Python {doc.pop('python')}"
    pieces = [p | {"software": "not recorded"} if isinstance(p, dict) else p for p in doc["pieces"]]
    return doc | {"schema": SCHEMA, "software": [software], "pieces": pieces}


_KINDS: dict[str, Any] = {
    "schema": int,
    "experiment": str,
    "title": str,
    "command": str,
    "quick": bool,
    "hardware": list,
    "software": list,
    "seconds": (int, float),
    "pieces": list,
    "rows": list,
    "details": dict,
    "figures": list,
}
_PIECE = {"name": str, "seconds": (int, float), "hardware": str, "software": str}
_FIGURE = {"file": str, "caption": str}
_WORDS = ("table", "result", "quantity", "unit", "note")
_NUMBERS = ("published", "ours", "seconds")


def check(doc: Any, where: object = "document") -> None:
    """`ResultsError` unless `doc` has the documented form."""
    _fields(doc, _KINDS, f"{where}")
    if doc["schema"] != SCHEMA:
        raise ResultsError(f"{where} has schema {doc['schema']}; this version reads {SCHEMA}: make it again")
    for kind, entries in ((_PIECE, doc["pieces"]), (_FIGURE, doc["figures"])):
        for entry in entries:
            _fields(entry, kind, f"{where}: {entry}")
    for entry in doc["figures"]:
        if Path(entry["file"]).name != entry["file"]:  # the page takes them in
            raise ResultsError(f"{where}: the figure {entry['file']!r} is not a file beside it")
    for entry in doc["rows"]:
        _fields(entry, dict.fromkeys(_WORDS, str) | dict.fromkeys(_NUMBERS, (int, float, type(None))), f"{where}: row")
        for key in _NUMBERS:
            if entry[key] is not None and not math.isfinite(entry[key]):
                raise ResultsError(f"{where}: {key} of {entry['result']}, {entry['quantity']} is {entry[key]}")
        if entry["published"] is None and entry["ours"] is None:
            raise ResultsError(f"{where}: {entry['result']}, {entry['quantity']} has no number at all")


def _fields(entry: Any, kinds: Mapping[str, Any], where: str) -> None:
    if not isinstance(entry, dict) or set(entry) != set(kinds):
        held = ", ".join(sorted(entry)) if isinstance(entry, dict) else type(entry).__name__
        raise ResultsError(f"{where} holds {held}; expected {', '.join(sorted(kinds))}")
    for key, kind in kinds.items():
        if not isinstance(entry[key], kind):
            raise ResultsError(f"{where}: {key} is {entry[key]!r}")
