"""`cnngp networks` and `cnngp info`: the built-in networks with their cost per pair, and what this machine can run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from typing import Any

from cnngp.common.tables import aligned
from cnngp.network.names import NETWORKS, network_by_name

from .options import Asked
from .output import last_line, say, tell

_NEEDED = ("numpy", "scipy", "numba", "scikit-learn", "zarr", "click")
_OPTIONAL = ("matplotlib", "torch", "cupy", "dask", "optuna", "gpytorch", "pooch")


def networks(asked: Asked) -> None:
    """List the built-in networks, or show one layer by layer."""
    size = asked.input_shape
    if asked.name is not None:
        net = network_by_name(asked.name)
        if net is None:
            raise ValueError("networks auto: auto depends on the data; give a name")
        rows = net.shapes(size)
        tell(f"{rows}\n{net!r}")
        last_line({"command": "networks", "name": asked.name, "shape": size, "operations_per_pair": rows.cost})
        return
    table_rows = [("name", "layers", "operations per pair", "")]
    listed = []
    for key, (make, text) in NETWORKS.items():
        rows = make().shapes(size)
        layers = sum(row.place != "(input)" and not row.layer.startswith("Sum") for row in rows)
        table_rows.append((key, str(layers), f"{rows.cost:,}", text))
        listed.append({"name": key, "layers": layers, "operations_per_pair": rows.cost})
    tell(aligned(table_rows, right=(1, 2)))
    last_line({"command": "networks", "shape": size, "networks": listed})


def info(asked: Asked) -> None:
    """Show versions, engines, threads and memory. Also show where data is looked for."""
    from cnngp import __version__
    from cnngp.common import memory
    from cnngp.common.files import user_cache
    from cnngp.kernel.engines.cpu.runner import default_threads

    versions = {name: _version(name) for name in (*_NEEDED, *_OPTIONAL)}
    threads, card = f"{default_threads()} threads of {os.cpu_count()} processors", _card()
    free = memory.available()
    say("cnngp", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    say("packages", ", ".join(f"{name} {versions[name]}" for name in _NEEDED))
    say("optional", ", ".join(f"{name} {versions[name] or 'absent'}" for name in _OPTIONAL))
    say("engine cpu", threads)
    say("engine cuda", card)
    say("memory free", "unknown" if free is None else memory.size(free))
    say("data", f"{os.environ.get('CNNGP_DATA') or 'CNNGP_DATA is not set'}; cache {user_cache()}")
    result: dict[str, Any] = {"command": "info", "version": __version__, "python": platform.python_version()}
    last_line(result | {"packages": versions, "cpu": threads, "cuda": card, "memory_free": free})


def _version(name: str) -> str | None:
    """Installed version, or None. CuPy's wheels are named after the CUDA version they are built for."""
    for distribution in (name, *((f"cupy-cuda{n}x" for n in (11, 12, 13)) if name == "cupy" else ())):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _card() -> str:
    from cnngp.common import devices
    from cnngp.common.memory import size

    try:
        name, (free, total) = devices.card_name(), devices.card_memory()
    except Exception as error:  # CuPy raises its own types for missing drivers, libraries and cards
        return f"not available: {str(error).splitlines()[0]}"
    return f"{name}, {size(free)} of {size(total)} free"
