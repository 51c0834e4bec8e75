"""The speed that is measured to say what a matrix will take, and the tiles that follow from it."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cnngp import Dense, Kernel
from cnngp.matrix import tile_size as speed
from cnngp.matrix.plan import plan
from cnngp.matrix.tile_size import default_tile


class Engine:
    """Takes `image` seconds of a clock of its own for an image's tables, and `pair` seconds for a pair."""

    def __init__(self, image: float, pair: float) -> None:
        self.image, self.pair = image, pair
        self.now, self.pairs = 0.0, 0

    def perf_counter(self) -> float:
        return self.now

    def diagonal(self, X: Any) -> None:
        self.now += self.image * len(X)

    def cross(self, X: Any, Z: Any, *rest: Any) -> None:
        self.pairs += len(X) * len(Z)
        self.now += self.image * (len(X) + len(Z)) + self.pair * len(X) * len(Z)


class Images:
    """As many images as MNIST has, of one pixel."""

    def __init__(self, engine: Engine) -> None:
        cost = SimpleNamespace(elements=1_000_000)
        network = SimpleNamespace(shapes=lambda shape: cost)
        self.kernel = SimpleNamespace(device="cpu", engine_for=lambda shape: engine, network=network)
        self.image_shape = (1,)

    def __len__(self) -> int:
        return 60_000

    def block(self, rows: slice, card: int | None) -> np.ndarray:
        return np.zeros((rows.stop - rows.start, 1))


@pytest.mark.parametrize(("image", "pair"), [(0.0, 1e-7), (1e-3, 1e-6), (0.02, 0.01), (0.5, 0.1)])
def test_a_plan_times_few_pairs_of_a_slow_network_and_knows_the_whole_tile(
    image: float, pair: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(image, pair)
    monkeypatch.setattr(speed, "time", engine)
    side = 256
    whole = 2 * side * image + side**2 * pair
    assert speed.measured_rate(Images(engine), side) == pytest.approx(side**2 / whole)  # type: ignore[arg-type]
    assert engine.now < max(4.0, 100 * image + 300 * pair)


@pytest.mark.parametrize(("pair", "images"), [(1e-8, 60_000), (1e-3, 60_000), (4e-3, 240), (0.1, 60_000)])
def test_a_tile_takes_seconds_on_the_engine_at_hand(pair: float, images: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an interrupted run of 240 photographs, one tile of two minutes, would keep nothing."""
    engine = Engine(0.0, pair)
    monkeypatch.setattr(speed, "time", engine)
    tile = speed.tile_here(Images(engine), (images, images), True)  # type: ignore[arg-type]
    assert pair * tile[0] * tile[1] <= 20 or tile == (16, 16)
    assert tile == default_tile(1_000_000, "cpu", (images, images), True) or pair * 4 * tile[0] * tile[1] > 5


@pytest.mark.parametrize(
    ("cost", "device", "shape", "symmetric", "workers", "tile"),
    [
        (20, "cpu", (60_000, 60_000), True, 1, (2048, 2048)),
        (20, "cpu", (300, 300), True, 1, (512, 512)),
        (20, "cpu", (10, 60_000), False, 1, (256, 2048)),
        (20, "cpu", (4096, 4096), True, 2, (512, 512)),
        (11_000, "cpu", (60_000, 60_000), True, 1, (1024, 1024)),  # resnet(32)
        (11_000, "cuda", (60_000, 60_000), True, 1, (4096, 4096)),
    ],
)
def test_default_tiles_are_a_few_seconds_of_work_and_fit_small_sets(
    cost: int, device: str, shape: tuple[int, int], symmetric: bool, workers: int, tile: tuple[int, int]
) -> None:
    assert default_tile(cost, device, shape, symmetric, workers) == tile


def test_a_plan_for_fewer_images_than_a_tile() -> None:
    cost = plan(Kernel(Dense(), device="cpu"), np.ones((1, 3)))
    assert (cost.pairs, cost.tiles) == (0, 1)
