"""Conformal sets and intervals hold the truth as often as asked; test_against_refits.py adds each point and refits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cnngp.gp.conformal import allowed, intervals, p_values
from cnngp.gp.exact import ExactGP


def test_too_few_points_for_a_coverage_exclude_nothing():
    rng = np.random.default_rng(0)
    points, labels = rng.standard_normal((26, 2)), rng.integers(3, size=20)
    K = np.exp(-((points[:, None] - points) ** 2).sum(-1))
    gp = ExactGP(K[:20, :20], 2.0 * np.eye(3)[labels] - 1.0, noise=0.1)
    new = K[20:, :20], np.ones(6)
    assert np.isinf(intervals(gp, *new, 0.97)).all()
    assert allowed(p_values(gp, *new, labels), 0.97).all()
    with pytest.raises(ValueError, match=r"coverage=90: expected a share between 0 and 1"):
        intervals(gp, *new, 90)


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
        options, new = {"noise": 0.1, "groups": group[:-1] if grouped else None}, (K[-1:, :-1], K[-1:, -1])
        low, high = intervals(ExactGP(K[:-1, :-1], f[:-1, None], **options), *new, 0.8)[0, 0]
        gp = ExactGP(K[:-1, :-1], 2.0 * np.eye(2)[labels[:-1]] - 1.0, **options)
        hits.append([low <= f[-1] <= high, allowed(p_values(gp, *new, labels[:-1]), 0.8)[0, labels[-1]]])
    covered, deviation = np.mean(hits, axis=0), math.sqrt(0.8 * 0.2 / draws)
    assert (covered > 0.8 - 3.0 * deviation).all()
    assert (covered < 0.9).all()
