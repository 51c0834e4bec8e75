"""What an experiment hands back, and the one form in which it is written: docs/reproduce.md describes it.

A result is a row: one quantity, ours beside the published value. Tables on the page are made of rows alone, so nothing
can be shown that is not in the JSON file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, TypedDict, get_args, get_origin, get_type_hints

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
    return {
        "table": table,
        "result": result,
        "quantity": quantity,
        "unit": unit,
        "published": published,
        "ours": ours,
        "seconds": seconds,
        "note": note,
    }


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


class Piece(TypedDict):
    """How and where a piece was computed."""

    name: str
    seconds: float
    hardware: str
    software: str


class Figure(TypedDict):
    """A file beside the document."""

    file: str
    caption: str


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
    pieces: list[Piece]
    rows: list[Row]
    details: dict[str, Any]
    figures: list[Figure]


class ResultsError(ValueError):
    """A results file that is not what this version writes."""


def document(
    experiment: str,
    title: str,
    results: Results,
    done: Sequence[Done],
    figures: Sequence[Path],
    *,
    command: str,
    quick: bool,
) -> Document:
    """All that is known of a finished experiment."""
    pieces = {piece.name: piece for piece in done}.values()  # one that two experiments use is listed once in each
    return Document(
        schema=SCHEMA,
        experiment=experiment,
        title=title,
        command=command,
        quick=quick,
        hardware=sorted({piece.hardware for piece in pieces}),
        software=sorted({piece.software for piece in pieces}),
        seconds=sum(piece.seconds for piece in pieces),
        pieces=[Piece(name=p.name, seconds=p.seconds, hardware=p.hardware, software=p.software) for p in pieces],
        rows=list(results["rows"]),
        details=dict(results["details"]),
        figures=[Figure(file=path.name, caption=results["captions"].get(path.stem, "")) for path in figures],
    )


def write(path: Path, doc: Document) -> None:
    check(doc, path)
    write_atomically(path, (json.dumps(doc, indent=1, allow_nan=False) + "\n").encode())


def read(path: Path) -> Document:
    """A file that `write` made; `ResultsError` for any other."""
    try:
        doc = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} cannot be read: {error}; remove it and run `cnngp reproduce` again") from None
    check(doc, path)
    return doc  # type: ignore[no-any-return]


def check(doc: Any, where: object = "document") -> None:
    """`ResultsError` unless `doc` has the documented form."""
    _check_form(doc, Document, f"{where}")
    if doc["schema"] != SCHEMA:
        raise ResultsError(f"{where} has schema {doc['schema']}; this version reads {SCHEMA}: make it again")
    for key, form in (("pieces", Piece), ("rows", Row), ("figures", Figure)):
        for entry in doc[key]:
            _check_form(entry, form, f"{where}: {entry}")
    for entry in doc["figures"]:
        if Path(entry["file"]).name != entry["file"]:  # the page takes them in
            raise ResultsError(f"{where}: the figure {entry['file']!r} is not a file beside it")
    for entry in doc["rows"]:
        if entry["published"] is None and entry["ours"] is None:
            raise ResultsError(f"{where}: {entry['result']}, {entry['quantity']} has no number at all")


def _check_form(entry: Any, form: Any, where: str) -> None:
    """The keys of a TypedDict, with values of their types; numbers are finite."""
    hints = get_type_hints(form)
    if not isinstance(entry, dict) or set(entry) != set(hints):
        held = ", ".join(sorted(entry)) if isinstance(entry, dict) else type(entry).__name__
        raise ResultsError(f"{where} holds {held}; expected {', '.join(sorted(hints))}")
    for key, hint in hints.items():
        kinds = [get_origin(kind) or kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,))]
        value = entry[key]
        if not isinstance(value, (*kinds, int) if float in kinds else tuple(kinds)):
            raise ResultsError(f"{where}: {key} is {value!r}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ResultsError(f"{where}: {key} is {value}")
