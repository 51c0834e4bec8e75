"""Hooks for MkDocs: formulas become MathML, notebooks pages, and three pages are those of the repository's root."""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
# These are read in the repository too, where links into the docs have the folder in front.
_AT_THE_ROOT = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """A page beside each notebook, with its pictures."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        stem = notebook.src_uri.removesuffix(".ipynb")
        page, pictures = page_of(json.loads(Path(notebook.abs_src_path).read_text(encoding="utf-8")), Path(stem).name)
        files.append(File.generated(config, f"{stem}.md", content=page))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"{Path(stem).parent.as_posix()}/{name}", content=picture))
    return files


def page_of(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """The Markdown of a notebook with what its cells print, and the pictures that it names."""
    parts, pictures = [], {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}-{len(pictures)}.png"
                pictures[picture] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![What the code above draws]({picture})")
            else:
                text = "".join(output.get("text") or data["text/plain"])
                parts.append(f"```\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    if page.file.src_uri in _AT_THE_ROOT:
        file = Path(config.config_file_path).parent / _AT_THE_ROOT[page.file.src_uri]
        markdown = file.read_text(encoding="utf-8").replace("](docs/", "](")
        for name, shown in _AT_THE_ROOT.items():
            markdown = markdown.replace(f"]({shown})", f"]({name})")
    # In the repository a link leads to the notebook, on the site to its page.
    return re.sub(r"(\]\([^)\s]+)\.ipynb\)", r"\1.md)", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Static MathML, which every browser draws: no script, no fonts, no network."""

    def formula(match: re.Match[str]) -> str:
        display = "block" if match[2] == "[" else "inline"
        text = convert(html.unescape(match[3]).strip(), display=display)
        # A prime is a character of its own height already; raised once more, it would fly off.
        return re.sub(r"<msup>(<mi>\w</mi>)<mi>&#x02032;</mi></msup>", r"<mrow>\1<mo>&#x02032;</mo></mrow>", text)

    return _FORMULA.sub(formula, content)
