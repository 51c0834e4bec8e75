"""Compiled code that is kept on disk is used again, but never after a change in any file it was made from.

And what is compiled and imported when: a prepared kernel compiles nothing, the package imports nothing heavy.
"""

import errno
import importlib.util
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


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package's sources."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "cnngp", ignore=shutil.ignore_patterns("__pycache__")))


def digest_of(package: Path) -> str:
    path = package / "kernel/engines/cpu/machine_code.py"
    spec = importlib.util.spec_from_file_location("machine_code_of_a_copy", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.sources_digest())


FILES = [
    "engines/cpu/rows/forms.py",
    "engines/polynomials.py",
    "formulas/relu.py",
    "program/ops.py",
    "series/packed.py",
]


def test_the_digest_follows_every_file_that_compiled_code_depends_on(copied: Path) -> None:
    before = digest_of(copied)
    assert before == sources_digest()
    for file in FILES:
        path = copied / "kernel" / file
        path.write_text(path.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
        assert digest_of(copied) != before
        before = digest_of(copied)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own for compiled code, of which nothing is in memory yet."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(machine_code, "_loaded", {})
    monkeypatch.setattr(machine_code, "_link", lambda code, symbol: {symbol: hash(code)})
    monkeypatch.setattr(compiling, "object_code", compiled_quickly)
    machine_code.folder.cache_clear()
    yield tmp_path
    machine_code.folder.cache_clear()


def compiled_quickly(function: Function, dtype: str, symbol: str) -> bytes:
    global compilations
    compilations += 1
    return f"code of {symbol} with the number ".encode() + struct.pack("<d", 0.8125)


compilations = 0


def in_a_new_process(function: Function = FIRST) -> int:
    """How many functions a process compiles that needs this one."""
    machine_code._loaded.clear()
    before = compilations
    machine_code.address(function, "float32")
    return compilations - before


def test_code_that_was_damaged_is_compiled_again(kept: Path) -> None:
    assert in_a_new_process() == 1
    assert in_a_new_process() == 0
    (file,) = kept.rglob("*.o")
    good = file.read_bytes()
    number = good.index(struct.pack("<d", 0.8125)) + 6
    for place in [0, 40, len(good) // 2, len(good) - 1, number]:
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        assert in_a_new_process() == 1
        assert in_a_new_process() == 0  # written anew
    file.write_bytes(good[:-1])
    assert in_a_new_process() == 1


def test_a_terminal_hears_of_compiling_before_it_begins_and_only_then(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def shown(total: int, what: str, unit: str, **_: object) -> AbstractContextManager[None]:
        events.append(what)
        return nullcontext()

    def code(*_: object) -> bytes:
        events.append("compiled")
        return b"code"

    monkeypatch.setattr(machine_code, "progress_bar", shown)
    monkeypatch.setattr(compiling, "object_code", code)
    in_a_new_process()
    assert events == [f"compiling for this machine, once: {FIRST}", "compiled"]
    in_a_new_process()
    assert len(events) == 2


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


def test_a_full_disk_does_not_end_the_work(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(machine_code, "write_atomically", full)
    assert in_a_new_process() == in_a_new_process() == 1


def test_where_nothing_can_be_kept_it_is_said_once(kept: Path, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    (kept / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(kept / "file"))
    with caplog.at_level(logging.WARNING):
        assert in_a_new_process() == in_a_new_process() == 1
    assert caplog.text.count("set NUMBA_CACHE_DIR to one that can") == 1


def run(package: Path, script: str, **more: str) -> list[float]:
    """The numbers that a script prints in a process of its own."""
    env = os.environ | {"PYTHONPATH": str(package.parent), "PYTHONDONTWRITEBYTECODE": "1"} | more
    if not more:
        env.pop("NUMBA_CACHE_DIR", None)
    out = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True).stdout
    return [float(number) for number in out.split()]


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
    *first, compiled = run(PACKAGE, script, NUMBA_CACHE_DIR=str(tmp_path))
    assert compiled
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    assert len(files) > (10 if gradient else 3)
    assert run(PACKAGE, script, NUMBA_CACHE_DIR=str(tmp_path)) == [*first, 0]
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == files


@pytest.mark.slow
def test_a_change_in_one_file_makes_all_compiled_code_anew(copied: Path) -> None:
    """The ReLU is inlined into functions of other files, which Numba alone would take from before the change."""
    script = """
import sys
import numpy as np
from cnngp import Conv, Dense, Kernel, ReLU, Sequential
K = Kernel(Sequential(Conv(3), ReLU(), Dense()), device="cpu", threads=1, check=False)(np.ones((2, 1, 4, 4)))
print(float(K[0, 1]), int("numba" in sys.modules))
"""
    first, compiled = run(copied, script)
    assert compiled
    assert run(copied, script) == [first, 0]
    path = copied / "kernel/formulas/relu.py"
    text = path.read_text(encoding="utf-8")
    changed = text.replace("relu_g(u), positive(K))", "relu_g(u), positive(K) + u)")
    assert changed != text
    path.write_text(changed, encoding="utf-8")
    second, compiled = run(copied, script)
    assert compiled
    assert second != first


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
    seconds, whole, prepared, after = run(PACKAGE, script)
    assert 0.9 * whole < seconds < whole
    assert 0 < prepared == after


def imported_by(code):
    script = f"import sys\n{code}\nprint(*sorted(m for m in sys.modules if '.' not in m))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"numba", "llvmlite", "sklearn", "scipy", "torch", "zarr", "cupy", "dask", "matplotlib", "pandas", "click"}


def test_importing_the_package_imports_nothing_heavy():
    assert not imported_by("import cnngp") & (HEAVY | {"numpy"})


def test_describing_a_network_imports_nothing_heavy():
    code = """
from cnngp import from_json, zoo
net = from_json(zoo.resnet(32).to_json())
print(net, net.fingerprint, net.shapes((1, 28, 28)))
"""
    assert not imported_by(code) & (HEAVY | {"numpy"})


def test_a_kernel_does_not_import_what_it_does_not_use():
    assert not imported_by("from cnngp import Kernel, zoo\nKernel(zoo.resnet(8), device='cpu')") & HEAVY
    code = "from cnngp import Elementwise\nElementwise('tanh').fingerprint\nimport cnngp.kernel.series.packed"
    assert "scipy" not in imported_by(code)
