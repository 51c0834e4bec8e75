"""A small matrix in a store, and what the tests of its faults compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from cnngp import Dense, Kernel

X = np.random.default_rng(0).random((200, 5))
TILE = 32
TILES = 7 * 8 // 2
KERNEL = Kernel(Dense(), device="cpu", threads=1)


def expected() -> Any:
    return KERNEL(X)
