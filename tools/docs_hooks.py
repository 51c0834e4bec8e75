"""MkDocs hooks: formulas become MathML, notebooks become pages, and three pages come from the repository's root."""

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
# These files are also read in the repository, where links to pages begin with docs/.
_AT_THE_ROOT = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add a page with its pictures for each notebook."""
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        stem = notebook.src_uri.removesuffix(".ipynb")
        page, pictures = page_of(json.loads(Path(notebook.abs_src_path).read_text(encoding="utf-8")), Path(stem).name)
        files.append(File.generated(config, f"{stem}.md", content=page))
        for name, picture in pictures.items():
            files.append(File.generated(config, f"{Path(stem).parent.as_posix()}/{name}", content=picture))
    return files


def page_of(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Return a notebook with its printed output as Markdown, and the pictures that this refers to."""
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
    # A link leads to the notebook in the repository, and to its page on the site.
    return re.sub(r"(\]\([^)\s]+)\.ipynb\)", r"\1.md)", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Replace formulas by static MathML, which browsers render without scripts, fonts or network."""

    def formula(match: re.Match[str]) -> str:
        display = "block" if match[2] == "[" else "inline"
        text = convert(html.unescape(match[3]).strip(), display=display)
        # The prime character is raised already; a superscript would raise it twice.
        return re.sub(r"<msup>(<mi>\w</mi>)<mi>&#x02032;</mi></msup>", r"<mrow>\1<mo>&#x02032;</mo></mrow>", text)

    return _FORMULA.sub(formula, content)
