"""Gradients on a card, against the oracle and the CPU. Run with: pytest -m gpu tests/kernel/test_cuda_gradient_gpu.py

Errors are those of the largest derivative: in float64 1e-10 of it, in float32 1e-5, as on the CPU.
"""

from __future__ import annotations

import numpy as np
import pytest

from cnngp import (
    AvgPool,
    Conv,
    Dense,
    Kernel,
    Network,
    ReLU,
    Sequential,
    zoo,
)
from cnngp.kernel.engines.cpu.gradient import CpuGradient
from cnngp.kernel.engines.cuda.gradient_engine import CudaGradient
from cnngp.kernel.program.reverse import reverse
from helpers import generator, pooled
from helpers.cuda_cases import NETWORKS, POOLED
from helpers.gradients import CLOSE, EVERY, check_nonlinearities, flat
from helpers.gradients import cuda_agrees as agrees
from helpers.networks import images

pytestmark = pytest.mark.gpu

DIGITS = (1, 28, 28)


def digits(n: int, seed: int = 0) -> np.ndarray:
    """Blurred strokes in [0, 1] on a blank ground, as digits have."""
    rng = np.random.default_rng(seed)
    x = (rng.random((n, *DIGITS)) < 0.06).astype(np.float64)
    for axis in (-1, -2):
        x = x + 0.7 * (np.roll(x, 1, axis) + np.roll(x, -1, axis))
    x[..., :3, :] = 0.0
    x[..., :, :4] = 0.0
    return np.minimum(x, 1.0).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layer", EVERY, ids=repr)
def test_every_nonlinearity(layer: Network, dtype: str) -> None:
    check_nonlinearities([layer], dtype, agrees)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [name for name in (*NETWORKS, *POOLED) if name not in ("step", "signs")])
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


def test_a_kernel_takes_arrays_of_the_card_and_reports_progress() -> None:
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
