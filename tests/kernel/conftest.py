"""What tests of the CUDA engine share: cards that are not there, with one folder for what is compiled for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.fake_cards import Cards, MakeCards


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def cards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> MakeCards:
    def make(count: int = 1, memory: int = 1 << 30) -> Cards:
        return Cards(folder, count, memory).install(monkeypatch)

    return make
