"""Machine code of the engine's functions: read from disk, or compiled where it is not there.

Importing Numba, which compiles them (`compiling.py`), takes longer than a small matrix, and most processes find all
that they need. So nothing here imports it: a function is known by its name, and what is on disk is object code that
LLVM loads. The functions call each other through their addresses; if they did so directly, LLVM would optimise and
translate the whole call tree again for every function in it.

The name of a file carries a digest of all sources that it may have been made from, because rows are inlined into
operations, which share tables and their layout with the plan; when a file is written, those with another are removed.
Machine code is run as it is found, and one wrong bit in a constant would be a wrong kernel. So each file has a
checksum, over its name too; what does not match is compiled again.
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
    """A function of the engine: an operation on maps, a nonlinearity on a row of one, or an entry that Python calls.

    `path` leads to it from this folder; with `numbers` to a function that makes it of these.
    """

    kind: Kind
    path: str
    numbers: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "-".join([self.path, *map(str, self.numbers)])


# How many integers each takes.
_ENTRIES = {"image_tables": 9, "pair_block": 18, "pair_gradients": 13, "spread_rows": 5, "spread_lanes": 4}


@functools.cache
def entry(name: str, dtype: str) -> Callable[..., None]:
    """A function of `interpreter.py`. It takes integers, some of them addresses; other threads run meanwhile."""
    function_type = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * _ENTRIES[name])
    return function_type(address(Function("entry", f"interpreter.{name}"), dtype))


def address(function: Function, dtype: str) -> int:
    """Where a function's code for one precision is in memory, loaded or compiled when first asked for."""
    symbol = f"{function}-{dtype}"
    with _lock:
        if symbol not in _loaded:
            file = folder() / f"{symbol}-{machine_digest()}-{sources_digest()}.o"
            code = _read(file)
            if code is None:  # a terminal says so: each takes up to a second, and Numba's import another
                with progress_bar(1, f"compiling for this machine, once: {function}", "function", delay=0.0):
                    from .compiling import object_code

                    code = bytes(object_code(function, dtype, symbol))
                _keep(file, code)
            _loaded[symbol] = _link(code, symbol)
        return int(_loaded[symbol][symbol])


_lock = threading.Lock()
_loaded: dict[str, Any] = {}
"""Code in memory, which is released with these values."""


@functools.cache
def _linker() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.create_lljit_compiler()


def _link(code: bytes, symbol: str) -> Any:
    """Code in memory with addresses for its symbols."""
    from llvmlite.binding import JITLibraryBuilder

    library = JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol(symbol)
    return library.link(_linker(), symbol)


@functools.cache
def sources_digest() -> str:
    """Changes with any file that compiled code may depend on."""
    room = Path(__file__).parents[2]
    return digest_of(room, (path for path in room.rglob("*.py") if "cuda" not in path.relative_to(room).parts))


def digest_of(folder: Path, files: Iterable[Path]) -> str:
    """Changes with the name or the content of any of these files."""
    digest = hashlib.blake2b(digest_size=8)
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()


@functools.cache
def machine_digest() -> str:
    """Changes with what else the code depends on: the processor, the compiler, and settings of Numba."""
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
    """Where code is kept: beside the sources if they can be written to. It belongs to these sources alone."""
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
