"""Fixtures of the CUDA engine's tests: cards that are not there."""

from __future__ import annotations

import pytest

from helpers.fake_cards import Cards, MakeCards


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> MakeCards:
    def make(count: int = 1, memory: int = 1 << 30) -> Cards:
        return Cards(count, memory).install(monkeypatch)

    return make
