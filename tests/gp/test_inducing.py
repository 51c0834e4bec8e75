"""Regression through inducing points: against its equations, and the exact GP; test_against_refits.py refits."""

from typing import Any

import numpy as np
import pytest

from cnngp.gp.checks import MatrixError
from cnngp.gp.inducing import InducingGP

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
Z = RNG.normal(size=(9, 3))
Y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], 1) + 0.1 * RNG.normal(size=(60, 2))
M = np.arange(0, 60, 4)  # 15 inducing points
NOISE, AMPLITUDE = 0.03, 1.7


def rbf(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 4.0)


def model(rows: Any = slice(None), size: int = 7, **options: Any) -> InducingGP:
    """The model of the points above, or of some of them, in blocks of `size`."""
    K, T = rbf(X[rows], X[M]), Y[rows]
    blocks = [slice(a, a + size) for a in range(0, len(T), size)]
    parts = [(b, K[b], T[b], np.ones(len(T[b]))) for b in blocks]
    return InducingGP(rbf(X[M], X[M]), parts, np.arange(len(T)), **options)


def test_files_keep_groups_and_what_cannot_be_meant_is_refused() -> None:
    with pytest.raises(MatrixError, match=r"noise=1e-300 is lost in float64 here; use .* or more"):
        model(np.arange(5), noise=1e-300)
    together = np.arange(60) // 3
    gp = model(noise=NOISE, groups=together)
    numbers, arrays = gp.state("float64")
    again = InducingGP.restored(numbers, arrays, np)
    for ours, theirs in zip(again.leave_one_out().moments, gp.leave_one_out().moments, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    with pytest.raises(MatrixError, match=r"groups of \(59,\) points for a sample of \(60,\)"):
        InducingGP.restored(numbers, arrays | {"loo_groups": together[1:]}, np)


def test_small_eigenvalues_survive() -> None:
    """K_mm with a condition number near 10¹⁰: what is summed is L⁻¹K_mn, so the solution is that of least squares on
    (Φ, √noise·I); the normal equations K_mn K_nm + noise·K_mm lose it.
    """
    x = np.linspace(0.0, 1.0, 300)[:, None]
    z = np.linspace(0.0, 1.0, 14)[:, None]
    K_mm, K_nm = np.exp(-((z - z.T) ** 2) / 0.6) + 1e-10 * np.eye(14), np.exp(-((x - z.T) ** 2) / 0.6)
    assert np.linalg.cond(K_mm) > 1e10
    y, noise = np.sin(20.0 * x), 1e-12
    gp = InducingGP(K_mm, [(slice(0, 300), K_nm, y, np.ones(300))], np.arange(300), noise=noise)
    Phi = np.linalg.solve(np.linalg.cholesky(K_mm), K_nm.T).T
    w = np.linalg.lstsq(np.r_[Phi, np.sqrt(noise) * np.eye(14)], np.r_[y, np.zeros((14, 1))], rcond=None)[0]
    assert np.abs(gp.mean(K_nm) - Phi @ w).max() < 1e-4
    normal = K_nm @ np.linalg.lstsq(K_nm.T @ K_nm + noise * K_mm, K_nm.T @ y, rcond=None)[0]
    assert np.abs(normal - Phi @ w).max() > 1e-3


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
    K = rbf(X, X[M])
    unknown = 1.0 - (K @ np.linalg.inv(rbf(X[M], X[M])) * K).sum(1)
    for wrong in (unknown > 0.15, unknown < 0.02):
        T = Y + 3.0 * np.outer(np.where(wrong, np.random.default_rng(1).normal(size=60), 0.0), [1.0, -1.0])
        parts = [(slice(0, 60), K, T, np.ones(60))]
        gp = InducingGP(rbf(X[M], X[M]), parts, np.arange(60), noise=noise, discounts=several)
        each = [InducingGP(rbf(X[M], X[M]), parts, np.arange(60), noise=noise, discounts=(d,)) for d in several]
        assert gp.discount == min(each, key=loss).discount
        taken.append(gp.discount)
    assert taken[0] > taken[1] == 0.0


@pytest.mark.parametrize("discount", [0.0, 8.0])
def test_points_that_are_added_again_are_left_out_with_their_copies(discount: float, monkeypatch: Any) -> None:
    monkeypatch.setattr("cnngp.gp.inducing._PANEL", 4)
    options: dict[str, Any] = {"noise": NOISE, "amplitude": AMPLITUDE, "discounts": (discount,)}
    rows = np.r_[np.arange(40), 3, 8, 3, 41, 42, 8]
    T = np.r_[Y[:40], RNG.normal(size=(6, 2))]
    parts = [(slice(a, b), rbf(X[rows[a:b]], X[M]), T[a:b], np.ones(b - a)) for a, b in ((0, 40), (40, 43), (43, 46))]
    own = np.where(np.isin(rows, M), np.searchsorted(M, rows), -1)
    gp = InducingGP(rbf(X[M], X[M]), parts[:1], np.arange(40), own=own[:40], **options)
    gp.add(parts[1:])
    mean, variance = gp.leave_one_out().moments
    others = {i: np.flatnonzero(rows != rows[i]) for i in (3, 5, 8)}  # 8 is an inducing point
    for i, rest in others.items():
        left = np.setdiff1d(M, rows[i])
        L = np.linalg.cholesky(rbf(X[left], X[left]))
        Phi, new = (np.linalg.solve(L, rbf(X[left], X[at])) for at in (rows[rest], rows[i : i + 1]))
        known = (np.linalg.solve(np.linalg.cholesky(rbf(X[M], X[M])), rbf(X[M], X[rows[rest]])) ** 2).sum(0)
        omega = 1.0 / (1.0 + discount * (1.0 - known))
        A = (Phi * omega) @ Phi.T + NOISE * np.eye(len(left))
        np.testing.assert_allclose(mean[i], (new.T @ np.linalg.solve(A, (Phi * omega) @ T[rest]))[0], atol=1e-7)
        spread = 1.0 - (new**2).sum() + NOISE * (1.0 + (new * np.linalg.solve(A, new)).sum())
        assert variance[i] == pytest.approx(AMPLITUDE * spread, rel=1e-6)
    again = InducingGP.restored(*gp.state("float64"), np).leave_one_out()
    np.testing.assert_allclose(again.mean, mean, rtol=1e-9)


def test_an_add_that_fails_leaves_the_model_as_it_was() -> None:
    gp = model(np.arange(40), noise=NOISE, amplitude=AMPLITUDE)

    def answers() -> tuple[Any, ...]:
        return gp.mean(rbf(Z, X[M])), gp.variance(rbf(Z, X[M]), np.ones(9)), gp.log_marginal_likelihood

    def parts(error: BaseException | None, outputs: int) -> Any:
        yield slice(0, 10), rbf(X[40:50], X[M]), Y[40:50], np.ones(10)
        if error is not None:
            raise error
        yield slice(10, 20), rbf(X[50:], X[M]), Y[50:, :outputs], np.ones(10)

    before = answers()
    with pytest.raises(KeyboardInterrupt):
        gp.add(parts(KeyboardInterrupt(), 2))
    with pytest.raises(MatrixError, match="the targets have 1 outputs; the model has 2"):
        gp.add(parts(None, 1))
    for a, b in zip(before, answers(), strict=True):
        np.testing.assert_array_equal(a, b)
    gp.add(parts(None, 2))
    whole = model(noise=NOISE, amplitude=AMPLITUDE)
    np.testing.assert_allclose(gp.mean(rbf(Z, X[M])), whole.mean(rbf(Z, X[M])), atol=1e-9)
