"""Machine code of the engine's functions, read from disk or compiled if missing.

Importing Numba, which compiles the functions (`compiling.py`), takes longer than computing a small matrix, and most
processes find all code on disk. So nothing here imports it: a function is identified by name, and the files on disk are
object code that LLVM loads. The functions call each other through their addresses; with direct calls LLVM would
optimise and translate the whole call tree again for every function in it.

File names contain a digest of all sources that the code may depend on, because rows are inlined into operations, which
share tables and their layout with the plan; writing a file removes those with another digest. One wrong bit in a
constant would give a wrong kernel, so each file has a checksum that covers its name; a file that does not match is
compiled again.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.metadata
import logging
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cnngp.common.files import user_cache, write_atomically
from cnngp.common.progress import progress_bar

log = logging.getLogger("cnngp")

_CHECKSUM = 32

Kind = Literal["operation", "row", "entry"]


@dataclass(frozen=True)
class Function:
    """A function of the engine: an operation on maps, a nonlinearity on a row of a map, or an entry that Python calls.

    `path` is its location relative to this folder, or with `numbers` that of a function that makes it from them.
    """

    kind: Kind
    path: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.path, *map(str, self.numbers)])


# Number of integers that each entry takes.
_ENTRIES = {"image_tables": 9, "pair_block": 18, "pair_gradients": 13, "spread_rows": 5, "spread_lanes": 4}


@functools.cache
def entry(name: str, dtype: str) -> Callable[..., None]:
    """Return a function of `interpreter.py`. It takes integers, some of them addresses, and releases the GIL."""
    function_type = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * _ENTRIES[name])
    return function_type(address(Function("entry", f"interpreter.{name}"), dtype))


def address(function: Function, dtype: str) -> int:
    """Return the memory address of a function's code for one precision, loaded or compiled at first use."""
    symbol = f"{function}-{dtype}"
    with _lock:
        if symbol not in _loaded:
            file = folder() / f"{symbol}-{machine_digest()}-{sources_digest()}.o"
            code = _read(file)
            if code is None:  # shown on a terminal: each takes up to a second, and importing Numba another
                with progress_bar(1, f"compiling for this machine, once: {function}", "function", delay=0.0):
                    from .compiling import object_code

                    code = bytes(object_code(function, dtype, symbol))
                _keep(file, code)
            _loaded[symbol] = _link(code, symbol)
        return int(_loaded[symbol][symbol])


_lock = threading.Lock()
_loaded: dict[str, Any] = {}
"""Code in memory by symbol; it is freed together with these values."""


@functools.cache
def _linker() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.create_lljit_compiler()


def _link(code: bytes, symbol: str) -> Any:
    """Load object code into memory; returns the addresses of its symbols."""
    from llvmlite.binding import JITLibraryBuilder

    library = JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(symbol)
    return library.link(_linker(), symbol)


@functools.cache
def sources_digest() -> str:
    """Digest of all source files on which compiled code may depend."""
    room = Path(__file__).parents[2]
    return digest_of(room, (path for path in room.rglob("*.py") if "cuda" not in path.relative_to(room).parts))


def digest_of(folder: Path, files: Iterable[Path]) -> str:
    """Digest of the names and contents of files."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()


@functools.cache
def machine_digest() -> str:
    """Digest of everything else on which compiled code depends: the processor, the compiler, and settings of Numba."""
    import llvmlite
    from llvmlite import binding

    settings = sorted(
        (name, value) for name, value in os.environ.items() if name.startswith(("NUMBA_CPU", "NUMBA_OPT"))
    )
    parts = (
        binding.get_process_triple(),
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        importlib.metadata.version("numba"),
        llvmlite.__version__,
        settings,
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


@functools.cache
def folder() -> Path:
    """Folder of these sources' compiled code: in NUMBA_CACHE_DIR if set, else beside them, or in the user's cache."""
    here = Path(__file__).parent
    own = f"{here.parents[2].name}-{hashlib.blake2b(str(here).encode(), digest_size=8).hexdigest()}"
    places = [here / "__pycache__"]
    if os.environ.get("NUMBA_CACHE_DIR"):
        places = [Path(os.environ["NUMBA_CACHE_DIR"], own)]
    else:
        with suppress(RuntimeError):  # a user without a home
            places.append(user_cache() / "compiled" / own)
    for place in places:
        with suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            if os.access(place, os.W_OK):
                return place
    log.warning(
        "compiled code cannot be saved for the next run, because no folder for it can be written to; set "
        "NUMBA_CACHE_DIR to one that can"
    )
    return places[0]


def _read(file: Path) -> bytes | None:
    with suppress(OSError):
        content = file.read_bytes()
        code = content[_CHECKSUM:]
        if content[:_CHECKSUM] == _checksum(file, code):
            return code
    return None


def _keep(file: Path, code: bytes) -> None:
    with suppress(OSError):  # a full disk: the next process compiles again
        for other in file.parent.glob("*.o"):
            if not other.stem.endswith(sources_digest()):
                other.unlink(missing_ok=True)
        write_atomically(file, _checksum(file, code) + code)


def _checksum(file: Path, code: bytes) -> bytes:
    return hashlib.sha256(f"{file.name} ".encode() + code).digest()
