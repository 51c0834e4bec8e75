"""Generated CUDA compiled as C++ (cuda_on_cpu.hpp), for tests without a card."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to run the kernels on a CPU")


def compiled(body: str, real: str, path: str, shared: int, folder: Path) -> ctypes.CDLL:
    """`run_tables` and `run_pairs` of a program's text without its primitives; `shared` bytes of shared memory."""
    body = _without_shared(body)
    data = ", (const int*)plan, (const double*)numbers"
    scratch = ", (char*)scratch" if path in ("block", "sheets", "walk") else ""
    scratch += data if path == "walk" else ""
    more = data if path in ("sheets", "walk") else ""
    kind = "const real*" if path != "warp" else "const vec*"
    tangents = "theta_mirror" in body
    places = ", void* theta, void* theta_mirror" if tangents else ""
    theta = ", (real*)theta, (real*)theta_mirror" if tangents else ""
    text = f"""
{_head(real, shared)}
{body}
extern "C" void run_tables(void* X, void* rows, void* peaks, void* diagonal, int n, void* scratch, void* panels,
                           void* plan, void* numbers, int blocks, int threads)
{{ fibers::launch(blocks, threads, [=] {{
    tables((const real*)X, (real*)rows, (double*)peaks, (double*)diagonal, n, (char*)scratch,
           (const double*)panels{more}); }}); }}
extern "C" void run_pairs(void* first, void* second, void* out, void* mirror, int n, int m, long long ld,
                          long long below{places}, void* scratch, void* plan, void* numbers, int blocks, int threads)
{{ fibers::launch(blocks, threads, [=] {{
    pairs(({kind})first, ({kind})second, (real*)out, (real*)mirror, n, m, ld, below{theta}{scratch}); }}); }}
"""
    return _library(text, folder)


def compiled_gradient(body: str, real: str, shared: int, folder: Path) -> ctypes.CDLL:
    """`run_tables`, `run_pairs` and `run_selves` of a gradient's text without its primitives."""
    data = "(const int*)plan, (const double*)numbers, (const int*)ways"
    text = f"""
{_head(real, shared)}
{_without_shared(body)}
extern "C" void run_tables(void* X, void* rows, void* peaks, int n, void* scratch, void* panels, void* plan,
                           void* numbers, void* ways, int blocks, int threads)
{{ fibers::launch(blocks, threads, [=] {{
    tables((const real*)X, (real*)rows, (double*)peaks, n, (char*)scratch, (const double*)panels, {data}); }}); }}
extern "C" void run_pairs(void* first, void* second, void* weights, int n, int m, int phase, int one_set,
                          void* shares1, void* shares2, void* sums, void* scratch, void* plan, void* numbers,
                          void* ways, int blocks, int threads)
{{ fibers::launch(blocks, threads, [=] {{
    pairs((const real*)first, (const real*)second, (const real*)weights, n, m, phase, one_set, (real*)shares1,
          (real*)shares2, (double*)sums, (char*)scratch, {data}); }}); }}
extern "C" void run_selves(void* X, void* seeds, void* shares, void* sums, void* pixels, void* peaks, int n,
                           void* scratch, void* panels, void* plan, void* numbers, void* ways, int blocks, int threads)
{{ fibers::launch(blocks, threads, [=] {{
    selves((const real*)X, (const double*)seeds, (const real*)shares, (double*)sums, (double*)pixels, (double*)peaks,
           n, (char*)scratch, (const double*)panels, {data}); }}); }}
"""
    return _library(text, folder)


def _without_shared(body: str) -> str:
    return body.replace("extern __shared__", "extern").replace("__shared__", "static")


def _head(real: str, shared: int) -> str:
    return f"""\
#define REAL {real}
#define VEC {"float4" if real == "float" else "double2"}
#include "{Path(__file__).with_name("cuda_on_cpu.hpp")}"
alignas(16) vec dynamic_shared[{shared // 16 + 1}];"""


def _library(text: str, folder: Path) -> ctypes.CDLL:
    (folder / "kernels.cpp").write_text(text)
    command = ["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-o", "kernels.so", "kernels.cpp"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "kernels.so"))
