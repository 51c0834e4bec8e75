"""Free memory, checked so that work that cannot fit fails at the start and not after hours."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from .devices import ActualDevice, card_memory, pooled_memory

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available(device: ActualDevice = "cpu") -> int | None:
    """Bytes that can be allocated on a device; None if the system does not report them."""
    if device == "cuda":
        return card_memory()[0] + pooled_memory()
    known = []
    with suppress(OSError, ValueError, KeyError):
        found = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        known.append(int(found["MemAvailable"].split()[0]) * 1024)
    with suppress(OSError, ValueError):  # a container, in which reclaimable page cache does not count as used
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        known.append(limit - used + int(stat.get("inactive_file", 0)))
    return min(known, default=None)


def require(bytes_needed: int, what: str, device: ActualDevice = "cpu") -> None:
    """Raise `MemoryError` with the size needed and a remedy, unless it fits."""
    free = available(device)
    if free is not None and bytes_needed > free:
        where = "the card" if device == "cuda" else "this machine"
        raise MemoryError(
            f"{what} needs {size(bytes_needed)} of memory, but {size(free)} are free on {where}; use fewer images or a "
            "machine with more memory"
        )


def size(n: int) -> str:
    """Format a number of bytes: 4.8 GB."""
    amount, unit = float(n), "bytes"
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.3g} {unit}"
