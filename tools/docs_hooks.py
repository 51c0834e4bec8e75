"""What MkDocs does here beyond its plugins: MathML for formulas, colours for code, pages from the repository's root."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from pygments.formatters import HtmlFormatter

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
# These are read in the repository too, where links into the docs have the folder in front.
_AT_THE_ROOT = {"contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    if page.file.src_uri not in _AT_THE_ROOT:
        return markdown
    root = Path(config.config_file_path).parent
    return (root / _AT_THE_ROOT[page.file.src_uri]).read_text(encoding="utf-8").replace("](docs/", "](")


def on_page_content(content: str, **_: Any) -> str:
    """Static MathML, which every browser draws: no script, no fonts, no network."""

    def formula(match: re.Match[str]) -> str:
        display = "block" if match[2] == "[" else "inline"
        text = convert(html.unescape(match[3]).strip(), display=display)
        # A prime is a character of its own height already; raised once more, it would fly off.
        return re.sub(r"<msup>(<mi>\w</mi>)<mi>&#x02032;</mi></msup>", r"<mrow>\1<mo>&#x02032;</mo></mrow>", text)

    return _FORMULA.sub(formula, content)


# The theme's own highlighter loads from another host. Its switch between light and dark enables one of two style sheets
# with these ids, so the colours of Pygments take their place.
_COLOURS = {"hljs-light": "default", "hljs-dark": "github-dark"}


def on_post_page(output: str, page: Any, **_: Any) -> str:
    up = "../" * page.url.count("/")
    links = "".join(f'<link rel="stylesheet" id="{name}" href="{up}css/{name}.css">' for name in _COLOURS)
    return output.replace("</head>", f"{links}</head>", 1)


def on_post_build(config: Any, **_: Any) -> None:
    for name, style in _COLOURS.items():
        colours = HtmlFormatter(style=style).get_style_defs(".highlight")
        (Path(config.site_dir) / "css" / f"{name}.css").write_text(colours, encoding="utf-8")
