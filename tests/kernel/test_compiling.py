"""Compiled code that is kept on disk is used again, but never after a change in any file it was made from."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cnngp
from cnngp.kernel.engines.cpu import interpreter
from cnngp.kernel.engines.cpu.compiling import sources_digest
from cnngp.kernel.engines.cpu.rows import elementary

SCRIPT = """
import numpy as np
from cnngp import Conv, Dense, Kernel, ReLU, Sequential
from cnngp.kernel.engines.cpu import interpreter
K = Kernel(Sequential(Conv(3), ReLU(), Dense()), device="cpu", threads=1, check=False)(np.ones((2, 1, 4, 4)))
print(float(K[0, 1]), sum(interpreter.pair_block.stats.cache_hits.values()))
"""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package's sources."""
    package = Path(cnngp.__file__).parent
    return Path(shutil.copytree(package, tmp_path / "cnngp", ignore=shutil.ignore_patterns("__pycache__")))


def digest_of(package: Path) -> str:
    path = package / "kernel/engines/cpu/compiling.py"
    spec = importlib.util.spec_from_file_location("compiling_of_a_copy", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.sources_digest())


@pytest.mark.parametrize(
    "file",
    [
        "engines/cpu/rows/values.py",
        "engines/cpu/plan.py",
        "engines/polynomials.py",
        "program/ops.py",
        "series/packed.py",
    ],
)
def test_the_digest_follows_every_file_that_compiled_code_depends_on(copied: Path, file: str) -> None:
    assert digest_of(copied) == sources_digest()
    with (copied / "kernel" / file).open("a") as text:
        text.write("# changed\n")
    assert digest_of(copied) != sources_digest()


def test_compiled_functions_are_kept_under_it() -> None:
    for function in (interpreter.pair_block, elementary.relu_value):
        assert sources_digest() in function.py_func.__qualname__


def run(package: Path) -> tuple[float, int]:
    env = os.environ | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("NUMBA_CACHE_DIR", None)
    out = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True).stdout
    value, hits = out.split()
    return float(value), int(hits)


@pytest.mark.slow
def test_a_change_in_one_file_makes_all_compiled_code_anew(copied: Path) -> None:
    """`relu_value` is inlined into functions of other files, which Numba alone would take from before the change."""
    first, hits = run(copied)
    assert hits == 0
    assert run(copied) == (first, 1)
    path = copied / "kernel/engines/cpu/rows/elementary.py"
    text = path.read_text(encoding="utf-8")
    changed = text.replace("relu_g(u), positive(K))", "relu_g(u), positive(K) + one)")
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    second, hits = run(copied)
    assert hits == 0
    assert second != first
