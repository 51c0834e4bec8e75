"""What a kernel compares of the user's images: whole ones where the reference is quick, otherwise a part of them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, ConvTranspose, Dense, Elementwise, GlobalAvgPool, Kernel, ReLU, Sequential, zoo
from cnngp.kernel import check, verdicts
from cnngp.network.layers import Network


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(verdicts, "_known", {})
    monkeypatch.setenv("CNNGP_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (zoo.resnet(32), (1, 28, 28)),
        (zoo.convnet(), (1, 28, 28)),
        (zoo.residual_cnn(), (1, 28, 28)),
        (zoo.resnet(32), (3, 32, 32)),
        (zoo.dense_nngp(), (784,)),
        (Sequential(Conv(3), ReLU(), Conv(3, stride=2), ReLU(), Dense()), (3, 224, 224)),
        (Sequential(Conv(3), ReLU(), ConvTranspose(3, stride=2), ReLU(), Dense()), (1, 64, 64)),
    ],
    ids=["resnet", "convnet", "residual cnn", "resnet of CIFAR", "dense", "photographs", "transposed"],
)
def test_usual_networks_are_compared_on_whole_images(net: Network, shape: tuple[int, ...]) -> None:
    assert check.is_affordable(net, shape)


def test_slow_references_are_asked_about_a_part_of_the_image() -> None:
    tanh = Sequential(Conv(3), Elementwise("tanh"), Conv(3), Elementwise("tanh"), Dense())
    verdict = Kernel(tanh, device="cpu").verify(np.random.default_rng(0).random((3, 1, 28, 28)))
    assert verdict is not None
    assert verdict.crop == (4, 4)
    assert "on two images, cropped to 4 × 4, where rounding explains 1e-06" in str(verdict)
    long = Kernel(tanh, device="cpu").verify(np.random.default_rng(0).random((3, 1, 3, 400)))
    assert long is not None
    assert long.crop == (3, 4)  # of its longer side alone
    exact_size = Sequential(Conv(3), Elementwise("tanh"), Conv(28, padding="valid"))
    verdict = Kernel(exact_size, device="cpu").verify(np.random.default_rng(0).random((3, 1, 28, 28)))
    assert verdict == verdicts.Verdict(None, 1e-6)
    assert str(verdict) == "not compared: the float64 reference would take too long on this network"


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 30, 40), (3, 48, 64), (3, 64, 64)])
@pytest.mark.parametrize("size", ["small", "medium", "large"])
def test_the_networks_for_pictures_are_compared(size: Any, shape: tuple[int, ...]) -> None:
    """On a part of the picture that is as small as the network allows, which is not always a half or a quarter."""
    net = zoo.pooled_cnn(size, zoo.halvings_for(min(shape[1:])))
    part = check._affordable(net, shape)
    assert part is not None
    net.shapes(part)
    assert min(part[1:]) >= 16


@pytest.mark.parametrize(
    ("net", "shape", "crop"),
    [
        # The reference begins with the covariance of every two pixels: 20 GB of them, whatever the stride makes of it.
        (Sequential(Conv(16, stride=16), ReLU(), GlobalAvgPool(), Dense()), (3, 224, 224), (32, 32)),
        # Zeros around an image need no memory, though there would be 26³ · 26³ of them here.
        (Sequential(Conv(11, stride=5, padding=9), ReLU(), GlobalAvgPool(), Dense()), (1, 8, 8, 8), None),
        (Sequential(ConvTranspose(15, padding=9), ReLU(), GlobalAvgPool(), Dense()), (1, 6, 6, 6), None),
    ],
    ids=["large patches", "wide padding", "wide padding, transposed"],
)
def test_the_reference_takes_little_time_and_memory(
    net: Network, shape: tuple[int, ...], crop: tuple[int, ...] | None
) -> None:
    pair = check._cropped(np.random.default_rng(0).random((2, *shape)), (shape[0], *(crop or shape[1:])))
    assert check._affordable(net, shape) == pair.shape[1:]
    tracemalloc.start()
    try:
        check.compare(net, pair, np.zeros((2, 2)), np.dtype("float32"))
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()
