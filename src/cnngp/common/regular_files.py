"""Regular files: those that can be read to their end without waiting for anything."""

from __future__ import annotations

import stat
from pathlib import Path

from .errors import DatasetError

# What files of /proc and /sys are said to hold; a look at the size is quicker than one at the whole path.
_MADE_UP = (0, 4096)


def check_regular(path: Path) -> None:
    """Refuse what is not a file with content of its own: a pipe, a device or one of /proc may wait for ever."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise DatasetError(f"{path}: no such file") from None
    except OSError as error:
        raise DatasetError(f"{path} cannot be read ({error.strerror})") from None
    made_up = found.st_size in _MADE_UP and is_of_the_system(path)
    if not stat.S_ISREG(found.st_mode) or made_up:
        raise DatasetError(f"{path} is not a regular file, but a folder, a pipe, a device or a file of the system")


def is_of_the_system(path: Path) -> bool:
    """Whether it is in a folder whose files the kernel of the operating system makes up when they are read."""
    return path.resolve().parts[:2] in (("/", "proc"), ("/", "sys"))
