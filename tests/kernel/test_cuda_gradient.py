"""Gradients in generated CUDA beyond their numbers (test_gradient.py): tiles, cards, memory, barriers."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cnngp import AvgPool, Conv, Dense, GlobalAvgPool, Kernel, LeakyReLU, ReLU, Sequential, zoo
from cnngp.common.devices import EngineError
from cnngp.kernel.engines.cuda import engine as cuda
from cnngp.kernel.engines.cuda.card import Card
from cnngp.kernel.engines.cuda.cuda_source import generate_gradient
from cnngp.kernel.engines.cuda.engine import CudaGradient
from cnngp.kernel.program.reverse import reverse
from cnngp.network import Network
from helpers.fake_cards import MakeCards
from helpers.gradients import agrees, flat, found_on
from helpers.kernels import SMALL, random_images


@pytest.mark.gpu
def test_every_run_and_any_number_of_cards_give_the_same_bits() -> None:
    import cupy

    found = reverse(zoo.resnet(14), (1, 28, 28), to_images=True)
    X, G = flat(random_images(90, (1, 28, 28)), "float32"), np.random.default_rng(0).normal(size=(90, 90))
    one, *others = (
        CudaGradient(found, "float32", devices=devices, tile=37).gradient(X, None, G) for devices in ([0], [0], [0] * 3)
    )
    for other in others:
        assert other.parameters == one.parameters
        assert np.array_equal(other.of_x, one.of_x)  # type: ignore[arg-type]
    kernel = Kernel(zoo.resnet(14), device="cuda")
    images = X.reshape(90, 1, 28, 28)
    assert kernel.gradient(cupy.asarray(images), None, cupy.asarray(G)) == kernel.gradient(images, None, G)


# ---- tiles, cards, memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(5, 3), (3, 5), (4, None), (5, None), (1, None), (1, 1)])
@pytest.mark.parametrize("tile", [1, 2, 5])
def test_every_pair_counts_once_whatever_the_tiles(
    cards: MakeCards, n: int, m: int | None, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And however many cards there are, and blocks of threads."""
    X, Z = random_images(n), None if m is None else random_images(m, seed=1)
    G = np.random.default_rng(0).normal(size=(n, m or n))
    agrees("card", SMALL, X, Z, G, "float64", tile)
    one = found_on("card", SMALL, X, Z, G, "float64", tile)
    two = cards(2)
    assert found_on("card", SMALL, X, Z, G, "float64", tile) == one
    assert {card for card, _ in two.launches} == ({0, 1} if tile < n else {0})
    monkeypatch.setattr(Card, "_blocks", lambda self, wanted, how: 1)
    assert found_on("card", SMALL, X, Z, G, "float64", tile) == one


def test_memory_decides_on_the_tiles(cards: MakeCards) -> None:
    """From little to much: refused, many tiles, one tile; never more memory than there is (the fake would fail)."""
    X, G = random_images(9), np.random.default_rng(0).normal(size=(9, 9))
    expected = found_on("card", SMALL, X, None, G, "float32")
    size = max(map(abs, expected.values()))
    seen = []
    for kilobytes in (14, 18, 24, 40, 1000):
        made = cards(memory=kilobytes << 10)
        assert found_on("card", SMALL, X, None, G, "float32") == pytest.approx(expected, rel=0, abs=1e-6 * size)
        seen.append(Counter(kernel for _, kernel in made.launches)["self_pairs"])
    assert seen == sorted(seen, reverse=True)
    assert seen[0] > 1
    assert seen[-1] == 1
    cards(memory=1 << 10)
    with pytest.raises(EngineError, match=r"not enough memory on the GPU: an image needs [\d,]+ bytes"):
        found_on("card", SMALL, X, None, G, "float32")


@pytest.mark.parametrize("m", [None, 4])
def test_progress_counts_every_pair_and_no_weights_are_no_work(
    cards: MakeCards, m: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "REPORT_ELEMENTS", 1.0)
    X, Z = random_images(6), None if m is None else random_images(m, seed=1)
    made, G = cards(), np.zeros((6, m or 6))
    engine = CudaGradient(reverse(SMALL, X.shape[1:]), "float32", tile=3)
    for value in (0.0, 1.0):  # tiles without weights are told of as well
        assert not made.launches
        G[0, 1] = value
        told: list[int] = []
        found = engine.gradient(flat(X, "float32"), flat(Z, "float32"), G, told.append)
        assert sum(told) == (15 if m is None else 24)
        assert any(found.parameters.values()) == bool(value)


# ---- the text --------------------------------------------------------------------------------------------------------

POOLED = Sequential(Conv(3, bias_var=0.1), LeakyReLU(0.3), AvgPool(2), Conv(3), ReLU(), GlobalAvgPool(), Dense())
EXTRA = "        if (op.extra_slot >= 0) leave_sum(extra, parts + 32);\n"


@pytest.mark.parametrize(
    ("net", "shape", "line", "without"),
    [
        (SMALL, (1, 9, 6), "all_parts[k % 2]", "all_parts[0]"),
        (SMALL, (1, 9, 6), f"{EXTRA}        __syncthreads();", EXTRA),
        (POOLED, (1, 5, 4), "__syncthreads();  // a place that is first", "// a place that is first"),
    ],
)
def test_a_barrier_that_is_missing_changes_bits(
    cards: MakeCards, net: Network, shape: tuple[int, ...], line: str, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of threads is another one in every run (cuda_on_cpu.hpp), which must not matter."""
    X, G = flat(random_images(4, shape), "float64"), np.random.default_rng(0).normal(size=(4, 4))
    found = reverse(net, shape, to_images=True)

    def changed(*arguments: Any, **options: Any) -> Any:
        source = generate_gradient(*arguments, **options)
        assert line in source.body
        return replace(source, body=source.body.replace(line, without))

    def gradient() -> list[float]:
        computed = CudaGradient(found, "float64").gradient(X, None, G)
        assert computed.of_x is not None
        return [*computed.parameters.values(), *computed.of_x.ravel()]

    expected = gradient()
    assert gradient() == expected
    monkeypatch.setattr(cuda, "generate_gradient", changed)
    assert any(gradient() != expected for _ in range(10))


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
    for name in ("phase", "self_pairs"):
        size = source.launches[name].shared
        assert size > 0
        for limit, fits in ((size, 0), (size + 2 * 64 * 8, size)):
            assert generate_gradient(found, "float32", shared_limit=limit).launches[name].shared == fits
