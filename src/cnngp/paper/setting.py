"""How an experiment is run: its size, its device, its folder; and its pieces, which are kept when a run is killed.

A piece is a few seconds to a few minutes of work with a name. Its values are written to one file the moment it is done,
with a fingerprint of all that it depends on. Run again, a finished piece is read; one with another fingerprint, or a
damaged one, is computed again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp import __version__
from cnngp.common import devices, files
from cnngp.common.arrays import namespace
from cnngp.common.devices import ActualDevice, Device
from cnngp.common.errors import DatasetError, ModelFileError
from cnngp.common.progress import duration
from cnngp.datasets.dataset import Dataset
from cnngp.datasets.sets import Split, load
from cnngp.gp.linalg import Array


class OutOfTime(RuntimeError):
    """The next piece would not be done within the budget; what is done is kept."""


@dataclass(frozen=True)
class Piece:
    """A part of an experiment: `compute` returns JSON values and NumPy arrays.

    `depends` is all that they depend on beside what every piece does (device, seed, quick, version), as JSON values:
    sizes, `network.fingerprint`, `digest(images)`. `seconds` is about what it takes; where the budget does not leave
    that, `OutOfTime` is raised. The first piece of a run is always begun, so that every run gets on.
    """

    name: str
    compute: Callable[[], Mapping[str, Any]]
    depends: Mapping[str, Any]
    seconds: float = 0.0


@dataclass(frozen=True)
class Done:
    """A piece that was used in this run."""

    name: str
    seconds: float
    hardware: str
    software: str
    reused: bool


@dataclass(frozen=True)
class Setting:
    """What every experiment is given.

    `data` is the folder above `mnist/`, None for `$CNNGP_DATA` and the cache; `scheduler` the address of a Dask cluster
    that computes the kernels; `budget` the seconds after which no further piece is begun.
    """

    out: Path
    quick: bool = False
    device: Device = "auto"
    threads: int | None = None
    seed: int = 0
    data: Path | None = None
    scheduler: str | None = None
    budget: float | None = None
    say: Callable[[str, str], None] = field(default=lambda name, text: None, compare=False)
    """Told the name of each piece and what became of it."""
    done: list[Done] = field(default_factory=list, compare=False)
    """The pieces that this run used so far, in order."""
    _began: float = field(default_factory=time.monotonic, compare=False, repr=False)

    @property
    def actual_device(self) -> ActualDevice:
        """The device that "auto" stands for here; refuses "cuda" where there is no card."""
        devices.check_device(self.device)
        return devices.actual_device(self.device)

    def dataset(self, name: str, split: Split = "standard") -> Dataset:
        """A set of images by its name; `DatasetError` in one line where it is not at hand."""
        if self.data is not None and not self.data.is_dir():
            raise DatasetError(f"--data {self.data}: no such folder; expected the folder that holds {name}/")
        return load(name, split=split, data=self.data)

    def run(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """The values of the pieces of an experiment, each told with its number; first how many there are, and about how
        long they take."""
        missing = [piece.seconds for piece in pieces if not self._file(piece.name).exists()]
        kept = len(pieces) - len(missing)
        said = f"{len(pieces)} pieces" + (f", {kept} of them from an earlier run" if kept else "")
        if missing:
            said += f"; the {'others' if kept else 'whole'} up to about {duration(sum(missing))}"
        self.say("plan", said)
        return [self.values(piece, f"{i} of {len(pieces)}, ") for i, piece in enumerate(pieces, start=1)]

    def values(self, piece: Piece, number: str = "") -> dict[str, Any]:
        """The values of one piece: read where they are kept, else computed and kept, with the `seconds` that it took,
        the `hardware` and the `software`."""
        name = piece.name
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
            raise ValueError(f"piece {name!r}: expected small letters, digits, dots and dashes")
        facts = {"piece": name, "version": __version__, "device": self.actual_device, "seed": self.seed}
        facts |= {"quick": self.quick, "cluster": self.scheduler is not None, **piece.depends}
        fingerprint = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        kept = self._kept(name, fingerprint)
        reused = kept is not None
        if kept is None:
            self._check_time(piece)
            if number:
                self.say(number + name, f"up to about {duration(piece.seconds)} …")
            begun = time.perf_counter()
            kept = dict(piece.compute())
            workers = "" if self.scheduler is None else ", and the workers of a Dask cluster for the kernels"
            kept["seconds"] = time.perf_counter() - begun
            kept["hardware"] = f"{hardware(self.actual_device)}{workers}"
            kept["software"] = software(self.actual_device)
            arrays = {key: value for key, value in kept.items() if isinstance(value, np.ndarray)}
            values = {key: value for key, value in kept.items() if key not in arrays}
            self._file(name).parent.mkdir(parents=True, exist_ok=True)
            header = {"fingerprint": fingerprint, "depends": facts, "values": values}
            files.write(self._file(name), header, arrays, "piece")
        self.done.append(Done(name, kept["seconds"], kept["hardware"], kept["software"], reused))
        took = f"{kept['seconds']:.1f} s"
        self.say(number + name, f"kept from an earlier run, where it took {took}" if reused else f"done in {took}")
        return kept

    def _kept(self, name: str, fingerprint: str) -> dict[str, Any] | None:
        """A kept piece; None where there is none, where it is of something else, and where it is damaged."""
        try:
            header, arrays = files.read(self._file(name), "piece")
        except ModelFileError:
            return None
        return header["values"] | arrays if header["fingerprint"] == fingerprint else None

    def _check_time(self, piece: Piece) -> None:
        if self.budget is None or all(done.reused for done in self.done):
            return
        left = max(self.budget - (time.monotonic() - self._began), 0.0)
        if piece.seconds > left:
            raise OutOfTime(
                f"{piece.name} takes about {piece.seconds:.0f} s and the budget leaves {left:.0f} s; what is done is "
                "kept, run again to continue"
            )

    def _file(self, name: str) -> Path:
        return self.out / "pieces" / f"{name}.piece"


def digest(*arrays: NDArray[Any]) -> str:
    """A fingerprint of arrays by their type, shape and content."""
    h = hashlib.blake2b(digest_size=16)
    for a in arrays:
        h.update(f"{a.dtype.str}{a.shape}".encode())
        h.update(np.ascontiguousarray(a).data)
    return h.hexdigest()


@functools.cache
def hardware(device: ActualDevice) -> str:
    """The card by its name, or the processor with how many of its cores may be used."""
    if device == "cuda":
        return f"one {devices.card_name()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    model = re.search(r"^model name\s*:\s*(.*)$", told, re.MULTILINE)
    return f"{cores} core{'s' if cores > 1 else ''} of {model[1] if model else platform.machine()}"


@functools.cache
def software(device: ActualDevice) -> str:
    """The versions of what a number may depend on: ours, Python's, and those of the libraries that compute here."""
    versions = [f"cnngp {__version__}", f"Python {platform.python_version()}"]
    versions += [f"{library} {importlib.metadata.version(library.lower())}" for library in ("NumPy", "SciPy", "Numba")]
    if device == "cuda":  # CuPy's distribution has a name for each CUDA version
        versions.append(f"CuPy {devices.array_module(device).__version__}")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # optional; what needs it says so
        versions.append(f"PyTorch {importlib.metadata.version('torch')}")
    return ", ".join(versions)


def wait(a: Array) -> None:
    """Until a card has finished what it was asked for."""
    xp = namespace(a)
    if xp is not np:
        xp.cuda.Device().synchronize()


def release(device: ActualDevice) -> None:
    """Give the card's unused memory back, for other libraries and processes."""
    if device == "cuda":
        devices.release_pooled_memory()
