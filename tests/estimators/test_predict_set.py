"""Sets of classes and intervals that hold the truth as often as asked, and what to label next, of estimators."""

import operator
from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier, GPRegressor, Kernel, datasets
from cnngp.gp.selection import chosen
from cnngp.network.names import network_by_name

DATA = datasets.digits().take(150, 300)
NETWORK = "small_cnn"


def share_with_truth(sets: Any, labels: Any) -> float:
    return float(sets[np.arange(len(labels)), labels].mean())


@pytest.mark.parametrize("groups", [None, np.arange(150) // 2])
def test_sets_hold_the_class_as_often_as_asked(groups: Any) -> None:
    clf = GPClassifier(NETWORK, noise=0.02, device="cpu").fit(DATA.X, DATA.y, groups=groups)
    sizes = []
    for coverage in (0.7, 0.9, 0.97):
        sets = clf.predict_set(DATA.X_test, coverage=coverage)
        assert sets.shape == (300, 10)
        # Of 150 training images the coverage of all test images scatters by 0.04, of 75 groups by 0.05.
        assert share_with_truth(sets, DATA.y_test) > coverage - 0.1
        sizes.append(sets.sum(1).mean())
    assert sizes == sorted(sizes)
    by_class = clf.predict_set(DATA.X_test, coverage=0.8, by="class")
    assert share_with_truth(by_class, DATA.y_test) > 0.7


def test_a_class_that_was_never_seen_is_none_of_these() -> None:
    seen = DATA.y != 0
    clf = GPClassifier(NETWORK, noise=0.02, device="cpu").fit(DATA.X[seen], DATA.y[seen])
    empty = clf.predict_set(DATA.X_test, coverage=0.85).sum(1) == 0
    assert empty[DATA.y_test == 0].mean() > 3.0 * empty[DATA.y_test != 0].mean()


def test_several_labels_have_sets_each() -> None:
    labels = np.stack([DATA.y % 2, DATA.y > 4], 1)
    clf = GPClassifier(NETWORK, noise=0.02, device="cpu").fit(DATA.X, labels)
    sets = clf.predict_set(DATA.X_test, coverage=0.8)
    assert sets.shape == (300, 2, 2)
    truth = np.stack([DATA.y_test % 2, DATA.y_test > 4], 1).astype(int)
    for label in range(2):
        assert share_with_truth(sets[:, label], truth[:, label]) > 0.7


@pytest.mark.parametrize("normalize_y", [False, True])
def test_intervals_are_in_the_units_of_the_targets(normalize_y: bool) -> None:
    y = np.stack([DATA.X.mean((1, 2, 3)), 100.0 + 10.0 * DATA.y], 1)
    y_test = np.stack([DATA.X_test.mean((1, 2, 3)), 100.0 + 10.0 * DATA.y_test], 1)
    both = GPRegressor(NETWORK, noise=0.02, device="cpu", normalize_y=True).fit(DATA.X, y)
    found = both.predict_interval(DATA.X_test, coverage=0.8)
    assert found.shape == (300, 2, 2)
    inside = (found[..., 0] <= y_test) & (y_test <= found[..., 1])
    assert (inside.mean(0) > 0.7).all()
    one = GPRegressor(NETWORK, noise=0.02, device="cpu", normalize_y=normalize_y).fit(DATA.X, y[:, 0])
    alone = one.predict_interval(DATA.X_test, coverage=0.8)
    assert alone.shape == (300, 2)
    if normalize_y:
        np.testing.assert_allclose(alone, found[:, 0], rtol=1e-6)


def test_chosen_images_teach_more_than_others() -> None:
    unlabelled = GPClassifier(NETWORK, noise=1e-3, device="cpu")
    rows = unlabelled.choose(20, DATA.X)
    np.testing.assert_array_equal(rows, chosen(20, Kernel(network_by_name(NETWORK), device="cpu")(DATA.X)).rows)
    first_20 = (unlabelled.fit(DATA.X[at], DATA.y[at]) for at in (rows, np.arange(20)))
    assert operator.gt(*(clf.score(DATA.X_test, DATA.y_test) for clf in first_20))
    first = GPClassifier(NETWORK, noise=1e-3, device="cpu").fit(DATA.X[:20], DATA.y[:20])
    pool, labels = DATA.X[20:], DATA.y[20:]
    rows = first.choose(20, pool)
    assert len(set(rows)) == 20
    np.testing.assert_array_equal(first.choose(2, np.zeros_like(pool[:3])), [0, 1])  # without any variance, in order
    score = first.add(pool[rows], labels[rows]).score(DATA.X_test, DATA.y_test)
    scores = []
    for seed in range(5):
        at = np.r_[np.arange(20), 20 + np.random.default_rng(seed).permutation(130)[:20]]
        other = GPClassifier(NETWORK, noise=1e-3, device="cpu").fit(DATA.X[at], DATA.y[at])
        scores.append(other.score(DATA.X_test, DATA.y_test))
    assert score > np.mean(scores)
