"""A card's gradient that checks itself: what is wrong is found, what is only rounded is not, and nobody pays twice."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import GELU, Abs, AvgPool, Conv, Dense, GlobalAvgPool, Kernel, LeakyReLU, ReLU, Sequential, WrongKernelError
from cnngp.kernel import check
from cnngp.kernel import kernel as kernel_module
from cnngp.kernel.engines.base import Gradient
from cnngp.kernel.engines.cuda.engine import CudaGradient
from cnngp.network import Network
from helpers.cuda_on_cpu import needs_compiler
from helpers.fake_cards import Cards
from helpers.gradients import CLOSE
from helpers.kernels import random_images

pytestmark = needs_compiler

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), AvgPool(2), Conv(3, bias_var=0.1), GELU(), Dense())
SHAPE = (1, 6, 6)
G = np.random.default_rng(0).normal(size=(5, 5))


@pytest.fixture(autouse=True)
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cards:
    """A card, and nothing known of any network. Images stay on the host, whose checks read them at once: what is on a
    fake card is written late.
    """
    made, honest = Cards(), kernel_module.as_images
    monkeypatch.setattr(kernel_module, "as_images", lambda X, dtype, name, on_gpu: honest(X, dtype, name, on_gpu=False))
    made.install(monkeypatch)
    monkeypatch.setenv("CNNGP_CACHE", str(tmp_path / "cache"))
    return made


def spoiled(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Gradient], Gradient]) -> None:
    """Break the card's engine."""
    honest = CudaGradient.gradient
    monkeypatch.setattr(CudaGradient, "gradient", lambda self, *rest: spoil(honest(self, *rest)))


@pytest.mark.parametrize("factor", [1.02, math.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_wrong_gradient_is_found_before_the_first(monkeypatch: pytest.MonkeyPatch, factor: float, dtype: str) -> None:
    X = random_images(5, SHAPE)

    def one_parameter(found: Gradient) -> Gradient:
        name = "layers[0].weight_var"
        return found._replace(parameters=found.parameters | {name: factor * found.parameters[name]})

    with monkeypatch.context() as patch:
        spoiled(patch, one_parameter)
        told = r"the engine cuda-gradient-\d+-.* computes the gradient of this network wrongly on images of shape "
        told += r"\(1, 6, 6\): by layers\[0\]\.weight_var it gives .* where the CPU gives"
        for _ in range(2):
            with pytest.raises(WrongKernelError, match=told):
                Kernel(NET, device="cuda", dtype=dtype).gradient(X, None, G)
        assert len(Kernel(NET, device="cuda", dtype=dtype, check=False).gradient(X, None, G)) == 7
    found, expected = (Kernel(NET, device=device, dtype=dtype).gradient(X, None, G) for device in ("cuda", "cpu"))
    assert found == pytest.approx(expected, rel=0, abs=CLOSE[dtype] * max(map(abs, expected.values())))


def test_wrong_pixels_are_found_and_each_gradient_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Network] = []
    honest = check.check_gradient

    def counted(network: Network, *rest: Any) -> Any:
        asked.append(network)
        return honest(network, *rest)

    def pixels(found: Gradient) -> Gradient:
        return found if found.of_x is None else found._replace(of_x=found.of_x[:, ::-1])

    monkeypatch.setattr(kernel_module, "check_gradient", counted)
    spoiled(monkeypatch, pixels)
    X = random_images(5, SHAPE)
    for device in ("cuda", "cuda", "cpu"):
        Kernel(NET, device=device).gradient(X, None, G)
    assert len(asked) == 1
    with pytest.raises(WrongKernelError, match=r"by pixel \d+ of the two images it gives"):
        Kernel(NET, device="cuda", dtype="float64").gradient(X, None, G, wrt="images")
    assert len(asked) == 2
    found = Kernel(NET, device="cuda", check=False).gradient(X, X[:4], G[:, :4], wrt="images")
    assert [of.shape for of in found] == [(5, *SHAPE), (4, *SHAPE)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layer", [ReLU(), LeakyReLU(-0.5), Abs()], ids=repr)
def test_what_rounding_moves_is_not_wrong(dtype: str, layer: Network) -> None:
    """Patches that are multiples of each other, where a bias of 0 has the worst of all derivatives."""
    net = Sequential(Conv(1, weight_var=0.8), layer, GlobalAvgPool(), Dense(2.0))
    kernel = Kernel(net, device="cuda", dtype=dtype)
    blank = np.zeros((5, 1, 3, 3))  # which tells nothing
    assert kernel.gradient(blank, None, G)["layers[0].weight_var"] == 0.0
    assert all(map(np.isfinite, kernel.gradient(random_images(5, (1, 3, 3)), None, G).values()))
