"""The frame and look that every HTML page of ours shares: one file, with its pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from string import Template

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' height='16' "
    "rx='3' fill='%232b6cb0'/%3E%3Cpath d='M2 11c3 0 3-7 6-7s3 7 6 7' fill='none' stroke='%23fff' stroke-width='2'/%3E"
    "%3C/svg%3E"
)
_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<link rel="icon" href="$icon">
<style>
:root { color-scheme: light dark; --ink: #1f2933; --muted: #616e7c; --line: #e4e7eb; --card: #f5f7fa; --page: #fff;
        --blue: #2b6cb0; --orange: #c05621; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9f0; --muted: #9aa5b8; --line: #38415a; --card: #222838; --page: #161a24; --blue: #63a4e8;
          --orange: #f0935a; }
  figure img { filter: invert(0.91) hue-rotate(180deg); } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 1040px;
       margin: 0 auto; padding: 28px 22px 60px; }
h1 { font-size: 25px; margin: 0 0 2px; } h2 { font-size: 19px; margin: 42px 0 8px; padding-top: 18px;
     border-top: 1px solid var(--line); }
p { margin: 6px 0; } .muted { color: var(--muted); } pre { font: 12.5px/1.45 ui-monospace, monospace;
     background: var(--card); padding: 12px 14px; overflow-x: auto; border-radius: 6px; margin: 8px 0; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 4px 16px 4px 0; vertical-align: top; }
th { font-weight: 600; }
.figures { display: flex; flex-wrap: wrap; gap: 26px; align-items: flex-start; }
figure { margin: 0; flex: 1 1 420px; } figure img { max-width: 100%; }
figcaption { color: var(--muted); font-size: 13px; }
$style
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")


def whole(title: str, style: str, body: str) -> str:
    """A page; `style` is the CSS that it has beyond what all pages share."""
    return _PAGE.substitute(icon=_ICON, title=escape(title), style=style.strip(), body=body.strip())


def inline(png: bytes) -> str:
    """A picture as the `src` of an <img>."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def minus(number: str) -> str:
    """A number with a minus sign instead of a hyphen."""
    return number.replace("-", "\N{MINUS SIGN}")


def table(rows: Sequence[Sequence[str]], heads: Sequence[str] = ()) -> str:
    """Rows whose first cells are their names, below `heads` where there are some."""
    first = "".join(f"<th>{escape(head)}</th>" for head in heads)
    lines = [f"<tr><th>{escape(a)}</th>{''.join(f'<td>{escape(b)}</td>' for b in rest)}</tr>" for a, *rest in rows]
    return f"<table>{f'<tr>{first}</tr>' if heads else ''}{''.join(lines)}</table>"


def figure(png: bytes, caption: str) -> str:
    caption = escape(caption)
    return f'<figure><img src="{inline(png)}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
