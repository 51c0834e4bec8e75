"""Figure 3's model as a whole: `cnngp.paper.sparse.fit`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from cnngp import Conv, Dense, Kernel, Network, ReLU, Sequential, datasets, zoo
from cnngp.paper.sparse import SparseFit, Training, fit
from helpers.sparse_problems import DIGITS, NET

pytestmark = pytest.mark.usefixtures("one_torch_thread")
TRAINING = Training(inducing=60, epochs=5, batch_size=100)


def fitted(network: Any = NET, n: int = 300, **options: Any) -> SparseFit:
    return fit(network, DIGITS.X[:n], DIGITS.y[:n], replace(TRAINING, **options), "cpu")


def error(found: SparseFit) -> float:
    return float((found.classes[found.predict_proba(DIGITS.X_test).argmax(1)] != DIGITS.y_test).mean())


def test_probabilities_labels_and_repetition() -> None:
    found = fitted()
    P = found.predict_proba(DIGITS.X_test)
    np.testing.assert_allclose(P.sum(1), 1.0, rtol=0, atol=1e-6)
    assert P.min() > 0
    assert error(found) < 0.12
    assert len(found.elbo) == 5
    assert found.elbo[-1] > found.elbo[0]
    np.testing.assert_array_equal(fitted().predict_proba(DIGITS.X_test), P)
    assert not np.array_equal(fitted(seed=1).predict_proba(DIGITS.X_test), P)


def test_the_lengthscale_of_pixels_is_learned() -> None:
    found = fitted("rbf")
    assert found.lengthscale is not None
    assert found.lengthscale > 0
    assert error(found) < 0.2


def test_the_kernel_is_asked_once_for_each_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    original = Kernel.__call__

    def counting(self: Kernel, X: np.ndarray, Z: np.ndarray | None = None, **options: Any) -> object:
        asked.append((len(X), len(X if Z is None else Z)))
        return original(self, X, Z, **options)

    monkeypatch.setattr(Kernel, "__call__", counting)
    fitted(epochs=4)
    assert sum(a * b for a, b in asked) == 60 * 60 + 300 * 60


def test_the_scale_of_the_kernel_has_no_effect() -> None:
    def net(scale: float) -> Network:
        return Sequential(Conv(3, bias_var=0.1), ReLU(), Dense(weight_var=scale))

    a, b = (fitted(net(scale), dtype="float64", epochs=2).predict_proba(DIGITS.X_test[:50]) for scale in (1.0, 64.0))
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_precisions_agree() -> None:
    single, double = (fitted(dtype=dtype).predict_proba(DIGITS.X_test[:100]) for dtype in ("float32", "float64"))
    np.testing.assert_allclose(single, double, rtol=0, atol=0.02)


def test_the_start_alone_knows_every_class() -> None:
    order = np.argsort(DIGITS.y[:400], kind="stable")  # sorted data: the start must look at all classes
    X, y = DIGITS.X[:400][order], DIGITS.y[:400][order]
    assert error(fit(NET, X, y, replace(TRAINING, inducing=80, epochs=1, learning_rate=1e-6), "cpu")) < 0.15


@pytest.mark.slow
def test_a_convolutional_kernel_beats_pixels_on_mnist() -> None:
    data = datasets.mnist().take(2000, 2000)
    training = Training(inducing=300, epochs=40, batch_size=200)
    errors = {}
    for name, network in (("conv", zoo.small_cnn()), ("pixels", "rbf")):
        found = fit(network, data.X, data.y, training, "cpu")  # type: ignore[arg-type]
        errors[name] = float((found.predict_proba(data.X_test).argmax(1) != data.y_test).mean())
    assert errors["conv"] < errors["pixels"]


@pytest.mark.gpu
@pytest.mark.parametrize("network", [NET, "rbf"], ids=["network", "rbf"])
def test_on_a_card(network: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no card")
    training = replace(TRAINING, dtype="float64")
    on_card, on_cpu = (
        fit(network, DIGITS.X[:300], DIGITS.y[:300], training, device).predict_proba(DIGITS.X_test[:100])  # type: ignore[arg-type]
        for device in ("cuda", "cpu")
    )
    np.testing.assert_allclose(on_card, on_cpu, rtol=0, atol=1e-6)
