"""Exact GP algebra against scikit-learn, against refitting, and against its own moments."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from cnngp.gp import linalg
from cnngp.gp.checks import MatrixError
from cnngp.gp.exact import ExactGP, Noise, posterior_samples
from cnngp.gp.jitter import JitterWarning
from cnngp.gp.linalg import Factor, NotPositiveDefinite
from cnngp.gp.noise import chosen_noise
from helpers import fake_cupy

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 4))
Z = RNG.normal(size=(15, 4))
Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2], np.cos(X @ np.ones(4))], 1) + 0.1 * RNG.normal(size=(70, 3))


def rbf(a: np.ndarray, b: np.ndarray, length: float = 1.5) -> np.ndarray:
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * length**2))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that matrices of a test's size cross several blocks."""
    monkeypatch.setattr(linalg, "_block_size", lambda A: 16)


def test_like_scikit_learn() -> None:
    noise, amplitude = 0.03, 2.5
    theirs = GaussianProcessRegressor(
        ConstantKernel(amplitude) * RBF(1.5), alpha=amplitude * noise, optimizer=None, normalize_y=False
    ).fit(X, Y)
    mean, cov = theirs.predict(Z, return_cov=True)
    gp = ExactGP(rbf(X, X), Y, noise=noise, amplitude=amplitude)
    np.testing.assert_allclose(gp.mean(rbf(Z, X)), mean, atol=1e-8)
    np.testing.assert_allclose(gp.covariance(rbf(Z, X), rbf(Z, Z)), cov[..., 0], atol=1e-8)
    np.testing.assert_allclose(gp.variance(rbf(Z, X), np.ones(15)), np.diag(cov[..., 0]), atol=1e-8)
    np.testing.assert_allclose(gp.log_marginal_likelihood, theirs.log_marginal_likelihood_value_, rtol=1e-8)


def test_maximum_likelihood_amplitude_and_noise_are_maxima() -> None:
    best = ExactGP(rbf(X, X), Y, noise="ml")
    again = ExactGP(rbf(X, X), Y, noise=best.noise, amplitude=best.amplitude)
    assert again.log_marginal_likelihood == pytest.approx(best.log_marginal_likelihood, rel=1e-12)
    for factor in (0.97, 1.03):
        for noise, amplitude in ((best.noise * factor, best.amplitude), (best.noise, best.amplitude * factor)):
            other = ExactGP(rbf(X, X), Y, noise=noise, amplitude=amplitude)
            assert other.log_marginal_likelihood < best.log_marginal_likelihood


def test_noise_for_a_fixed_amplitude() -> None:
    K = rbf(X, X)
    noise = chosen_noise(K, Y, "ml", amplitude=2.0)
    here = ExactGP(K, Y, noise=noise, amplitude=2.0).log_marginal_likelihood
    assert here > ExactGP(K, Y, noise=noise * 1.05, amplitude=2.0).log_marginal_likelihood
    assert here > ExactGP(K, Y, noise=noise * 0.95, amplitude=2.0).log_marginal_likelihood


@pytest.mark.parametrize("noise", [1e-3, 0.3])
def test_leave_one_out_is_refitting(noise: float) -> None:
    amplitude = 1.7
    mean, variance = ExactGP(rbf(X, X), Y, noise=noise, amplitude=amplitude).leave_one_out().moments
    for i in (0, 15, 16, 42, 69):
        rest = np.delete(np.arange(70), i)
        gp = ExactGP(rbf(X[rest], X[rest]), Y[rest], noise=noise, amplitude=amplitude)
        k = rbf(X[i : i + 1], X[rest])
        np.testing.assert_allclose(mean[i], gp.mean(k)[0], atol=1e-9)
        np.testing.assert_allclose(variance[i], gp.variance(k, np.ones(1))[0] + amplitude * noise, rtol=1e-8)


def test_loo_amplitude_maximises_the_leave_one_out_likelihood() -> None:
    gp = ExactGP(rbf(X, X), Y, noise=0.01, amplitude="loo")
    mean, variance = gp.leave_one_out().moments

    def score(factor: float) -> float:
        v = factor * variance[:, None]
        return float((-0.5 * np.log(v) - 0.5 * (Y - mean) ** 2 / v).sum())

    assert score(1.0) > max(score(0.97), score(1.03))


def test_samples_have_the_posterior_moments() -> None:
    gp = ExactGP(rbf(X, X), Y, noise=0.05)
    n = 20_000
    draws = posterior_samples(gp.mean(rbf(Z, X)), gp.covariance(rbf(Z, X), rbf(Z, Z)), n, seed=1)
    assert draws.shape == (n, 15, 3)
    cov = gp.covariance(rbf(Z, X), rbf(Z, Z))
    sd = np.sqrt(np.diag(cov))
    assert np.abs((draws.mean(0) - gp.mean(rbf(Z, X))) / sd[:, None]).max() < 5 / np.sqrt(n)
    for c in range(3):
        centred = draws[:, :, c] - draws[:, :, c].mean(0)
        assert np.abs((centred.T @ centred / n - cov) / np.outer(sd, sd)).max() < 6 / np.sqrt(n)


