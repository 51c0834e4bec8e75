"""The CUDA engine on a card, against the float64 reference. Run with: pytest -m gpu tests/kernel/test_cuda_gpu.py"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, Elementwise, Kernel, Network, NetworkError, ReLU, Sequential, zoo
from cnngp.kernel.check import compare
from cnngp.kernel.engines.base import RangeError
from cnngp.kernel.engines.cuda.engine import CudaEngine
from cnngp.kernel.program import lower
from cnngp.network import reference
from helpers.cuda_cases import NETWORKS, ONE_PIXEL, POOLED, TOLERANCE, error, images, tangent_bound
from helpers.generator import random_network

pytestmark = pytest.mark.gpu

PAPER = {"resnet": zoo.resnet(32), "convnet": zoo.convnet(), "residual": zoo.residual_cnn()}


def engine_for(net: Network, shape: tuple[int, ...], dtype: str = "float32", **options: object) -> CudaEngine:
    return CudaEngine(lower(net, shape), dtype, **options)  # type: ignore[arg-type]


def flat(X: np.ndarray, dtype: str = "float32") -> np.ndarray:
    return np.ascontiguousarray(X.reshape(*X.shape[:2], -1), dtype=dtype)


def digits(n: int, shape: tuple[int, ...] = (1, 28, 28), seed: int = 0) -> np.ndarray:
    """Blurred strokes in [0, 1] on a blank ground, as digits have."""
    rng = np.random.default_rng(seed)
    x = (rng.random((n, *shape)) < 0.06).astype(np.float64)
    for axis in (-1, -2):
        x = x + 0.7 * (np.roll(x, 1, axis) + np.roll(x, -1, axis))
    x[..., :3, :] = 0.0
    x[..., :, :4] = 0.0
    return np.minimum(x, 1.0).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_agree_with_the_reference(name: str, dtype: str) -> None:
    net, shape = NETWORKS[name]
    engine = engine_for(net, shape, dtype)
    rng = np.random.default_rng(1)
    X, Z = images(rng, 6, shape), images(rng, 11, shape)[:-1]
    tolerance = TOLERANCE.get(name, 1e-6) if dtype == "float32" else max(1e-12, TOLERANCE.get(name, 0.0) ** 2)
    K = engine.cross(flat(X, dtype), flat(Z, dtype))
    assert error(K, reference.kernel(net, X, Z)) <= tolerance
    assert np.array_equal(K, engine.cross(flat(Z, dtype), flat(X, dtype)).T)
    S = engine.symmetric(flat(X, dtype))
    assert error(S, reference.kernel(net, X)) <= tolerance
    assert np.array_equal(S, S.T)
    assert np.allclose(engine.diagonal(flat(X, dtype)), reference.diagonal(net, X), rtol=1e-13, atol=0.0)


@pytest.mark.parametrize("seed", range(24))
def test_random_networks_agree_with_the_reference(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    net, shape = random_network(rng, max_pixels=600, axes=(1, 2, 2, 2, 3), scale=2.5)
    X, Z = images(rng, 4, shape), images(rng, 9, shape)
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-12)):
        engine = engine_for(net, shape, dtype)
        assert error(engine.cross(flat(X, dtype), flat(Z, dtype)), reference.kernel(net, X, Z)) <= tolerance
        assert error(engine.symmetric(flat(X, dtype)), reference.kernel(net, X)) <= tolerance


@pytest.mark.parametrize("path", [None, "walk"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize("name", POOLED)
def test_networks_with_pools_agree_with_the_reference(name: str, dtype: str, tolerance: float, path: Any) -> None:
    """Also where many pairs run at a time, which a warp's own pool in shared memory must survive."""
    net, shape = POOLED[name]
    program = lower(net, shape)
    engine = CudaEngine(program, dtype, path=path)
    assert engine.source.path == (path or "sheets")
    rng = np.random.default_rng(1)
    X, Z = images(rng, 6, shape), images(rng, 11, shape)[:-1]
    K = engine.cross(flat(X, dtype), flat(Z, dtype))
    assert error(K, reference.kernel(net, X, Z)) <= tolerance
    S = engine.symmetric(flat(X, dtype))
    assert np.array_equal(S, S.T)
    assert error(S, reference.kernel(net, X)) <= tolerance
    many = flat(images(rng, 150, shape), dtype)
    whole = engine.symmetric(many)
    assert np.array_equal(engine.cross(many[3:5], many[60:90]), whole[3:5, 60:90])
    assert np.array_equal(CudaEngine(program, dtype, path=path, tile=37).symmetric(many), whole)


