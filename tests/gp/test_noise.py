"""The noise that is chosen, and the losses that are learned by, with gradients of finite differences."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from threadpoolctl import threadpool_info, threadpool_limits

from cnngp.gp import linalg, objectives
from cnngp.gp.exact import ExactGP
from cnngp.gp.objectives import RULES, Rule, chosen_noise, judged
from helpers.refits import Problem, rbf


def test_many_points_are_thinned_evenly(monkeypatch):
    x = np.linspace(0.0, 10.0, 90)[:, None]
    K, Y = rbf(x, length=1.0), np.hstack([np.sin(x), np.cos(2 * x)])
    Y += 0.3 * np.random.default_rng(2).standard_normal(Y.shape)
    monkeypatch.setattr(objectives, "_MOST_POINTS", 45)
    assert ExactGP(K, Y, noise="loo").noise == ExactGP(K[::2, ::2], Y[::2], noise="loo").noise


def test_noise_by_leave_one_out_is_no_less_than_what_rounding_does() -> None:
    """Of two points that differ by less than rounding, leave-one-out alone would take the difference at its word."""
    rng = np.random.default_rng(0)
    X = np.concatenate([x := rng.random((30, 3)), x[:1] + 1e-7])
    K = 3.0 * rbf(X, length=0.5**0.5)
    Y = np.sin(3.0 * X[:, :1])
    exact, rounded = ExactGP(K, Y, noise="loo").noise, ExactGP(K, Y, noise="loo", rounding=1e-4).noise
    assert exact < 1e-4
    assert rounded == pytest.approx(math.sqrt(31) * 3e-4)
    assert ExactGP(K, Y, noise="ml", rounding=1e-4).noise == ExactGP(K, Y, noise="ml").noise


def test_noise_by_likelihood_goes_as_far_as_noise_and_then_says_so() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(70, 4))
    K = rbf(points)
    root = np.linalg.cholesky(K + 1e-10 * np.eye(70))
    mostly = 0.03 * root @ rng.normal(size=(70, 20_000)) + rng.normal(size=(70, 20_000))
    found = chosen_noise(K, mostly, "ml", "ml")
    assert found == pytest.approx(1.0 / 0.03**2, rel=0.3)  # the mean eigenvalue is 1
    noise = rng.normal(size=(70, 1))
    with pytest.warns(UserWarning, match="^noise='ml' chose the most noise that is tried: .* pure noise; check"):
        chosen_noise(np.eye(70) + 0.999 * (np.ones((70, 70)) - np.eye(70)), noise - noise.mean(), "ml", "ml")


@pytest.mark.parametrize("rule", ["ml", "loo"])
@pytest.mark.parametrize("n", [1, 2, 30])
def test_targets_that_say_nothing_of_noise_have_next_to_none(n: int, rule: str) -> None:
    """Of points that are unlike each other all noise is as good, but for rounding."""
    Y = np.random.default_rng(n).standard_normal((n, 2))
    assert chosen_noise(3.0 * np.eye(n), Y, rule, "ml") < 1e-8


def threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


@pytest.mark.parametrize(("noise", "most", "expected"), [("ml", 3000, 1), ("loo", 3000, 1), ("loo", 5, 2)])
def test_small_matrices_are_decomposed_with_one_thread(monkeypatch, noise, most, expected):
    """And the process has as many as before, also where several fits run at once."""
    K, seen, eigh = np.eye(6) + 0.5, [], np.linalg.eigh
    monkeypatch.setattr(linalg, "ONE_THREAD", most)
    monkeypatch.setattr(np.linalg, "eigh", lambda A: (seen.append(threads()), eigh(A))[1])
    with threadpool_limits(2, "blas"):
        ExactGP(K, np.eye(6), noise=noise, amplitude=1.0)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: ExactGP(K, np.eye(6), noise=noise, amplitude=1.0), range(20)))
        assert threads() == {2}
    assert seen[0] == {expected}


def test_solves_for_many_points_keep_their_threads(monkeypatch):
    """One column is solved with one thread, and what is a large product with all."""
    gp, seen, solve = ExactGP(np.eye(6) + 0.5, np.eye(6), noise=0.1), [], linalg.triangular_solve
    monkeypatch.setattr(linalg, "triangular_solve", lambda *a, **how: (seen.append(threads()), solve(*a, **how))[1])
    monkeypatch.setattr(linalg, "_WORTH_THREADS", 6 * 6 * 3)
    with threadpool_limits(2, "blas"):
        for columns in (3, 4):
            gp.factor.solve_lower(np.ones((6, columns)))
    assert seen == [{1}, {2}]


N, C = 14, 3
AMPLITUDES = ["ml", 0.7]


def random_problem(seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    B = rng.standard_normal((N, 2 * N))
    return B @ B.T / (2 * N), np.where(rng.random((N, C)) < 0.4, 1.0, -1.0)


def squares(mean: Any, Y: Any) -> tuple[float, Any]:
    """A loss of leave-one-out means."""
    return float(((mean - Y) ** 4).mean()), 4.0 * (mean - Y) ** 3 / mean.size


def test_the_losses_are_the_likelihood_of_a_fit_and_the_density_given_all_others() -> None:
    problem = Problem(0)
    K, Y, noise = problem.K[: problem.n, : problem.n], problem.Y, problem.noise
    mean, variance, _ = problem.left_out()
    density = norm.logpdf(Y, mean, np.sqrt(0.7 * variance)[:, None])
    assert judged("loo", K, Y, noise, 0.7).loss == pytest.approx(-density.mean())
    for amplitude in AMPLITUDES:
        gp = problem.exact(amplitude=amplitude)
        assert judged("likelihood", K, Y, noise, amplitude).loss == pytest.approx(-gp.log_marginal_likelihood / Y.size)


@pytest.mark.parametrize("amplitude", AMPLITUDES)
@pytest.mark.parametrize(("rule", "word"), [("likelihood", "ml"), ("loo", "loo")])
def test_the_noise_that_a_fit_chooses_has_no_slope(rule: Rule, word: str, amplitude: Any) -> None:
    K, Y = random_problem(3)
    noise = chosen_noise(K, Y, word, amplitude)
    assert noise > 1e-6
    best = judged(rule, K, Y, noise, amplitude)
    assert best.by_noise * noise == pytest.approx(0.0, abs=1e-5)
    assert best.loss < min(judged(rule, K, Y, noise * factor, amplitude).loss for factor in (0.01, 0.9, 1.1, 100.0))


@pytest.mark.parametrize("loss", [None, squares])
@pytest.mark.parametrize("amplitude", AMPLITUDES)
@pytest.mark.parametrize("rule", RULES)
def test_gradients_are_those_of_finite_differences(rule: Rule, amplitude: Any, loss: Any) -> None:
    K, Y = random_problem(1)
    found = judged(rule, K, Y, 0.3, amplitude, loss)
    np.testing.assert_array_equal(found.by_matrix, found.by_matrix.T)
    h = 1e-5
    for D in np.random.default_rng(2).standard_normal((5, N, N)):
        D = D + D.T
        up, down = (judged(rule, K + s * h * D, Y, 0.3, amplitude, loss).loss for s in (1, -1))
        # Central differences of step h are wrong by h² ≈ 1e-10 and by rounding/h ≈ 1e-11.
        assert (up - down) / (2 * h) == pytest.approx(float((found.by_matrix * D).sum()), rel=1e-6, abs=1e-8)
    up, down = (judged(rule, K, Y, 0.3 + s * h, amplitude, loss).loss for s in (1, -1))
    assert (up - down) / (2 * h) == pytest.approx(found.by_noise, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("rule", RULES)
def test_losses_know_no_common_factor_and_are_finite_for_singular_matrices(rule: Rule) -> None:
    K, Y = random_problem(4)
    assert judged(rule, 50 * K, Y, 15.0).loss == pytest.approx(judged(rule, K, Y, 0.3).loss, rel=1e-12)
    assert np.isfinite(judged(rule, K, 0 * Y, 0.1).by_matrix).all()
    K[1], Y[1] = K[0], Y[0]
    K[:, 1] = K[:, 0]
    assert math.isfinite(judged(rule, K, Y, 0.0).loss)
