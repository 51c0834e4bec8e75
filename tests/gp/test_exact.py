"""Exact GP algebra: moments, jitter, memory and what is refused; test_against_refits.py compares with refitting."""

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from cnngp.gp import linalg
from cnngp.gp.checks import MatrixError
from cnngp.gp.conformal import allowed, intervals, p_values
from cnngp.gp.exact import ExactGP, posterior_samples
from cnngp.gp.linalg import Factor, JitterWarning, NotPositiveDefinite
from cnngp.gp.selection import chosen
from helpers.refits import Problem, rbf

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 4))
Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2], np.cos(X @ np.ones(4))], 1) + 0.1 * RNG.normal(size=(70, 3))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that matrices of a test's size cross several blocks."""
    monkeypatch.setattr(linalg, "_block_size", lambda A: 16)


def test_samples_have_the_posterior_moments() -> None:
    problem = Problem(2)
    mean, covariance = problem.predicted(np.arange(problem.n, problem.n + 4), np.arange(problem.n), problem.Y)
    draws = posterior_samples(mean, covariance, 20_000, seed=1)
    assert draws.shape == (20_000, *mean.shape)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5.0 / math.sqrt(20_000))
    for of_output in draws.transpose(2, 1, 0):
        np.testing.assert_allclose(np.cov(of_output), covariance, atol=6.0 / math.sqrt(20_000))


