"""Near copies are told of where they make leave-one-out too good, and nothing is said of independent images."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from cnngp.gp.exact import ExactGP
from cnngp.gp.near_copies import near_copies, warn_of_near_copies

KINDS = ["noisy", "walks", "pairs"]


def rbf(points: np.ndarray, length: float) -> np.ndarray:
    return np.exp(-((points[:, None] - points[None]) ** 2).sum(-1) / (2.0 * length**2))


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
    gp = ExactGP(rbf(points, length), Y, noise=0.01, amplitude=1.0, groups=groups)
    if labels is None:
        errors = lambda mean: np.abs(mean - Y).mean(1)  # noqa: E731
    else:
        errors = lambda mean: (mean.argmax(1) != labels).astype(float)  # noqa: E731
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        warn_of_near_copies(gp, labels, errors)
    return [str(warning.message) for warning in said]


def one_hot(labels: np.ndarray) -> np.ndarray:
    return 2.0 * np.eye(labels.max() + 1)[labels] - 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_films_are_found_and_named_with_what_they_hide(kind, seed):
    points, film, labels = films(kind, seed)
    found = near_copies(ExactGP(rbf(points, 3.0), one_hot(labels)), labels)
    assert found is not None
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


def test_classes_that_lie_apart_are_no_films():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 30)
    points = rng.standard_normal((4, 5))[labels] + 0.1 * rng.standard_normal((120, 5))
    assert not told(points, labels, one_hot(labels), 1.0)


def test_nothing_is_said_of_near_copies_that_hide_nothing():
    """Other films of the class predict its label as well."""
    points, _, labels = films("noisy", 0)
    points = 0.3 * points + 5.0 * np.random.default_rng(1).standard_normal((3, 20))[labels]
    assert near_copies(ExactGP(rbf(points, 3.0), one_hot(labels)), labels) is not None
    assert not told(points, labels, one_hot(labels), 3.0)


def test_equal_images_that_are_groups_already_count_as_one():
    rng = np.random.default_rng(0)
    image = np.r_[np.arange(80), np.arange(60)]
    points, labels = rng.standard_normal((80, 20))[image], rng.integers(2, size=80)[image]
    assert not told(points, labels, one_hot(labels), 3.0, groups=image)
    points, film, labels = films("noisy", 1)
    twice = np.r_[np.arange(len(film)), np.arange(len(film))]
    assert told(points[twice], labels[twice], one_hot(labels[twice]), 3.0, groups=twice)
