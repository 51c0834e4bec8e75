"""Losses for learning are those that a fit reports, and their gradients those of finite differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cnngp.gp.exact import ExactGP
from cnngp.gp.noise import chosen_noise
from cnngp.gp.objectives import RULES, Rule, judged

N, C = 14, 3
AMPLITUDES = ["ml", 0.7]


def problem(seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((N, 2 * N))
    return B @ B.T / (2 * N), np.where(rng.random((N, C)) < 0.4, 1.0, -1.0)


def squares(mean: Any, Y: Any) -> tuple[float, Any]:
    """A loss of leave-one-out means."""
    return float(((mean - Y) ** 4).mean()), 4.0 * (mean - Y) ** 3 / mean.size


def test_the_losses_are_the_likelihood_of_a_fit_and_the_density_given_all_others() -> None:
    """The second by leaving each point out in turn."""
    K, Y = problem()
    A = K + 0.2 * np.eye(N)
    total, a = 0.0, 0.7
    for i in range(N):
        others = [j for j in range(N) if j != i]
        weights = np.linalg.solve(A[np.ix_(others, others)], A[others, i])
        variance = a * (A[i, i] - A[i, others] @ weights)
        total += (0.5 * (Y[i] - weights @ Y[others]) ** 2 / variance + 0.5 * math.log(2 * math.pi * variance)).sum()
    assert judged("loo", K, Y, 0.2, a).loss == pytest.approx(total / (N * C))
    for amplitude in AMPLITUDES:
        gp = ExactGP(K, Y, noise=0.2, amplitude=amplitude)
        assert judged("likelihood", K, Y, 0.2, amplitude).loss == pytest.approx(-gp.log_marginal_likelihood / (N * C))


@pytest.mark.parametrize(("rule", "word"), [("likelihood", "ml"), ("loo", "loo")])
def test_the_noise_that_a_fit_chooses_has_no_slope(rule: Rule, word: str) -> None:
    K, Y = problem(3)
    noise = chosen_noise(K, Y, word, "ml")
    assert noise > 1e-6
    assert judged(rule, K, Y, noise).by_noise * noise == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("loss", [None, squares])
@pytest.mark.parametrize("amplitude", AMPLITUDES)
@pytest.mark.parametrize("rule", RULES)
def test_gradients_are_those_of_finite_differences(rule: Rule, amplitude: Any, loss: Any) -> None:
    K, Y = problem(1)
    found = judged(rule, K, Y, 0.3, amplitude, loss)
    np.testing.assert_array_equal(found.by_matrix, found.by_matrix.T)
    rng = np.random.default_rng(2)
    h = 1e-5
    for _ in range(5):
        D = rng.standard_normal((N, N))
        D = D + D.T
        up, down = (judged(rule, K + s * h * D, Y, 0.3, amplitude, loss).loss for s in (1, -1))
        # Central differences of step h are wrong by h² ≈ 1e-10 and by rounding/h ≈ 1e-11.
        assert (up - down) / (2 * h) == pytest.approx(float((found.by_matrix * D).sum()), rel=1e-6, abs=1e-8)
    up, down = (judged(rule, K, Y, 0.3 + s * h, amplitude, loss).loss for s in (1, -1))
    assert (up - down) / (2 * h) == pytest.approx(found.by_noise, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("rule", RULES)
def test_a_common_factor_of_kernel_and_noise_changes_nothing_but_with_a_given_amplitude(rule: Rule) -> None:
    K, Y = problem(4)
    free, same = judged(rule, K, Y, 0.3), judged(rule, 50 * K, Y, 15.0)
    assert same.loss == pytest.approx(free.loss, rel=1e-12)
    along = float((free.by_matrix * K).sum()) + 0.3 * free.by_noise
    assert along == pytest.approx(0.0, abs=1e-12)
    assert abs(judged(rule, K, Y, 0.3, 0.7).loss - judged(rule, 50 * K, Y, 15.0, 0.7).loss) > 0.1


@pytest.mark.parametrize("rule", RULES)
def test_a_singular_matrix_gets_the_jitter_of_a_fit_and_targets_may_all_be_zero(rule: Rule) -> None:
    K, Y = problem(5)
    assert np.isfinite(judged(rule, K, 0 * Y, 0.1).by_matrix).all()
    K[1], Y[1] = K[0], Y[0]
    K[:, 1] = K[:, 0]
    assert math.isfinite(judged(rule, K, Y, 0.0).loss)