def test_an_addition_that_needs_more_jitter_factorises_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new points repeat old ones; the model is as if fitted on all, or, where that fails, as it was to the bit."""
    K, y, at = rbf(X[:30, :3], length=1.0), Y[:30, :1], np.r_[:30, 4, 7]
    gp = ExactGP(K, y)
    before = gp.factor.A.copy(), gp.mean(K[:3])

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cnngp.gp.exact.factorised", stopped)
        with pytest.raises(KeyboardInterrupt):
            gp.add(K[[4, 7]], K[np.ix_([4, 7], [4, 7])], y[[4, 7]])
    np.testing.assert_array_equal(gp.factor.A, before[0])
    np.testing.assert_array_equal(gp.mean(K[:3]), before[1])
    with pytest.warns(JitterWarning, match="32 points"):
        gp.add(K[[4, 7]], K[np.ix_([4, 7], [4, 7])], y[[4, 7]])
    with pytest.warns(JitterWarning):
        whole = ExactGP(K[np.ix_(at, at)], y[at])
    assert gp.jitter == whole.jitter > 0.0
    np.testing.assert_array_equal(gp.factor.A, whole.factor.A)


def test_singular_matrix_gets_the_smallest_jitter_that_works_and_factors_restore_it() -> None:
    at = np.r_[:20, :20]
    K = rbf(X[at])
    with pytest.warns(JitterWarning, match="not positive definite"):
        gp = ExactGP(K, Y[at])
    assert 0 < gp.jitter <= 1e-12
    A = K.copy()
    with pytest.raises(NotPositiveDefinite):
        Factor.of(A, gp.jitter / 100)
    np.testing.assert_array_equal(A, K)
    np.testing.assert_array_equal(Factor.of(A, 0.1).restore(), K)
    np.testing.assert_allclose(gp.mean(K), Y[at], atol=1e-3)


def test_one_buffer_is_all_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 images are 3.2 GB in float64: fitting in place must stay far from a second buffer."""
    monkeypatch.setattr(linalg, "_block_size", lambda A: 64)
    monkeypatch.setattr("cnngp.gp.checks._ROWS", 64)
    n = 1500
    K = np.exp(-np.abs(np.arange(n)[:, None] - np.arange(n)) / 50.0)
    targets = np.ones((n, 2))
    tracemalloc.start()
    gp = ExactGP(K, targets, overwrite=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert gp.factor.A is K
    assert peak < 0.3 * K.nbytes


@pytest.mark.parametrize(
    ("K", "targets", "options", "message"),
    [
        (np.ones((3, 2)), np.ones((3, 1)), {}, r"shape \(3, 2\); expected \(N, N\)"),
        (np.eye(3), np.ones((2, 1)), {}, r"shape of the targets is \(2, 1\); expected \(3 points"),
        (np.eye(3), np.full((3, 1), np.nan), {}, "NaN or infinity in the targets"),
        (np.diag([1, np.nan, 1]), np.ones((3, 1)), {}, "kernel matrix contains NaN"),
        (np.diag([1, np.inf, 1]), np.ones((3, 1)), {}, "kernel matrix contains NaN or infinity"),
        (np.array([[1.0, 0.5], [0.2, 1.0]]), np.ones((2, 1)), {}, "not symmetric: K and Kᵀ differ by 0.3"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones((2, 1)), {}, "not positive semi-definite"),
        (np.eye(3), np.ones((3, 1)), {"noise": -1.0}, "noise=-1.0: expected a variance"),
        (np.eye(3), np.ones((3, 1)), {"noise": "cv"}, "'ml' to choose it by likelihood, or 'loo' by leave-one-out"),
        (np.eye(3), np.ones((3, 1)), {"amplitude": "max"}, "amplitude='max': expected 'ml'"),
        # The amplitude is made of squares; without it standard deviations would be those of another scale.
        (np.eye(3), np.full((3, 1), 1e160), {}, "^targets of .* are too large to square in float64; rescale them$"),
        (np.eye(3), np.full((3, 1), 1e-160), {}, "^targets of .* are too small to square in float64; rescale them$"),
        (np.eye(3), np.ones((3, 1)), {"groups": np.arange(5)}, r"groups has shape \(5,\); expected 3 names or numbers"),
        (np.eye(3), np.ones((3, 1)), {"groups": np.zeros(3)}, "puts all images together"),
        (np.eye(3), np.ones((3, 1)), {"groups": np.array([0.0, 1.0, np.nan])}, "expected 3 names or numbers"),
        (np.eye(3), np.ones((3, 1)), {"groups": np.array([1, "a", 2], dtype=object)}, "cannot be compared"),
    ],
)
def test_bad_matrices_are_refused(K: np.ndarray, targets: np.ndarray, options: dict, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        ExactGP(K, targets, **options)


def test_amplitudes_of_extreme_targets_and_test_matrices_of_another_size() -> None:
    gp = ExactGP(rbf(X), Y, noise=0.1)
    for scale in (1e120, 1e-120):
        assert ExactGP(rbf(X), scale * Y, noise=0.1).amplitude == pytest.approx(gp.amplitude * scale**2)
    with pytest.raises(MatrixError, match=r"shape of K\(test, training\) is \(1, 4\); expected \(test points, 70"):
        gp.mean(np.ones((1, 4)))


def test_too_few_points_for_a_coverage_exclude_nothing():
    rng = np.random.default_rng(0)
    points, labels = rng.standard_normal((26, 2)), rng.integers(3, size=20)
    K = rbf(points, length=0.5**0.5)
    gp = ExactGP(K[:20, :20], 2.0 * np.eye(3)[labels] - 1.0, noise=0.1)
    new = K[20:, :20], np.ones(6)
    assert np.isinf(intervals(gp, *new, 0.97)).all()
    assert allowed(p_values(gp, *new, labels), 0.97).all()
    with pytest.raises(ValueError, match=r"coverage=90: expected a share between 0 and 1"):
        intervals(gp, *new, 90)


def test_blank_points_are_chosen_last_and_pools_are_checked():
    points = RNG.standard_normal((6, 2))
    K = rbf(points) * np.outer(*2 * [1.0 + points[:, 0] ** 2])
    K[2], K[:, 2] = 0.0, 0.0
    found = chosen(6, K)
    assert found.rows[-1] == 2
    assert sorted(found.rows) == list(range(6))
    assert (np.diff(found.left) <= 0.0).all()
    with pytest.raises(MatrixError, match="7 points of a pool of 6 were asked for"):
        chosen(7, K)
