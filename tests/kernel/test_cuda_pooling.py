"""The generated CUDA of networks with pools, without a card: the kernels run as C++ on fibers (cuda_on_cpu.hpp)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cnngp.kernel.engines.cuda.sheets.shift_runs import runs
from hypothesis import given, settings
from hypothesis import strategies as st

from cnngp import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    Elementwise,
    Erf,
    GlobalAvgPool,
    Network,
    ReLU,
    Sequential,
    Sum,
    zoo,
)
from cnngp.kernel.engines.cuda.cuda_source import generate
from cnngp.kernel.engines.cuda.engine import CudaEngine
from cnngp.kernel.engines.cuda.sheets.sheet_chain import Shifts, chain
from cnngp.kernel.program import lower
from cnngp.kernel.series.packed import SeriesTables
from cnngp.network import reference
from helpers.cuda_cases import POOLED, OnCpu, error, images
from helpers.cuda_on_cpu import needs_compiler
from helpers.fake_cards import Cards
from helpers.networks import relu_like
from helpers.pooled import pooled_networks

C = [Conv(3), ReLU()]
MYRTLE = Sequential(*C * 3, AvgPool(2), *C * 3, AvgPool(2), *C * 3, GlobalAvgPool(), Dense())
# Warps of a pair, pairs of a block, blocks, segments whose tables are in shared memory: the warp's own pool in shared
# memory, and the block's in global memory.
OWN, TOGETHER = (1, 2, 1, 0), (2, 2, 1, 1)


def agrees(run: OnCpu, net: Network, shape: tuple[int, ...], tolerance: float) -> None:
    rng = np.random.default_rng(0)
    X, Z = images(rng, 4, shape), images(rng, 4, shape)[:-1]
    K = run.cross(X, Z)
    assert error(K, reference.kernel(net, X, Z)) <= tolerance
    assert np.array_equal(K[1:3, 1:], run.cross(X[1:3], Z[1:])), "depends on the batch"
    S = run.symmetric(X)
    assert np.array_equal(S, S.T)
    assert error(S, reference.kernel(net, X)) <= tolerance
    assert np.allclose(run.tables(X)[2], reference.diagonal(net, X), rtol=1e-13, atol=0.0)


@needs_compiler
@pytest.mark.parametrize(
    ("name", "dtype", "launch"),
    [
        pytest.param(name, dtype, launch, marks=() if quick else pytest.mark.slow)
        for name in POOLED
        for dtype, launch, quick in (
            ("float32", OWN, name in ("two pools", "strides")),
            ("float32", TOGETHER, name in ("two pools", "any pool at the end")),
            ("float64", None, name in ("global pool", "smooth")),
            ("float32", (3, 1, 1, 2), False),
            ("float64", (1, 3, 1, 1), False),
            ("float64", TOGETHER, False),
        )
    ],
)
def test_chains_of_segments_agree_with_the_reference(name: str, dtype: str, launch: Any) -> None:
    net, shape = POOLED[name]
    program = lower(net, shape)
    source = generate(program, dtype, launch_shape=launch)
    assert source.path == "sheets"
    agrees(OnCpu(source), net, shape, {"float32": 1e-6, "float64": 1e-12}[dtype])


VALID = Conv(3, padding="valid")


@needs_compiler
@pytest.mark.parametrize(
    ("net", "shape", "dtype"),
    [
        (zoo.conv_gp(3, 2.0), (2, 7, 6), "float32"),
        pytest.param(zoo.conv_gp((2, 5), 2.0), (1, 6, 9), "float64", marks=pytest.mark.slow),
        (Sequential(*C, VALID, ReLU(), VALID, Erf(), GlobalAvgPool(), Dense()), (1, 8, 9), "float64"),
        pytest.param(
            Sequential(VALID, ReLU(), AvgPool(5, 1), Dense(), ReLU(), Dense()),
            (1, 9, 8),
            "float32",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["convolutional GP", "uneven patches", "same, then smaller twice", "a pool of almost all"],
)
def test_maps_that_shrink_share_the_shifts_of_the_largest(net: Network, shape: tuple[int, ...], dtype: str) -> None:
    program = lower(net, shape)
    found = chain(program)
    assert found is not None
    assert found.cycles
    assert all(segment.rows.count <= shape[1] for segment in found.segments)
    source = generate(program, dtype)
    assert source.path == "sheets"
    agrees(OnCpu(source), net, shape, {"float32": 1e-6, "float64": 1e-12}[dtype])


def test_a_padded_sum_on_a_smaller_map_goes_the_general_way() -> None:
    """Its window would reach over places that belong to no displacement."""
    net = Sequential(VALID, ReLU(), Conv(3), ReLU(), GlobalAvgPool(), Dense())
    assert chain(lower(net, (1, 8, 8))) is None


@needs_compiler
@pytest.mark.parametrize(
    ("pool", "shape"), [(GlobalAvgPool(), (1, 3, 6)), (AvgPool(2), (2, 3, 5))], ids=["global", "2 × 2"]
)
def test_a_stride_that_looks_like_a_window_moving_by_one(pool: Network, shape: tuple[int, ...]) -> None:
    """On three places, two windows of a stride of two and their padding are two windows without either."""
    net = Sequential(Conv(3, stride=2), ReLU(), pool, Dense())
    program = lower(net, shape)
    assert chain(program) is None
    agrees(OnCpu(generate(program, "float64")), net, shape, 1e-12)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (Sequential(*C, AvgPool(2), Conv(3), ReLU(), GlobalAvgPool(), Dense()), (2, 9)),
        (Sequential(Conv(2, bias_var=0.1), ReLU(), AvgPool(2, 1), Dense()), (1, 3, 4, 3)),
        (Sequential(Conv(3, stride=2), ReLU(), AvgPool((1, 2)), Dense()), (1, 3, 40)),
        (Sequential(Conv(3, padding_mode="circular"), ReLU(), GlobalAvgPool(), Dense()), (1, 4, 5)),
        (Sequential(Conv(3), Sum(Sequential(*C[::-1]), AvgPool(3, 1, 1)), ReLU(), AvgPool(2), Dense()), (1, 5, 4)),
        (
            Sequential(Conv(3, padding=2, bias_var=0.2), ReLU(), ConvTranspose(2, stride=2), AvgPool(5), Dense()),
            (1, 3, 3),
        ),
        (Sequential(Conv(4, stride=5, padding=9, bias_var=0.6), ReLU(), GlobalAvgPool(), Dense()), (1, 3, 4)),
        (Sequential(*C, AvgPool(4), ConvTranspose(3, padding="valid"), ReLU(), Dense()), (1, 4, 4)),
        (Sequential(*C, AvgPool(4), ConvTranspose(3, padding="valid"), ReLU(), AvgPool(2), Dense()), (1, 4, 4)),
    ],
    ids=[
        "1-D",
        "3-D",
        "wider than a warp",
        "circular",
        "pool in a branch",
        "bias alone",
        "one product of the images",
        "a map again",
        "a map and a pool again",
    ],
)
def test_the_general_way_agrees_with_the_reference(net: Network, shape: tuple[int, ...], dtype: str) -> None:
    program = lower(net, shape)
    source = generate(program, dtype)
    assert source.path == "walk"
    agrees(OnCpu(source), net, shape, {"float32": 1e-6, "float64": 1e-12}[dtype])


@needs_compiler
@pytest.mark.parametrize("most", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_random_networks_with_pools_agree_with_the_reference(most: int) -> None:
    """Whichever way they take, and the general one."""

    @settings(max_examples=most)
    @given(drawn=pooled_networks(relu_like), seed=st.integers(0, 10**6))
    def check(drawn: Any, seed: int) -> None:
        net, shape = drawn
        program = lower(net, shape)
        X = images(np.random.default_rng(seed), 3, shape)
        R, D = reference.kernel(net, X, X[:2]), reference.diagonal(net, X)
        top = max(np.abs(R).max(), 1e-300)
        for path in ("walk", None) if program.input is None else (None,):
            source = generate(program, "float64", path=path)
            run = OnCpu(source)
            assert np.abs(run.cross(X, X[:2]) - R).max() / top <= 1e-12
            assert np.abs(run.tables(X)[2] - D).max() / top <= 1e-13

    check()


@needs_compiler
def test_series_under_a_pool() -> None:
    tanh = Elementwise("tanh")
    net, shape = Sequential(Conv(3), tanh, AvgPool(2), Conv(2), tanh, GlobalAvgPool(), Dense()), (1, 4, 4)
    program = lower(net, shape)
    tables = SeriesTables(program, np.dtype("float64"))
    source = generate(program, "float64", series=tables.rows(None))
    assert source.path == "walk"
    X = images(np.random.default_rng(0), 3, shape)
    run = OnCpu(source, tables.panels)
    assert error(run.cross(X, X[:2]), reference.kernel(net, X, X[:2])) <= 1e-11
    assert np.allclose(run.tables(X)[2], reference.diagonal(net, X), rtol=1e-10, atol=0.0)


@needs_compiler
@pytest.mark.parametrize(
    ("path", "net", "shape"),
    [
        ("sheets", Sequential(*C, AvgPool(2), *C, GlobalAvgPool(), Dense()), (1, 4, 6)),
        ("walk", Sequential(*C, AvgPool(2), *C, GlobalAvgPool(), Dense()), (1, 5)),
    ],
)
def test_the_engine_runs_networks_with_pools(
    path: str, net: Network, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables, tiles, both triangles, on two cards; the real kernels, on cards that are not there."""
    Cards(2).install(monkeypatch)
    rng = np.random.default_rng(0)
    X, Z = images(rng, 5, shape), images(rng, 4, shape)[:-1]
    x, z = (a.reshape(len(a), 1, -1) for a in (X, Z))
    for tile in (None, 2):
        engine = CudaEngine(lower(net, shape), "float32", tile=tile)
        assert engine.source.path == path
        K = engine.symmetric(x)
        assert np.array_equal(K, K.T)
        assert error(K, reference.kernel(net, X)) <= 1e-6
        assert error(engine.cross(x, z), reference.kernel(net, X, Z)) <= 1e-6
        assert np.array_equal(engine.diagonal(x).astype(np.float32), K.diagonal())


