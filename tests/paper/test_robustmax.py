"""The RobustMax likelihood against Monte Carlo, quadrature and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import log_ndtr

from cnngp.paper.sparse.robustmax import RobustMax, gpytorch

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def moments(n: int, classes: int, seed: int = 0, spread: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(n, classes)) * 1.5
    return torch.tensor(mean), torch.tensor(rng.uniform(1.0, spread, size=(n, classes)))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_expectations_against_monte_carlo(classes: int) -> None:
    mean, variance = moments(6, classes)
    y = torch.arange(6) % classes
    draws = 100_000
    f = mean + variance.sqrt() * torch.randn(draws, 6, classes, generator=torch.Generator().manual_seed(1)).double()
    likelihood = RobustMax(classes, epsilon=1e-3)
    drawn = likelihood(f)  # p(y | f) by the definition: the argmax
    function_dist = gpytorch.distributions.MultitaskMultivariateNormal(mean, torch.diag(variance.flatten()))
    log_p = drawn.log_prob(y)  # (draws, 6)
    error = 4.5 * log_p.std(0) / math.sqrt(draws)
    assert ((likelihood.expected_log_prob(y, function_dist) - log_p.mean(0)).abs() < error + 2e-3).all()
    p = drawn.probs
    error = 4.5 * p.std(0) / math.sqrt(draws)
    assert ((likelihood.marginal(function_dist).probs - p.mean(0)).abs() < error + 1e-5).all()
    expected = likelihood.marginal(function_dist).probs.log().gather(1, y[:, None])[:, 0]
    torch.testing.assert_close(likelihood.log_marginal(y, function_dist), expected)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-7), (torch.float32, 2e-6)])
def test_the_integral_against_adaptive_quadrature(dtype: torch.dtype, tolerance: float) -> None:
    mean, variance = moments(8, 5, spread=1.5)
    likelihood = RobustMax(5).eval()
    found = likelihood.probability_of_largest(mean.to(dtype), variance.to(dtype), torch.zeros(8, dtype=torch.long))
    for i in range(8):
        m, s = mean[i].numpy(), variance[i].sqrt().numpy()
        exact, _ = quad(
            lambda z, m=m, s=s: math.exp(-z * z / 2 + log_ndtr((m[0] + s[0] * z - m[1:]) / s[1:]).sum()),
            *(-10, 10),
            epsabs=1e-12,
        )
        assert abs(found[i].item() - exact / math.sqrt(2 * math.pi)) < tolerance


def test_two_classes_have_a_closed_form() -> None:
    mean, variance = moments(20, 2)
    z = (mean[:, 0] - mean[:, 1]) / variance.sum(1).sqrt()
    P = RobustMax(2).eval().probability_of_largest(mean, variance, torch.zeros(20, dtype=torch.long))
    torch.testing.assert_close(P, torch.special.ndtr(z), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_certain_functions_give_the_limits_and_finite_gradients(dtype: torch.dtype) -> None:
    likelihood = RobustMax(3, epsilon=0.01)
    mean = torch.tensor([[50.0, 0.0, 1.0], [0.0, 1e6, -1e30], [0.0, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    variance = torch.tensor([[1e-6] * 3, [1.0] * 3, [0.0, 1e-30, 1e-12]], dtype=dtype, requires_grad=True)
    y = torch.tensor([0, 0, 2])
    P = likelihood.probability_of_largest(mean, variance, y)
    P.sum().backward()
    P = P.detach()
    assert P[0] == pytest.approx(1.0, abs=1e-6)
    assert P[1] == pytest.approx(0.0, abs=1e-12)
    assert torch.isfinite(P).all()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(variance.grad).all()
    probabilities = likelihood.probabilities(mean.detach(), variance.detach())
    torch.testing.assert_close(probabilities[0], torch.tensor([0.99, 0.005, 0.005], dtype=dtype))


def test_gradients_against_differences() -> None:
    likelihood = RobustMax(4)
    mean, variance = moments(3, 4)
    y = torch.tensor([0, 3, 1])
    assert torch.autograd.gradcheck(
        lambda m, v: likelihood.probability_of_largest(m, v, y), (mean.requires_grad_(), variance.requires_grad_())
    )


def test_the_scale_of_all_functions_has_no_effect() -> None:
    mean, variance = moments(5, 4)
    likelihood = RobustMax(4)
    torch.testing.assert_close(
        likelihood.probabilities(7.0 * mean, 49.0 * variance), likelihood.probabilities(mean, variance)
    )


def test_a_likelihood_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"epsilon=1\.0"):
        RobustMax(3, epsilon=1.0)
    with pytest.raises(ValueError, match="num_classes=1"):
        RobustMax(1)
