"""What a drawn network is worth: what the classifier would say of it."""

from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier, Kernel, zoo
from cnngp.search import scoring
from cnngp.search.scoring import Problem, score
from helpers import fake_cupy
from helpers.searches import DIGITS


def test_a_score_is_what_the_classifier_says() -> None:
    data = DIGITS.take(150, 100)
    for network in (zoo.small_cnn(), zoo.residual_cnn()):
        problem = Problem("digits", data.X, data.y, data.X_test, data.y_test, 10, device="cpu")
        found = score(network, problem)
        clf = GPClassifier(network, device="cpu").fit(data.X, data.y)
        assert found.error == pytest.approx(1 - clf.score(data.X_test, data.y_test), abs=1e-12)
        assert found.loo_error == clf.loo_error_
        assert found.jitter == clf.fit_report_.jitter
        assert found.engine == clf.fit_report_.engine
        assert problem.pairs == 150 * 149 // 2 + 150 * 100
        assert found.pairs_per_second > problem.pairs / found.seconds > 0


def test_a_score_does_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = DIGITS.take(80, 50)
    problem = Problem("digits", data.X, data.y, data.X_test, data.y_test, 10, device="cpu")
    whole = score(zoo.small_cnn(), problem)
    monkeypatch.setitem(scoring._CHUNK, "cpu", 80 * 7)
    assert score(zoo.small_cnn(), problem).error == whole.error > 0


def test_a_score_from_matrices_on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path with device arrays, on arrays that behave like CuPy's."""
    data = DIGITS.take(80, 50)
    problem = Problem("digits", data.X, data.y, data.X_test, data.y_test, 10, device="cpu")
    on_cpu = score(zoo.small_cnn(), problem)
    fake_cupy.install(monkeypatch)

    class OnCard(Kernel):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.device = "cuda"

        def _engine(self, shape: Any, kind: Any) -> Any:
            return Kernel(self.network, "cpu")._engine(shape, kind)

        def _images(self, X: Any, name: str) -> Any:
            return Kernel(self.network, "cpu")._images(X, name)

        def __call__(self, X: Any, Z: Any = None, *, output: Any = "numpy", progress: bool = True) -> Any:
            assert output == "cupy"
            return fake_cupy.ndarray(Kernel(self.network, "cpu")(X, Z))

    monkeypatch.setattr(scoring, "Kernel", OnCard)
    monkeypatch.setattr(scoring.memory, "require", lambda *_: None)
    found = score(zoo.small_cnn(), problem)
    assert (found.error, found.loo_error, found.jitter) == (on_cpu.error, on_cpu.loo_error, on_cpu.jitter)
    assert found.engine.startswith("cuda")


def test_a_singular_kernel_is_scored_with_its_jitter() -> None:
    data = DIGITS.take(40, 30)
    X, y = np.concatenate([data.X, data.X]), np.concatenate([data.y, data.y])
    found = score(zoo.small_cnn(), Problem("twice", X, y, data.X_test, data.y_test, 10, device="cpu"))
    assert found.jitter > 0
