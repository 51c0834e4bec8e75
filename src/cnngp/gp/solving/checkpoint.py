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

from .conjugate import Nystrom, State

log = logging.getLogger("cnngp")

# Seconds of work that a killed solve loses at most, or one iteration where that takes longer.
SECONDS = 30.0
_ARRAYS = ("X", "Q", "S", "C", "best", "least", "energy")
_NUMBERS = ("start", "iteration", "history", "gains")
# The header comes first in the file and this first in the header, also where the rest is lost.
_MARK = b'{"cnngp_checkpoint"'


class Checkpoint:
    """The files `path` (the state) and `path`-basis (the preconditioner, which cost a pass of its own)."""

    def __init__(self, path: Path, problem: str) -> None:
        self.path = path
        self.basis = path.with_name(path.name + "-basis")
        self.problem = problem
        self._written = time.monotonic()

    def read(self, xp: Any, noise: float) -> tuple[Nystrom | None, State | None]:
        """What an earlier run left. What is no checkpoint, or of another problem, is refused: both files will be
        overwritten and removed. What is damaged is set aside.
        """
        basis, saved = self._read(self.basis), self._read(self.path)
        if basis is None:
            return None, None
        E = Nystrom(xp.asarray(basis[1]["U"]), xp.asarray(basis[1]["values"]), noise)
        if saved is None:
            return E, None
        held = saved[0] | {name: tuple(saved[0][name]) for name in ("history", "gains")}
        arrays = {name: xp.asarray(saved[1][name]) for name in _ARRAYS}
        return E, State(**arrays | {name: held[name] for name in _NUMBERS})

    def save(self, E: Nystrom, state: State, every: float | None = None) -> None:
        """Write, unless that was done less than `every` seconds ago."""
        if time.monotonic() - self._written < (SECONDS if every is None else every):
            return
        if not self.basis.exists():
            self._write(self.basis, {}, {"U": E.U, "values": E.values})
        numbers, arrays = ({name: getattr(state, name) for name in names} for names in (_NUMBERS, _ARRAYS))
        self._write(self.path, numbers, arrays)
        self._written = time.monotonic()

    def remove(self) -> None:
        """The solve is done."""
        for path in (self.path, self.basis):
            with suppress(OSError):
                path.unlink()

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if path.is_symlink():  # what it points to would be written
            raise StoreError(
                f"{path} is a link to {path.readlink()}, which is not followed; give the file itself as checkpoint=, "
                "or delete the link"
            )
        if not path.exists():
            return None
        try:
            header, arrays = persistence.read(path, "checkpoint")
        except ModelFileError as error:
            if not _is_checkpoint(path):
                raise StoreError(
                    f"{path} is no checkpoint of a solve, so it is left as it is; give another checkpoint=, or move it"
                ) from None
            aside = path.with_name(path.name + ".damaged")
            path.replace(aside)
            log.warning("%s; it is now %s, and the solve starts from the beginning", error, aside.name)
            return None
        if header.get("problem") != self.problem:
            raise StoreError(
                f"{path} is the checkpoint of another problem (other matrix, targets, noise or rank); give another "
                "checkpoint=, or delete it"
            )
        return header, arrays

    def _write(self, path: Path, header: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays = {name: to_numpy(array) for name, array in arrays.items()}
        try:
            persistence.write(path, {"problem": self.problem} | header, arrays, "checkpoint")
        except OSError as error:  # a full disk must not end a solve that needs none
            log.warning(
                "the checkpoint %s cannot be written (%s); a killed solve would start from the beginning", path, error
            )


def _is_checkpoint(path: Path) -> bool:
    """Whether a file that cannot be read as a checkpoint was one."""
    try:
        with path.open("rb") as file:
            return _MARK in file.read(512)
    except OSError:
        return False
