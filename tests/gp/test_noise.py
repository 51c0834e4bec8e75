"""The noise that leave-one-out chooses: against the same leave-one-out by refitting without each point."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cnngp.gp import noise as noise_module
from cnngp.gp.checks import MatrixError
from cnngp.gp.exact import ExactGP


def problem(n: int, level: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of one variable with noise, two outputs."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, 10, n))
    K = np.exp(-0.5 * (x[:, None] - x) ** 2)
    f = np.stack([np.sin(x), np.cos(2 * x)], 1)
    return K, f + level * rng.standard_normal(f.shape)


def density_left_out(K: np.ndarray, Y: np.ndarray, noise: float) -> float:
    """Σ log N(y_i; mean and a · variance of a GP without point i), with the amplitude that makes it largest."""
    n, outputs = Y.shape
    residuals, variances = np.empty_like(Y), np.empty(n)
    for i in range(n):
        others = np.delete(np.arange(n), i)
        A = K[np.ix_(others, others)] + noise * np.eye(n - 1)
        w = np.linalg.solve(A, K[others, i])
        residuals[i] = Y[i] - w @ Y[others]
        variances[i] = K[i, i] + noise - w @ K[others, i]
    a = (residuals**2 / variances[:, None]).mean()
    return float(-0.5 * (outputs * np.log(2 * np.pi * a * variances).sum() + outputs * n))


@pytest.mark.parametrize("level", [0.05, 0.5])
def test_leave_one_out_chooses_the_noise_under_which_the_targets_are_likeliest(level):
    K, Y = problem(60, level, 0)
    chosen = ExactGP(K, Y, noise="loo").noise
    at_best = density_left_out(K, Y, chosen)
    for factor in (0.7, 0.9, 1.1, 1.4):
        assert density_left_out(K, Y, chosen * factor) < at_best


def test_more_noise_is_chosen_where_there_is_more():
    quiet, loud = (ExactGP(*problem(80, level, 1), noise="loo").noise for level in (0.05, 0.5))
    assert 10 * quiet < loud


def test_many_points_are_thinned_evenly(monkeypatch):
    K, Y = problem(90, 0.3, 2)
    monkeypatch.setattr(noise_module, "_MOST_POINTS", 45)
    assert ExactGP(K, Y, noise="loo").noise == ExactGP(K[::2, ::2], Y[::2], noise="loo").noise


def test_another_word_is_refused_with_those_that_are_known():
    K, Y = problem(5, 0.1, 0)
    with pytest.raises(MatrixError, match="'ml' to choose it by likelihood, or 'loo' by leave-one-out"):
        ExactGP(K, Y, noise="cv")


def test_noise_by_leave_one_out_is_no_less_than_what_rounding_does() -> None:
    """Of two points that differ by less than rounding, leave-one-out alone would take the difference at its word."""
    rng = np.random.default_rng(0)
    X = np.concatenate([x := rng.random((30, 3)), x[:1] + 1e-7])
    K = np.exp(-((X[:, None] - X) ** 2).sum(-1))
    Y = np.sin(3.0 * X[:, :1])
    exact, rounded = ExactGP(K, Y, noise="loo").noise, ExactGP(K, Y, noise="loo", rounding=1e-4).noise
    assert exact < 1e-4
    assert rounded == pytest.approx(math.sqrt(31) * 1e-4)
    assert ExactGP(K, Y, noise="ml", rounding=1e-4).noise == ExactGP(K, Y, noise="ml").noise
