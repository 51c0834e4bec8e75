"""One self-contained HTML page: every result beside the published value, with hardware, time and the command."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from . import results
from .results import Document, Row, Table

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff; max-width: 1040px; margin: 0 auto;
       padding: 28px 22px 60px; }
h1 { font-size: 25px; margin: 0 0 2px; } h2 { font-size: 19px; margin: 42px 0 8px; border-top: 1px solid #e4e7eb;
     padding-top: 18px; } h3 { font-size: 15px; margin: 22px 0 6px; }
p { margin: 6px 0; } .muted { color: #616e7c; } pre { font: 12.5px/1.45 ui-monospace, monospace;
     background: #f5f7fa; padding: 12px 14px; overflow-x: auto; border-radius: 6px; margin: 8px 0; }
.table { overflow-x: auto; } table { border-collapse: collapse; } td, th { text-align: right; padding: 4px 14px 4px 0;
     vertical-align: top; border-bottom: 1px solid #e4e7eb; }
th { font-weight: 600; } td:first-child, th:first-child, td.note { text-align: left; }
td { white-space: nowrap; } td:first-child, td.note { white-space: normal; }
td.note { color: #616e7c; font-size: 13px; min-width: 180px; } .published { color: #616e7c; }
.figures { display: flex; flex-wrap: wrap; gap: 26px; align-items: flex-start; margin-top: 16px; }
figure { margin: 0; flex: 1 1 420px; } figure img { max-width: 100%; } figcaption { color: #616e7c; font-size: 13px; }
.small { border-left: 4px solid #dd6b20; padding: 6px 12px; background: #fdf3ea; }
</style>
</head>
<body>
<h1>$title</h1>
<p class="muted">Garriga-Alonso, Rasmussen, Aitchison, <i>Deep Convolutional Networks as shallow Gaussian Processes</i>,
ICLR 2019. Published values stand in brackets; a dash, or no brackets in a
column, means that none was published.</p>
$experiments
</body>
</html>
""")


def render(documents: Sequence[Document], folder: Path) -> str:
    """The page of some experiments, whose figures lie in `folder`."""
    return _PAGE.substitute(
        title="Deep convolutional networks as shallow Gaussian processes, reproduced",
        experiments="\n".join(_experiment(doc, folder) for doc in documents),
    )


def _experiment(doc: Document, folder: Path) -> str:
    parts = [f'<h2 id="{escape(doc["experiment"])}">{escape(doc["title"])}</h2>']
    if doc["quick"]:
        parts.append(
            '<p class="small">The quick version, with fewer images and networks than the paper: it shows that all '
            "works, and its numbers are not the paper's.</p>"
        )
    parts += map(_table, results.tables(doc["rows"]))
    parts.append(f'<div class="figures">{"".join(_figures(doc, folder))}</div>')
    hardware = "; ".join(doc["hardware"]) or "no hardware"
    parts.append(
        f'<p class="muted">{results.duration(doc["seconds"])} on {escape(hardware)}, cnngp {escape(doc["version"])}, '
        f"Python {escape(doc['python'])}.</p>\n<pre>{escape(doc['command'])}</pre>"
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
    parts = [] if row["ours"] is None else [f"<b>{results.shown(row['ours'], row['unit'])}</b>"]
    if compared:
        published = "–" if row["published"] is None else results.shown(row["published"], row["unit"])
        parts.append(f'<span class="published">[{published}]</span>')
    return " ".join(parts)


def _figures(doc: Document, folder: Path) -> list[str]:
    """PNG files inside the page; the SVG files lie beside it."""
    shown = []
    for figure in doc["figures"]:
        path = folder / figure["file"]
        if path.suffix != ".png" or not path.is_file():
            continue
        data = base64.b64encode(path.read_bytes()).decode()
        caption = escape(figure["caption"])
        image = f'<img src="data:image/png;base64,{data}" alt="{caption}">'
        shown.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    return shown
