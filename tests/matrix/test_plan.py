"""What a plan computes to say what a matrix will take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cnngp.matrix import plan


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
        self.kernel = SimpleNamespace(device="cpu", engine_for=lambda shape: engine)
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
    monkeypatch.setattr(plan, "time", engine)
    side = 256
    whole = 2 * side * image + side**2 * pair
    assert plan.measured_rate(Images(engine), side) == pytest.approx(side**2 / whole)  # type: ignore[arg-type]
    assert engine.now < max(4.0, 100 * image + 300 * pair)
