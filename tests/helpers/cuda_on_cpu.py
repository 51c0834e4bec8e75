"""Generated CUDA compiled as C++ (cuda_on_cpu.hpp), for tests without a card.

Compiled libraries are kept on disk under a digest of all that they are made of, so a second run of the tests compiles
nothing. What was not used for a month goes.
"""

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to run the kernels on a CPU")

HEADER = Path(__file__).with_name("cuda_on_cpu.hpp")
# Of this very processor, so that products and sums are fused where a card's compiler may fuse them.
OPTIONS = ("-std=c++17", "-O1", "-march=native", "-w", "-shared", "-fPIC")
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "cnngp-tests")
MONTH = 30 * 24 * 3600.0


@functools.cache
def compiled(body: str, real: str, shared: int) -> ctypes.CDLL:
    """`run_NAME` for each kernel of a text without its primitives; `shared` bytes of shared memory.

    It takes the arguments of the kernel, then the number of blocks and of threads of a block.
    """
    assert not re.search(r"\[\] = \{\s*\}", body), "CUDA has no empty arrays, though g++ does"
    text = f"""\
#define REAL {real}
#define VEC {"float4" if real == "float" else "double2"}
{HEADER.read_text()}
alignas(16) vec dynamic_shared[{shared // 16 + 1}];
{body.replace("extern __shared__", "extern").replace("__shared__", "static")}
{"".join(map(_launcher, _KERNEL.findall(body)))}"""
    path = _folder() / f"{hashlib.sha256(f'{_compiler()} {OPTIONS} {text}'.encode()).hexdigest()}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            Path(folder, "kernels.cpp").write_text(text)
            subprocess.run(["g++", *OPTIONS, "-o", "kernels.so", "kernels.cpp"], cwd=folder, check=True)
            Path(folder, "kernels.so").rename(path)  # whole or not there, whoever else compiles it
    os.utime(path)
    return ctypes.CDLL(str(path))


_KERNEL = re.compile(r'extern "C" __global__ void(?: __launch_bounds__\([^)]*\))?\s+(\w+)\(([^)]*)\)')


def _launcher(kernel: tuple[str, str]) -> str:
    name, parameters = kernel
    taken, given = [], []
    for parameter in parameters.split(","):
        kind, called = parameter.replace("__restrict__", "").strip().rsplit(" ", 1)
        taken.append(f"void* {called}" if "*" in kind else f"{kind} {called}")
        given.append(f"({kind}){called}")
    return f"""
extern "C" void run_{name}({", ".join(taken)}, int blocks, int threads)
{{ fibers::launch(blocks, threads, [=] {{ {name}({", ".join(given)}); }}); }}"""


@functools.cache
def _compiler() -> str:
    told = subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout
    return f"{told}{platform.machine()}"


@functools.cache
def _folder() -> Path:
    """Where libraries are kept, without those that were not used for long."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for path in KEPT.glob("*.so"):
        with suppress(FileNotFoundError):
            if path.stat().st_atime < time.time() - MONTH:
                path.unlink()
    return KEPT
