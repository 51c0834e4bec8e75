"""Compiled code that is kept on disk is used again, but never after a change in any file it was made from."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import pytest
from numba.core import caching

import cnngp
from cnngp.kernel.engines.cpu import compiling, interpreter
from cnngp.kernel.engines.cpu.compiling import jit, sources_digest
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


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own for compiled code."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    return tmp_path


def in_a_new_process() -> tuple[float, int]:
    """What a small function gives, and whether its code came from the disk; each call is as the first of a process."""

    def small(x: float) -> float:
        return 0.8125 * x + 1.0

    compiled = jit(small)
    return float(compiled(1.0)), sum(compiled.stats.cache_hits.values())


def test_compiled_code_that_was_damaged_is_compiled_again(kept: Path) -> None:
    assert in_a_new_process() == (1.8125, 0)
    assert in_a_new_process() == (1.8125, 1)
    (file,) = kept.rglob("*.nb?")
    good = file.read_bytes()
    number = good.index(struct.pack("<d", 0.8125)) + 6
    for place in [0, 40, len(good) // 2, len(good) - 1, number]:
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert in_a_new_process() == (1.8125, 0)
        assert in_a_new_process() == (1.8125, 1)  # written anew
    file.write_bytes(good[:-1])
    assert in_a_new_process() == (1.8125, 0)


def test_compiled_code_under_the_name_of_another_is_not_run(kept: Path) -> None:
    def other(x: float) -> float:
        return x + 5.0

    assert in_a_new_process() == (1.8125, 0)
    compiled = jit(other)
    assert compiled(1.0) == 6.0
    ours, theirs = sorted(kept.rglob("*.nbc"))
    assert "other" in theirs.name
    files = compiled._cache._cache_file
    assert files._bytes(theirs.name)
    theirs.replace(ours)
    with pytest.raises(OSError, match="is damaged"):  # before anything is made of its content
        files._bytes(ours.name)
    assert in_a_new_process() == (1.8125, 0)


def test_functions_made_by_one_function_are_told_apart_by_what_they_were_made_with(kept: Path) -> None:
    def made(factor: float, compiled: bool) -> Any:
        def inner(x: float) -> float:
            return factor * x

        part = jit(inner) if compiled else factor

        def outer(x: float) -> float:
            return part(x) if compiled else part * x  # type: ignore[operator]

        return jit(outer)

    for compiled in (False, True):
        for factor in (2.0, 3.0, 2.0):
            function = made(factor, compiled)
            assert function(1.5) == 1.5 * factor
        assert sum(function.stats.cache_hits.values()) == 1


def test_code_of_older_sources_is_removed(kept: Path) -> None:
    assert in_a_new_process() == (1.8125, 0)
    (file,) = kept.rglob("*.nb?")
    older = [file.with_name(file.name.replace(sources_digest(), "0" * 16)), file.with_name("small-1.py311.nbi")]
    for other in older:
        other.write_bytes(b"")
    compiling._remove_older.cache_clear()
    file.unlink()
    assert in_a_new_process() == (1.8125, 0)
    assert list(kept.rglob("*.nb?")) == [file]


def test_a_full_disk_does_not_end_the_work(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "_open_for_write", full)
    assert in_a_new_process() == (1.8125, 0)


def test_where_nothing_can_be_kept_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nowhere(_: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr(compiling, "_Cache", nowhere)
    compiling._warn_once.cache_clear()
    assert in_a_new_process() == in_a_new_process() == (1.8125, 0)
    assert caplog.text.count("set NUMBA_CACHE_DIR to one that can") == 1


def run(package: Path, script: str = SCRIPT, **more: str) -> list[float]:
    """The numbers that a script prints in a process of its own."""
    env = os.environ | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"} | more
    if not more:
        env.pop("NUMBA_CACHE_DIR", None)
    out = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    return [float(number) for number in out.split()]


def test_a_second_process_compiles_nothing_and_adds_no_file(tmp_path: Path) -> None:
    """Convolutions of two kinds, a pool, slopes and a gradient: what functions made by functions are needed for."""
    script = """
import numpy as np
from numba.core import ccallback, dispatcher
from cnngp import AvgPool, Conv, Dense, Erf, Kernel, ReLU, Sequential

def counted(compile):
    def run(*arguments):
        global compiled
        compiled += 1
        return compile(*arguments)
    return run

compiled = 0
ccallback.CFunc._compile_uncached = counted(ccallback.CFunc._compile_uncached)
dispatcher._FunctionCompiler._compile_core = counted(dispatcher._FunctionCompiler._compile_core)
net = Sequential(Conv(3), Erf(), Conv(3, stride=2), ReLU(), Conv(2, padding="valid"), ReLU(), AvgPool(2), Dense())
X = np.ones((2, 1, 8, 8))
settings = dict(device="cpu", threads=1, check=False)
numbers = [Kernel(net, kind=kind, **settings)(X)[0, 1] for kind in ("nngp", "ntk")]
numbers += Kernel(net, **settings).gradient(X, None, np.ones((2, 2))).values()
print(*map(float, numbers), compiled)
"""
    package = Path(cnngp.__file__).parent
    *first, compiled = run(package, script, NUMBA_CACHE_DIR=str(tmp_path))
    assert compiled > 5
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    assert run(package, script, NUMBA_CACHE_DIR=str(tmp_path)) == [*first, 0]
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == files


@pytest.mark.slow
def test_a_change_in_one_file_makes_all_compiled_code_anew(copied: Path) -> None:
    """`relu_value` is inlined into functions of other files, which Numba alone would take from before the change."""
    first, hits = run(copied)
    assert hits == 0
    assert run(copied) == [first, 1]
    path = copied / "kernel/engines/cpu/rows/elementary.py"
    text = path.read_text(encoding="utf-8")
    changed = text.replace("relu_g(u), positive(K))", "relu_g(u), positive(K) + one)")
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    second, hits = run(copied)
    assert hits == 0
    assert second != first
