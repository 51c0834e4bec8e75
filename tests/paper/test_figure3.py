"""Figure 3: its likelihood against quadrature, q(f) and its bound against dense formulas, fits, and a tiny figure."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import log_ndtr

from cnngp import Conv, Dense, ReLU, Sequential, datasets, zoo
from cnngp.paper import figure3
from cnngp.paper.setting import Setting
from cnngp.paper.sparse import SparseGP, Training, fit, probability_of_largest, start, train, whitened
from helpers.experiments import cell
from helpers.refits import rbf
from helpers.torch_modules import made

pytestmark = pytest.mark.usefixtures("one_torch_thread")
NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DIGITS = datasets.digits()
TRAINING = Training(inducing=60, epochs=5, batch_size=100)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-7), (torch.float32, 2e-6)])
def test_the_integral_against_adaptive_quadrature(dtype: torch.dtype, tolerance: float) -> None:
    rng = np.random.default_rng(0)
    mean, variance = torch.tensor(1.5 * rng.normal(size=(8, 5))), torch.tensor(rng.uniform(1.0, 1.5, size=(8, 5)))
    found = probability_of_largest(mean.to(dtype), variance.to(dtype), torch.zeros(8, dtype=torch.long), nodes=100)
    for i, (m, s) in enumerate(zip(mean.numpy(), variance.sqrt().numpy(), strict=True)):

        def density(z: float, m: Any = m, s: Any = s) -> float:
            return math.exp(-z * z / 2 + log_ndtr((m[0] + s[0] * z - m[1:]) / s[1:]).sum()) / math.sqrt(2 * math.pi)

        assert abs(found[i].item() - quad(density, -10, 10, epsabs=1e-12)[0]) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_functions_give_the_limits_and_finite_gradients(dtype: torch.dtype) -> None:
    mean = torch.tensor([[50.0, 0.0, 1.0], [0.0, 1e6, -1e30], [0.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    variance = torch.tensor([[1e-6] * 3, [1.0] * 3, [0.0, 1e-30, 1e-12]], dtype=dtype, requires_grad=True)
    P = probability_of_largest(mean, variance, torch.tensor([0, 0, 2]))
    P.sum().backward()
    assert P[:2].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)
    assert all(torch.isfinite(t).all() for t in (P, mean.grad, variance.grad))


def small_problem(n: int = 30, m: int = 6, classes: int = 3, epsilon: float = 1e-3) -> tuple[Any, SparseGP, Any, Any]:
    """A smooth kernel of random points, the first m inducing, a random q, labels by thresholds of one coordinate."""
    x = np.random.default_rng(0).normal(size=(n, 2))
    K = rbf(x, length=1.0)
    y = torch.tensor(np.digitize(x[:, 0], [0.0] if classes == 2 else [-0.5, 0.5]))
    three = 3.0 * torch.tensor(K)  # the unit is the mean variance
    A, residual = whitened(three[:m, :m], three[:, :m], three.diagonal(), 1e-8)
    rows = made(lambda _, x: (x[:, :-1], x[:, -1]))  # that hold a_n and then k_nn − a_nᵀa_n
    model = SparseGP(rows, m, classes, epsilon).double()
    g = torch.Generator().manual_seed(3)
    mean = torch.randn(classes, m, generator=g, dtype=torch.float64)
    model.set_q(mean, torch.randn(classes, m, m, generator=g, dtype=torch.float64).tril() * 0.3 + torch.eye(m).double())
    return K, model, torch.cat([A, residual[:, None]], 1), y


def test_marginals_and_divergence_against_dense_formulas() -> None:
    K, model, x, _ = small_problem()
    mean, variance = model(x)
    Kmm, Knm = K[:6, :6] + 1e-8 * np.eye(6), K[:, :6]
    L, B = np.linalg.cholesky(Kmm), Knm @ np.linalg.inv(Kmm)
    kl = 0.0
    for c in range(3):
        # u = L v: mean L μ, covariance L S Lᵀ; f | u has mean K_nm K_mm⁻¹ u and the conditional covariance
        mu, R = model.mean[c].detach().numpy(), model.root[c].detach().numpy()
        S = R @ R.T
        cov = K - B @ Knm.T + B @ (L @ S @ L.T) @ B.T
        np.testing.assert_allclose(mean[:, c].detach(), B @ L @ mu, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(variance[:, c].detach(), cov.diagonal(), rtol=1e-6, atol=2e-8)
        kl += 0.5 * (np.trace(S) + mu @ mu - 6 - np.linalg.slogdet(S)[1])
    assert model.divergence().item() == pytest.approx(kl, rel=1e-9)


def test_the_bound_and_probabilities_against_monte_carlo() -> None:
    _, model, x, y = small_problem(n=6, m=4, epsilon=0.05)
    mean, variance = model(x)
    draws = 100_000
    f = mean + variance.sqrt() * torch.randn(draws, 6, 3, generator=torch.Generator().manual_seed(1)).double()
    p = torch.where(torch.nn.functional.one_hot(f.argmax(-1), 3).bool(), 0.95, 0.025)  # by the definition
    log_p = p.gather(-1, y.expand(draws, 6)[..., None]).log().mean((1, 2))
    error = 4.5 * log_p.std().item() / math.sqrt(draws) + 2e-3
    assert model.bound(x, y, 6).item() == pytest.approx(log_p.mean().item() - model.divergence().item() / 6, abs=error)
    assert (model.probabilities(x) - p.mean(0)).abs().max() < 4.5 / math.sqrt(draws) + 1e-4


def test_training_comes_close_to_the_true_likelihood_of_the_labels() -> None:
    K, model, x, y = small_problem(n=5, m=5, classes=2, epsilon=0.05)  # the images are the inducing points themselves
    # log p(y) = log E Π p(y_n | f_n) over draws of the prior.
    L = torch.linalg.cholesky(torch.tensor(K) + 1e-10 * torch.eye(5))
    f = torch.randn(200_000, 2, 5, generator=torch.Generator().manual_seed(0)).double() @ L.T
    truth = torch.where(f.argmax(1) == y, 0.95, 0.05).prod(1).mean().log().item()
    start(model, x, y)
    first = 5 * model.bound(x, y, 5).item()
    trace = train(model, x, y, Training(epochs=150, batch_size=5, learning_rate=0.05))
    last = 5 * model.bound(x, y, 5).item()
    assert first < last <= truth + 0.01  # the truth's own Monte Carlo error
    assert last > truth - 1.5  # and not far: one label alone costs 0.3 nats, as no Gaussian is cut in half
    assert trace[-1] == pytest.approx(last, abs=0.01)


def test_a_singular_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match="inducing points is singular at jitter=1e-20"):
        whitened(*[torch.ones(5, 5, dtype=torch.float64)] * 2, torch.ones(5), 1e-20)


def fitted(network: Any = NET, **options: Any) -> SparseGP:
    return fit(network, DIGITS.X[:300], DIGITS.y[:300], replace(TRAINING, **options), "cpu")


def error(found: SparseGP) -> float:
    return float((found.predict_proba(DIGITS.X_test).argmax(1) != DIGITS.y_test).mean())


def test_probabilities_labels_and_repetition() -> None:
    found = fitted()
    P = found.predict_proba(DIGITS.X_test)
    np.testing.assert_allclose(P.sum(1), 1.0, rtol=0, atol=1e-6)
    assert P.min() > 0
    assert error(found) < 0.12
    assert found.elbo[-1] > found.elbo[0]
    np.testing.assert_array_equal(fitted().predict_proba(DIGITS.X_test), P)
    assert not np.array_equal(fitted(seed=1).predict_proba(DIGITS.X_test), P)
    np.testing.assert_allclose(fitted(dtype="float64").predict_proba(DIGITS.X_test), P, rtol=0, atol=0.02)


def test_scales_have_no_effect_and_the_start_alone_knows_every_class() -> None:
    nets = [Sequential(Conv(3, bias_var=0.1), ReLU(), Dense(weight_var=scale)) for scale in (1.0, 64.0)]
    a, b = (fitted(net, dtype="float64", epochs=2).predict_proba(DIGITS.X_test[:50]) for net in nets)
    np.testing.assert_allclose(a, b, rtol=1e-6)
    order = np.argsort(DIGITS.y[:400], kind="stable")  # sorted data: the start must look at all classes
    X, y = DIGITS.X[:400][order], DIGITS.y[:400][order]
    assert error(fit(NET, X, y, replace(TRAINING, inducing=80, epochs=1, learning_rate=1e-6), "cpu")) < 0.15


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


# ---- the figure ------------------------------------------------------------------------------------------------------

PLAN = figure3.Figure3Plan(train=400, test=300, inducing=80, network=zoo.small_cnn(), epochs=8, batch_size=100)


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("figure3")
    return figure3.run(Setting(folder, quick=True, device="cpu", threads=1), PLAN, DIGITS), folder


def test_numbers_of_the_figure_against_counting(figure: Any) -> None:
    training = Training(inducing=80, epochs=8, batch_size=100)
    found = fit(zoo.small_cnn(), DIGITS.X[:400], DIGITS.y[:400], training, "cpu", 1)
    P, y = found.predict_proba(DIGITS.X_test[:300]), DIGITS.y_test[:300]
    curves = figure[0]["details"]["curves"]
    values = curves["resnet"]
    assert values["error"] == pytest.approx(100 * np.mean(P.argmax(1) != y))
    assert values["nll"] == pytest.approx(-np.mean(np.log(P[np.arange(300), y])))
    last, bins = P.max(1) >= 0.95, values["bins"]
    assert bins["count"][-1] == last.sum()
    assert bins["accuracy"][-1] == pytest.approx(np.mean(P.argmax(1)[last] == y[last]))
    assert sum(bins["count"]) == values["test"] == 300
    assert len(values["elbo"]) == 8
    assert values["elbo"][-1] > values["elbo"][0]
    assert curves["rbf"]["lengthscale"] > 0
    assert (figure3.FULL.train, figure3.FULL.test, figure3.FULL.inducing) == (50_000, 10_000, 1_000)  # the paper's
    errors = [cell(figure[0], case.name, "test error") for case in figure3.CASES]
    assert [r["published"] for r in errors] == [2.4, 3.4, None]
    assert all(0 < r["ours"] < 15 for r in errors)  # of ten classes; guessing gives 90
    assert errors[2]["ours"] <= errors[0]["ours"] + 2.0  # 80 inducing points do not beat all 400 images, but for noise
    assert all(0 <= curves[case.label]["ece"] < 0.2 for case in figure3.CASES)


def test_the_written_numbers_alone_make_the_figure_and_finished_pieces_are_kept(figure: Any, monkeypatch: Any) -> None:
    found, folder = figure
    paths = figure3.draw(json.loads(json.dumps({"details": found["details"]})), folder)
    assert [p.name for p in paths] == ["figure3.png", "figure3.svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in paths[1].read_bytes()
    for name in ("_sparse", "_exact"):
        monkeypatch.setattr(figure3, name, lambda *_: pytest.fail("computed again"))
    setting = Setting(folder, quick=True, device="cpu", threads=1)
    assert figure3.run(setting, PLAN, DIGITS)["rows"] == found["rows"]
    assert all(piece.reused for piece in setting.done)
    for changed in ({"inducing": 81}, {"train": 399}):
        with pytest.raises(pytest.fail.Exception, match="computed again"):
            figure3.run(setting, replace(PLAN, **changed), DIGITS)
