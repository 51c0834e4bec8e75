"""A small matrix in a store, and what tests of its faults compare."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import Dense, Kernel

X = np.random.default_rng(0).random((200, 5))
Z = np.random.default_rng(1).random((70, 5))
TILE = 32
TILES = 7 * 8 // 2
KERNEL = Kernel(Dense(), device="cpu", threads=1)


def expected() -> Any:
    return KERNEL(X)


def contents(store: Path) -> dict[str, Any]:
    """All files, metadata by what they say."""

    def of(path: Path) -> Any:
        return json.loads(path.read_text()) if path.suffix == ".json" else path.read_bytes()

    return {str(p.relative_to(store)): of(p) for p in store.rglob("*") if p.is_file() and p.name != ".lock"}
