"""Results of an experiment: rows, each with our value and the published value of one quantity; their file and page.

Tables on the page are made only of rows, so everything shown is also in the JSON file.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NotRequired, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from cnngp.common.figures import PlotsUnavailable
from cnngp.common.files import write_atomically
from cnngp.common.progress import duration
from cnngp.report.page import figure, whole

from .setting import Setting

NAMES = ("table1", "figure2", "figure3")
"""Modules that `cnngp reproduce all` runs."""
SCHEMA = 2
PAGE = "reproduction.html"
INK, BLUE, ORANGE, GREY = "#1f2933", "#2b6cb0", "#dd6b20", "#9aa5b1"
"""Colours of figures."""
Row: TypeAlias = dict[str, Any]
Document: TypeAlias = dict[str, Any]
"""Content of EXPERIMENT.json."""


class ResultsError(ValueError):
    """Error for a results file that this version did not write."""


class Results(TypedDict):
    """Return value of `run(setting)`. `arrays` is only for `draw` and not written; everything else is JSON."""

    rows: list[Row]
    details: dict[str, Any]
    captions: dict[str, str]
    """Captions by file name of the figure, without suffix, in the order in which figures are shown."""
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
    """Make a row; `table` is the heading of its table, `result` its line and `quantity` its column."""
    place = {"table": table, "result": result, "quantity": quantity, "unit": unit}
    return place | {"published": published, "ours": ours, "seconds": seconds, "note": note}


def percent(wrong: NDArray[np.bool_]) -> float:
    """Share of wrong predictions in percent, computed so that round values such as 0.84 are exact."""
    return float(100 * int(np.count_nonzero(wrong)) / len(wrong))


def title(data: str) -> str:
    """Name of a data set in headings."""
    return {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}.get(data, data)


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Table under one heading: a line for each result, a column for each quantity, in order of appearance."""

    name: str
    quantities: tuple[str, ...]
    lines: dict[str, dict[str, Row]]
    """Rows by result, then by quantity."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """Group rows into tables."""
    made = []
    for name in dict.fromkeys(row["table"] for row in rows):
        lines: dict[str, dict[str, Row]] = {}
        for row in (row for row in rows if row["table"] == name):
            lines.setdefault(row["result"], {})[row["quantity"]] = row
        made.append(Table(name, tuple(dict.fromkeys(q for line in lines.values() for q in line)), lines))
    return made


def shown(value: float | None, unit: str) -> str:
    """A number with its unit as text; "" for None."""
    if value is None:
        return ""
    match unit:
        case "%":
            return f"{value:.2f} %"
        case "s":
            return duration(value)
        case "":
            return f"{value:,.4g}"
        case _:
            return f"{value:,.0f}{unit}"


# ---- files and the page ----------------------------------------------------------------------------------------------


def reproduce(module: str, setting: Setting, command: str) -> Document:
    """Run the experiment of a module and write NAME.json (format: docs/reproduce.md), its figures and the page.

    A module without `draw` has no figures. Raises `OutOfTime` if the budget is too small.
    """
    experiment: Any = importlib.import_module(module)
    name = module.rpartition(".")[2]
    first = len(setting.done)
    found: Results = experiment.run(setting)
    try:
        figures: list[Path] = experiment.draw(found, setting.out) if hasattr(experiment, "draw") else []
    except PlotsUnavailable as error:
        setting.say("figures", f"not drawn: {error}")
        figures = []
    pieces = {piece.name: piece for piece in setting.done[first:]}.values()  # one used twice is computed once
    doc = {
        "schema": SCHEMA,
        "experiment": name,
        "title": experiment.TITLE,
        "command": command,
        "quick": setting.quick,
        "hardware": sorted({piece.hardware for piece in pieces}),
        "software": sorted({piece.software for piece in pieces}),
        "seconds": sum(piece.seconds for piece in pieces),
        "pieces": [{key: getattr(p, key) for key in ("name", "seconds", "hardware", "software")} for p in pieces],
        "rows": found["rows"],
        "details": found["details"],
        "figures": [{"file": path.name, "caption": found["captions"].get(path.stem, "")} for path in figures],
    }
    write_atomically(setting.out / f"{name}.json", json.dumps(doc, indent=1, allow_nan=False) + "\n")
    write_page(setting.out)
    return doc


def read(path: Path) -> Document:
    """Read the file of a finished experiment; raises `ResultsError` for any other file."""
    try:
        doc = json.loads(path.read_bytes())
        if not isinstance(doc, dict) or doc.get("schema") != SCHEMA:
            raise ValueError(f"it holds no result of schema {SCHEMA}")
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path} cannot be read: {error}; remove it and run `cnngp reproduce` again") from None
    return doc


_STYLE = """
h3 { font-size: 15px; margin: 22px 0 6px; }
.table { overflow-x: auto; } td, th { text-align: right; border-bottom: 1px solid #e4e7eb; }
td:first-child, th:first-child, td.note { text-align: left; }
td { white-space: nowrap; } td:first-child, td.note { white-space: normal; }
td.note { color: #616e7c; font-size: 13px; min-width: 180px; } .published { color: #616e7c; }
.figures { margin-top: 16px; }
.small { border-left: 4px solid #dd6b20; padding: 6px 12px; background: #fdf3ea; }
"""
_INTRODUCTION = """
<p class="muted">Garriga-Alonso, Rasmussen, Aitchison, <i>Deep Convolutional Networks as shallow Gaussian Processes</i>,
ICLR 2019. Published values stand in brackets; a dash, or no brackets in a
column, means that none was published.</p>
"""
_QUICK = """\
<p class="small">The quick version, with fewer images and networks than the paper: it shows that all works, and its \
numbers are not the paper's.</p>"""


def write_page(folder: Path) -> None:
    """Write the page of all experiments with a file in the folder, those of the paper first."""
    found = {path.stem: path for path in sorted(folder.glob("*.json"))}
    names = sorted(found, key=lambda name: NAMES.index(name) if name in NAMES else len(NAMES))
    write_atomically(folder / PAGE, page([read(found[name]) for name in names], folder))


def page(documents: Sequence[Document], folder: Path) -> str:
    """Return the page of several experiments as HTML; their figures are in `folder`."""
    body = _INTRODUCTION + "\n".join(_experiment(doc, folder) for doc in documents)
    return whole("Deep convolutional networks as shallow Gaussian processes, reproduced", _STYLE, body)


def _experiment(doc: Document, folder: Path) -> str:
    # PNG files, from this folder only, go into the page; the SVG files stay beside it.
    figures = [(folder / Path(figure["file"]).name, figure["caption"]) for figure in doc["figures"]]
    drawn = [figure(path.read_bytes(), caption) for path, caption in figures if path.suffix == ".png"]
    where = "; ".join(doc["hardware"]) or "no hardware"
    software = f", {'; '.join(doc['software'])}" if doc["software"] else ""
    return "\n".join(
        [
            f'<h2 id="{escape(doc["experiment"])}">{escape(doc["title"])}</h2>',
            *([_QUICK] if doc["quick"] else []),
            *map(_table, tables(doc["rows"])),
            f'<div class="figures">{"".join(drawn)}</div>',
            f'<p class="muted">{duration(doc["seconds"])} on {escape(where + software)}.</p>',
            f"<pre>{escape(doc['command'])}</pre>",
        ]
    )


def _table(table: Table) -> str:
    lines = [list(line.values()) for line in table.lines.values()]
    compared = {row["quantity"] for line in lines for row in line if row["published"] is not None}
    times = any(row["seconds"] is not None for line in lines for row in line)
    notes = any(row["note"] for line in lines for row in line)
    head = ["", *table.quantities, *(["time"] if times else []), *([""] if notes else [])]
    html = ["".join(f"<th>{escape(h)}</th>" for h in head)]
    for result, line in table.lines.items():
        cells = [escape(result), *(_cell(line.get(q), q in compared) for q in table.quantities)]
        if times:
            seconds = next((row["seconds"] for row in line.values() if row["seconds"] is not None), None)
            cells.append("" if seconds is None else duration(seconds))
        note = next((row["note"] for row in line.values() if row["note"]), "")
        last = f'<td class="note">{escape(note)}</td>' if notes else ""
        html.append("".join(f"<td>{cell}</td>" for cell in cells) + last)
    body = "\n".join(f"<tr>{line}</tr>" for line in html)
    return f'<h3>{escape(table.name)}</h3>\n<div class="table"><table>\n{body}\n</table></div>'


def _cell(row: Row | None, compared: bool) -> str:
    if row is None:
        return ""
    ours, published = (escape(shown(row[key], row["unit"])) for key in ("ours", "published"))
    parts = [f"<b>{ours}</b>"] if ours else []
    return " ".join([*parts, f'<span class="published">[{published or "–"}]</span>'] if compared else parts)
