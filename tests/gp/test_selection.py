"""What to label next, against random labels."""

from __future__ import annotations

import numpy as np
import pytest

from cnngp import datasets
from cnngp.gp.checks import MatrixError
from cnngp.gp.exact import ExactGP
from cnngp.gp.selection import chosen


def kernel(points: np.ndarray) -> np.ndarray:
    """With variances of different sizes."""
    scale = 1.0 + points[:, 0] ** 2
    return np.exp(-((points[:, None] - points[None]) ** 2).sum(-1)) * scale[:, None] * scale


def test_chosen_labels_are_worth_twice_as_many_random_ones():
    data = datasets.digits().take(300, 300)
    X = np.concatenate([data.X, data.X_test]).reshape(600, -1).astype(float)
    X /= np.linalg.norm(X, axis=1)[:, None]
    K = (X @ X.T) ** 6
    Y = 2.0 * np.eye(10)[data.y] - 1.0

    def error(rows: np.ndarray) -> float:
        gp = ExactGP(K[np.ix_(rows, rows)], Y[rows], noise=1e-3)
        return float((gp.mean(K[300:][:, rows]).argmax(1) != data.y_test).mean())

    picked = chosen(40, K[:300, :300]).rows
    by_chance = [error(np.random.default_rng(seed).permutation(300)[:80]) for seed in range(10)]
    assert error(picked) < np.mean(by_chance) + 0.02


def test_blank_points_are_chosen_last_and_pools_are_checked():
    K = kernel(np.random.default_rng(0).standard_normal((6, 2)))
    K[2], K[:, 2] = 0.0, 0.0
    found = chosen(6, K)
    assert found.rows[-1] == 2
    assert sorted(found.rows) == list(range(6))
    assert (np.diff(found.left) <= 0.0).all()
    with pytest.raises(MatrixError, match="7 points of a pool of 6 were asked for"):
        chosen(7, K)
