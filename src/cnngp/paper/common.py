"""What experiments share: hardware and software in words, shares in percent, colours. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import platform
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cnngp import __version__
from cnngp.common import devices
from cnngp.common.arrays import namespace
from cnngp.common.devices import ActualDevice, array_module
from cnngp.gp.linalg import Array

INK, BLUE, ORANGE, GREY = "#1f2933", "#2b6cb0", "#dd6b20", "#9aa5b1"


@functools.cache
def hardware(device: ActualDevice) -> str:
    """The card by its name, or the processor with how many of its cores may be used."""
    if device == "cuda":
        return f"one {devices.card_name()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    names = [line.split(":", 1)[1].strip() for line in told.splitlines() if line.startswith("model name")]
    return f"{cores} core{'s' if cores > 1 else ''} of {names[0] if names else platform.machine()}"


@functools.cache
def software(device: ActualDevice) -> str:
    """The versions of what a number may depend on: ours, Python's, and those of the libraries that compute here."""
    versions = [f"cnngp {__version__}", f"Python {platform.python_version()}"]
    versions += [f"{library} {importlib.metadata.version(library.lower())}" for library in ("NumPy", "SciPy", "Numba")]
    if device == "cuda":
        versions.append(f"CuPy {array_module(device).__version__}")  # its distribution has a name for each CUDA version
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # optional; what needs it says so
        versions.append(f"PyTorch {importlib.metadata.version('torch')}")
    return ", ".join(versions)


def percent(wrong: NDArray[np.bool_]) -> float:
    """The share of wrong predictions in percent, exact where it has few digits."""
    return float(100 * int(np.count_nonzero(wrong)) / len(wrong))


def wait(a: Array) -> None:
    """Until a card has finished what it was asked for."""
    xp = namespace(a)
    if xp is not np:
        xp.cuda.Device().synchronize()


def release(device: str) -> None:
    """Give the card's unused memory back, for other libraries and processes."""
    if device == "cuda":
        devices.release_pooled_memory()
