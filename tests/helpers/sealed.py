"""The images and the kernel of stores that tests damage, and all that such a store holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import Dense, Kernel

X = np.random.default_rng(0).random((100, 5))
Z = np.random.default_rng(1).random((70, 5))
TILE = 32
KERNEL = Kernel(Dense(), device="cpu", threads=1)


def contents(store: Path) -> dict[str, Any]:
    """All files, metadata by what they say."""

    def of(path: Path) -> Any:
        return json.loads(path.read_text()) if path.suffix == ".json" else path.read_bytes()

    return {str(p.relative_to(store)): of(p) for p in store.rglob("*") if p.is_file() and p.name != ".lock"}


def swap(store: Path, a: str, b: str) -> None:
    first, second = store / a, store / b
    one, two = first.read_bytes(), second.read_bytes()
    assert one != two
    first.write_bytes(two)
    second.write_bytes(one)
