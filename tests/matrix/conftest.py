"""Whole stores to be damaged, of one set of images and of two, and a count of the tiles that are computed."""

import shutil
from pathlib import Path

import pytest

from cnngp import gram
from helpers.stores import KERNEL, TILE, X, Z, computed


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    gram(KERNEL, X, store=folder / "K", tile=TILE)
    gram(KERNEL, X, Z, store=folder / "cross", tile=TILE)
    return folder


@pytest.fixture
def store(stores: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stores / "K", tmp_path / "K.zarr"))


@pytest.fixture
def cross(stores: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stores / "cross", tmp_path / "cross.zarr"))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return computed(monkeypatch)
