"""One self-contained HTML page: every result beside the published value, with hardware, time and the command."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from cnngp.report import web_page

from . import results
from .results import Document, Row, Table

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


def render(documents: Sequence[Document], folder: Path) -> str:
    """The page of some experiments, whose figures lie in `folder`."""
    body = _INTRODUCTION + "\n".join(_experiment(doc, folder) for doc in documents)
    return web_page.whole("Deep convolutional networks as shallow Gaussian processes, reproduced", _STYLE, body)


def _experiment(doc: Document, folder: Path) -> str:
    parts = [f'<h2 id="{escape(doc["experiment"])}">{escape(doc["title"])}</h2>']
    if doc["quick"]:
        parts.append(
            '<p class="small">The quick version, with fewer images and networks than the paper: it shows that all '
            "works, and its numbers are not the paper's.</p>"
        )
    parts += map(_table, results.tables(doc["rows"]))
    parts.append(f'<div class="figures">{"".join(_figures(doc, folder))}</div>')
    hardware, software = "; ".join(doc["hardware"]), "; ".join(doc["software"])
    parts.append(
        f'<p class="muted">{results.duration(doc["seconds"])} on {escape(hardware or "no hardware")}'
        f"{escape(f', {software}' if software else '')}.</p>\n<pre>{escape(doc['command'])}</pre>"
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
            cells.append(f"<td>{'' if seconds is None else results.duration(seconds)}</td>")
        if notes:
            cells.append(
                f'<td class="note">{escape(next((row["note"] for row in line.values() if row["note"]), ""))}</td>'
            )
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


def _figures(doc: Document, folder: Path) -> list[str]:
    """PNG files inside the page; the SVG files lie beside it."""
    paths = [(folder / figure["file"], figure["caption"]) for figure in doc["figures"]]
    return [
        web_page.figure(path.read_bytes(), caption)
        for path, caption in paths
        if path.suffix == ".png" and path.is_file()
    ]
