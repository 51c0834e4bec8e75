"""Tiles, bands of table rows, memory and several cards, without a card: the real kernels on cards that are fakes."""

import contextlib
import math
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, Dense, ReLU, Sequential, zoo
from cnngp.common.devices import EngineError
from cnngp.common.tiles import Grid, Tile
from cnngp.kernel.engines.cuda.engine import CudaEngine, Job
from cnngp.kernel.program import lower
from cnngp.network import Network, reference
from helpers.fake_cards import Cards, MakeCards
from helpers.kernels import error

C = [Conv(3), ReLU()]
CNN = Sequential(*C, Conv(3, stride=2), ReLU(), Dense())
NETWORKS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "warp": (CNN, (1, 6, 5)),
    "dense": (zoo.dense_nngp(depth=2), (40,)),
    "walk": (Sequential(*C, Dense()), (2, 3, 4, 3)),
}
N, M = 9, 5


def images(name: str, n: int = N, seed: int = 0) -> np.ndarray:
    """Flat as engines take them, the first of them blank."""
    channels, *spatial = NETWORKS[name][1]
    x = np.random.default_rng(seed).standard_normal((n, channels, math.prod(spatial)))
    x[0] = 0.0
    return x.astype(np.float32)


def engine_for(name: str, **options: Any) -> CudaEngine:
    return CudaEngine(lower(*NETWORKS[name]), "float32", **options)