@pytest.mark.parametrize("launch", [(1, 4, 4, 0), (4, 1, 4, 0), (16, 1, 1, 1), (4, 2, 1, 2)])
def test_two_pools_on_digits_agree_with_the_reference_in_every_launch(launch: Any) -> None:
    C = [Conv(3), ReLU()]
    net, shape = Sequential(*C * 2, AvgPool(2), *C * 2, AvgPool(2), *C, Dense()), (1, 28, 28)
    program = lower(net, shape)
    engine = CudaEngine(program, "float32", launch_shape=launch)
    X, Z = digits(3), digits(20, seed=1)
    assert error(engine.cross(flat(X), flat(Z)), reference.kernel(net, X, Z)) <= 1e-6


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-7), ("float64", 1e-13)])
@pytest.mark.parametrize("name", PAPER)
def test_the_papers_networks_agree_with_the_reference(name: str, dtype: str, tolerance: float) -> None:
    net = PAPER[name]
    engine = engine_for(net, (1, 28, 28), dtype)
    assert engine.source.path == "warp"
    X, Z = digits(9), digits(14, seed=1)
    assert error(engine.cross(flat(X, dtype), flat(Z, dtype)), reference.kernel(net, X, Z)) <= tolerance
    assert error(engine.symmetric(flat(Z, dtype)), reference.kernel(net, Z)) <= tolerance


@pytest.mark.parametrize("name", ["resnet", "3-D", "one location"])
def test_bits_depend_on_the_two_images_alone(name: str) -> None:
    net, shape = NETWORKS[name]
    X = flat(images(np.random.default_rng(2), 37, shape))
    K = engine_for(net, shape).symmetric(X)
    assert np.isfinite(K).all()
    for tile, devices in ((5, [0]), (16, [0, 0, 0]), (64, [0])):
        engine = engine_for(net, shape, tile=tile, devices=devices)
        told: list[int] = []
        assert np.array_equal(engine.symmetric(X, "numpy", told.append), K)
        assert sum(told) == 37 * 36 // 2
        assert np.array_equal(engine.symmetric(X, "cupy").get(), K)
        off = ~np.eye(37, dtype=bool)
        assert np.array_equal(engine.cross(X, X)[off], K[off])
        assert np.array_equal(engine.cross(X[3:4], X[7:30])[0], K[3, 7:30])
        assert np.array_equal(engine.cross(X[9:30], X[:1])[:, 0], K[9:30, 0])


@pytest.mark.parametrize("name", ["resnet", "3-D", "one location"])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 7), (33, 2), (130, 67)])
def test_every_number_is_written(name: str, n: int, m: int) -> None:
    import cupy

    net, shape = NETWORKS[name]
    engine = engine_for(net, shape)
    rng = np.random.default_rng(3)
    card = engine.cards()[0]
    X, Z = (flat(rng.standard_normal((k, *shape))) for k in (n, m))
    out = cupy.full((n, m + 3), cupy.nan, cupy.float32)
    card.pairs(card.tables(X).rows, card.tables(Z).rows, out, None, m + 3, -(1 << 40))
    assert np.isfinite(out[:, :m].get()).all()
    assert np.isnan(out[:, m:].get()).all(), "written outside the tile"


def test_arrays_on_the_card_come_and_go() -> None:
    import cupy
    import torch

    net, shape = NETWORKS["resnet"]
    engine = engine_for(net, shape)
    X = flat(images(np.random.default_rng(4), 5, shape))
    K = engine.symmetric(X)
    on_card = engine.symmetric(cupy.asarray(X), "cupy")
    assert isinstance(on_card, cupy.ndarray)
    assert np.array_equal(on_card.get(), K)
    tensor = engine.symmetric(cupy.asarray(X), "torch")
    assert isinstance(tensor, torch.Tensor)
    assert tensor.is_cuda
    assert np.array_equal(tensor.cpu().numpy(), K)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-11)])
def test_elementwise_agrees_with_the_reference(dtype: str, tolerance: float) -> None:
    net = Sequential(Conv(3), Elementwise("tanh"), Conv(3, stride=2, bias_var=0.1), Elementwise("softplus"), Dense())
    engine = engine_for(net, (1, 9, 8), dtype)
    X = images(np.random.default_rng(6), 7, (1, 9, 8))
    S = engine.symmetric(flat(X, dtype))
    assert error(S, reference.kernel(net, X)) <= tolerance
    assert np.array_equal(engine.cross(flat(X[:2], dtype), flat(X, dtype))[0, 1:], S[0, 1:])
    with pytest.raises(NetworkError, match="variance"):
        engine.diagonal(flat(100.0 * X, dtype))


