"""How often an engine was asked: what tests of resuming and reuse count."""

from __future__ import annotations

from typing import Any

import pytest

from cnngp.kernel.engines.cpu.engine import CpuEngine


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
