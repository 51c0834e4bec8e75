"""Which device "auto" stands for, and what is said where there is no card."""

import sys

import numpy as np
import pytest

from cnngp.common import devices, memory
from helpers.fake_cards import Cards


def test_without_cupy_auto_is_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert not devices.has_card()
    assert devices.actual_device("auto") == devices.actual_device("cpu") == "cpu"
    with pytest.raises(devices.EngineError, match=r"^device='cuda' needs CuPy: pip install \"cnngp\[cuda\]\"$"):
        devices.actual_device("cuda")
    assert devices.array_module("cpu") is np


def test_cupy_without_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    Cards(count=0).install(monkeypatch)
    assert devices.actual_device("auto") == "cpu"
    with pytest.raises(devices.EngineError, match=r"^device='cuda': no NVIDIA GPU was found; use device='cpu'$"):
        devices.array_module("cuda")


def test_with_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    Cards(count=2, memory=1000).install(monkeypatch)
    assert devices.actual_device("auto") == devices.actual_device("cuda") == "cuda"
    assert devices.actual_device("cpu") == "cpu"
    assert devices.array_module("cuda") is sys.modules["cupy"]
    assert devices.card_count() == 2
    with devices.card(1):
        assert memory.available("cuda") == devices.card_memory()[0] + devices.pooled_memory()


@pytest.mark.parametrize("device", ["gpu", "CPU", None, 0])
def test_other_devices_are_refused(device: object) -> None:
    with pytest.raises(ValueError, match=r"^Kernel: device=.* is not 'auto', 'cpu' or 'cuda'$"):
        devices.check_device(device, "Kernel: ")
