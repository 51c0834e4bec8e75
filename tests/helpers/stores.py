"""A small matrix in a store, what tests of its faults compare, and how often an engine was asked."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Dense, Kernel
from cnngp.kernel.engines.cpu.engine import CpuEngine

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


def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows by one for every tile or block that a CPU engine computes."""
    calls: list[int] = []
    monkeypatch.setattr("cnngp.kernel.kernel.compared", lambda *given: None)  # a kernel's own check would count too
    for name in ("cross", "symmetric"):
        original = getattr(CpuEngine, name)

        def counted(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            calls.append(1)
            return original(*args, **kwargs)

        monkeypatch.setattr(CpuEngine, name, counted)
    return calls