def test_shifts_follow_from_the_output() -> None:
    """The sets of docs/gpu.md: few for small pools before a Dense layer, as many as places for a global pool."""

    def counts(net: Network, shape: tuple[int, ...]) -> list[tuple[int, int]]:
        found = chain(lower(net, shape))
        assert found is not None
        return [(s.rows.count, s.columns.count) for s in found.segments]

    lenet = Sequential(*C, AvgPool(2), *C, AvgPool(2), Dense())
    assert counts(lenet, (1, 28, 28)) == [(7, 7), (3, 3)]
    assert counts(MYRTLE, (1, 16, 16)) == [(16, 16), (8, 8), (4, 4)]
    assert counts(Sequential(*C, Conv(3, stride=2), ReLU(), GlobalAvgPool(), Dense()), (1, 8, 12)) == [(4, 6)]
    assert counts(Sequential(*C * 2, AvgPool(2), *C, AvgPool(3, 1), Dense()), (1, 12, 12)) == [(11, 11), (5, 5)]


def test_a_run_of_shifts_stores_each_pooled_sheet_once() -> None:
    """Each coarse shift gets the even rows of its own run, and odd rows late only where another run ends before it."""
    for n in (8, 16, 28):
        fine, coarse = (
            Shifts(m, {m: tuple(range(m))}, tuple(map(frozenset, [{s} for s in range(m)]))) for m in (n, n // 2)
        )
        for count in (1, 2, 3, n // 2):
            found = runs(fine, coarse, n // 2, count)
            assert sorted(t for t in found.own if t >= 0) == list(range(n // 2))
            assert len(found.late) == found.count
            assert all(s % 2 == 0 for s in found.starts)


def test_a_small_block_of_shared_memory_is_respected() -> None:
    program = lower(Sequential(*C * 3, GlobalAvgPool(), Dense()), (1, 16, 16))
    large = generate(program, "float32")
    small = generate(program, "float32", shared_limit=16 * 1024)
    assert large.pairs.shared > 16 * 1024 >= small.pairs.shared
