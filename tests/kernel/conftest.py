"""Fixtures of the CUDA engine's tests: cards that are not there."""

from __future__ import annotations

import pytest

from helpers.cuda_on_cpu import needs_compiler
from helpers.fake_cards import Cards, MakeCards


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> MakeCards:
    def make(count: int = 1, memory: int = 1 << 30) -> Cards:
        return Cards(count, memory).install(monkeypatch)

    return make


@pytest.fixture
def fakes(cards: MakeCards) -> MakeCards:
    """A card that is a fake, and what makes others."""
    cards()
    return cards


@pytest.fixture(params=[pytest.param("fake", marks=needs_compiler), pytest.param("card", marks=pytest.mark.gpu)])
def on(request: pytest.FixtureRequest, cards: MakeCards) -> str:
    """Where kernels run: as C++ on a card that is a fake, or on a real one."""
    if request.param == "fake":
        cards()
    return str(request.param)
