"""How the engine's functions are compiled, and kept on disk for the next process.

Numba takes compiled code from its cache while the file of that one function is as it was. Ours are put together from
many files: rows are inlined into operations, which share tables and their layout with the plan. Code from before a
change in another file would read new tables in the old way. So the name that code is kept under carries a digest of all
sources that it may have been made from; files that carry another one are removed when a new one is written.

A function made by another function has variables of that one, and its code depends on them. Numba would tell them apart
by their pickles, which for compiled functions differ in every process; `_described` is the same in all of them.

Numba runs what it finds, and one wrong bit in a constant would be a wrong kernel. So each file has a checksum, over its
name too; what does not match is compiled again.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba
from numba.core import sigutils
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc

log = logging.getLogger("cnngp")

_DIGEST = 32


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


class _Cache(FunctionCache):  # type: ignore[misc]
    """The compiled code of one function, a file for each combination of types, processor and variables."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file: Any = _CheckedFiles(self.cache_path, self._impl.filename_base, None)

    def _index_key(self, sig: Any, codegen: Any) -> str:
        return repr((str(sig), codegen.magic_tuple(), _described(self._py_func)))


def _described(variable: Any) -> Any:
    """A variable that a function has from where it was made: a number as it is, a function by its name and its own
    variables.
    """
    function = getattr(variable, "py_func", variable)
    if not callable(function):
        return variable
    own = tuple(_described(cell.cell_contents) for cell in function.__closure__ or ())
    return function.__module__, function.__qualname__, own


class _CheckedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """The files of one function's compiled code. Named by what it is found by, it needs no index."""

    def load(self, key: str) -> Any:
        with suppress(OSError):
            return pickle.loads(self._bytes(self._name(key)))
        return None

    def save(self, key: str, data: Any) -> None:
        name, content = self._name(key), self._dump(data)
        with suppress(OSError):  # a full disk: the next process compiles again
            _remove_older(self._cache_path)
            with self._open_for_write(self._data_path(name)) as file:  # beside it, then renamed
                file.write(self._checksum(name, content) + content)

    def _name(self, key: str) -> str:
        return str(self._data_name(int(hashlib.sha256(key.encode()).hexdigest()[:15], 16)))

    def _bytes(self, name: str) -> bytes:
        """The content of a file. `OSError` where it is not there or not what was written under this name."""
        content = Path(self._cache_path, name).read_bytes()
        if content[:_DIGEST] != self._checksum(name, content[_DIGEST:]):
            raise OSError(f"{name} is damaged, or another version's")
        return content[_DIGEST:]

    def _checksum(self, name: str, content: bytes) -> bytes:
        return hashlib.sha256(f"{self._version} {name} ".encode() + content).digest()


@functools.cache
def _remove_older(folder: str) -> None:
    """Remove the code of other sources. A folder belongs to the sources of one place, so nothing else will use it."""
    for file in Path(folder).glob("*.nb[ci]"):
        if f"_{sources_digest()}-" not in file.name:
            file.unlink(missing_ok=True)


def _kept(compiled: Any, function: Callable[..., Any]) -> Any:
    """A function, or one with an address, whose code is kept on disk."""
    try:
        compiled._cache = _Cache(function)
    except RuntimeError:  # Numba found no folder that it can write
        _warn_once()
    return compiled


@functools.cache
def _warn_once() -> None:
    log.warning(
        "compiled code cannot be saved for the next run, because no folder for it can be written to; set "
        "NUMBA_CACHE_DIR to one that can"
    )


def jit(function: Callable[..., Any]) -> Any:
    """A function that Python calls."""
    return _kept(numba.njit(nogil=True, error_model="numpy")(_named(function)), function)


def inlined(function: Callable[..., Any]) -> Any:
    """A part of compiled functions. LLVM optimises a function together with all that it calls, so parts stay small."""
    return _kept(numba.njit(error_model="numpy", forceinline=True)(_named(function)), function)


def callback(function: Callable[..., Any], signature: Any) -> Any:
    """A function with an address, for the interpreter to call: what `numba.cfunc` makes."""
    types = sigutils.normalize_signature(signature)
    compiled = _kept(CFunc(_named(function), types, locals={}, options={"error_model": "numpy"}), function)
    compiled.compile()
    return compiled
