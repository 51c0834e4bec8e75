"""The speed that is measured to say what a matrix will take, and the tiles that follow from it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cnngp
from cnngp import Conv, Dense, Kernel, ReLU, Sequential
from cnngp.common.tiles import Grid
from cnngp.matrix import tile_size as speed
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


def test_default_tiles_are_a_few_seconds_of_work_and_fit_small_sets() -> None:
    engine = Kernel(Sequential(Conv(3), ReLU(), Dense()), device="cpu").engine_for((1, 4, 4))
    assert default_tile(engine.program.elements, "cpu", (60000, 60000), True) == (2048, 2048)
    assert default_tile(engine.program.elements, "cpu", (300, 300), True) == (512, 512)
    assert default_tile(engine.program.elements, "cpu", (10, 60000), False) == (256, 2048)
    costly = Kernel(cnngp.network.zoo.resnet(32), device="cpu").engine_for((1, 28, 28))
    assert default_tile(costly.program.elements, "cpu", (60000, 60000), True) == (1024, 1024)
    assert default_tile(engine.program.elements, "cpu", (4096, 4096), True, workers=2) == (512, 512)
    assert default_tile(costly.program.elements, "cuda", (60000, 60000), True) == (4096, 4096)


def test_the_chunks_of_a_grid_cover_it_once() -> None:
    for shape, tile, symmetric in (((37, 37), (8, 8), True), ((37, 23), (8, 5), False), ((3, 3), (8, 8), True)):
        grid = Grid(shape, tile, symmetric)
        seen = np.zeros(shape, int)
        for t in grid:
            for i, j in grid.chunks_of(t.i, t.j):
                place = grid.at(i, j)
                seen[place.rows, place.columns] += 1
        assert (seen == 1).all()
