"""The frame and look that every HTML page of ours shares: one file, with its pictures inside."""

from __future__ import annotations

import base64
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
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #fff; max-width: 1040px; margin: 0 auto;
       padding: 28px 22px 60px; }
h1 { font-size: 25px; margin: 0 0 2px; } h2 { font-size: 19px; margin: 42px 0 8px; border-top: 1px solid #e4e7eb;
     padding-top: 18px; }
p { margin: 6px 0; } .muted { color: #616e7c; } pre { font: 12.5px/1.45 ui-monospace, monospace;
     background: #f5f7fa; padding: 12px 14px; overflow-x: auto; border-radius: 6px; margin: 8px 0; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 4px 16px 4px 0; vertical-align: top; }
th { font-weight: 600; }
.figures { display: flex; flex-wrap: wrap; gap: 26px; align-items: flex-start; }
figure { margin: 0; flex: 1 1 420px; } figure img { max-width: 100%; } figcaption { color: #616e7c; font-size: 13px; }
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


def figure(png: bytes, caption: str) -> str:
    caption = escape(caption)
    return f'<figure><img src="{inline(png)}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
