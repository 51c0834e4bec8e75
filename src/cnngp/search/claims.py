"""Who works on what, among processes that know nothing of each other: one locked file for each piece of work.

The operating system holds the locks, so a process that is killed lets go of its work at once, and nothing has to be
cleaned up or waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cnngp.common.locks import close_file, open_file, try_lock


class Claims:
    """Pieces of work that this process has taken, by name, in a folder that all processes share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def take(self, name: str) -> bool:
        """Take a piece of work; False while anyone, this process too, is at it."""
        path = self._folder / name
        if self._folder.is_symlink():  # files would be made, and removed again, in a place that somebody else chose
            raise OSError(f"{self._folder} is a link to {self._folder.readlink()}, which is not followed; delete it")
        while True:
            try:
                descriptor = open_file(path)
            except FileNotFoundError:  # nobody was here yet, or whoever let go last has removed the folder
                self._folder.parent.mkdir(parents=True, exist_ok=True)
                with suppress(FileExistsError):  # another process was faster, and may have removed it again
                    self._folder.mkdir()
                continue
            if try_lock(descriptor) == "taken":
                close_file(descriptor)
                return False
            if _is_file(descriptor, path):
                self._held[name] = descriptor
                return True
            close_file(descriptor)  # its holder removed it between our opening and locking it

    def drop(self, name: str) -> None:
        """Let go of it. The file goes while it is locked, so that nobody can take the name in between."""
        descriptor = self._held.pop(name)
        with suppress(OSError):  # systems that keep files that are open
            (self._folder / name).unlink()
        close_file(descriptor)
        with suppress(OSError):  # others are at work
            self._folder.rmdir()

    def drop_all(self) -> None:
        for name in list(self._held):
            self.drop(name)

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Hold `name` for a moment's work, after all others who do."""
        while not self.take(name):
            time.sleep(0.01)
        try:
            yield
        finally:
            self.drop(name)


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
