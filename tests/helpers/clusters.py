"""Images, a kernel and a store that the tests of clusters share."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from cnngp import Kernel, zoo

X = np.random.default_rng(0).random((150, 1, 8, 8), dtype=np.float32)
KERNEL = Kernel(zoo.small_cnn(), device="cpu", threads=1)


def chunks(place: Path) -> int:
    return len(list(place.glob("K/c/*/*")))


def names(place: Path) -> list[str]:
    return sorted(p.name for folder in (place, place / "K") for p in folder.iterdir())


def wait_for_chunks(place: Path, least: int) -> None:
    until = time.monotonic() + 120
    while chunks(place) < least:
        assert time.monotonic() < until, "no tiles were written"
        time.sleep(0.005)


SLOW = Kernel(zoo.resnet(14), device="cpu", threads=1)
