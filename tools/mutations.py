"""Deliberate bugs, one at a time, in a scratch copy: do the tests notice? `python tools/mutations.py`.

    python tools/mutations.py                   # every bug of tools/mutation_list.py
    python tools/mutations.py --only checkpoint

A bug is a few characters of a file that are replaced by others that somebody might have written. For each the tests
that should notice run until the first failure. Prints one line for each bug and a table; ends with an error where one
was not noticed, or where the text that it replaces is not in the file any more. What a campaign found is in
docs/reliability.md.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import NoReturn

import google_crc32c  # noqa: F401
import numba  # noqa: F401
import pytest
import scipy.linalg  # noqa: F401
import sklearn.base  # noqa: F401
import tqdm.auto  # noqa: F401
import zarr  # noqa: F401
from mutation_list import BUGS, Bug

ROOT = Path(__file__).parents[1]
SECONDS = 120


def copied(folder: Path) -> Path:
    place = folder / "copy"
    for name in ("src", "tests", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place / name)
    return place


def noticed(place: Path, bug: Bug) -> str:
    """Whether the tests notice; "stale" where there is nothing to replace."""
    path = place / "src" / "cnngp" / bug.file
    text = path.read_text()
    if text.count(bug.old) != 1:
        return "stale"
    path.write_text(text.replace(bug.old, bug.new))
    try:
        code = run_tests(place, [*bug.tests.split(), *(["-k", bug.k] if bug.k else [])])
    finally:
        path.write_text(text)
    return {0: "not noticed", 1: "noticed", None: "noticed"}.get(code, f"ended with {code}")


def run_tests(place: Path, arguments: list[str]) -> int | None:
    """pytest's exit code, None where it had to be stopped: in a fork, which has all that is slow to import."""
    child = os.fork()
    if not child:
        _in_child(place, arguments)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _in_child(place: Path, arguments: list[str]) -> NoReturn:
    """Never comes back: what the parent has open is the parent's to clean up."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="bugs whose subject, file or description holds this text")
    asked = parser.parse_args()
    bugs = [bug for bug in BUGS if asked.only in f"{bug.subject} {bug.file} {bug.what}"]
    counts: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cnngp-mutations-") as folder:
        place = copied(Path(folder))
        for bug in bugs:
            found = noticed(place, bug)
            if found.startswith("ended"):
                print((place.parent / "output").read_text()[-1500:])
            counts[bug.subject, found] += 1
            print(f"{found:12} {bug.subject}: {bug.what} ({bug.file})", flush=True)
    print("\n| subject | bugs | noticed |\n|---|---|---|")
    for subject in dict.fromkeys(bug.subject for bug in bugs):
        of = sum(n for (s, _), n in counts.items() if s == subject)
        print(f"| {subject} | {of} | {counts[subject, 'noticed']} |")
    all_noticed = sum(n for (_, found), n in counts.items() if found == "noticed")
    print(f"| all | {len(bugs)} | {all_noticed} |\n\n{(time.monotonic() - began) / 60:.1f} minutes")
    if all_noticed < len(bugs):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