@pytest.mark.parametrize("split", [16, 50, 69])
def test_adding_points_is_fitting_them_all(split: int) -> None:
    K = rbf(X, X)
    gp = ExactGP(K[:split, :split], Y[:split], noise=0.01)
    gp.add(K[split:, :split], K[split:, split:], Y[split:])
    whole = ExactGP(K, Y, noise=0.01)
    np.testing.assert_allclose(gp.alpha, whole.alpha, rtol=1e-7, atol=1e-9)
    assert gp.log_marginal_likelihood == pytest.approx(whole.log_marginal_likelihood, rel=1e-10)
    np.testing.assert_allclose(gp.inverse_diagonal, whole.inverse_diagonal, rtol=1e-8)


def test_adding_a_repeat_needs_jitter_and_says_so() -> None:
    K = rbf(X[:40], X[:40])
    gp = ExactGP(K, Y[:40])
    with pytest.warns(JitterWarning, match="41 points"):
        gp.add(K[:1], K[:1, :1], Y[:1])
    assert gp.jitter > 0
    assert np.isfinite(gp.alpha).all()


def test_a_refused_addition_leaves_the_model_as_it_was() -> None:
    K = rbf(X[:40], X[:40])
    gp = ExactGP(K, Y[:40], noise=0.01)
    before = gp.mean(K), gp.log_marginal_likelihood
    with pytest.raises(MatrixError, match="not positive semi-definite"):
        gp.add(5.0 * K[:2], np.eye(2), Y[:2])
    np.testing.assert_array_equal(gp.mean(K), before[0])
    assert gp.log_marginal_likelihood == pytest.approx(before[1], rel=1e-12)
    gp.add(K[:1], K[:1, :1], Y[:1])


def test_singular_matrix_gets_the_smallest_jitter_that_works() -> None:
    twice = np.concatenate([X[:20], X[:20]])
    K = rbf(twice, twice)
    with pytest.warns(JitterWarning, match="not positive definite"):
        gp = ExactGP(K, np.concatenate([Y[:20], Y[:20]]))
    assert 0 < gp.jitter <= 1e-12
    with pytest.raises(NotPositiveDefinite):
        Factor.of(K.copy(), gp.jitter / 100)
    np.testing.assert_allclose(gp.mean(K), np.concatenate([Y[:20], Y[:20]]), atol=1e-3)


def test_eigenvalue_bounds_and_residual() -> None:
    K = rbf(X, X)
    gp = ExactGP(K, Y, noise=0.02)
    low, high = gp.solved().smallest_eigenvalue
    assert low <= np.linalg.eigvalsh(K + 0.02 * np.eye(70))[0] <= high
    assert gp.solved().residual < 1e-12


def test_float32_kernels_are_solved_in_float64() -> None:
    K = rbf(X, X).astype(np.float32)
    gp = ExactGP(K, Y, noise=0.01)
    assert gp.factor.A.dtype == gp.alpha.dtype == np.float64
    assert K.dtype == np.float32


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


def test_factor_restores_the_matrix_it_could_not_factorise() -> None:
    K = rbf(X, X)
    indefinite = K - 0.5 * np.eye(70)
    A = indefinite.copy()
    with pytest.raises(NotPositiveDefinite):
        Factor.of(A)
    np.testing.assert_array_equal(A, indefinite)
    np.testing.assert_array_equal(Factor.of(K.copy(), 0.1).restore(), K)


