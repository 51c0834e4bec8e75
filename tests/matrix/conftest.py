"""Whole stores to be damaged, and a count of the tiles that are computed."""

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from cnngp import Dense, Kernel, ReLU, Sequential, gram
from cnngp.kernel.engines.cpu.engine import CpuEngine
from helpers.stores import KERNEL, TILE, X, Z


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Matrices of one set of images and of two, and those of other images and of another network."""
    folder = tmp_path_factory.mktemp("stores")
    gram(KERNEL, X, store=folder / "K", tile=TILE)
    gram(KERNEL, X, Z, store=folder / "cross", tile=TILE)
    gram(KERNEL, X[::-1].copy(), store=folder / "other images", tile=TILE)
    gram(Kernel(Sequential(Dense(), ReLU(), Dense()), device="cpu"), X, store=folder / "other network", tile=TILE)
    return folder


@pytest.fixture
def store(stores: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stores / "K", tmp_path / "K.zarr"))


class Calls(list[int]):
    """Grows by one for every tile or block that a CPU engine computes, which takes `seconds` more."""

    seconds = 0.0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made = Calls()
    monkeypatch.setattr("cnngp.kernel.kernel.compared", lambda *given: None)  # a kernel's own check would count too
    for name in ("cross", "symmetric"):
        original = getattr(CpuEngine, name)

        def counted(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            made.append(1)
            time.sleep(made.seconds)
            return original(*args, **kwargs)

        monkeypatch.setattr(CpuEngine, name, counted)
    return made
