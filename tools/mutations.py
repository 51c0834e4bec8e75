"""Mutation testing: random bugs, one at a time in a scratch copy, to see if the tests notice them.

    python tools/mutations.py --draw 60 --seed 1          # anywhere in the package, with the tests of the same folder
    python tools/mutations.py --draw 20 --room gp --whole  # in one folder, with the whole default suite

A bug changes one operator, comparison, logical operator, sign or constant. All places in the package are equally
likely. Prints one line for each bug and a table. Some bugs have no visible effect (a tile's size, the order of two
messages), so the bugs that were not noticed need to be read one by one.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import google_crc32c  # noqa: F401
import numba  # noqa: F401
import pytest
import scipy.linalg  # noqa: F401
import sklearn.base  # noqa: F401
import tqdm.auto  # noqa: F401
import zarr  # noqa: F401

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "cnngp"

_OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//", ast.Pow: "*"}
_COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}


@dataclass(frozen=True)
class Bug:
    """A mutation: characters `start` to `end` of a file become `new`."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str

    @property
    def room(self) -> str:
        return self.file.split("/")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.kind}: {self.old!r} becomes {self.new!r}"


class _Places:
    """All possible bugs of one file."""

    def __init__(self, path: Path) -> None:
        self._file = path.relative_to(PACKAGE).as_posix()
        self._text = path.read_text(encoding="utf-8")
        lines = self._text.splitlines(keepends=True)
        self._bytes = [line.encode() for line in lines]
        self._starts = [sum(map(len, lines[:i])) for i in range(len(lines))]

    def _at(self, line: int, column: int) -> int:
        """Character offset of a position in the syntax tree, whose columns count bytes."""
        return self._starts[line - 1] + len(self._bytes[line - 1][:column].decode())

    def _bug(self, kind: str, node: ast.expr, start: int, end: int, new: str) -> Bug:
        return Bug(self._file, node.lineno, kind, start, end, self._text[start:end], new)

    def _between(self, kind: str, left: ast.expr, right: ast.expr, new: str) -> Bug:
        start = self._at(left.end_lineno or 0, left.end_col_offset or 0)
        return self._bug(kind, left, start, self._at(right.lineno, right.col_offset), f" {new} ")

    def bugs(self) -> Iterator[Bug]:
        for node in ast.walk(ast.parse(self._text)):
            match node:
                case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                    bug = self._between("operator", left, right, _OPERATORS[type(op)])
                    if not set(bug.old) & set("()\n#"):
                        yield bug
                case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                    bug = self._between("comparison", left, right, _COMPARISONS[type(op)])
                    if not set(bug.old) & set("()\n#"):
                        yield bug
                case ast.BoolOp(op=op, values=[left, right]):
                    bug = self._between("logic", left, right, "or" if isinstance(op, ast.And) else "and")
                    if not set(bug.old) & set("()\n#"):
                        yield bug
                case ast.UnaryOp(op=ast.USub() | ast.Not() as op):
                    start = self._at(node.lineno, node.col_offset)
                    yield self._bug("sign", node, start, start + len("-" if isinstance(op, ast.USub) else "not "), "")
                case ast.Constant(value=value) if type(value) in (int, float, bool):
                    start = self._at(node.lineno, node.col_offset)
                    end = self._at(node.end_lineno or 0, node.end_col_offset or 0)
                    new = str(not value) if isinstance(value, bool) else str(value + 1) if value < 2 else str(value / 2)
                    if isinstance(value, int) and not isinstance(value, bool):
                        new = str(value + 1)
                    yield self._bug("constant", node, start, end, new)


def drawn(number: int, seed: int, room: str) -> list[Bug]:
    """Draw `number` bugs from the package, or from one folder of it."""
    files = sorted(path for path in (PACKAGE / room).rglob("*.py"))
    every = [bug for path in files for bug in _Places(path).bugs()]
    return random.Random(seed).sample(every, min(number, len(every)))


def copied(folder: Path) -> Path:
    place = folder / "copy"
    for name in ("src", "tests", "tools", "experiments", "benchmarks", "examples", "docs"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, place / name)
    return place


def noticed(place: Path, bug: Bug, tests: list[str], seconds: float) -> str:
    """Outcome of the tests with a bug. A run that exceeds the time limit counts as noticed, as one without it ends."""
    path = place / "src" / "cnngp" / bug.file
    text = path.read_text(encoding="utf-8")
    path.write_text(text[: bug.start] + bug.new + text[bug.end :], encoding="utf-8")
    try:
        code = run_tests(place, tests, seconds)
    finally:
        path.write_text(text, encoding="utf-8")
    return {0: "not noticed", 1: "noticed", 2: "noticed", 4: "noticed", None: "noticed"}.get(code, f"ended with {code}")


def run_tests(place: Path, arguments: list[str], seconds: float) -> int | None:
    """Run pytest in a fork, which has the slow imports already; return its exit code, None if it was killed."""
    child = os.fork()
    if not child:
        _in_child(place, arguments)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _in_child(place: Path, arguments: list[str]) -> NoReturn:
    """Run pytest in the forked child; never returns, so that only the parent cleans up its open files."""
    code = 3
    try:
        os.setsid()
        silent = os.open(place.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        os.chdir(place)
        os.environ.update({"PYTHONPATH": str(place / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"})
        sys.path.insert(0, str(place / "src"))
        sys.dont_write_bytecode = True
        options = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = int(pytest.main([*options, *arguments]))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def tests_of(room: str, whole: bool) -> list[str]:
    """The folder of tests that mirrors a folder of the package, or all tests."""
    mirrored = f"tests/{room}"
    return [mirrored] if not whole and (ROOT / mirrored).is_dir() else ["tests"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=60, help="number of bugs")
    parser.add_argument("--seed", type=int, default=0, help="the same seed draws the same bugs from the same sources")
    parser.add_argument("--room", default="", help="a folder of the package; by default all of it")
    parser.add_argument("--whole", action="store_true", help="run the whole default suite, not the room's tests")
    parser.add_argument("--seconds", type=float, default=600.0, help="after which a run counts as hanging")
    asked = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cnngp-mutations-") as folder:
        place = copied(Path(folder))
        for bug in drawn(asked.draw, asked.seed, asked.room):
            found = noticed(place, bug, tests_of(bug.room, asked.whole), asked.seconds)
            if found.startswith("ended"):
                print((place.parent / "output").read_text()[-1500:])
            counts[bug.room, found] += 1
            print(f"{found:12} {bug}", flush=True)
    print("\n| room | bugs | noticed |\n|---|---|---|")
    for room in sorted({room for room, _ in counts}):
        of = sum(n for (r, _), n in counts.items() if r == room)
        print(f"| {room} | {of} | {counts[room, 'noticed']} |")
    print(f"| all | {sum(counts.values())} | {sum(n for (_, found), n in counts.items() if found == 'noticed')} |")
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
