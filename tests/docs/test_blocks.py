"""The code of the pages runs as it stands: the Python blocks of a page in order, in one namespace, in an empty folder.

A comment in the line above a block says otherwise: `<!-- needs: torch -->` runs it where that package is installed,
`<!-- not run: why -->` never, and a part of a program, `<!-- examples/sets.py: fit -->`, runs with its program.
"""

from __future__ import annotations

import importlib.util
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
