"""Gradients in generated CUDA beyond their numbers (test_gradient.py): tiles, cards, memory, the text, races."""

from collections import Counter

import numpy as np
import pytest

from cnngp import (
    GELU,
    AvgPool,
    Conv,
    Dense,
    Elementwise,
    GlobalAvgPool,
    Identity,
    Kernel,
    LeakyReLU,
    ReLU,
    Sequential,
    Sum,
    zoo,
)
from cnngp.common.devices import EngineError
from cnngp.kernel.engines.cuda import engine as cuda
from cnngp.kernel.engines.cuda.card import Card
from cnngp.kernel.engines.cuda.cuda_source import generate_gradient
from cnngp.kernel.engines.cuda.engine import CudaGradient
from cnngp.kernel.engines.cuda.kernel_frame import SHARED_LIMIT
from cnngp.kernel.program.reverse import reverse
from cnngp.network import Network
from helpers import derivatives
from helpers.cuda_races import watched
from helpers.fake_cards import MakeCards
from helpers.gradients import agrees, flat, found_on
from helpers.kernels import SMALL, random_images


@pytest.mark.gpu
def test_every_run_and_any_number_of_cards_give_the_same_bits() -> None:
    found = reverse(zoo.resnet(14), (1, 28, 28), to_images=True)
    X, G = flat(random_images(90, (1, 28, 28)), "float32"), np.random.default_rng(0).normal(size=(90, 90))
    one, *others = (
        CudaGradient(found, "float32", devices=devices, tile=37).gradient(X, None, G) for devices in ([0], [0], [0] * 3)
    )
    for other in others:
        assert other.parameters == one.parameters
        assert np.array_equal(other.of_x, one.of_x)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_a_kernel_takes_arrays_of_the_card_and_reports_progress() -> None:
    import cupy

    net, X = zoo.resnet(8), random_images(30, (1, 28, 28))
    G = np.random.default_rng(0).normal(size=(30, 30))
    kernel = Kernel(net, device="cuda")
    found = kernel.gradient(cupy.asarray(X), None, cupy.asarray(G))
    assert found == kernel.gradient(X, None, G)
    expected = Kernel(net, device="cpu", dtype="float64").gradient(X, None, G)
    assert found == pytest.approx(expected, rel=0, abs=1e-5 * max(map(abs, expected.values())))


# ---- tiles, cards, memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "m"), [(5, 3), (3, 5), (4, None), (5, None), (1, None), (1, 1)])
@pytest.mark.parametrize("tile", [1, 2, 5])
def test_every_pair_counts_once_whatever_the_tiles(cards: MakeCards, n: int, m: int | None, tile: int) -> None:
    X, Z = random_images(n), None if m is None else random_images(m, seed=1)
    agrees("card", SMALL, X, Z, np.random.default_rng(0).normal(size=(n, n if m is None else m)), "float64", tile)


@pytest.mark.parametrize("set_of_two", [True, False])
def test_cards_and_blocks_change_no_bit(cards: MakeCards, set_of_two: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Z = random_images(7), random_images(5, seed=1) if set_of_two else None
    G = np.random.default_rng(0).normal(size=(7, 5 if set_of_two else 7))
    one = found_on("card", SMALL, X, Z, G, "float32", 2)
    two = cards(2)
    assert found_on("card", SMALL, X, Z, G, "float32", 2) == one
    assert {card for card, _ in two.launches} == {0, 1}
    cards()

    monkeypatch.setattr(Card, "_blocks", lambda self, wanted, how: 1)
    assert found_on("card", SMALL, X, Z, G, "float32", 2) == one


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

SLOPES = Sequential(Conv(3), Sum(Identity(), Sequential(LeakyReLU(0.2), Conv(3))), LeakyReLU(0.2), AvgPool(2), Dense())


@pytest.mark.parametrize("net", [zoo.resnet(8), zoo.residual_cnn(), SLOPES], ids=["ResNet", "residual", "slopes"])
def test_the_text_is_the_same_whatever_the_parameters(net: Network) -> None:
    """Also where they move units: 2^10 times as large, block by block, and every second one."""
    values, texts, units = net.parameters(), set(), set()
    for times in ([1.0, 1.0], [1024.0, 1024.0], [1e-3, 1e3], [1.1, 1.2]):
        changed = {
            name: times[i % 2] * (value or 0.1) if name.endswith("_var") else (0.2 + times[i % 2] / 1e4) * value
            for i, (name, value) in enumerate(values.items())
        }
        found = reverse(net.with_parameters(changed), (1, 8, 8))
        units.add(len(found.steps))
        texts.add(generate_gradient(found, "float32").text)
    assert len(texts) == 1
    assert (len(units) > 1) == (net == zoo.residual_cnn())


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


C = Conv(3, bias_var=0.1)
GLOBAL = Sequential(C, LeakyReLU(0.3), AvgPool(2), Conv(3, bias_var=0.2), GELU(), GlobalAvgPool(), Dense())
RACES: dict[str, tuple[Network, tuple[int, ...]]] = {
    "plain": (SMALL, (2, 9, 10)),
    "pooled": (GLOBAL, (1, 5, 4)),
    "series": (Sequential(C, Elementwise("tanh"), AvgPool(2), Dense()), (1, 3, 3)),
}
STEP = "        if (op.extra_slot >= 0) leave_sum(extra, parts + 32);\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "limit", "line", "without"),
    [
        *((name, limit, "", "") for name in RACES for limit in (SHARED_LIMIT, 0)),
        ("pooled", SHARED_LIMIT, "__syncthreads();  // a place that is first", "// a place that is first"),
        ("plain", SHARED_LIMIT, "all_parts[k % 2]", "all_parts[0]"),
        ("plain", SHARED_LIMIT, f"{STEP}        __syncthreads();", ""),
    ],
)
def test_no_threads_meet_at_a_number_without_a_barrier(name: str, limit: int, line: str, without: str) -> None:
    """And where a barrier is taken away, it is found."""
    (net, shape), G = RACES[name], np.random.default_rng(0).uniform(0.5, 1.0, (7, 7))
    X = random_images(7, shape)
    found, told = watched(net, X, G, limit, line, without)
    if line:
        assert "ThreadSanitizer: data race" in told
        return
    assert not told
    expected = derivatives.gradient(net, X, None, G)
    assert found == pytest.approx(expected, rel=0, abs=1e-5 * max(map(abs, expected.values())))
