"""Fixtures of the CUDA engine's tests: cards that are not there."""

import shutil

import pytest

from helpers.fake_cards import Cards, MakeCards


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> MakeCards:
    """What puts cards that are fakes in the place of real ones; there is one already."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++ to run the kernels on a CPU")

    def make(count: int = 1, memory: int = 1 << 30) -> Cards:
        return Cards(count, memory).install(monkeypatch)

    make()
    return make


@pytest.fixture(params=["fake", pytest.param("card", marks=pytest.mark.gpu)])
def on(request: pytest.FixtureRequest) -> str:
    """Where kernels run: as C++ on a card that is a fake, or on a real one."""
    if request.param == "fake":
        request.getfixturevalue("cards")
    return str(request.param)
