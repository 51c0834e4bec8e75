"""Regression through inducing points: against its equations, and the exact GP; test_against_refits.py refits."""

from typing import Any

import numpy as np
import pytest

from cnngp.gp.checks import MatrixError
from cnngp.gp.inducing import InducingGP
from helpers.refits import rbf

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Z = RNG.normal(size=(9, 3))
Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], 1) + 0.1 * RNG.normal(size=(60, 2))
M = np.arange(0, 60, 4)  # 15 inducing points
NOISE, AMPLITUDE = 0.03, 1.7


def k(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return rbf(a, b, length=2.0**0.5)


def model(targets: np.ndarray = Y, size: int = 7, **options: Any) -> InducingGP:
    """The model of as many of the points above as there are targets, in blocks of `size`."""
    K, n = k(X, X[M]), len(targets)
    blocks = [slice(a, min(a + size, n)) for a in range(0, n, size)]
    parts = [(rows, K[rows], targets[rows], np.ones(len(targets[rows]))) for rows in blocks]
    return InducingGP(k(X[M], X[M]), parts, np.arange(n), **options)


def test_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(MatrixError, match=r"noise=1e-300 is lost in float64 here; use .* or more"):
        model(Y[:5], noise=1e-300)
    numbers, arrays = model(noise=NOISE).state("float64")
    with pytest.raises(MatrixError, match=r"groups of \(59,\) points for a sample of \(60,\)"):
        InducingGP.restored(numbers, arrays | {"loo_groups": np.arange(59)}, np)


def test_small_eigenvalues_survive() -> None:
    """K_mm with a condition number near 10¹⁰: what is summed is L⁻¹K_mn, so the solution is that of least squares."""
    x = np.linspace(0.0, 1.0, 300)[:, None]
    z = np.linspace(0.0, 1.0, 14)[:, None]
    K_mm, K_nm = np.exp(-((z - z.T) ** 2) / 0.6) + 1e-10 * np.eye(14), np.exp(-((x - z.T) ** 2) / 0.6)
    y, noise = np.sin(20.0 * x), 1e-12
    gp = InducingGP(K_mm, [(slice(0, 300), K_nm, y, np.ones(300))], np.arange(300), noise=noise)
    Phi = np.linalg.solve(np.linalg.cholesky(K_mm), K_nm.T).T
    w = np.linalg.lstsq(np.r_[Phi, np.sqrt(noise) * np.eye(14)], np.r_[y, np.zeros((14, 1))], rcond=None)[0]
    assert np.abs(gp.mean(K_nm) - Phi @ w).max() < 1e-4


def test_noise_is_chosen_where_its_criterion_is_best() -> None:
    likely = model(noise="ml", amplitude=AMPLITUDE)
    for factor in (0.5, 2.0):
        other = model(noise=likely.noise * factor, amplitude=AMPLITUDE)
        assert other.log_marginal_likelihood < likely.log_marginal_likelihood
    best = model()

    def error(gp: InducingGP) -> float:
        return float(((gp.leave_one_out().mean - Y) ** 2).mean())

    assert error(best) < min(error(model(noise=best.noise * factor)) for factor in (0.4, 2.5))
    # The amplitude makes the leave-one-out predictions as spread as their errors are.
    mean, variance = best.leave_one_out().moments
    assert float(((mean - Y) ** 2 / variance[:, None]).mean()) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("noise", ["ml", 0.0, NOISE])
def test_the_best_discount_is_taken(noise: Any) -> None:
    """By likelihood or by leave-one-out: much where wrong targets are those of points about which little is known, none
    where they are those of inducing points.
    """
    several = (0.0, 5.0, 50.0)

    def loss(gp: InducingGP) -> float:
        mean, _ = gp.leave_one_out().moments
        return -gp.log_marginal_likelihood if noise == "ml" else float(((mean - gp.loo_targets) ** 2).mean())

    taken = []
    K = k(X, X[M])
    unknown = 1.0 - (K @ np.linalg.inv(k(X[M], X[M])) * K).sum(1)
    for wrong in (unknown > 0.15, unknown < 0.02):
        T = Y + 3.0 * np.outer(np.where(wrong, np.random.default_rng(1).normal(size=60), 0.0), [1.0, -1.0])
        gp = model(T, noise=noise, discounts=several)
        each = [model(T, noise=noise, discounts=(d,)) for d in several]
        assert gp.discount == min(each, key=loss).discount
        taken.append(gp.discount)
    assert taken[0] > taken[1] == 0.0


def test_an_add_that_fails_leaves_the_model_as_it_was() -> None:
    gp = model(Y[:40], noise=NOISE, amplitude=AMPLITUDE)

    def answers() -> tuple[Any, ...]:
        return gp.mean(k(Z, X[M])), gp.variance(k(Z, X[M]), np.ones(9)), gp.log_marginal_likelihood

    def parts(error: BaseException | None, outputs: int) -> Any:
        yield slice(0, 10), k(X[40:50], X[M]), Y[40:50], np.ones(10)
        if error is not None:
            raise error
        yield slice(10, 20), k(X[50:], X[M]), Y[50:, :outputs], np.ones(10)

    before = answers()
    with pytest.raises(KeyboardInterrupt):
        gp.add(parts(KeyboardInterrupt(), 2))
    with pytest.raises(MatrixError, match="the targets have 1 outputs; the model has 2"):
        gp.add(parts(None, 1))
    for a, b in zip(before, answers(), strict=True):
        np.testing.assert_array_equal(a, b)
    gp.add(parts(None, 2))
    whole = model(noise=NOISE, amplitude=AMPLITUDE)
    np.testing.assert_allclose(gp.mean(k(Z, X[M])), whole.mean(k(Z, X[M])), atol=1e-9)
