"""A solve that was killed goes on: its state in a file that is replaced as a whole and belongs to one problem only."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from cnngp.common import files as persistence
from cnngp.common.arrays import to_numpy
from cnngp.common.errors import ModelFileError, StoreError

from .conjugate import State

log = logging.getLogger("cnngp")

# Seconds of work that a killed solve loses at most, or one iteration where that takes longer.
SECONDS = 30.0
_ARRAYS = ("X", "Q", "S", "C", "best", "least", "energy")
_NUMBERS = ("start", "iteration", "history", "gains")


class Checkpoint:
    """The state of the solve of one `problem`, in the file `path`."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path, self.problem = path, problem
        self.latest: State | None = None
        self._written = time.monotonic()

    def read(self, xp: Any) -> State | None:
        """What an earlier run left. Any other file is refused, as it would be overwritten and removed."""
        if not self.path.exists():
            return None
        try:
            header, arrays = persistence.read(self.path, "checkpoint")
        except ModelFileError as error:
            raise StoreError(f"{error}; it is left as it is: give another checkpoint=, or delete it") from None
        if header.get("problem") != self.problem:
            raise StoreError(
                f"{self.path} is the checkpoint of another problem (other matrix, targets, noise or rank); give "
                "another checkpoint=, or delete it"
            )
        numbers = {name: header[name] for name in _NUMBERS}
        numbers |= {name: tuple(header[name]) for name in ("history", "gains")}
        self.latest = State(**{name: xp.asarray(arrays[name]) for name in _ARRAYS}, **numbers)
        return self.latest

    def see(self, state: State) -> None:
        """Keep the state, in the file where the one there is older than `SECONDS`."""
        self.latest = state
        if time.monotonic() - self._written >= SECONDS:
            self.write()

    def write(self) -> None:
        """Write the latest state."""
        if self.latest is None:
            return
        header = {"problem": self.problem} | {name: getattr(self.latest, name) for name in _NUMBERS}
        arrays = {name: to_numpy(getattr(self.latest, name)) for name in _ARRAYS}
        try:
            persistence.write(self.path, header, arrays, "checkpoint")
        except OSError as error:  # a full disk must not end a solve that needs none
            log.warning(
                "the checkpoint %s cannot be written (%s); a killed solve would start from the beginning",
                self.path,
                error,
            )
        self._written = time.monotonic()

    def remove(self) -> None:
        """The solve is done."""
        with suppress(OSError):
            self.path.unlink()
