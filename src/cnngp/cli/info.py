"""`cnngp info`: what is installed and what this machine can run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

from .output import Json, Quiet, last_line, say

_NEEDED = ("numpy", "scipy", "numba", "scikit-learn", "zarr", "typer")
_OPTIONAL = ("matplotlib", "torch", "cupy", "dask", "optuna", "gpytorch", "pooch")


def info(as_json: Json = False, quiet: Quiet = False) -> None:
    """Show versions, engines, threads, memory, and where data is looked for."""
    from cnngp import __version__
    from cnngp.common import memory
    from cnngp.common.files import user_cache

    versions = {name: _version(name) for name in (*_NEEDED, *_OPTIONAL)}
    threads, card = _cpu(), _card()
    free = memory.available()
    say("cnngp", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    say("packages", ", ".join(f"{name} {versions[name]}" for name in _NEEDED))
    say("optional", ", ".join(f"{name} {versions[name] or 'absent'}" for name in _OPTIONAL))
    say("engine cpu", threads)
    say("engine cuda", card)
    say("memory free", "unknown" if free is None else memory.size(free))
    say("data", f"{os.environ.get('CNNGP_DATA') or 'CNNGP_DATA is not set'}; cache {user_cache()}")
    result: dict[str, Any] = {"command": "info", "version": __version__, "python": platform.python_version()}
    last_line(as_json, result | {"packages": versions, "cpu": threads, "cuda": card, "memory_free": free})


def _version(name: str) -> str | None:
    """CuPy's wheels are named after the CUDA version they are built for."""
    for distribution in (name, *((f"cupy-cuda{n}x" for n in (11, 12, 13)) if name == "cupy" else ())):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _cpu() -> str:
    from cnngp.kernel.engines.cpu.runner import default_threads

    return f"{default_threads()} threads of {os.cpu_count()} processors"


def _card() -> str:
    from cnngp.common import devices
    from cnngp.common.memory import size

    try:
        name, (free, total) = devices.card_name(), devices.card_memory()
    except Exception as error:  # CuPy raises its own types for missing drivers, libraries and cards
        return f"not available: {str(error).splitlines()[0]}"
    return f"{name}, {size(free)} of {size(total)} free"
