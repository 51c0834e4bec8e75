"""What a drawn network is worth: what the classifier would say of it."""

from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier, Kernel, zoo
from cnngp.search import scoring
from cnngp.search.scoring import Problem, score
from helpers import fake_cupy
from helpers.searches import DIGITS

DATA = DIGITS.take(150, 100)
PROBLEM = Problem("digits", DATA.X, DATA.y, DATA.X_test, DATA.y_test, 10, device="cpu")


def test_a_score_is_what_the_classifier_says_whatever_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for network in (zoo.small_cnn(), zoo.residual_cnn()):
        found = score(network, PROBLEM)
        clf = GPClassifier(network, device="cpu").fit(DATA.X, DATA.y)
        assert found.error == pytest.approx(1 - clf.score(DATA.X_test, DATA.y_test), abs=1e-12)
        assert found.loo_error == clf.loo_error_
        assert found.jitter == clf.fit_report_.jitter
        assert found.engine == clf.fit_report_.engine
        assert PROBLEM.pairs == 150 * 149 // 2 + 150 * 100
        assert found.pairs_per_second > PROBLEM.pairs / found.seconds > 0
    monkeypatch.setitem(scoring._CHUNK, "cpu", 150 * 7)
    assert score(zoo.residual_cnn(), PROBLEM).error == found.error > 0


def test_a_score_from_matrices_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path with device arrays, on arrays that behave like CuPy's."""
    on_cpu = score(zoo.small_cnn(), PROBLEM)
    fake_cupy.install(monkeypatch)

    class OnCard:
        device = "cuda"

        def __init__(self, network: Any, *_: Any) -> None:
            self.on_cpu = Kernel(network, "cpu")

        def __getattr__(self, name: str) -> Any:
            return getattr(self.on_cpu, name)

        def __call__(self, X: Any, Z: Any = None, *, output: str, progress: bool) -> Any:
            assert output == "cupy"
            return fake_cupy.ndarray(self.on_cpu(X, Z))

    monkeypatch.setattr(scoring, "Kernel", OnCard)
    monkeypatch.setattr(scoring.memory, "require", lambda *_: None)
    found = score(zoo.small_cnn(), PROBLEM)
    assert (found.error, found.loo_error, found.jitter) == (on_cpu.error, on_cpu.loo_error, on_cpu.jitter)
    assert found.engine.startswith("cuda")


def test_a_singular_kernel_is_scored_with_its_jitter() -> None:
    data = DIGITS.take(40, 30)
    X, y = np.concatenate([data.X, data.X]), np.concatenate([data.y, data.y])
    found = score(zoo.small_cnn(), Problem("twice", X, y, data.X_test, data.y_test, 10, device="cpu"))
    assert found.jitter > 0
