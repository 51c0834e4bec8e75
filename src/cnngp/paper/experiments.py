"""Run an experiment, write its numbers and figures, and one self-contained HTML page of all that are done."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from cnngp.common.files import write_atomically
from cnngp.common.progress import duration
from cnngp.report import web_page
from cnngp.report.plots import PlotsUnavailable

from . import results
from .results import Document, Row, Table
from .setting import Setting

NAMES = ("table1", "figure2", "figure3")
"""The modules that `cnngp reproduce all` runs."""
PAGE = "reproduction.html"

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


def reproduce(module: str, setting: Setting, command: str) -> Document:
    """Run the experiment of a module and write NAME.json (docs/reproduce.md has its form), its figures and the page.

    Raises `OutOfTime` where the budget ends before.
    """
    experiment: Any = importlib.import_module(module)
    name = module.rpartition(".")[2]
    first = len(setting.done)
    found: results.Results = experiment.run(setting)
    try:
        figures: list[Path] = experiment.draw(found, setting.out)
    except PlotsUnavailable as error:
        setting.say("figures", f"not drawn: {error}")
        figures = []
    pieces = {piece.name: piece for piece in setting.done[first:]}.values()  # one used twice is computed once
    doc = {
        "schema": results.SCHEMA,
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


def write_page(folder: Path) -> None:
    """Write the page of all experiments that have a file in the folder, the paper's own first."""
    found = {path.stem: path for path in sorted(folder.glob("*.json"))}
    names = [*(name for name in NAMES if name in found), *(name for name in found if name not in NAMES)]
    write_atomically(folder / PAGE, page([results.read(found[name]) for name in names], folder))


def page(documents: Sequence[Document], folder: Path) -> str:
    """The page of some experiments, whose figures lie in `folder`."""
    body = _INTRODUCTION + "\n".join(_experiment(doc, folder) for doc in documents)
    return web_page.whole("Deep convolutional networks as shallow Gaussian processes, reproduced", _STYLE, body)


def _experiment(doc: Document, folder: Path) -> str:
    parts = [f'<h2 id="{escape(doc["experiment"])}">{escape(doc["title"])}</h2>']
    parts += [_QUICK] if doc["quick"] else []
    parts += map(_table, results.tables(doc["rows"]))
    # PNG files inside the page, of this folder and no other; the SVG files lie beside it.
    figures = [(folder / Path(figure["file"]).name, figure["caption"]) for figure in doc["figures"]]
    drawn = [web_page.figure(path.read_bytes(), caption) for path, caption in figures if path.suffix == ".png"]
    parts.append(f'<div class="figures">{"".join(drawn)}</div>')
    where = "; ".join(doc["hardware"]) or "no hardware"
    software = f", {'; '.join(doc['software'])}" if doc["software"] else ""
    parts.append(
        f'<p class="muted">{duration(doc["seconds"])} on {escape(where + software)}.</p>\n'
        f"<pre>{escape(doc['command'])}</pre>"
    )
    return "\n".join(parts)


def _table(table: Table) -> str:
    rows = [row for line in table.lines.values() for row in line.values()]
    notes = any(row["note"] for row in rows)
    times = any(row["seconds"] is not None for row in rows)
    head = ["", *table.quantities, *(["time"] if times else []), *([""] if notes else [])]
    lines = ["<tr>" + "".join(f"<th>{escape(h)}</th>" for h in head) + "</tr>"]
    for result, line in table.lines.items():
        cells = [f"<td>{escape(result)}</td>"]
        cells += [f"<td>{_cell(line.get(q), table.compared(q))}</td>" for q in table.quantities]
        if times:
            seconds = next((row["seconds"] for row in line.values() if row["seconds"] is not None), None)
            cells.append(f"<td>{'' if seconds is None else duration(seconds)}</td>")
        if notes:
            note = next((row["note"] for row in line.values() if row["note"]), "")
            cells.append(f'<td class="note">{escape(note)}</td>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<h3>{escape(table.name)}</h3>\n<div class="table"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _cell(row: Row | None, compared: bool) -> str:
    if row is None:
        return ""
    parts = [] if row["ours"] is None else [f"<b>{escape(results.shown(row['ours'], row['unit']))}</b>"]
    if compared:
        published = "–" if row["published"] is None else escape(results.shown(row["published"], row["unit"]))
        parts.append(f'<span class="published">[{published}]</span>')
    return " ".join(parts)
