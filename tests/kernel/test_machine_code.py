"""Compiled code that is kept on disk is used again, but never after a change in any file it was made from.

And what is compiled and imported when: a prepared kernel compiles nothing, the package imports nothing heavy.
"""

import errno
import logging
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

import cnngp
from cnngp.kernel.engines.cpu import compiling, machine_code
from cnngp.kernel.engines.cpu.machine_code import Function, sources_digest
from helpers.kernels import DTYPES

PACKAGE = Path(cnngp.__file__).parent
FIRST, SECOND = (Function("row", "rows.forms.value_row", (family, 0)) for family in (1, 2))


def run(script: str, **more: str) -> list[float]:
    """The numbers that a script prints in a process of its own."""
    env = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"} | more
    if not more:
        env.pop("NUMBA_CACHE_DIR", None)
    out = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    return [float(number) for number in out.split()]


FILES = "engines/cpu/rows/forms.py", "engines/polynomials.py", "formulas/relu.py", "program/ops.py", "series/packed.py"


def test_the_digest_follows_every_file_that_compiled_code_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A formula is inlined into functions of other files, which Numba alone would take from before a change of it."""
    copy = shutil.copytree(PACKAGE, tmp_path / "cnngp", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(machine_code, "__file__", str(copy / "kernel/engines/cpu/machine_code.py"))
    digests = {sources_digest(), sources_digest.__wrapped__()}
    assert len(digests) == 1
    for changes, file in enumerate(FILES, 1):
        path = copy / "kernel" / file
        path.write_text(path.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
        digests.add(sources_digest.__wrapped__())
        assert len(digests) == 1 + changes, file


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own for compiled code, of which nothing is in memory yet."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(machine_code, "_loaded", {})
    monkeypatch.setattr(machine_code, "_link", lambda code, symbol: {symbol: hash(code)})
    monkeypatch.setattr(compiling, "object_code", compiled_quickly)
    monkeypatch.setattr(machine_code, "progress_bar", shown)
    events.clear()
    machine_code.folder.cache_clear()
    yield tmp_path
    machine_code.folder.cache_clear()


events: list[str] = []
"""What a terminal showed, and what was compiled."""


def shown(total: int, what: str, unit: str, **_: object) -> AbstractContextManager[None]:
    events.append(what)
    return nullcontext()


def compiled_quickly(function: Function, dtype: str, symbol: str) -> bytes:
    events.append("compiled")
    return f"code of {symbol} with the number ".encode() + struct.pack("<d", 0.8125)


def in_a_new_process(function: Function = FIRST) -> int:
    """How many functions a process compiles that needs this one."""
    machine_code._loaded.clear()
    before = events.count("compiled")
    machine_code.address(function, "float32")
    return events.count("compiled") - before


def test_code_that_was_damaged_is_compiled_again(kept: Path) -> None:
    assert in_a_new_process() == 1
    assert in_a_new_process() == 0
    assert events == [f"compiling for this machine, once: {FIRST}", "compiled"]
    (file,) = kept.rglob("*.o")
    good = file.read_bytes()
    number = good.index(struct.pack("<d", 0.8125)) + 6
    for place in [0, 40, len(good) // 2, len(good) - 1, number]:
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert in_a_new_process() == 1
        assert in_a_new_process() == 0  # written anew
    file.write_bytes(good[:-1])
    assert in_a_new_process() == 1


def test_code_of_another_name_is_not_run_and_that_of_older_sources_is_removed(kept: Path) -> None:
    assert in_a_new_process() == 1
    (ours,) = kept.rglob("*.o")
    older = ours.with_name(ours.name.replace(sources_digest(), "0" * 16))
    older.write_bytes(b"")
    assert in_a_new_process(SECOND) == 1
    assert not older.exists()
    assert in_a_new_process() == in_a_new_process(SECOND) == 0
    (theirs,) = set(kept.rglob("*.o")) - {ours}
    theirs.replace(ours)
    assert in_a_new_process() == 1


def test_where_nothing_can_be_kept_it_is_compiled_again(kept: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """On a full disk, and where no folder can be written to, which is said once."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(machine_code, "write_atomically", full)
        assert in_a_new_process() == in_a_new_process() == 1
    (kept / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(kept / "file"))
    machine_code.folder.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert in_a_new_process() == in_a_new_process() == 1
    assert caplog.text.count("set NUMBA_CACHE_DIR to one that can") == 1


@pytest.mark.parametrize("gradient", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_second_process_compiles_nothing_and_adds_no_file(gradient: bool, tmp_path: Path) -> None:
    """Functions that other functions make, too. It does not even import the compiler."""
    script = f"""
import sys
import numpy as np
from cnngp import Conv, Dense, Kernel, ReLU, Sequential

net = Sequential(Conv(2), ReLU(), Dense())
X = np.ones((2, 1, 3, 3))
kernel = Kernel(net, device="cpu", threads=1, check=False)
gradient = kernel.gradient(X, None, np.ones((2, 2))).values() if {gradient} else ()
print(kernel(X)[0, 1], *gradient, int("numba" in sys.modules))
"""
    *first, compiled = run(script, NUMBA_CACHE_DIR=str(tmp_path))
    assert compiled
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    assert len(files) > (10 if gradient else 3)
    assert run(script, NUMBA_CACHE_DIR=str(tmp_path)) == [*first, 0]
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == files


# ---- when it is made, and what is imported ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_prepared_kernels_compile_nothing_more(dtype):
    """In a process of its own, where nothing is compiled or loaded yet."""
    script = f"""
import time
import numpy as np
from cnngp import Kernel, zoo
from cnngp.kernel.engines.cpu import machine_code

X = np.random.default_rng(0).uniform(size=(40, 1, 8, 8)).astype("{dtype}")
kernel = Kernel(zoo.small_cnn(), "cpu", "{dtype}")
begun = time.perf_counter()
seconds = kernel.prepare(X)
whole = time.perf_counter() - begun
prepared = len(machine_code._loaded)
kernel(X), kernel(X[:10], X), kernel.diag(X)
print(seconds, whole, prepared, len(machine_code._loaded))
"""
    seconds, whole, prepared, after = run(script)
    assert 0.9 * whole < seconds < whole
    assert 0 < prepared == after


HEAVY = {"numba", "llvmlite", "sklearn", "scipy", "torch", "zarr", "cupy", "dask", "matplotlib", "pandas", "click"}
DESCRIBED = "net = zoo.resnet(32)\nprint(net, from_json(net.to_json()).fingerprint, net.shapes((1, 28, 28)))"


@pytest.mark.parametrize(
    ("code", "kept_out"),
    [
        (f"from cnngp import from_json, zoo\n{DESCRIBED}", HEAVY | {"numpy"}),
        ("from cnngp import Kernel, zoo\nKernel(zoo.resnet(8), device='cpu')", HEAVY),
        (
            "from cnngp import Elementwise\nElementwise('tanh').fingerprint\nimport cnngp.kernel.series.packed",
            {"scipy"},
        ),
    ],
    ids=["networks", "a kernel", "a series"],
)
def test_nothing_heavy_is_imported_before_it_is_used(code: str, kept_out: set[str]) -> None:
    script = f"import sys\n{code}\nprint(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & kept_out
