"""Everything that inference says in closed form, against plain refitting of random small problems."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from cnngp.gp import conformal, iterative, leave_one_out
from cnngp.gp.conformal import allowed, intervals, p_values, p_values_of_each
from cnngp.gp.exact import ExactGP
from cnngp.gp.inducing import InducingGP
from cnngp.gp.iterative import IterativeGP
from cnngp.gp.selection import chosen
from cnngp.gp.solving.matrices import SymmetricMatrix
from helpers.refits import M, Problem

SEEDS = [*range(9), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(9, 120))]
seeds = pytest.mark.parametrize("seed", SEEDS)
coded = 2.0 * np.eye(3) - 1.0


def assert_left_out(gp: Any, mean: Any, variance: Any, rows: Any = slice(None), rtol: float = 1e-7) -> None:
    left = gp.leave_one_out()
    np.testing.assert_allclose(left.mean, mean[rows], rtol=rtol, atol=1e-7)
    np.testing.assert_allclose(left.variance, gp.amplitude * variance[rows], rtol=rtol)


@seeds
def test_the_exact_posterior(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(seed)
    n, Y = problem.n, problem.Y
    K_new, K_new_new, diagonal = problem.new
    gp = problem.exact()
    mean, covariance = problem.predicted(np.arange(n, n + M), np.arange(n), Y)
    np.testing.assert_allclose(gp.mean(K_new), mean, atol=1e-9)
    np.testing.assert_allclose(gp.covariance(K_new, K_new_new), 1.7 * covariance, atol=1e-9)
    np.testing.assert_allclose(gp.variance(K_new, diagonal), 1.7 * np.diag(covariance), atol=1e-9)
    np.testing.assert_allclose(gp.votes(K_new).sum(1), mean, atol=1e-9)
    A = problem.K[:n, :n] + np.diag(problem.own + problem.noise)
    density = multivariate_normal(np.zeros(n), 1.7 * A)
    assert gp.log_marginal_likelihood == pytest.approx(sum(density.logpdf(y) for y in Y.T), rel=1e-9)
    expected, variance, _ = problem.left_out()
    assert_left_out(gp, expected, variance)
    low, high = gp.solved().smallest_eigenvalue
    assert low < np.linalg.eigvalsh(A)[0] <= high * (1.0 + 1e-9)
    assert gp.solved().spread == pytest.approx(problem.K[:n, :n].diagonal().mean() - problem.K[:n, :n].mean(), rel=1e-9)
    likely = problem.exact(amplitude="ml" if problem.groups is None else 1.0).amplitude
    assert problem.groups is not None or likely == pytest.approx((Y * np.linalg.solve(A, Y)).mean(), rel=1e-9)
    best = ((Y - expected) ** 2 / variance[:, None]).mean()  # the amplitude under which these errors are likeliest
    assert problem.exact(amplitude="loo").amplitude == pytest.approx(best, rel=1e-7)
    monkeypatch.setattr(leave_one_out, "_POINTS", 3)
    assert_left_out(problem.exact(), expected, variance)


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("noise", [0.0, 1e-12])
@pytest.mark.filterwarnings("ignore::cnngp.gp.linalg.JitterWarning")
def test_copies_that_are_left_out_together_without_noise(noise: float, copies: int) -> None:
    """Like single points, though the block of K⁻¹ that belongs to them is singular but for rounding."""
    problem = Problem(0)
    n, group = problem.n, np.repeat(np.arange(problem.n), copies)
    K, Y = problem.K[:n, :n], problem.Y
    gp = ExactGP(K[np.ix_(group, group)], Y[group], noise=noise, groups=group, amplitude=1.7)
    problem.own[:] = 0.0
    mean, variance, _ = problem.left_out(noise=gp.factor.shift / copies)
    assert_left_out(gp, mean, variance, group)


@seeds
def test_points_that_are_added(seed: int) -> None:
    problem = Problem(seed)
    n, k = problem.n, int(problem.rng.integers(2, problem.n - 1))
    K, Y, own = problem.K[:n, :n], problem.Y, problem.own
    first = None if problem.groups is None or len(set(problem.group[:k])) < 2 else problem.groups[:k]
    gp = ExactGP(K[:k, :k], Y[:k], noise=problem.noise, amplitude=1.7, groups=first, point_noise=own[:k])
    gp.add(K[k:, :k], K[k:, k:], Y[k:], own[k:], problem.groups)
    assert_left_out(gp, *problem.left_out()[:2])
    whole = problem.exact()
    np.testing.assert_allclose(gp.alpha, whole.alpha, rtol=1e-6, atol=1e-8)
    assert gp.log_marginal_likelihood == pytest.approx(whole.log_marginal_likelihood, rel=1e-9)
    again = ExactGP.restored(*gp.state("float64"), np)
    np.testing.assert_array_equal(again.leave_one_out().mean, again.Y - again.left.deviations)
    assert_left_out(again, *problem.left_out()[:2])
    # Without a word about groups each new point is one of its own.
    alone = ExactGP(K[:k, :k], Y[:k], noise=problem.noise, groups=first, point_noise=own[:k])
    alone.add(K[k:, :k], K[k:, k:], Y[k:], own[k:])
    problem.group = np.r_[problem.group[:k] if first is not None else np.arange(k), 100 + np.arange(n - k)]
    problem.image[k:] = 100 + np.arange(n - k)
    problem.image[:k] = problem.image[:k] if first is not None else np.arange(k)
    assert_left_out(alone, *problem.left_out()[:2])


@seeds
def test_the_iterative_posterior(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(seed)
    problem.own[:] = 0.0
    n, (K_new, _, diagonal) = problem.n, problem.new
    monkeypatch.setattr(iterative, "SAMPLE", (256, 8)[seed % 2])
    matrix = SymmetricMatrix(problem.K[:n, :n])
    gp = IterativeGP(matrix, problem.Y, np, noise=problem.noise, amplitude=1.7, groups=problem.groups)
    mean, covariance = problem.predicted(np.arange(n, n + M), np.arange(n), problem.Y)
    np.testing.assert_allclose(gp.mean(K_new), mean, atol=1e-6)
    np.testing.assert_allclose(gp.variance(K_new, diagonal), 1.7 * np.diag(covariance), rtol=1e-4)
    assert len(gp.loo_rows) == n if seed % 2 == 0 else 0 < len(gp.loo_rows) <= n
    assert_left_out(gp, *problem.left_out()[:2], rows=gp.loo_rows, rtol=1e-5)
    assert problem.groups is None or (gp.groups == problem.group[gp.loo_rows]).all()


@seeds
def test_the_posterior_through_inducing_points(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inducing points leave with their group; the weights of the other points, which are judged by all, stay."""
    monkeypatch.setattr("cnngp.gp.inducing._PANEL", 4)  # blocks of B that are smaller than it
    problem = Problem(3 * seed + seed % 2)  # alone or in groups, of which no two share an image
    n, Y, noise = problem.n, problem.Y, problem.noise
    K, (K_new, K_new_new, diagonal) = problem.K, problem.new
    at = np.sort(problem.rng.permutation(n)[: n // 2])
    K_mm = K[np.ix_(at, at)] + 1e-6 * np.eye(len(at))
    own = np.where(np.isin(np.arange(n), at), np.searchsorted(at, np.arange(n)), -1)
    discount = float(problem.rng.choice([0.0, 8.0, 100.0]))
    cuts = [slice(0, 5), slice(5, n)]
    parts = [(rows, K[rows][:, at], Y[rows], K.diagonal()[rows]) for rows in cuts]
    options = {"amplitude": 1.7, "own": own, "groups": problem.group, "discounts": (discount,)}
    gp = InducingGP(K_mm, parts, np.arange(n), noise=noise, **options)
    unit = float(K_mm.diagonal().mean())

    def features(rows: Any, points: Any) -> Any:
        chosen = np.searchsorted(at, points)
        return np.linalg.solve(np.linalg.cholesky(K_mm[np.ix_(chosen, chosen)]), K[np.ix_(points, rows)])

    def given(test: Any, train: Any, targets: Any, points: Any) -> tuple[Any, Any]:
        Phi, new = features(train, points), features(test, points)
        A = (Phi * omega[train]) @ Phi.T + noise * np.eye(len(points))
        spread = -new.T @ new + noise * new.T @ np.linalg.solve(A, new)
        return new.T @ np.linalg.solve(A, (Phi * omega[train]) @ targets), K[np.ix_(test, test)] + spread

    known = (features(np.arange(n), at) ** 2).sum(0)
    omega = 1.0 / (1.0 + discount * np.maximum(K.diagonal()[:n] - known, 0.0) / unit)
    Q = features(np.arange(n), at).T @ features(np.arange(n), at)
    density = multivariate_normal(np.zeros(n), 1.7 * (Q + np.diag(noise / omega)))
    assert gp.log_marginal_likelihood == pytest.approx(sum(density.logpdf(y) for y in Y.T), rel=1e-7)
    assert gp.solved().residual < 1e-10
    mean, covariance = given(np.arange(n, n + M), np.arange(n), Y, at)
    np.testing.assert_allclose(gp.mean(K_new[:, at]), mean, atol=1e-7)
    np.testing.assert_allclose(gp.covariance(K_new[:, at], K_new_new), 1.7 * covariance, atol=1e-7)
    np.testing.assert_allclose(gp.variance(K_new[:, at], diagonal), 1.7 * np.diag(covariance), atol=1e-7)

    def assert_each_without(one: InducingGP, groups: Any, rows: Any, targets: Any) -> None:
        """`rows` are the points that have been there, some of them more than once."""
        means, variances = np.empty_like(one.loo_targets), np.empty(len(one.loo_rows))
        for i in range(len(means)):
            together = np.flatnonzero(groups == groups[i])
            rest = ~np.isin(rows, together)
            mean, covariance = given(np.array([i]), rows[rest], targets[rest], np.setdiff1d(at, together))
            means[i], variances[i] = mean[0], covariance[0, 0] + noise
        for same in (one, InducingGP.restored(*one.state("float64"), np)):
            assert_left_out(same, means, variances, rtol=1e-4)

    assert_each_without(gp, problem.group, np.arange(n), Y)
    later = InducingGP(K_mm, parts[:1], np.arange(5), noise=noise, amplitude=1.7, own=own[:5], discounts=(discount,))
    for one in (later, InducingGP.restored(*later.state("float64"), np)):
        one.add(parts[1:])
        assert one.discount == discount
        np.testing.assert_allclose(one.mean(K_new[:, at]), gp.mean(K_new[:, at]), atol=1e-9)
        assert one.log_marginal_likelihood == pytest.approx(gp.log_marginal_likelihood, rel=1e-9)
    # Points that are there again are left out with their copies.
    rows, T = np.r_[np.arange(n), 0, 2, 0], np.r_[Y, problem.rng.standard_normal((3, Y.shape[1]))]
    later.add([(slice(n, n + 3), K[rows[n:]][:, at], T[n:], K.diagonal()[rows[n:]])])
    assert_each_without(later, np.arange(n), rows, T)


@seeds
def test_noise_is_the_likeliest(seed: int) -> None:
    """Of deviations one by one and jointly the larger counts."""
    problem = Problem(seed, agree=seed % 2 == 0)
    problem.own[:] = 0.0

    def loss(noise: float) -> float:
        mean, variance, jointly = problem.left_out(noise=noise)
        alone = float(((problem.Y - mean) ** 2 / variance[:, None]).sum())
        logs = float(np.log(variance).sum())
        return problem.Y.size * math.log(max(alone, jointly)) + problem.Y.shape[1] * logs

    try:
        gp = problem.exact(noise="loo", amplitude="ml")
    except UserWarning:  # the most that is tried: the loss falls all the way
        assert loss(1e5) < loss(1.0)
        return
    tried = np.concatenate([gp.noise * np.array([0.8, 0.95, 1.05, 1.25]), 10.0 ** np.arange(-6.0, 3.0)])
    assert loss(gp.noise) < min(map(loss, tried)) + 0.1
    mean, variance, _ = problem.left_out(noise=gp.noise)
    if problem.groups is not None:
        assert gp.amplitude == pytest.approx(((problem.Y - mean) ** 2 / variance[:, None]).mean(), rel=1e-5)


def p_of_last(problem: Problem, scores: Any, among: Any) -> float:
    """The p-value of the last point: each group that has points among those that count has one vote."""
    worse = scores[:-1] >= scores[-1] - 1e-9
    votes = [worse[among & (problem.group == g)].mean() for g in np.unique(problem.group[among])]
    return (1.0 + sum(votes)) / (1.0 + len(votes))


@pytest.mark.parametrize("ties", [False, True])
@seeds
def test_conformal_sets(seed: int, ties: bool) -> None:
    problem, by_class = Problem(seed, ties=ties), seed % 2 == 1
    expected = np.empty((M, 3))
    for x, c in np.ndindex(M, 3):
        Y = coded[np.r_[problem.labels, c]]
        mean, _, _ = problem.left_out(x, Y)
        scores = np.where(Y > 0, -np.inf, mean).max(1) - np.where(Y > 0, mean, -np.inf).max(1)
        among = problem.labels == c if by_class else np.ones(problem.n, bool)
        expected[x, c] = p_of_last(problem, scores, among)
    K_new, _, diagonal = problem.new
    found = p_values(problem.exact(coded[problem.labels]), K_new, diagonal, problem.labels, by_class)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(allowed(found, 0.7), expected > 0.3 + 1e-9)

    # of each of several labels that an image may have
    signs = np.where(problem.rng.random((problem.n, 2)) < 0.4, 1.0, -1.0)
    found = p_values_of_each(problem.exact(signs), K_new, diagonal)
    for x, k in np.ndindex(M, 2):
        Y = np.r_[signs, np.full((1, 2), 2.0 * k - 1.0)]
        mean, _, _ = problem.left_out(x, Y)
        p = [p_of_last(problem, (-Y * mean)[:, output], np.ones(problem.n, bool)) for output in range(2)]
        assert found[x, :, k] == pytest.approx(p, rel=1e-12)


@seeds
def test_conformal_intervals(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, coverage = Problem(seed), (0.6, 0.8)[seed % 2]
    monkeypatch.setattr(conformal, "_ENTRIES", problem.n * 4)  # in pieces
    gp, (K_new, _, diagonal) = problem.exact(), problem.new
    found = intervals(gp, K_new, diagonal, coverage)
    for x, output in np.ndindex(M, problem.Y.shape[1]):
        low, high = found[x, output]
        assert low < gp.mean(K_new)[x, output] < high
        finite = math.isfinite(high - low)
        width, centre = (high - low, 0.5 * (low + high)) if finite else (1.0, 0.0)
        ends = [low - 1e-6, low + 1e-6, high - 1e-6, high + 1e-6] if finite else []
        for target in np.r_[centre + width * np.linspace(-1.4, 1.2, 7), ends]:
            Y = np.r_[problem.Y, np.full((1, problem.Y.shape[1]), target)]
            mean, variance, _ = problem.left_out(x, Y)
            score = np.abs(Y - mean)[:, output] / np.sqrt(variance)
            inside = p_of_last(problem, score, np.ones(problem.n, bool)) > 1.0 - coverage + 1e-9
            assert inside == (low <= target <= high)


@seeds
def test_what_to_label_next(seed: int) -> None:
    """Each choice leaves the pool the least variance of all candidates, with a model and before any label."""
    problem = Problem(3 * seed)
    n, known = problem.n, (0, 4)[seed % 2]
    pool, prior = np.arange(known, n), problem.K.diagonal()[known:n]
    # The noise of points to come is in units of their own variance.
    problem.own[known:] = (problem.noise / prior.mean() if known else 1e-3) * prior - problem.noise
    K = problem.K[:n, :n]
    gp = None
    if known:
        gp = ExactGP(K[:known, :known], problem.Y[:known], noise=problem.noise, point_noise=problem.own[:known])
    found = chosen(4, K[known:, known:], gp, K[known:, :known] if known else None)
    labelled = list(range(known))
    for row, left in zip(found.rows, found.left, strict=True):
        shares = {}
        for j in np.setdiff1d(pool, labelled):
            at = np.array([*labelled, j])
            shares[j] = (np.diag(problem.predicted(pool, at, problem.Y[at])[1]) / prior).mean()
        assert shares[pool[row]] == pytest.approx(min(shares.values()), rel=1e-9)
        assert left == pytest.approx(min(shares.values()), rel=1e-7)
        labelled.append(pool[row])
