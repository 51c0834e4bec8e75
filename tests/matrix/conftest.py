"""What several files of these tests share: a cluster of two processes, the matrix that it computes, and a store."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cnngp import gram
from helpers import clusters, stores


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two processes with one thread each. A process that dies is replaced."""
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with LocalCluster(**options) as local, Client(local) as made:
        yield made


@pytest.fixture(scope="module")
def expected() -> Any:
    return clusters.KERNEL(clusters.X)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished") / "K.zarr"
    gram(stores.KERNEL, stores.X, store=place, tile=stores.TILE)
    return place


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> Path:
    """A whole store to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "K.zarr"))
