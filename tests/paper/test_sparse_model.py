"""q(f) and the variational bound against dense formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import ndtr

from cnngp.paper.sparse.model import GivenFeatures, NotPositiveDefinite, SparseGP, Whitening, start, train
from cnngp.paper.sparse.robustmax import RobustMax, gpytorch

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def small_problem(n: int = 30, m: int = 6, classes: int = 3, seed: int = 0) -> dict[str, torch.Tensor]:
    """Smooth kernel matrices of random points, labels by thresholds of one coordinate."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    K = 3.0 * np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(-1))
    y = np.digitize(x[:, 0], [0.0] if classes == 2 else [-0.5, 0.5])
    return {"K": torch.tensor(K), "Z": torch.arange(m), "y": torch.tensor(y)}


def model_of(p: dict[str, torch.Tensor], classes: int = 3, jitter: float = 1e-8) -> tuple[SparseGP, torch.Tensor]:
    K, Z = p["K"], p["Z"]
    A, residual = Whitening(K[Z][:, Z], jitter)(K[:, Z], K.diagonal())
    model = SparseGP(GivenFeatures(), len(Z), classes).double()
    return model, torch.cat([A, residual[:, None]], 1)


def random_q(m: int, classes: int, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(classes, m, generator=g, dtype=torch.float64)
    root = torch.randn(classes, m, m, generator=g, dtype=torch.float64).tril() * 0.3 + torch.eye(m).double()
    return mean, root


def test_marginals_and_divergence_against_dense_formulas() -> None:
    p = small_problem()
    model, x = model_of(p)
    mu, R = random_q(6, 3)
    model.set_q(mu, R)
    q = model(x)
    K = p["K"].numpy() / 3.0  # the unit is the mean variance
    Z = p["Z"].numpy()
    Kmm, Knm = K[np.ix_(Z, Z)] + 1e-8 * np.eye(6), K[:, Z]
    L = np.linalg.cholesky(Kmm)
    kl = 0.0
    for c in range(3):
        # u = L v: mean L μ, covariance L S Lᵀ; f | u has mean K_nm K_mm⁻¹ u and the conditional covariance
        S = (R[c] @ R[c].T).numpy()
        B = Knm @ np.linalg.inv(Kmm)
        cov = K - B @ Knm.T + B @ (L @ S @ L.T) @ B.T
        np.testing.assert_allclose(q.mean[:, c].detach(), B @ L @ mu[c].numpy(), rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(q.variance[:, c].detach(), cov.diagonal(), rtol=1e-6, atol=2e-8)
        kl += 0.5 * (np.trace(S) + float(mu[c] @ mu[c]) - 6 - np.linalg.slogdet(S)[1])
    assert model.variational_strategy.kl_divergence().item() == pytest.approx(kl, rel=1e-9)


def test_bound_and_predictions_against_the_true_posterior() -> None:
    p = small_problem(n=9, m=5, classes=2)
    y = p["y"][:5]
    model, x_all = model_of(p, classes=2)
    x = x_all[:5]  # the inducing points themselves; the other four images are for predictions
    likelihood = RobustMax(2, epsilon=0.05)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=5)
    # log p(y) = log E Π p(y_n | f_n), and predictions, over draws of the prior weighted by their likelihood.
    g = torch.Generator().manual_seed(0)
    L = torch.linalg.cholesky(p["K"] / 3.0 + 1e-10 * torch.eye(9))
    f = torch.randn(200_000, 2, 9, generator=g).double() @ L.T
    soft = torch.where(f.argmax(1)[:, :5] == y, 0.95, 0.05).prod(1)
    truth = soft.mean().log().item()
    predicted = (soft[:, None] * torch.where(f.argmax(1)[:, 5:] == 0, 0.95, 0.05)).sum(0) / soft.sum()
    start(model, likelihood, x, y)
    first = 5 * bound(model(x), y).item()
    trace = train(
        *(model, likelihood, x, y),
        epochs=150, batch_size=5, learning_rate=0.05, generator=torch.Generator().manual_seed(0),
        progress=lambda value: None,
    )  # fmt: skip
    model.train()
    last = 5 * bound(model(x), y).item()
    assert first < last <= truth + 0.01  # the truth's own Monte Carlo error
    assert last > truth - 1.5  # and not far: one label alone costs 0.3 nats (see below), as no Gaussian is cut in half
    assert trace[-1] == pytest.approx(last, abs=0.01)
    q = model.eval()(x_all[5:])
    found = likelihood.probabilities(q.mean, q.variance)[:, 0].detach()
    # The posterior is cut by half-spaces and q is a Gaussian without correlation between the classes: 0.065 at most was
    # found between the two, where predictions without the data would be off by 0.29.
    assert (found - predicted).abs().max() < 0.1, (found, predicted)
    assert (predicted - 0.5).abs().max() > 0.2


def test_the_best_q_of_one_label() -> None:
    """One image, two classes: q is four numbers, and by symmetry two; the maximum of the bound by another optimiser."""
    epsilon = 0.05

    def negative(q: np.ndarray) -> float:
        mu, log_s = q  # f_0 ~ N(mu, s²), f_1 ~ N(−mu, s²), against N(0, 1)
        s2 = math.exp(2 * log_s)
        P = ndtr(2 * mu / math.sqrt(2 * s2))
        kl = mu**2 + s2 - 1 - 2 * log_s
        return float(kl - P * math.log(1 - epsilon) - (1 - P) * math.log(epsilon))

    best = -minimize(negative, [0.5, 0.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10}).fun
    assert -1.2 < best < math.log(0.5)
    model = SparseGP(GivenFeatures(), 1, 2).double()
    likelihood, x, y = RobustMax(2, epsilon), torch.tensor([[1.0, 1e-9]]).double(), torch.tensor([0])
    start(model, likelihood, x, y)
    options = {"epochs": 400, "batch_size": 1, "learning_rate": 0.05, "generator": torch.Generator()}
    trace = train(model, likelihood, x, y, progress=lambda value: None, **options)
    assert trace[-1] == pytest.approx(best, abs=1e-4)


def test_minibatches_estimate_the_bound_without_bias() -> None:
    p = small_problem(n=12)
    model, x = model_of(p)
    model.set_q(*random_q(6, 3))
    bound = gpytorch.mlls.VariationalELBO(RobustMax(3), model, num_data=12)
    whole = bound(model(x), p["y"]).item()
    parts = [bound(model(x[list(rows)]), p["y"][list(rows)]).item() for rows in itertools.combinations(range(12), 3)]
    assert np.mean(parts) == pytest.approx(whole, rel=1e-12)
    assert np.std(parts) > 1e-3
    options = {"epochs": 1, "batch_size": 3, "learning_rate": 1e-12, "generator": torch.Generator()}
    trace = train(model, RobustMax(3), x, p["y"], progress=lambda value: None, **options)
    assert trace[0] == pytest.approx(12 * whole, rel=1e-6)


def test_a_singular_matrix_is_refused() -> None:
    with pytest.raises(NotPositiveDefinite, match="inducing points is singular at jitter=1e-20"):
        Whitening(torch.ones(5, 5, dtype=torch.float64), 1e-20)
