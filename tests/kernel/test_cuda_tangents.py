"""Tangent kernels in generated CUDA, without a card: K and Θ of one pass, run as C++ on fibers (cuda_on_cpu.hpp)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cnngp import (
    AvgPool,
    Conv,
    Dense,
    Elementwise,
    GlobalAvgPool,
    Identity,
    Kernel,
    Network,
    Rbf,
    ReLU,
    Sequential,
    Sum,
    zoo,
)
from cnngp.kernel.check import compare
from cnngp.kernel.engines.cuda.cuda_source import generate
from cnngp.kernel.engines.cuda.engine import CudaEngine
from cnngp.kernel.engines.cuda.registers import in_registers
from cnngp.kernel.program import lower
from cnngp.kernel.series.packed import SeriesTables
from cnngp.network import reference
from helpers.cuda_cases import NETWORKS, ONE_PIXEL, PATHS, POOLED, OnCpu, error, images, tangent_bound
from helpers.cuda_on_cpu import needs_compiler
from helpers.fake_cards import Cards
from helpers.networks import networks_with_shapes, relu_like
from helpers.pooled import pooled_networks

# Warps of a pair, pairs of a block, blocks: as in test_cuda_pooling.py.
OWN, TOGETHER = (1, 2, 1, 0), (2, 1, 1, 0)
C: list[Network] = [Conv(3), ReLU()]


def agrees(run: OnCpu, net: Network, shape: tuple[int, ...], dtype: str, equal: bool = False) -> None:
    """`equal`: whether locations of two images are equal up to a factor."""
    rng = np.random.default_rng(0)
    X, Z = images(rng, 4, shape), images(rng, 4, shape)[:-1]
    both, S = run.cross(X, Z), run.symmetric(X)
    assert np.array_equal(both[:, 1:3, 1:], run.cross(X[1:3], Z[1:])), "depends on the batch"
    R = reference.kernel(net, X, Z), reference.kernel(net, X, Z, kind="ntk")
    for k, kind in enumerate(("nngp", "ntk")):
        assert np.array_equal(S[k], S[k].T)
        found = compare(net, X, S[k], np.dtype(dtype), kind)  # type: ignore[arg-type]
        assert found is not None
        bound = tangent_bound(net, found.bound, dtype, equal and kind == "ntk" and dtype == "float64")
        assert found.error <= bound, kind
        assert error(both[k], R[k]) <= bound, kind
    theta = run.tables(X)[2][len(X) :]
    assert np.allclose(theta, reference.kernel(net, X, kind="ntk").diagonal(), rtol=1e-13, atol=0.0)


QUICK = (
    "resnet",
    "residual",
    "uneven strides",
    "smooth",
    "loop",
    "3-D",
    "dense skips",
    "wider than the input",
    "linear",
)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if quick else pytest.mark.slow)
        for name in NETWORKS
        if name not in ("step", "signs")
        for dtype, quick in (("float32", name in ("resnet", "3-D", "dense skips")), ("float64", name == "smooth"))
    ],
)
def test_both_kernels_agree_with_the_reference(name: str, dtype: str) -> None:
    net, shape = NETWORKS[name]
    program = lower(net, shape, "ntk")
    source = generate(program, dtype)
    assert source.path == PATHS.get(name, "warp")
    agrees(OnCpu(source), net, shape, dtype, name in ONE_PIXEL)


@needs_compiler
def test_a_tangent_kernel_far_smaller_than_k() -> None:
    """Θ = T + own·K is held in a unit that suits the larger of the two, also where float32 would not hold the other."""
    branch = Sequential(ReLU(), Conv(3, weight_var=1e-36))
    net = Sequential(Conv(3), Sum(Identity(), branch), ReLU(), Dense())
    program = lower(net, (1, 6, 6), "ntk")
    agrees(OnCpu(generate(program, "float32")), net, (1, 6, 6), "float32")


@needs_compiler
@pytest.mark.slow
@given(
    drawn=st.one_of(networks_with_shapes(relu_like, max_pixels=100), pooled_networks(relu_like)),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_generated_networks(drawn: Any, seed: int) -> None:
    net, shape = drawn
    program = lower(net, shape, "ntk")
    X = images(np.random.default_rng(seed), 4, shape)
    for dtype in ("float32", "float64"):
        K = OnCpu(generate(program, dtype)).symmetric(X)
        for k, kind in enumerate(("nngp", "ntk")):
            found = compare(net, X, K[k], np.dtype(dtype), kind)  # type: ignore[arg-type]
            if found is not None:
                assert found.error <= tangent_bound(net, found.bound, dtype, kind == "ntk" and dtype == "float64"), kind


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", ["skips in skips", "smooth"])
def test_the_general_kernel_agrees_where_the_warp_kernel_would_run(name: str) -> None:
    net, shape = NETWORKS[name]
    program = lower(net, shape, "ntk")
    agrees(OnCpu(generate(program, "float64", path="walk")), net, shape, "float64")


@needs_compiler
@pytest.mark.parametrize(
    ("name", "dtype", "path", "launch"),
    [
        pytest.param(name, dtype, path, launch, marks=() if quick else pytest.mark.slow)
        for name in POOLED
        for dtype, path, launch, quick in (
            ("float32", "sheets", OWN, name == "strides"),
            ("float32", "sheets", TOGETHER, name == "LeNet"),
            ("float64", "sheets", None, False),
            ("float64", "walk", None, name == "sizes that do not halve"),
        )
    ],
)
def test_networks_with_pools_agree_with_the_reference(name: str, dtype: str, path: Any, launch: Any) -> None:
    net, shape = POOLED[name]
    program = lower(net, shape, "ntk")
    source = generate(program, dtype, path=path, launch_shape=launch)
    assert source.path == path
    agrees(OnCpu(source), net, shape, dtype)


@needs_compiler
@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (Sequential(Conv(3), Elementwise("tanh"), Conv(3, bias_var=0.1), Elementwise("softplus"), Dense()), (1, 4, 5)),
        pytest.param(
            Sequential(Dense(2.0), Elementwise("tanh"), Dense(), Rbf(0.5), Dense()), (7,), marks=pytest.mark.slow
        ),
        pytest.param(
            Sequential(Conv(3), Elementwise("tanh"), AvgPool(2), *C, GlobalAvgPool(), Dense()),
            (1, 4, 4),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["walk", "dense", "walk"],
)
def test_slopes_of_series(net: Network, shape: tuple[int, ...]) -> None:
    program = lower(net, shape, "ntk")
    tables = SeriesTables(program, np.dtype("float64"))
    run = OnCpu(generate(program, "float64", series=tables.rows(None)), tables.panels)
    X = images(np.random.default_rng(0), 4, shape)
    K, theta = run.cross(X, X[1:3])
    assert error(K, reference.kernel(net, X, X[1:3])) <= 1e-11
    # Images meet themselves: at correlation one a ReLU's slope moves by the root of what rounding moves K.
    assert error(theta, reference.kernel(net, X, X[1:3], kind="ntk")) <= (1e-7 if "ReLU" in repr(net) else 1e-10)
    assert np.allclose(run.tables(X)[2][4:], reference.kernel(net, X, kind="ntk").diagonal(), rtol=1e-9, atol=0.0)


@needs_compiler
@pytest.mark.parametrize(
    ("path", "net", "shape"),
    [
        ("warp", Sequential(*C * 2, Dense()), (1, 4, 6)),
        pytest.param(
            *("sheets", Sequential(*C, AvgPool(2), *C, GlobalAvgPool(), Dense()), (1, 4, 6)), marks=pytest.mark.slow
        ),
        pytest.param("walk", Sequential(*C * 2, Dense()), (1, 40), marks=pytest.mark.slow),
    ],
)
def test_the_engine_gives_either_kernel_or_both(
    path: str, net: Network, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables, tiles, both triangles, on two cards; the real kernels, on cards that are not there."""
    Cards(2).install(monkeypatch)
    rng = np.random.default_rng(0)
    X, Z = images(rng, 5, shape), images(rng, 4, shape)[:-1]
    x, z = (a.reshape(len(a), 1, -1) for a in (X, Z))
    for tile in (None, 2):
        engine = CudaEngine(lower(net, shape, "ntk"), "float32", tile=tile)
        assert engine.source.path == path
        K, theta = engine.both(x, None)
        assert np.array_equal(theta, theta.T)
        assert np.array_equal(theta, engine.symmetric(x))
        assert error(K, reference.kernel(net, X)) <= 1e-6
        assert error(theta, reference.kernel(net, X, kind="ntk")) <= 1e-6
        across = engine.both(x, z)
        assert error(across[0], reference.kernel(net, X, Z)) <= 1e-6
        assert error(across[1], reference.kernel(net, X, Z, kind="ntk")) <= 1e-6
        assert np.array_equal(across[1], engine.cross(x, z))
        assert np.array_equal(engine.diagonal(x).astype(np.float32), theta.diagonal())
    plain = CudaEngine(lower(net, shape), "float32")
    assert plain.identity != engine.identity
    assert error(K, plain.symmetric(x)) <= 2e-7


def test_a_slope_and_its_nonlinearity_are_one_step() -> None:
    """In every block of a ResNet, so that they share most of the work."""
    steps = in_registers(lower(zoo.resnet(32), (1, 28, 28), "ntk")).steps
    curved = [s for s in steps if s.activation is not None]
    assert len(curved) == len(lower(zoo.resnet(32), (1, 28, 28)).activations)
    assert all(s.beside is not None and s.beside.op.tangent is not None for s in curved)


def test_a_card_takes_tangent_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    Cards(1).install(monkeypatch)
    assert Kernel(zoo.resnet(8), device="cuda", kind="ntk").device == "cuda"
