"""Gradients in generated CUDA, without a card: the real kernels on cards that are fakes, against the oracle.

Errors are those of the largest derivative: in float64 1e-10 of it, in float32 1e-5, as on the CPU.
"""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest

from cnngp import (
    GELU,
    AvgPool,
    Conv,
    Dense,
    Elementwise,
    Erf,
    GlobalAvgPool,
    LeakyReLU,
    Network,
    ReLU,
    Sequential,
)
from cnngp.kernel.engines.cpu.gradient import CpuGradient
from cnngp.kernel.engines.cuda import gradient_engine
from cnngp.kernel.engines.cuda.card import Card
from cnngp.kernel.engines.cuda.cuda_source import generate_gradient
from cnngp.kernel.engines.cuda.engine import EngineError
from cnngp.kernel.engines.cuda.gradient_engine import CudaGradient
from cnngp.kernel.program.reverse import reverse
from helpers import cuda_cases, generator, pooled
from helpers.cuda_on_cpu import needs_compiler
from helpers.fake_cards import MakeCards
from helpers.gradients import EVERY, check_nonlinearities, flat
from helpers.gradients import cuda_agrees as agrees
from helpers.gradients import found_by_cuda as found_by
from helpers.kernels import SMALL, random_images
from helpers.networks import images

POOLED = Sequential(Conv(3, bias_var=0.1), LeakyReLU(0.3), AvgPool(2), Conv(3, bias_var=0.2), GELU(), Dense())


# ---- numbers ---------------------------------------------------------------------------------------------------------


SERIES = [layer for layer in EVERY if isinstance(layer, Elementwise)]
CLOSED = [layer for layer in EVERY if layer not in SERIES]


@needs_compiler
@pytest.mark.parametrize("layers", [CLOSED, SERIES], ids=["closed", "series"])
def test_all_nonlinearities_in_one_network(cards: MakeCards, layers: list[Network]) -> None:
    cards()
    check_nonlinearities(layers, "float64", agrees)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layer", EVERY, ids=repr)
def test_every_nonlinearity(cards: MakeCards, layer: Network, dtype: str) -> None:
    cards()
    check_nonlinearities([layer], dtype, agrees)


@needs_compiler
@pytest.mark.parametrize("name", ["transposed", "3-D", "1-D", "dense skips", "copies of one place", "no operations"])
def test_chosen_networks(cards: MakeCards, name: str) -> None:
    cards()
    net, shape = cuda_cases.NETWORKS[name]
    X = images(shape, 3, 0)
    agrees(net, X, None, np.random.default_rng(0).normal(size=(3, 3)), "float64")


@needs_compiler
@pytest.mark.parametrize("name", ["two pools", "any pool at the end", "sizes that do not halve"])
def test_chosen_networks_with_pools(cards: MakeCards, name: str) -> None:
    cards()
    net, shape = cuda_cases.POOLED[name]
    X, Z = random_images(2, shape), random_images(1, shape, seed=1)
    agrees(net, X, Z, np.random.default_rng(0).normal(size=(2, 1)), "float32")


@needs_compiler
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(k, marks=pytest.mark.slow) for k in range(4, 40))])
def test_generated_networks(cards: MakeCards, seed: int, dtype: str) -> None:
    """With blank patches and images, all kinds of layers, with and without pools."""
    cards()
    rng = np.random.default_rng(seed)
    acts = (*generator.RELU_LIKE, *generator.SMOOTH)
    if seed % 3:
        net, shape = generator.random_network(rng, acts, max_pixels=60)
    else:
        pick = generator.Random(rng)
        net, shape = pooled.network(pick, lambda: pick.among(acts), 400)
    X = images(shape, 5, seed)
    G = rng.normal(size=(5, 5))
    agrees(net, X, None, G, dtype, at_one=True)
    agrees(net, X[:3], X[2:], G[:3, 2:], dtype, at_one=True)


@needs_compiler
def test_maps_that_do_not_fit_into_shared_memory(cards: MakeCards) -> None:
    cards()
    net = Sequential(Conv(3), ReLU(), Dense())
    found = reverse(net, (1, 90, 90))
    source = generate_gradient(found, "float64")
    assert source.pairs.scratch > 0, "the test is of the other way"
    agrees(net, random_images(2, (1, 90, 90)), None, np.ones((2, 2)), "float64")


@needs_compiler
@pytest.mark.parametrize("net", [SMALL, POOLED, Sequential(Dense(), Erf(), Dense())], ids=["plain", "pooled", "dense"])
def test_gradients_of_pixels_are_those_of_the_cpu(cards: MakeCards, net: Network) -> None:
    cards()
    shape = (6,) if isinstance(net.layers[0], Dense) else (2, 5, 4)  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    X, Z = flat(random_images(3, shape), "float64"), flat(random_images(4, shape, seed=1), "float64")
    found = reverse(net, shape, to_images=True)
    for other, G in ((Z, rng.normal(size=(3, 4))), (None, rng.normal(size=(3, 3)))):
        mine = CudaGradient(found, "float64", tile=2).gradient(X, other, G)
        theirs = CpuGradient(found, "float64").gradient(X, other, G)
        for a, b in zip(mine[1:], theirs[1:], strict=True):
            assert (a is None) == (b is None)
            assert a is None or np.abs(a - b).max() <= 1e-12 * np.abs(b).max()  # type: ignore[operator]


