"""How the engine's functions are compiled, and kept on disk for the next process.

Numba takes compiled code from its cache while the file of that one function is as it was. Ours are put together from
many files: rows are inlined into operations, which share tables and their layout with the plan. Code from before a
change in another file would read new tables in the old way. So the name that code is kept under carries a digest of all
sources that it may have been made from.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba


@functools.cache
def sources_digest() -> str:
    """Changes with any file that compiled code may depend on."""
    room = Path(__file__).parents[2]
    files = sorted(path for path in room.rglob("*.py") if "cuda" not in path.relative_to(room).parts)
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(room).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    ending = f"_{sources_digest()}"
    if not function.__qualname__.endswith(ending):  # one function is compiled for several types
        function.__qualname__ += ending
    return function


def jit(function: Callable[..., Any]) -> Any:
    """A function that Python calls."""
    return numba.njit(nogil=True, error_model="numpy", cache=True)(_named(function))


def inlined(function: Callable[..., Any]) -> Any:
    """A part of compiled functions. LLVM optimises a function together with all that it calls, so parts stay small."""
    return numba.njit(error_model="numpy", cache=True, forceinline=True)(_named(function))


def callback(function: Callable[..., Any], signature: Any) -> Any:
    """A function with an address, for the interpreter to call."""
    return numba.cfunc(signature, cache=True, error_model="numpy")(_named(function))
