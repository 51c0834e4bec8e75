"""The code of the pages runs as it stands: the Python blocks of a page, or the cells of a notebook, in order, in one
namespace, in an empty folder. What a notebook shows is what its cells print.

A comment in the line above a block says otherwise: `<!-- needs: torch -->` runs it where that package is installed,
`<!-- not run: why -->` never, and a part of a program, `<!-- examples/sets.py: fit -->`, runs with its program.
"""

import contextlib
import importlib.util
import io
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
_BLOCK = re.compile(r"(?:^<!-- (.+?) -->\n)?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _to_run(page: Path) -> list[str]:
    found = []
    for mark, code in _BLOCK.findall(page.read_text(encoding="utf-8")):
        kind, _, rest = mark.partition(": ")
        assert not mark or kind in ("needs", "not run") or kind.startswith("examples/"), f"{page}: {mark}"
        if not mark or (kind == "needs" and all(map(importlib.util.find_spec, rest.split(", ")))):
            found.append(code)
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if _to_run(page)], ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for number, code in enumerate(_to_run(page), 1):
        exec(compile(code, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("notebook", sorted((ROOT / "docs").rglob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_print_what_they_show(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    matplotlib.use("agg")
    names = {"__name__": "notebook"}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("".join(cell["source"]), notebook.name, "exec"), names)
            shown = ["".join(output.get("text", "")) for output in cell["outputs"]]
            assert printed.getvalue() == "".join(shown)
    matplotlib.pyplot.close("all")