def whole(cards: MakeCards, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X, Z, K(X, X) and K(X, Z) in one tile each."""
    cards()
    x, z, engine = images(name), images(name, M, seed=1), engine_for(name)
    return x, z, engine.symmetric(x), engine.cross(x, z)


def launched(made: Cards, kernel: str) -> int:
    return sum(name == kernel for _, name in made.launches)


# ---- one card --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_memory_decides_on_the_tiles(cards: MakeCards, name: str) -> None:
    """From little to much: refused, many tiles, one tile; never more memory than there is (the fake would fail)."""
    x, z, K, Kxz = whole(cards, name)
    source = engine_for(name).source
    # Bytes of an image's table row, of the program's numbers, and of the scratch memory of blocks in flight.
    row, numbers = 4 * source.data.layout.row, source.data.ints.nbytes + source.data.reals.nbytes + 8
    fixed = numbers + 4 * source.launches["tables"].scratch
    seen = []
    for rows in (1, 2, 4, 5, 6, 8, 12, 16, 24, 32, 64, 1000):
        made = cards(memory=fixed + rows * row)
        engine = engine_for(name)
        try:
            assert np.array_equal(engine.symmetric(x), K)
        except EngineError:
            seen.append(math.inf)
            continue
        seen.append(launched(made, "pairs"))
        assert np.array_equal(engine.cross(x, z), Kxz)
        with contextlib.suppress(EngineError):  # the matrix itself takes some of the memory
            assert np.array_equal(engine.symmetric(x, "cupy").get(), K)
        assert made.used[0] == numbers, "something stays on the card"
    assert seen == sorted(seen, reverse=True)
    assert (seen[0], seen[-1]) == (math.inf, 1)
    assert len(set(seen)) > 4

    bands = []
    for rows in (100, 6):  # in tiles of one pair: where memory is scarce, bands are dropped and made again
        made = cards(memory=fixed + rows * row)
        assert np.array_equal(engine_for(name, tile=1).symmetric(x), K)
        bands.append(launched(made, "tables") - N)
    assert N == bands[0] < bands[1] <= len(Grid((N, N), (1, 1), symmetric=True))


def test_not_enough_memory_is_one_line_before_any_work(cards: MakeCards) -> None:
    made = cards(memory=500)
    engine = engine_for("warp")
    for call in (engine.diagonal, engine.symmetric, lambda x: engine.cross(x, x)):
        with pytest.raises(EngineError, match=r"^not enough memory on the GPU: an image needs [\d,]+ bytes and 500"):
            call(images("warp"))
    assert not made.launches


def test_work_in_flight_is_waited_for(cards: MakeCards) -> None:
    """Images that the current stream is still making, and a result that the caller can use at once."""
    x, z, K, Kxz = whole(cards, "warp")
    import cupy  # the fake

    for call, expected in ((CudaEngine.symmetric, K), (lambda e, a, out: e.cross(a, cupy.asarray(z), out), Kxz)):
        there = cupy.asarray(x)
        assert np.isnan(there._a).all(), "the fake is not late"
        found = call(engine_for("warp", tile=4), there, "cupy")
        assert np.array_equal(found._a, expected)  # without a synchronising get


# ---- several cards ---------------------------------------------------------------------------------------------------


def all_at_once(made: Cards, chosen: set[int]) -> None:
    """None of the chosen cards goes on to its second tile before each has its first."""
    start = threading.Barrier(len(chosen), timeout=20)
    seen: set[int] = set()

    def before(card: int, kernel: str) -> None:
        if kernel == "pairs" and card not in seen:
            seen.add(card)
            start.wait()

    made.before_launch = before


@pytest.mark.parametrize(
    ("devices", "side"), [([0], 1), ([0], 2), ([0], 4), ([0], 8), ([0, 1, 2], 2), ([2, 1], 2)], ids=str
)
@pytest.mark.parametrize("output", ["numpy", "cupy"])
@pytest.mark.parametrize("name", NETWORKS)
def test_cards_share_the_tiles(
    cards: MakeCards, name: str, output: Any, devices: list[int], side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is computed once, whose bits do not depend on it, and bands of table rows are made once by each card."""
    x, z, K, Kxz = whole(cards, name)
    made = cards(count=3)
    engine = engine_for(name, tile=side, devices=devices if len(devices) < 3 else None)
    taken: list[tuple[int, Tile]] = []
    compute = Job._compute

    def noted(self: Any, tile: Tile) -> Any:
        taken.append((self.card.device, tile))
        return compute(self, tile)

    monkeypatch.setattr(Job, "_compute", noted)
    for call, expected, grid in (
        (lambda told: engine.symmetric(x, output, told), K, Grid((N, N), (side, side), symmetric=True)),
        (lambda told: engine.cross(x, z, output, told), Kxz, Grid((N, M), (side, side), symmetric=False)),
        (lambda told: engine.cross(z, x, output, told), Kxz.T, Grid((M, N), (side, side), symmetric=False)),
    ):
        taken.clear()
        all_at_once(made, set(devices))
        told: list[int] = []
        found = call(told.append)
        assert np.array_equal(found if output == "numpy" else found.get(), expected)
        assert Counter(tile for _, tile in taken) == Counter(grid)
        assert {card for card, _ in taken} == set(devices)
        assert Counter(told) == Counter(tile.pairs for tile in grid)
        assert output == "numpy" or found.card == devices[0]
        if len(devices) == 1 and expected is K:  # the diagonal takes a pass of its own
            assert launched(made, "tables") == 2 * math.ceil(N / side)
    assert {card for card, used in made.peak.items() if used} == set(devices)


@pytest.mark.parametrize("bad", [0, 1, 2, None], ids=["card 0", "card 1", "card 2", "Ctrl-C"])
def test_an_error_reaches_the_caller_and_stops_the_other_cards(cards: MakeCards, bad: int | None) -> None:
    """They finish the tile they are at, not the matrix, and nothing is in flight that would write into memory that was
    given back.
    """
    made = cards(count=3)
    engine = engine_for("warp", tile=1)
    x = images("warp", 40)
    all_at_once(made, {0, 1, 2})
    together = made.before_launch

    def before(card: int, kernel: str) -> None:
        together(card, kernel)
        time.sleep(0.005 if kernel == "pairs" else 0.0)
        if card == bad and kernel == "pairs":
            raise RuntimeError("cudaErrorECCUncorrectable")

    def advance(pairs: int) -> None:
        if bad is None:
            raise KeyboardInterrupt

    made.before_launch = before
    with pytest.raises(KeyboardInterrupt if bad is None else RuntimeError, match=None if bad is None else "ECC"):
        engine.symmetric(x, "numpy", advance)
    assert launched(made, "pairs") < len(Grid((40, 40), (1, 1), symmetric=True)) / 2
    assert len(made.made) == 6
    assert not any(stream._waiting for stream in made.made)
    made.before_launch = lambda card, kernel: None
    assert error(engine.symmetric(x[:5]), reference.kernel(CNN, x[:5].reshape(5, 1, 6, 5))) <= 1e-6