@pytest.mark.parametrize(
    ("K", "targets", "options", "message"),
    [
        (np.ones((3, 2)), np.ones((3, 1)), {}, r"shape \(3, 2\); expected \(N, N\)"),
        (np.eye(3), np.ones((2, 1)), {}, r"targets have shape \(2, 1\); expected \(3 points"),
        (np.eye(3), np.full((3, 1), np.nan), {}, "targets contain NaN"),
        (np.diag([1, np.nan, 1]), np.ones((3, 1)), {}, "kernel matrix contains NaN"),
        (np.diag([1, np.inf, 1]), np.ones((3, 1)), {}, "kernel matrix contains NaN or infinity"),
        (np.array([[1.0, 0.5], [0.2, 1.0]]), np.ones((2, 1)), {}, "not symmetric: K and Kᵀ differ by 0.3"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones((2, 1)), {}, "not positive semi-definite"),
        (np.eye(3), np.ones((3, 1)), {"noise": -1.0}, "noise=-1.0: expected a variance"),
        (np.eye(3), np.ones((3, 1)), {"amplitude": "max"}, "amplitude='max': expected 'ml'"),
    ],
)
def test_bad_matrices_are_refused(K: np.ndarray, targets: np.ndarray, options: dict, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        ExactGP(K, targets, **options)


def test_test_matrices_of_another_size_are_refused() -> None:
    gp = ExactGP(np.eye(3), np.ones((3, 1)))
    with pytest.raises(MatrixError, match=r"K\(test, training\) has shape \(1, 4\); expected \(test points, 3"):
        gp.mean(np.ones((1, 4)))


@pytest.mark.parametrize("noise", [0.02, "ml"])
def test_arrays_on_a_card_take_the_same_path(monkeypatch: pytest.MonkeyPatch, noise: Noise) -> None:
    """The whole algebra on a stand-in that refuses what CuPy refuses; results as with NumPy."""
    fake_cupy.install(monkeypatch)
    on_card = fake_cupy.ndarray
    _compare(lambda a: on_card(a), noise)


@pytest.mark.gpu
@pytest.mark.parametrize("noise", [0.02, "ml"])
def test_arrays_on_a_real_card(noise: Noise) -> None:
    cupy = pytest.importorskip("cupy")
    _compare(cupy.asarray, noise)


def _compare(on_card: Callable[[np.ndarray], Any], noise: Noise) -> None:
    K, Kt = rbf(X, X), rbf(Z, X)
    here = ExactGP(K[:50, :50], Y[:50], noise=noise)
    there = ExactGP(on_card(K[:50, :50].copy()), on_card(Y[:50]), noise=noise)
    for gp, move in ((here, np.asarray), (there, on_card)):
        gp.add(move(K[50:, :50]), move(K[50:, 50:]), move(Y[50:]))
    assert there.noise == pytest.approx(here.noise, rel=1e-6)
    assert there.log_marginal_likelihood == pytest.approx(here.log_marginal_likelihood, rel=1e-9)
    assert there.solved().residual < 1e-12
    assert there.solved().smallest_eigenvalue == pytest.approx(here.solved().smallest_eigenvalue, rel=1e-6)
    pairs = [
        (there.mean(on_card(Kt)), here.mean(Kt)),
        (there.variance(on_card(Kt), on_card(np.ones(15))), here.variance(Kt, np.ones(15))),
        (there.covariance(on_card(Kt), on_card(rbf(Z, Z))), here.covariance(Kt, rbf(Z, Z))),
        *zip(there.leave_one_out().moments, here.leave_one_out().moments, strict=True),
    ]
    for theirs, ours in pairs:
        np.testing.assert_allclose(theirs.get(), ours, rtol=1e-7, atol=1e-9)
    cov = there.covariance(on_card(Kt), on_card(rbf(Z, Z)))
    draws = posterior_samples(there.mean(on_card(Kt)), cov, 200, seed=0).get()
    deviations = np.sqrt(here.variance(Kt, np.ones(15)))[:, None]
    standard = (draws - here.mean(Kt)) / deviations
    assert standard.shape == (200, 15, 3)
    # Of 200 draws: the mean's standard error is 0.07 and the deviation's 0.05; bounds are five of them.
    assert np.abs(standard.mean(0)).max() < 0.36
    assert np.abs(standard.std(0) - 1).max() < 0.26
    with pytest.warns(JitterWarning):
        ExactGP(on_card(np.ones((3, 3))), on_card(Y[:3]))


def test_an_addition_that_needs_more_jitter_factorises_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new points repeat old ones; the model is as if fitted on all, or, where that fails, as it was to the bit."""
    x = np.random.default_rng(5).normal(size=(30, 3))
    K = np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(-1))
    y, at = np.sin(x[:, :1]), np.r_[np.arange(30), 4, 7]
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
    with pytest.warns(JitterWarning):
        gp.add(K[[4, 7]], K[np.ix_([4, 7], [4, 7])], y[[4, 7]])
    with pytest.warns(JitterWarning):
        whole = ExactGP(K[np.ix_(at, at)], y[at])
    assert gp.jitter == whole.jitter > 0.0
    np.testing.assert_array_equal(gp.factor.A, whole.factor.A)


@pytest.mark.parametrize("scale", [1e160, 1e-160])
def test_targets_whose_squares_leave_float64_are_refused(scale: float) -> None:
    """The amplitude is made of squares; without it standard deviations would be those of another scale."""
    size = "large" if scale > 1 else "small"
    with pytest.raises(MatrixError, match=rf"^targets of .* are too {size} to square in float64; rescale them$"):
        ExactGP(rbf(X, X), scale * Y, noise=0.1)
    gp, large = (ExactGP(rbf(X, X), s * Y, noise=0.1) for s in (1.0, 1e120 if scale > 1 else 1e-120))
    assert large.amplitude == pytest.approx(gp.amplitude * (1e240 if scale > 1 else 1e-240))


def test_noise_by_likelihood_goes_as_far_as_noise_and_then_says_so() -> None:
    K = rbf(X, X)
    noise = RNG.normal(size=(70, 1))
    root = np.linalg.cholesky(K + 1e-10 * np.eye(70))
    mostly = 0.03 * root @ RNG.normal(size=(70, 20_000)) + RNG.normal(size=(70, 20_000))
    found = chosen_noise(K, mostly, "ml", "ml")
    assert found == pytest.approx(1.0 / 0.03**2, rel=0.3)  # the mean eigenvalue is 1
    with pytest.warns(UserWarning, match="^noise='ml' chose the most noise that is tried: .* pure noise; check"):
        chosen_noise(np.eye(70) + 0.999 * (np.ones((70, 70)) - np.eye(70)), noise - noise.mean(), "ml", "ml")
