"""The CUDA engine on a card, beside the cases of test_cuda_source.py. Run with: pytest -m gpu tests/kernel"""

import time
from typing import Any

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, ReLU, Sequential, zoo
from cnngp.kernel.engines.cuda.card import NEVER
from cnngp.network import Network, reference
from helpers.cuda_cases import EVERY, OnCard, images
from helpers.kernels import error

pytestmark = pytest.mark.gpu

C = [Conv(3), ReLU()]
DIGITS = (1, 28, 28)
TWO_POOLS = Sequential(*C * 2, AvgPool(2), *C * 2, AvgPool(2), *C, Dense())


def digits(n: int, shape: tuple[int, ...] = DIGITS, seed: int = 0) -> np.ndarray:
    """Blurred strokes in [0, 1] on a blank ground, as digits have."""
    rng = np.random.default_rng(seed)
    x = (rng.random((n, *shape)) < 0.06).astype(np.float64)
    for axis in (-1, -2):
        x = x + 0.7 * (np.roll(x, 1, axis) + np.roll(x, -1, axis))
    x[..., :3, :] = 0.0
    x[..., :, :4] = 0.0
    return np.minimum(x, 1.0).astype(np.float32)


@pytest.mark.parametrize(
    ("net", "shape", "dtype", "path", "options"),
    [
        *((zoo.resnet(32), DIGITS, dtype, "warp", {}) for dtype in ("float32", "float64")),
        *(
            (TWO_POOLS, DIGITS, "float32", "sheets", {"launch_shape": launch})
            for launch in ((1, 4, 4, 0), (4, 1, 4, 0), (16, 1, 1, 1), (4, 2, 1, 2))
        ),
        (Sequential(Conv(3, stride=2), ReLU(), *C, Dense()), (3, 224, 224), "float32", "walk", {}),
    ],
)
def test_large_networks_and_images_agree_with_the_reference(
    net: Network, shape: tuple[int, ...], dtype: str, path: str, options: dict[str, Any]
) -> None:
    run = OnCard(net, shape, dtype, **options)
    assert run.source.path == path
    X, Z = digits(3, shape), digits(14 if shape == DIGITS else 2, shape, seed=1)
    tolerance = 1e-6 if dtype == "float32" else 1e-13
    assert error(run.cross(X, Z), reference.kernel(net, X, Z)) <= tolerance
    assert error(run.symmetric(X), reference.kernel(net, X)) <= tolerance


@pytest.mark.parametrize("name", ["resnet", "3-D", "one location", "two pools", "1-D pool"])
def test_bits_depend_on_the_two_images_alone(name: str) -> None:
    """Also where many pairs run at a time, which a warp's own pool in shared memory must survive."""
    net, shape = EVERY[name]
    X = images(np.random.default_rng(2), 137, shape)
    K = OnCard(net, shape).symmetric(X)
    assert np.isfinite(K).all()
    for tile, devices in ((25, [0]), (46, [0, 0, 0]), (256, [0])):
        run = OnCard(net, shape, tile=tile, devices=devices)
        told: list[int] = []
        assert np.array_equal(run.engine.symmetric(run.flat(X), "numpy", told.append), K)
        assert sum(told) == 137 * 136 // 2
        assert np.array_equal(run.engine.symmetric(run.flat(X), "cupy").get(), K)
        assert np.array_equal(run.cross(X[3:4], X[7:30])[0], K[3, 7:30])


@pytest.mark.parametrize("name", ["resnet", "3-D", "one location"])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 7), (33, 2), (130, 67)])
def test_every_number_is_written(name: str, n: int, m: int) -> None:
    import cupy

    net, shape = EVERY[name]
    run, rng = OnCard(net, shape), np.random.default_rng(3)
    card = run.engine.cards()[0]
    X, Z = (run.flat(rng.standard_normal((k, *shape))) for k in (n, m))
    out = cupy.full((n, m + 3), cupy.nan, cupy.float32)
    card.pairs(card.tables(X)[0], card.tables(Z)[0], (out, None), m + 3, NEVER)
    assert np.isfinite(out[:, :m].get()).all()
    assert np.isnan(out[:, m:].get()).all(), "written outside the tile"


def test_arrays_on_the_card_come_and_go() -> None:
    import cupy
    import torch

    net, shape = EVERY["resnet"]
    run = OnCard(net, shape)
    X = run.flat(images(np.random.default_rng(4), 5, shape))
    K = run.engine.symmetric(X)
    found = run.engine.symmetric(cupy.asarray(X), "cupy")
    assert isinstance(found, cupy.ndarray)
    assert np.array_equal(found.get(), K)
    tensor = run.engine.symmetric(cupy.asarray(X), "torch")
    assert isinstance(tensor, torch.Tensor)
    assert tensor.is_cuda
    assert np.array_equal(tensor.cpu().numpy(), K)


def test_deep_networks_compile_quickly() -> None:
    X = digits(3)
    start = time.perf_counter()
    K = OnCard(zoo.resnet(110), DIGITS).cross(X, X)
    assert time.perf_counter() - start < 10.0
    assert error(K, reference.kernel(zoo.resnet(110), X, X)) <= 2e-6
