"""Gradients on a card, against the oracle and the CPU. Run with: pytest -m gpu tests/kernel/test_cuda_gradient_gpu.py

Errors are those of the largest derivative: in float64 1e-10 of it, in float32 1e-5, as on the CPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cnngp import (
    GELU,
    Abs,
    AvgPool,
    Conv,
    Cos,
    Dense,
    Elementwise,
    Erf,
    Identity,
    Kernel,
    LeakyReLU,
    Network,
    Rbf,
    ReLU,
    Sequential,
    Sin,
    Sum,
    zoo,
)
from cnngp.kernel.engines.cpu.gradient import CpuGradient
from cnngp.kernel.engines.cuda.gradient.engine import CudaGradient
from cnngp.kernel.program.reverse import reverse
from cnngp.network import adjoint
from helpers import generator, pooled
from helpers.cuda_cases import NETWORKS, POOLED
from helpers.kernels import random_images
from helpers.networks import images

pytestmark = pytest.mark.gpu

CLOSE = {"float32": 1e-5, "float64": 1e-10}
EVERY: tuple[Network, ...] = (
    ReLU(1.3), LeakyReLU(0.2), Abs(), Erf(), Sin(), Cos(), Rbf(0.4), GELU(), Elementwise("tanh"),
)  # fmt: skip
DIGITS = (1, 28, 28)


def flat(X: np.ndarray | None, dtype: str) -> Any:
    return None if X is None else np.ascontiguousarray(X.reshape(*X.shape[:2], -1), dtype)


def digits(n: int, seed: int = 0) -> np.ndarray:
    """Blurred strokes in [0, 1] on a blank ground, as digits have."""
    rng = np.random.default_rng(seed)
    x = (rng.random((n, *DIGITS)) < 0.06).astype(np.float64)
    for axis in (-1, -2):
        x = x + 0.7 * (np.roll(x, 1, axis) + np.roll(x, -1, axis))
    x[..., :3, :] = 0.0
    x[..., :, :4] = 0.0
    return np.minimum(x, 1.0).astype(np.float32)


def agrees(net: Network, X: np.ndarray, Z: np.ndarray | None, G: np.ndarray, dtype: str, at_one: bool = False) -> None:
    """`at_one`: some patches may be multiples of each other. Then the derivatives by a bias of 0 are known less well,
    because θ moves with the square root of a rounding at correlation one (docs/gradients.md).
    """
    engine = CudaGradient(reverse(net, X.shape[1:]), dtype)
    found = engine.gradient(flat(X, dtype), flat(Z, dtype), G).parameters
    expected = adjoint.gradient(net, X, Z, G)
    size = max(map(abs, expected.values()))
    for name, value in net.parameters().items():
        rough = at_one and name.endswith("bias_var") and value == 0.0
        close = {"float32": 1e-3, "float64": 1e-8}[dtype] if rough else CLOSE[dtype]
        assert found[name] == pytest.approx(expected[name], rel=0, abs=close * size), name


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layer", EVERY, ids=repr)
def test_every_nonlinearity(layer: Network, dtype: str) -> None:
    """Beside a skip, and under a pool, where an image meets itself at two places."""
    plain = Sequential(Conv(2, bias_var=0.1), Sum(Identity(), Sequential(layer, Conv(2))), layer, Dense(1.5, 0.2))
    under = Sequential(Conv(2, bias_var=0.1), layer, AvgPool(2), Conv(1, weight_var=0.7), layer, Dense())
    rng = np.random.default_rng(0)
    shape = (1, 2, 2) if isinstance(layer, Elementwise) else (1, 3, 3)  # the oracle takes a quadrature for each number
    for net in (plain, under):
        X, Z = random_images(3, shape), random_images(2, shape, seed=1)
        agrees(net, X, Z, rng.normal(size=(3, 2)), dtype)
        agrees(net, X, None, rng.normal(size=(3, 3)), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in (*NETWORKS, *POOLED) if name != "step"])
def test_networks_agree_with_the_oracle(name: str, dtype: str) -> None:
    net, shape = (NETWORKS | POOLED)[name]
    X = images(shape, 4, 0)
    agrees(net, X, None, np.random.default_rng(0).normal(size=(4, 4)), dtype, at_one=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(1000, 1024))
def test_generated_networks(seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    acts = (*generator.RELU_LIKE, *generator.SMOOTH)
    if seed % 3:
        net, shape = generator.random_network(rng, acts, max_pixels=60)
    else:
        pick = generator.Random(rng)
        net, shape = pooled.network(pick, lambda: pick.among(acts), 400)
    X, G = images(shape, 5, seed), rng.normal(size=(5, 5))
    agrees(net, X, None, G, dtype, at_one=True)
    agrees(net, X[:3], X[2:], G[:3, 2:], dtype, at_one=True)


PAPER = {
    "resnet": zoo.resnet(32),
    "convnet": zoo.convnet(),
    "pooled": Sequential(*[Conv(3, bias_var=0.1), ReLU()] * 2, AvgPool(2), Conv(3), ReLU(), AvgPool(2), Dense()),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", PAPER)
def test_many_digits_agree_with_the_cpu(name: str, dtype: str) -> None:
    net = PAPER[name]
    n, m = (40, 70) if name == "pooled" else (150, 230)
    rng = np.random.default_rng(0)
    backwards = reverse(net, DIGITS, to_images=name == "pooled")
    X, Z = flat(digits(n), dtype), flat(digits(m, seed=1), dtype)
    for other, G in ((Z, rng.normal(size=(n, m))), (None, rng.normal(size=(n, n)))):
        found = CudaGradient(backwards, dtype).gradient(X, other, G)
        exact = None if other is None else other.astype(np.float64)
        expected = CpuGradient(backwards, "float64").gradient(X.astype(np.float64), exact, G)
        size = max(map(abs, expected.parameters.values()))
        assert found.parameters == pytest.approx(expected.parameters, rel=0, abs=CLOSE[dtype] * size)
        for mine, theirs in zip(found[1:], expected[1:], strict=True):
            if theirs is not None:
                assert np.abs(mine - theirs).max() <= CLOSE[dtype] * np.abs(theirs).max()  # type: ignore[operator]


@pytest.mark.parametrize("set_of_two", [True, False])
def test_every_run_and_any_number_of_cards_give_the_same_bits(set_of_two: bool) -> None:
    backwards = reverse(zoo.resnet(14), DIGITS, to_images=True)
    X, Z = flat(digits(90), "float32"), flat(digits(50, seed=1), "float32") if set_of_two else None
    G = np.random.default_rng(0).normal(size=(90, 50 if set_of_two else 90))
    one, *others = (
        CudaGradient(backwards, "float32", devices=devices, tile=37).gradient(X, Z, G)
        for devices in ([0], [0], [0, 0, 0])
    )
    for other in others:
        assert other.parameters == one.parameters
        assert np.array_equal(other.of_x, one.of_x)  # type: ignore[arg-type]
        assert other.of_z is None or np.array_equal(other.of_z, one.of_z)  # type: ignore[arg-type]


def test_a_kernel_takes_arrays_of_the_card_and_tells_of_progress() -> None:
    import cupy

    net = zoo.resnet(8)
    X, G = digits(30), np.random.default_rng(0).normal(size=(30, 30))
    kernel = Kernel(net, device="cuda")
    found = kernel.gradient(cupy.asarray(X), None, cupy.asarray(G))
    assert found == kernel.gradient(X, None, G)
    expected = Kernel(net, device="cpu", dtype="float64").gradient(X, None, G)
    size = max(map(abs, expected.values()))
    assert found == pytest.approx(expected, rel=0, abs=1e-5 * size)
    told: list[int] = []
    CudaGradient(reverse(net, DIGITS), "float32", tile=7).gradient(flat(X, "float32"), None, G, told.append)
    assert sum(told) == 30 * 29 // 2
