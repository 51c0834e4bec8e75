"""Docstrings as the reference wants them.

They write a parameter as `name : what it is`, where numpydoc expects a type after the colon, and begin examples without
a heading. Both are brought into numpydoc's form before griffe parses them. What they name becomes a link: a page of
docs/ by its file, and what the reference describes by its name in backticks.
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
    """The same docstring in numpydoc's form.

    >>> numpydoc("Adds.\\n\\nParameters\\n----------\\na : a number,\\n    any\\n\\n>>> 1 + 1\\n2").splitlines()[4:]
    ['a', '    a number, any', '', 'Examples', '--------', '>>> 1 + 1', '2']
    """

    def entry(found: re.Match[str]) -> str:
        words = " ".join(line.strip() for line in found[2].splitlines())
        return "\n".join(f"{name}\n    {words}" for name in found[1].split(", "))  # each has a type of its own

    def section(found: re.Match[str]) -> str:
        return f"{found[1]}\n{'-' * len(found[1])}\n{_ENTRY.sub(entry, found[2])}"

    return _EXAMPLE.sub("\nExamples\n--------\n", _SECTION.sub(section, text), count=1)


_PAGE = re.compile(r"\bdocs/(\w+)\.md")
_NAMED = re.compile(r"(?<![`\[])`([A-Za-z][\w.]*)`(?![`\]])")
_REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


@functools.cache
def described() -> dict[str, str]:
    """Full names of what the pages of the reference describe, also by their last part."""
    names = [
        n for page in _REFERENCE.glob("*.md") for n in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)
    ]
    return {n: n for n in names} | {n.rpartition(".")[2]: n for n in names}


def linked(text: str, own: str = "", names: dict[str, str] | None = None) -> str:
    """A docstring with links, but not to the object itself, and not in examples.

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
    """Applies `numpydoc` and `linked` to everything that griffe has loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = linked(numpydoc(obj.docstring.value), obj.name)