# ---- tiles, cards, memory --------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(("n", "m"), [(5, 3), (3, 5), (4, None), (5, None), (1, None), (1, 1)])
@pytest.mark.parametrize("tile", [1, 2, 5])
def test_every_pair_counts_once_whatever_the_tiles(cards: MakeCards, n: int, m: int | None, tile: int) -> None:
    cards()
    X, Z = random_images(n), None if m is None else random_images(m, seed=1)
    agrees(SMALL, X, Z, np.random.default_rng(0).normal(size=(n, n if m is None else m)), "float64", tile)


@needs_compiler
@pytest.mark.parametrize("set_of_two", [True, False])
def test_cards_and_blocks_change_no_bit(cards: MakeCards, set_of_two: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Z = random_images(7), random_images(5, seed=1) if set_of_two else None
    G = np.random.default_rng(0).normal(size=(7, 5 if set_of_two else 7))
    cards()
    one = found_by(SMALL, X, Z, G, "float32", 2)
    two = cards(2)
    assert found_by(SMALL, X, Z, G, "float32", 2) == one
    assert {card for card, _ in two.launches} == {0, 1}
    cards()

    def one_block(self: Card, wanted: int, scratch: int, resident: int) -> tuple[int, object]:
        return 1, sys.modules["cupy"].empty(max(1, scratch), np.uint8)

    monkeypatch.setattr(Card, "_blocks", one_block)
    assert found_by(SMALL, X, Z, G, "float32", 2) == one


@needs_compiler
def test_memory_decides_on_the_tiles(cards: MakeCards) -> None:
    """From little to much: refused, many tiles, one tile; never more memory than there is (the fake would fail)."""
    X, G = random_images(9), np.random.default_rng(0).normal(size=(9, 9))
    cards()
    expected = found_by(SMALL, X, None, G, "float32")
    size = max(map(abs, expected.values()))
    seen = []
    for kilobytes in (14, 18, 24, 40, 1000):
        made = cards(memory=kilobytes << 10)
        assert found_by(SMALL, X, None, G, "float32") == pytest.approx(expected, rel=0, abs=1e-6 * size)
        seen.append(Counter(kernel for _, kernel in made.launches)["self_pairs"])
    assert seen == sorted(seen, reverse=True)
    assert seen[0] > 1
    assert seen[-1] == 1
    cards(memory=1 << 10)
    with pytest.raises(EngineError, match=r"not enough memory on the GPU: an image needs [\d,]+ bytes"):
        found_by(SMALL, X, None, G, "float32")


@needs_compiler
@pytest.mark.parametrize("m", [None, 4])
def test_progress_counts_every_pair(cards: MakeCards, m: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    cards()
    monkeypatch.setattr(gradient_engine, "REPORT_ELEMENTS", 1.0)
    X, Z = random_images(6), None if m is None else random_images(m, seed=1)
    G = np.zeros((6, m or 6))
    G[0, 1] = 1.0  # tiles without weights are told of as well
    told: list[int] = []
    engine = CudaGradient(reverse(SMALL, X.shape[1:]), "float32", tile=3)
    engine.gradient(flat(X, "float32"), flat(Z, "float32"), G, told.append)
    assert sum(told) == (15 if m is None else 24)


@needs_compiler
def test_no_weights_give_no_gradient_and_no_work(cards: MakeCards) -> None:
    made = cards()
    found = found_by(SMALL, random_images(3), None, np.zeros((3, 3)), "float32")
    assert set(found.values()) == {0.0}
    assert not made.launches


# ---- the text --------------------------------------------------------------------------------------------------------


def test_sums_of_sheets_are_few() -> None:
    """A pool has many sheets with sums of their own; those of one layer are one."""
    net = Sequential(*[Conv(3, bias_var=0.1), ReLU()] * 3, GlobalAvgPool(), Dense())
    found = reverse(net, (1, 8, 8))
    assert found.slots > 1000
    source = generate_gradient(found, "float32")
    assert source.backward.slots <= 4 * len(net.layers)
    assert {name for parts in source.backward.shares for name, _ in parts} == set(net.parameters())


def test_the_sums_of_warps_fit_into_shared_memory_besides_the_maps() -> None:
    found = reverse(SMALL, (2, 9, 10))
    source = generate_gradient(found, "float32")
    assert "__shared__ double all_parts[2][64];" in source.body
    for name in ("pairs", "self_pairs"):
        size = source.launches[name].shared
        assert size > 0
        assert generate_gradient(found, "float32", shared_limit=size).launches[name].shared == 0
        assert generate_gradient(found, "float32", shared_limit=size + 2 * 64 * 8).launches[name].shared == size
