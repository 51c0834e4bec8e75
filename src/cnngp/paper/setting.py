"""Setting of an experiment (size, device, folder), and its pieces, which survive when a run is killed.

A piece is a named part of the work that takes a few seconds to a few minutes. Its values are written to one file as
soon as it is done, with a fingerprint of everything that it depends on. The next run reads finished pieces; a piece
that is damaged or has another fingerprint is computed again.
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
    """Raised if the next piece would not finish within the budget; finished pieces are kept."""


@dataclass(frozen=True)
class Piece:
    """A part of an experiment: `compute` returns JSON values and NumPy arrays.

    `depends` holds, as JSON values, everything that they depend on besides what all pieces do (device, seed, quick,
    version, cluster): sizes, `network.fingerprint`, `digest(images)`. `seconds` is the approximate time; if the budget
    does not leave that much, `OutOfTime` is raised. The first new piece of a run always starts, so each run progresses.
    """

    name: str
    compute: Callable[[], Mapping[str, Any]]
    depends: Mapping[str, Any]
    seconds: float = 0.0


@dataclass(frozen=True)
class Done:
    """Record of a piece that was used in this run."""

    name: str
    seconds: float
    hardware: str
    software: str
    reused: bool


@dataclass(frozen=True)
class Setting:
    """Options that every experiment receives.

    `data` is the folder that contains `mnist/`, None for `$CNNGP_DATA` and the cache; `scheduler` the address of a Dask
    cluster that computes the kernels; `budget` the time in seconds within which a further piece must fit to be started.
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
    """Callback for printing: the name of each piece, and its state."""
    done: list[Done] = field(default_factory=list, compare=False)
    """Pieces that this run has used so far, in order."""
    _began: float = field(default_factory=time.monotonic, compare=False, repr=False)

    @property
    def actual_device(self) -> ActualDevice:
        """The device that "auto" means here; raises for "cuda" without a GPU."""
        devices.check_device(self.device)
        return devices.actual_device(self.device)

    def dataset(self, name: str, split: Split = "standard") -> Dataset:
        """Load a data set by its name; raises `DatasetError` if it is missing."""
        if self.data is not None and not self.data.is_dir():
            raise DatasetError(f"--data {self.data}: no such folder; expected the folder that holds {name}/")
        return load(name, split=split, data=self.data)

    def run(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """Return the values of an experiment's pieces, after announcing how many there are and how long they take."""
        missing = [piece.seconds for piece in pieces if not self._file(piece.name).exists()]
        kept = len(pieces) - len(missing)
        said = f"{len(pieces)} pieces" + (f", {kept} of them from an earlier run" if kept else "")
        if missing:
            said += f"; the {'others' if kept else 'whole'} up to about {duration(sum(missing))}"
        self.say("plan", said)
        return [self.values(piece, f"{i} of {len(pieces)}, ") for i, piece in enumerate(pieces, start=1)]

    def values(self, piece: Piece, number: str = "") -> dict[str, Any]:
        """Return the values of one piece, read from its file or else computed and saved, with the `seconds` that it
        took, the `hardware` and the `software`."""
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
        """Values of a kept piece; None if it is missing, damaged, or has another fingerprint."""
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
    """Hash of arrays by type, shape and content."""
    h = hashlib.blake2b(digest_size=16)
    for a in arrays:
        h.update(f"{a.dtype.str}{a.shape}".encode())
        h.update(np.ascontiguousarray(a).data)
    return h.hexdigest()


@functools.cache
def hardware(device: ActualDevice) -> str:
    """Name of the GPU, or the processor with the number of available cores."""
    if device == "cuda":
        return f"one {devices.card_name()}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    model = re.search(r"^model name\s*:\s*(.*)$", told, re.MULTILINE)
    return f"{cores} core{'s' if cores > 1 else ''} of {model[1] if model else platform.machine()}"


@functools.cache
def software(device: ActualDevice) -> str:
    """Versions that results may depend on: cnngp, Python, and the libraries that compute on this device."""
    versions = [f"cnngp {__version__}", f"Python {platform.python_version()}"]
    versions += [f"{library} {importlib.metadata.version(library.lower())}" for library in ("NumPy", "SciPy", "Numba")]
    if device == "cuda":  # the name of CuPy's distribution depends on the CUDA version
        versions.append(f"CuPy {devices.array_module(device).__version__}")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # optional; experiments that need it raise
        versions.append(f"PyTorch {importlib.metadata.version('torch')}")
    return ", ".join(versions)


def wait(a: Array) -> None:
    """Wait until a GPU has finished its queued work."""
    xp = namespace(a)
    if xp is not np:
        xp.cuda.Device().synchronize()


def release(device: ActualDevice) -> None:
    """Release unused pooled GPU memory for other libraries and processes."""
    if device == "cuda":
        devices.release_pooled_memory()