def test_a_kernel_runs_on_the_card() -> None:
    net, shape = NETWORKS["resnet"]
    X = images(np.random.default_rng(7), 6, shape)
    kernel = Kernel(net, device="cuda")
    K = kernel(X, progress=False)
    assert error(K, reference.kernel(net, X)) <= 1e-6
    assert np.array_equal(kernel.diag(X), K.diagonal())
    assert error(K, Kernel(net, device="cpu")(X, progress=False)) <= 1e-6


def test_large_images_work() -> None:
    net = Sequential(Conv(3, stride=2), ReLU(), Conv(3), ReLU(), Dense())
    X = digits(3, (3, 224, 224))
    engine = engine_for(net, (3, 224, 224))
    assert engine.source.path == "walk"
    assert error(engine.symmetric(flat(X)), reference.kernel(net, X)) <= 1e-6


@pytest.mark.parametrize("name", ["resnet", "transposed", "smooth"])
def test_the_ways_to_run_a_program_agree(name: str) -> None:
    net, shape = NETWORKS[name]
    X = images(np.random.default_rng(5), 6, shape)
    program = lower(net, shape)
    block = CudaEngine(program, "float64", path="walk")
    K = CudaEngine(program, "float64").cross(flat(X, "float64"), flat(X, "float64"))
    assert error(block.cross(flat(X, "float64"), flat(X, "float64")), K) <= 1e-13


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-7), ("float64", 1e-13)])
def test_two_columns_a_lane_give_the_same(dtype: str, tolerance: float) -> None:
    X = digits(7)
    program = lower(PAPER["resnet"], (1, 28, 28))
    engine = CudaEngine(program, dtype, fold=18)
    assert error(engine.symmetric(flat(X, dtype)), reference.kernel(PAPER["resnet"], X)) <= tolerance


def test_deep_networks_compile_quickly() -> None:
    X = digits(3)
    start = time.perf_counter()
    engine = engine_for(zoo.resnet(110), (1, 28, 28))
    K = engine.cross(flat(X), flat(X))
    assert time.perf_counter() - start < 10.0
    assert error(K, reference.kernel(zoo.resnet(110), X, X)) <= 2e-6


def test_images_out_of_range_are_refused() -> None:
    engine = engine_for(zoo.resnet(8), (1, 28, 28))
    with pytest.raises(RangeError, match="image 1"):
        engine.diagonal(flat(digits(2) * np.array([1.0, 1e30])[:, None, None, None]))
    assert (engine.diagonal(flat(np.zeros((2, 1, 28, 28)))) == 0.0).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*(name for name in NETWORKS if name not in ("step", "signs")), *POOLED])
def test_both_kernels_agree_with_the_reference(name: str, dtype: str) -> None:
    net, shape = (NETWORKS | POOLED)[name]
    engine = CudaEngine(lower(net, shape, "ntk"), dtype)
    rng = np.random.default_rng(1)
    X, Z = images(rng, 6, shape), images(rng, 11, shape)[:-1]
    own, across = engine.both(flat(X, dtype), None), engine.both(flat(X, dtype), flat(Z, dtype))
    R = reference.kernel(net, X, Z), reference.kernel(net, X, Z, kind="ntk")
    for k, kind in enumerate(("nngp", "ntk")):
        found = compare(net, X, own[k], np.dtype(dtype), kind)  # type: ignore[arg-type]
        assert found is not None
        equal = kind == "ntk" and name in ONE_PIXEL and dtype == "float64"
        assert found.error <= tangent_bound(net, found.bound, dtype, equal)
        assert error(across[k], R[k]) <= tangent_bound(net, found.bound, dtype, equal)
        assert np.array_equal(own[k], own[k].T)
    assert np.array_equal(across[1], engine.cross(flat(X, dtype), flat(Z, dtype)))


def test_a_tangent_kernel_runs_on_the_card() -> None:
    X = digits(6)
    kernel = Kernel(PAPER["resnet"], device="cuda", kind="ntk")
    theta = kernel(X, progress=False)
    assert error(theta, reference.kernel(PAPER["resnet"], X, kind="ntk")) <= 1e-6
    assert np.array_equal(kernel.diag(X), theta.diagonal())
    assert error(theta, Kernel(PAPER["resnet"], device="cpu", kind="ntk")(X, progress=False)) <= 1e-6
