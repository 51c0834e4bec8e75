"""Points of a group are left out together: what it is worth, how groups are drawn, and near copies nobody named."""

import math
import warnings

import numpy as np
import pytest

from cnngp.gp import leave_one_out as grouping
from cnngp.gp import objectives
from cnngp.gp.exact import ExactGP
from cnngp.gp.near_copies import near_copies, warn_of_near_copies
from helpers.refits import rbf

RNG = np.random.default_rng(3)
LENGTH = 0.6**-0.5


def test_noise_of_many_points_sees_the_contradictions(monkeypatch):
    groups = np.arange(120) % 60
    points = RNG.normal(size=(60, 2))[groups]
    Y = np.sin(2.0 * points[:, :1]) + 0.3 * RNG.standard_normal((120, 1))
    monkeypatch.setattr(objectives, "_MOST_POINTS", 60)
    gp = ExactGP(rbf(points, length=LENGTH), Y, noise="loo", groups=groups)
    assert 0.1 < math.sqrt(gp.amplitude * gp.noise) < 0.5


def test_a_given_noise_that_contradictions_exceed_is_told_of():
    groups = np.repeat(np.arange(20), 2)
    K = rbf(RNG.normal(size=(20, 9)), length=LENGTH)[np.ix_(groups, groups)]
    with pytest.warns(UserWarning, match="contradict each other by more than the noise explains"):
        ExactGP(K, np.sin(np.arange(40.0))[:, None], noise=1e-6, groups=groups)


def test_groups_are_drawn_whole_and_thinned_points_keep_the_contradictions_inside_them():
    codes = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 9])
    for seed in range(20):
        rows = grouping.whole_groups(codes, 10, np.random.default_rng(seed))
        assert 5 <= len(rows) <= 10
        for g in np.unique(codes[rows]):
            assert (codes[rows] == g).sum() == (codes == g).sum()
    np.testing.assert_array_equal(grouping.whole_groups(np.repeat([0, 2], [4, 3]), 2, RNG), [4, 5, 6])
    for groups in (np.repeat(np.arange(50), 2), np.arange(100) % 50, np.arange(100) % 3):
        rows = grouping.thinned(groups, 40)
        assert 30 <= len(rows) <= 40
        assert (np.diff(rows) > 0).all()
        assert (np.unique(groups[rows], return_counts=True)[1] > 1).all()
        assert len(np.unique(groups[rows])) >= 3


# ---- near copies -----------------------------------------------------------------------------------------------------


def films(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points (N, D), their film, and classes of which no film foretells another's."""
    rng = np.random.default_rng(seed)
    count, size = (60, 2) if kind == "pairs" else (int(rng.integers(12, 24)), int(rng.integers(4, 12)))
    film = np.repeat(np.arange(count), size)
    steps = 0.15 * rng.standard_normal((count, size, 20))
    away = steps.cumsum(1) / 2.0 if kind == "walks" else steps
    points = (rng.standard_normal((count, 1, 20)) + away).reshape(-1, 20)
    order = rng.permutation(len(points))
    return points[order], film[order], (film % 3)[order]


def told(points: np.ndarray, labels: np.ndarray | None, Y: np.ndarray, length: float, groups=None) -> list[str]:
    gp = ExactGP(rbf(points, length=length), Y, noise=0.01, amplitude=1.0, groups=groups)

    def errors(mean: np.ndarray) -> np.ndarray:
        return np.abs(mean - Y).mean(1) if labels is None else (mean.argmax(1) != labels).astype(float)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_of_near_copies(gp, labels, errors)
    return [str(warning.message) for warning in said]


def one_hot(labels: np.ndarray) -> np.ndarray:
    return 2.0 * np.eye(labels.max() + 1)[labels] - 1.0


@pytest.mark.parametrize("kind", ["noisy", "walks", "pairs"])
@pytest.mark.parametrize("seed", range(3))
def test_films_are_found_and_named_with_what_they_hide(kind, seed):
    points, film, labels = films(kind, seed)
    size = np.random.default_rng(seed).uniform(0.5, 2.0, len(points))  # on which nothing depends
    found = near_copies(ExactGP(rbf(points, length=3.0) * np.outer(size, size), one_hot(labels)), labels)
    assert len(np.unique(np.stack([found, film]), axis=1).T) == len(np.unique(film)) == len(np.unique(found))
    (message,) = told(points, labels, one_hot(labels), 3.0)
    assert "groups=" in message
    rows = [int(word.strip(",")) for word in message.split() if word.strip(",").isdigit()][:2]
    assert film[rows[0]] == film[rows[1]]
    targets = np.random.default_rng(seed).standard_normal((len(np.unique(film)), 1))[film]
    assert "groups=" in told(points, None, targets, 3.0)[0]


@pytest.mark.parametrize("dimensions", [1, 2, 3, 5, 30])
@pytest.mark.parametrize("n", [20, 100, 300])
def test_nothing_is_said_of_independent_points(dimensions, n):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        points = rng.uniform(size=(n, dimensions))
        labels = (np.sin(3.0 * points[:, 0]) + 0.3 * rng.standard_normal(n) > 0.5).astype(int)
        labels[:2] = 0, 1
        assert not told(points, labels, one_hot(labels), 0.3 * np.sqrt(dimensions))
        assert not told(points, None, np.sin(5.0 * points[:, :1]), 0.3 * np.sqrt(dimensions))


def test_nothing_is_said_of_classes_that_lie_apart_and_of_near_copies_that_hide_nothing():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 30)
    points = rng.standard_normal((4, 5))[labels] + 0.1 * rng.standard_normal((120, 5))
    assert not told(points, labels, one_hot(labels), 1.0)
    # other films of the class predict its label as well
    points, _, labels = films("noisy", 0)
    points = 0.3 * points + 5.0 * np.random.default_rng(1).standard_normal((3, 20))[labels]
    assert near_copies(ExactGP(rbf(points, length=3.0), one_hot(labels)), labels) is not None
    assert not told(points, labels, one_hot(labels), 3.0)


def test_equal_images_that_are_groups_already_count_as_one():
    rng = np.random.default_rng(0)
    image = np.r_[np.arange(80), np.arange(60)]
    points, labels = rng.standard_normal((80, 20))[image], rng.integers(2, size=80)[image]
    assert not told(points, labels, one_hot(labels), 3.0, groups=image)
    points, film, labels = films("noisy", 1)
    twice = np.r_[np.arange(len(film)), np.arange(len(film))]
    assert told(points[twice], labels[twice], one_hot(labels[twice]), 3.0, groups=twice)
