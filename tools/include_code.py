"""Update the code on pages that show parts of programs: `python tools/include_code.py`.

A page names a part in a comment right before its code block, `<!-- examples/sets.py: fit -->`; in the program it is
between `# region fit` and `# endregion`. The tests run the programs, and fail if a page shows different code.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
_BLOCK = re.compile(r"(<!-- (\S+\.py): (\w+) -->\n)```python\n.*?```\n", re.DOTALL)


def part(program: str, name: str) -> str:
    """Return the lines of a region, without their common indentation."""
    text = (ROOT / program).read_text(encoding="utf-8")
    found = re.findall(rf"^ *# region {name}\n(.*?)^ *# endregion\n", text, re.DOTALL | re.MULTILINE)
    if len(found) != 1:
        raise SystemExit(f"{program}: expected one region {name}, found {len(found)}")
    return textwrap.dedent(found[0]).rstrip("\n") + "\n"


def with_code(page: str) -> str:
    """Return the page with the current text of the parts that it names."""
    return _BLOCK.sub(lambda block: f"{block[1]}```python\n{part(block[2], block[3])}```\n", page)


def pages() -> list[Path]:
    """Pages that show parts of programs."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    return [page for page in found if _BLOCK.search(page.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    for path in pages():
        path.write_text(with_code(path.read_text(encoding="utf-8")), encoding="utf-8")
