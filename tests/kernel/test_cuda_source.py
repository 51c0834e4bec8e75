"""The generated CUDA, without a card: its text, and the kernels themselves run as C++ on fibers (cuda_on_cpu.hpp)."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from cnngp.kernel.engines.cuda.warp.warp_launch import fold_from, foldable

from cnngp import Conv, Dense, Elementwise, Network, Sequential, Step, zoo
from cnngp.common.devices import has_card
from cnngp.kernel.engines.base import RangeError, check_range
from cnngp.kernel.engines.cuda import engine as cuda
from cnngp.kernel.engines.cuda.cuda_source import generate
from cnngp.kernel.program import lower
from cnngp.kernel.series.packed import SeriesTables
from cnngp.network import reference
from helpers.cuda_cases import NETWORKS, PATHS, TOLERANCE, OnCpu, error, images
from helpers.cuda_on_cpu import needs_compiler
from helpers.generator import random_network

# What the default run leaves out: large maps, and in float64 whatever differs in the type alone.
QUICK_DOUBLE = {"resnet", "smooth", "step", "one location", "lanes outside maps"}
CASES = [
    pytest.param(name, dtype, marks=() if quick else pytest.mark.slow)
    for name in NETWORKS
    for dtype, quick in (
        ("float32", name not in ("convnet", "wide convolutions")),
        ("float64", name in QUICK_DOUBLE),
    )
]


@needs_compiler
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_generated_kernels_agree_with_the_reference(name: str, dtype: str) -> None:
    net, shape = NETWORKS[name]
    program = lower(net, shape)
    source = generate(program, dtype)
    assert source.path == PATHS.get(name, "warp")
    run = OnCpu(source)
    rng = np.random.default_rng(0)
    X, Z = images(rng, 5, shape), images(rng, 6, shape)[:-1]
    tolerance = TOLERANCE.get(name, 1e-6) if dtype == "float32" else max(1e-12, TOLERANCE.get(name, 0.0) ** 2)
    R = reference.kernel(net, X, Z)
    K = run.cross(X, Z)
    assert error(K, R) <= tolerance
    assert np.array_equal(K, run.cross(Z, X).T), "not symmetric in the two images"
    assert np.array_equal(K[1:3, 2:], run.cross(X[1:3], Z[2:])), "depends on the batch"
    S = run.symmetric(X)
    assert np.array_equal(S, S.T)
    assert error(S, reference.kernel(net, X)) <= tolerance
    off = ~np.eye(len(X), dtype=bool)
    assert np.array_equal(S[off], run.cross(X, X)[off])
    assert np.allclose(run.tables(X)[2], reference.diagonal(net, X), rtol=1e-13, atol=0.0)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["maps", "one location"])
def test_elementwise_agrees_with_its_series(name: str, dtype: str) -> None:
    tanh, softplus = Elementwise("tanh"), Elementwise("softplus")
    if name == "maps":
        net: Network = Sequential(Conv(3), tanh, Conv(3, stride=2, bias_var=0.1), softplus, Dense())
        shape: tuple[int, ...] = (1, 5, 6)
    else:
        net, shape = Sequential(Dense(2.0), tanh, Dense(), softplus, Dense()), (7,)
    program = lower(net, shape)
    tables = SeriesTables(program, np.dtype(dtype))
    X = images(np.random.default_rng(0), 4, shape)
    short = OnCpu(generate(program, dtype, series=tables.rows(None)), tables.panels)
    _, peaks, diagonal = short.tables(X)
    rows = tables.rows(peaks.max(axis=0))
    run = OnCpu(generate(program, dtype, series=rows), tables.panels)
    tolerance = 1e-6 if dtype == "float32" else 1e-11
    assert np.allclose(diagonal, reference.diagonal(net, X), rtol=1e-7 if dtype == "float32" else 1e-11)
    assert error(run.cross(X, X[:2]), reference.kernel(net, X, X[:2])) <= tolerance
    assert np.array_equal(run.cross(X, X[:2]), run.cross(X[:2], X).T)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "fold", "dtype"), [("resnet", 8, "float32"), ("resnet", 8, "float64"), ("skips in skips", 2, "float32")]
)
def test_two_columns_a_lane_give_the_same(name: str, fold: int, dtype: str) -> None:
    net, shape = NETWORKS[name]
    program = lower(net, shape)
    assert foldable(program, fold)
    run = OnCpu(generate(program, dtype, fold=fold))
    X = images(np.random.default_rng(0), 5, shape)
    assert error(run.cross(X, X[:3]), reference.kernel(net, X, X[:3])) <= {"float32": 1e-6, "float64": 1e-12}[dtype]
    assert np.array_equal(run.cross(X, X[:3]), run.cross(X[:3], X).T)


@needs_compiler
@pytest.mark.parametrize("name", ["resnet", "padding modes", "loop"])
def test_the_general_kernel_agrees_where_the_warp_kernel_would_run(name: str) -> None:
    net, shape = NETWORKS[name]
    program = lower(net, shape)
    run = OnCpu(generate(program, "float64", path="walk"))
    X = images(np.random.default_rng(0), 3, shape)
    assert error(run.cross(X, X[:2]), reference.kernel(net, X, X[:2])) <= 1e-12


@needs_compiler
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(k, marks=pytest.mark.slow) for k in range(2, 20))])
def test_generated_kernels_agree_on_random_networks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    net, shape = random_network(rng, max_pixels=600, axes=(1, 2, 2, 2, 3), scale=2.5)
    X = images(rng, 3, shape)
    for dtype, tolerance in (("float32", 1e-6), ("float64", 1e-12)):
        program = lower(net, shape)
        run = OnCpu(generate(program, dtype))
        assert error(run.cross(X, X[:2]), reference.kernel(net, X, X[:2])) <= tolerance


def test_lanes_hold_two_columns_where_that_pays() -> None:
    folds = {"convnet": 28, "folded, then not": 12, "resnet": 0, "residual": 0, "padding modes": 0}
    assert {name: fold_from(lower(*NETWORKS[name])) for name in folds} == folds


def test_cards_with_less_shared_memory_get_smaller_blocks() -> None:
    program = lower(zoo.resnet(32), (1, 28, 28))
    for limit in (227 * 1024, 99 * 1024, 48 * 1024):
        source = generate(program, "float64", shared_limit=limit)
        assert source.path == "warp"
        assert max(source.pairs.shared, source.launches["tables"].shared) <= limit


def test_without_cupy_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert not has_card()
    with pytest.raises(cuda.EngineError, match=r'pip install "cnngp\[cuda\]"'):
        cuda.CudaEngine(lower(Dense(), (2, 3, 3)), "float32")


@needs_compiler
def test_a_step_on_a_card_refuses_locations_too_faint_for_float32() -> None:
    program = lower(Sequential(Conv(3), Step(), Dense()), (1, 6, 6))
    run = OnCpu(generate(program, "float32"))
    X = np.random.default_rng(0).standard_normal((2, 1, 6, 6)).astype(np.float32)
    series = SeriesTables(program, np.dtype("float32"))
    for faint, fits in ((1e-12, True), (1e-20, False)):
        X[1, :, :, 2:] *= np.float32(faint)
        _, peaks, diagonal = run.tables(X)
        if fits:
            check_range(program, np.dtype("float32"), series, peaks, diagonal)
        else:
            with pytest.raises(RangeError, match=r"image 1 has locations .* too small beside the others"):
                check_range(program, np.dtype("float32"), series, peaks, diagonal)
