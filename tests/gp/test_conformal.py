"""Conformal sets and intervals: against adding each point with each target and fitting again."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cnngp.gp import conformal
from cnngp.gp.conformal import allowed, intervals, p_values, p_values_of_each
from cnngp.gp.exact import ExactGP

N, M = 26, 5


class Problem:
    """Points with classes and targets, alone, in groups, or in groups that share images."""

    def __init__(self, seed: int, kind: str) -> None:
        rng = np.random.default_rng(seed)
        groups = np.r_[np.arange(9), rng.integers(9, size=N - 9)]
        images = np.arange(N)
        points = rng.standard_normal((N + M, 2))
        if kind == "shared images":
            images[rng.permutation(N)[:6]] = 3
            points[:N] = points[images]
        self.K = np.exp(-((points[:, None] - points[None]) ** 2).sum(-1))
        self.labels = (points[:N, 0] > 0).astype(int) + (points[:N, 1] > 0.3 + 0.4 * rng.standard_normal(N))
        self.targets = np.sin(2.0 * points[:N]) + 0.3 * rng.standard_normal((N, 2))
        self.group = None if kind == "alone" else groups
        self.groups = np.stack([groups, images], 1) if kind == "shared images" else self.group
        self.noise = rng.choice([0.02, 0.2], N)

    def fitted(self, Y: np.ndarray) -> ExactGP:
        return ExactGP(self.K[:N, :N], Y, noise=0.1, groups=self.groups, point_noise=self.noise)

    def left_out_with(self, x: int, Y: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Leave-one-out means and variances of N + 1 points, and their targets."""
        at = np.r_[np.arange(N), N + x]
        groups = None if self.groups is None else np.concatenate([self.groups, self.groups.max(0)[None] + 1])
        Y = np.concatenate([Y, y[None]])
        gp = ExactGP(
            self.K[np.ix_(at, at)], Y, noise=0.1, groups=groups, amplitude=1.0, point_noise=np.r_[self.noise, 0.0]
        )
        return *gp.leave_one_out().moments, Y

    def p(self, scores: np.ndarray, among: np.ndarray) -> float:
        """The p-value of the last point: each group that has points among those that count has one vote."""
        worse = scores[:-1] >= scores[-1] - 1e-9
        group = np.arange(N) if self.group is None else self.group
        votes = [worse[among & (group == g)].mean() for g in np.unique(group[among])]
        return (1.0 + sum(votes)) / (1.0 + len(votes))

    @property
    def new(self) -> tuple[np.ndarray, np.ndarray]:
        return self.K[N:, :N], np.ones(M)


KINDS = ["alone", "groups", "shared images"]


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_p_values_are_those_of_adding_each_point_with_each_class(seed, kind, by_class):
    problem = Problem(seed, kind)
    coded = 2.0 * np.eye(3) - 1.0
    expected = np.empty((M, 3))
    for x, c in np.ndindex(M, 3):
        mean, _, Y = problem.left_out_with(x, coded[problem.labels], coded[c])
        scores = np.where(Y > 0, -np.inf, mean).max(1) - np.where(Y > 0, mean, -np.inf).max(1)
        expected[x, c] = problem.p(scores, problem.labels == c if by_class else np.ones(N, bool))
    gp = problem.fitted(coded[problem.labels])
    found = p_values(gp, *problem.new, problem.labels, by_class)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_array_equal(allowed(found, 0.7), expected > 0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_p_values_of_each_output_are_those_of_adding_each_point_with_either_sign(kind):
    problem = Problem(2, kind)
    signs = np.where(problem.targets > 0.0, 1.0, -1.0)
    found = p_values_of_each(problem.fitted(signs), *problem.new)
    for x, output, k in np.ndindex(M, 2, 2):
        mean, _, Y = problem.left_out_with(x, signs, np.full(2, 2.0 * k - 1.0))
        assert found[x, output, k] == pytest.approx(problem.p((-Y * mean)[:, output], np.ones(N, bool)), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coverage", [0.6, 0.85])
def test_intervals_hold_the_targets_that_adding_each_point_with_them_allows(kind, coverage):
    problem = Problem(1, kind)
    gp = problem.fitted(problem.targets)
    found = intervals(gp, *problem.new, coverage)
    for x, output in np.ndindex(M, 2):
        low, high = found[x, output]
        assert low < gp.mean(problem.new[0])[x, output] < high
        width = high - low
        near = [low - 1e-6, low + 1e-6, high - 1e-6, high + 1e-6]
        for target in np.r_[np.linspace(low - 0.9 * width, high + 0.8 * width, 30), near]:
            y = np.full(2, target)
            mean, variance, Y = problem.left_out_with(x, problem.targets, y)
            score = np.abs(Y - mean)[:, output] / np.sqrt(variance)
            inside = problem.p(score, np.ones(N, bool)) > 1.0 - coverage + 1e-9
            assert inside == (low <= target <= high)


def test_pieces_are_the_whole(monkeypatch):
    problem = Problem(0, "groups")
    gp = problem.fitted(problem.targets)
    whole = intervals(gp, *problem.new, 0.8)
    monkeypatch.setattr(conformal, "_ENTRIES", N * 4)
    np.testing.assert_allclose(intervals(gp, *problem.new, 0.8), whole, rtol=1e-12)


def test_too_few_points_for_a_coverage_exclude_nothing():
    problem = Problem(0, "alone")
    assert np.isinf(intervals(problem.fitted(problem.targets), *problem.new, 0.97)).all()
    gp = problem.fitted(2.0 * np.eye(3)[problem.labels] - 1.0)
    assert allowed(p_values(gp, *problem.new, problem.labels), 0.97).all()
    with pytest.raises(ValueError, match=r"coverage=90: expected a share between 0 and 1"):
        intervals(gp, *problem.new, 90)


@pytest.mark.parametrize("grouped", [False, True])
def test_sets_and_intervals_cover_as_often_as_asked(grouped):
    """Over draws of training points and one new point each; in groups, of other groups than those of the training."""
    hits, draws = [], 300
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(12), rng.integers(1, 6, 12)) if grouped else np.arange(40)
        group = np.r_[group, group.max() + 1]
        points = rng.standard_normal((group.max() + 1, 3))[group]
        points += (0.2 if grouped else 0.0) * rng.standard_normal(points.shape)
        shared = 0.3 * rng.standard_normal(group.max() + 1)[group]
        f = np.sin(2.0 * points[:, 0]) + shared + 0.2 * rng.standard_normal(len(points))
        labels = (f > 0.3).astype(int)
        K = np.exp(-0.5 * ((points[:, None] - points[None]) ** 2).sum(-1))
        options = {"noise": 0.1, "groups": group[:-1] if grouped else None}
        gp = ExactGP(K[:-1, :-1], f[:-1, None], **options)
        low, high = intervals(gp, K[-1:, :-1], K[-1:, -1], 0.8)[0, 0]
        gp = ExactGP(K[:-1, :-1], 2.0 * np.eye(2)[labels[:-1]] - 1.0, **options)
        sets = allowed(p_values(gp, K[-1:, :-1], K[-1:, -1], labels[:-1]), 0.8)
        hits.append([low <= f[-1] <= high, sets[0, labels[-1]]])
    covered, deviation = np.mean(hits, axis=0), math.sqrt(0.8 * 0.2 / draws)
    assert (covered > 0.8 - 3.0 * deviation).all()
    assert (covered < 0.9).all()
