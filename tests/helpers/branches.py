"""Which branches of some modules a piece of work takes: both ways of each `if` and `while`, by Python's own tracing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any


class Branches:
    """Steps from line to line in the modules' files, while `watching`."""

    def __init__(self, modules: Sequence[ModuleType]) -> None:
        self.files = {str(m.__file__): m.__name__ for m in modules}
        self.steps: dict[str, set[tuple[int, int]]] = {file: set() for file in self.files}

    @contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            yield
        finally:
            sys.settrace(before)

    def _called(self, frame: FrameType, event: str, _: Any) -> Any:
        steps = self.steps.get(frame.f_code.co_filename)
        if steps is None:
            return None
        last = frame.f_lineno

        def line(inner: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "line":
                steps.add((last, inner.f_lineno))
                last = inner.f_lineno
            elif event == "return":
                steps.add((last, 0))
            return line

        return line

    def taken(self) -> dict[str, bool]:
        """Whether each branch was taken, by "module: condition (true or false)"; refusals of bad input left out."""
        found = {}
        for file, name in self.files.items():
            for node in ast.walk(ast.parse(Path(file).read_text())):
                if isinstance(node, ast.If | ast.While) and not _is_refusal(node):
                    where = set(range(node.test.lineno, (node.test.end_lineno or node.test.lineno) + 1)) | {node.lineno}
                    into = node.body[0].lineno
                    left = {b for a, b in self.steps[file] if a in where and b not in where}
                    text = f"{name.removeprefix('cnngp.')}: {ast.unparse(node.test)}"
                    if into not in where:
                        found[f"{text} (true)"] = into in left
                    if not isinstance(node.test, ast.Constant):
                        found[f"{text} (false)"] = bool(left - {into})
        return found


def _is_refusal(node: ast.If | ast.While) -> bool:
    return any(isinstance(inner, ast.Raise) for inner in node.body)
