"""Convert docstrings for the reference pages.

The docstrings here write a parameter as `name : description`, where numpydoc expects a type after the colon, and have
no heading for examples. Both are converted to numpydoc's form before griffe parses them. Names become links: the file
of a page in docs/, and in backticks the name of an object that the reference describes.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import griffe

_SECTION = re.compile(r"^(Parameters|Attributes|Returns)\n-+\n((?:.+\n?)+)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w[\w, ]*?) : (.*(?:\n[ \t]+.*)*)", re.MULTILINE)
_EXAMPLE = re.compile(r"(?<=\n)\n(?=>>> )")


def numpydoc(text: str) -> str:
    """Convert a docstring to numpydoc's form.

    >>> numpydoc("Adds.\\n\\nParameters\\n----------\\na : a number,\\n    any\\n\\n>>> 1 + 1\\n2").splitlines()[4:]
    ['a', '    a number, any', '', 'Examples', '--------', '>>> 1 + 1', '2']
    """

    def entry(found: re.Match[str]) -> str:
        words = " ".join(line.strip() for line in found[2].splitlines())
        return "\n".join(f"{name}\n    {words}" for name in found[1].split(", "))  # one entry for each name

    def section(found: re.Match[str]) -> str:
        return f"{found[1]}\n{'-' * len(found[1])}\n{_ENTRY.sub(entry, found[2])}"

    return _EXAMPLE.sub("\nExamples\n--------\n", _SECTION.sub(section, text), count=1)


_PAGE = re.compile(r"\bdocs/(\w+)\.md")
_NAMED = re.compile(r"(?<![`\[])`([A-Za-z][\w.]*)`(?![`\]])")
_REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


@functools.cache
def described() -> dict[str, str]:
    """Full names of the objects on the reference pages, by full name and by last part."""
    names = [
        n for page in _REFERENCE.glob("*.md") for n in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)
    ]
    return {n: n for n in names} | {n.rpartition(".")[2]: n for n in names}


def linked(text: str, own: str = "", names: dict[str, str] | None = None) -> str:
    """Add links to a docstring, except to the object itself and in examples.

    >>> linked("As in `Kernel`; see docs/ntk.md.\\n\\n>>> Kernel", names={"Kernel": "cnngp.Kernel"}).splitlines()[0]
    'As in [`Kernel`][cnngp.Kernel]; see [the page on this](../ntk.md).'
    """
    known = described() if names is None else names

    def name(found: re.Match[str]) -> str:
        full = known.get(found[1])
        return found[0] if full is None or full.rpartition(".")[2] == own else f"[{found[0]}][{full}]"

    words, sign, examples = text.partition("\n>>> ")
    return _NAMED.sub(name, _PAGE.sub(r"[the page on this](../\1.md)", words)) + sign + examples


class Docstrings(griffe.Extension):
    """Griffe extension that applies `numpydoc` and `linked` to every loaded object."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = linked(numpydoc(obj.docstring.value), obj.name)
