"""Docstrings as the reference wants them.

They write a parameter as `name : what it is`, where numpydoc expects a type after the colon, and begin examples without
a heading. Both are brought into numpydoc's form before griffe parses them.
"""

from __future__ import annotations

import re
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


class Docstrings(griffe.Extension):
    """Applies `numpydoc` to everything that griffe has loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = numpydoc(obj.docstring.value)
