"""Sets of classes and intervals that hold the truth as often as asked, and what to label next, of estimators.

That they are what refitting gives is tested in tests/gp/test_against_refits.py, and over many draws, with images of
no class, by examples/sets.py.
"""

from typing import Any

import numpy as np
import pytest

from cnngp import GPRegressor, datasets
from cnngp.gp.conformal import allowed, p_values
from cnngp.gp.selection import chosen
from helpers.estimators import classifier

DATA = datasets.digits().take(150, 300)


def share_with_truth(sets: Any, labels: Any) -> float:
    return float(sets[np.arange(len(labels)), labels].mean())


@pytest.mark.parametrize("groups", [None, np.arange(150) // 2])
@pytest.mark.parametrize("by", [None, "class"])
def test_sets_hold_the_class_as_often_as_asked(by: Any, groups: Any) -> None:
    clf = classifier("small_cnn", noise=0.02).fit(DATA.X, DATA.y, groups=groups)
    K, diagonal = clf.kernel_(DATA.X_test, DATA.X), clf.kernel_.diag(DATA.X_test)
    p = p_values(clf.gp_, K, diagonal, DATA.y, by == "class")
    for coverage in (0.7, 0.8, 0.9):
        sets = clf.predict_set(DATA.X_test, coverage=coverage, by=by)
        np.testing.assert_array_equal(sets, allowed(p, coverage))
        # Of 150 training images the coverage of all test images scatters by 0.04, of 75 groups by 0.05.
        assert share_with_truth(sets, DATA.y_test) > coverage - 0.1


def test_several_labels_have_sets_each() -> None:
    labels, truth = (np.stack([y % 2, y > 4], 1).astype(int) for y in (DATA.y, DATA.y_test))
    sets = classifier("small_cnn", noise=0.02).fit(DATA.X, labels).predict_set(DATA.X_test, coverage=0.8)
    assert sets.shape == (300, 2, 2)
    for label in range(2):
        assert share_with_truth(sets[:, label], truth[:, label]) > 0.7


def test_intervals_are_in_the_units_of_the_targets() -> None:
    y, y_test = (
        np.stack([X.mean((1, 2, 3)), 100.0 + 10.0 * y], 1) for X, y in ((DATA.X, DATA.y), (DATA.X_test, DATA.y_test))
    )
    both = GPRegressor("small_cnn", noise=0.02, device="cpu", normalize_y=True).fit(DATA.X, y)
    found = both.predict_interval(DATA.X_test, coverage=0.8)
    assert found.shape == (300, 2, 2)
    inside = (found[..., 0] <= y_test) & (y_test <= found[..., 1])
    assert (inside.mean(0) > 0.7).all()
    alone = GPRegressor("small_cnn", noise=0.02, device="cpu", normalize_y=True).fit(DATA.X, y[:, 0])
    np.testing.assert_allclose(alone.predict_interval(DATA.X_test, coverage=0.8), found[:, 0], rtol=1e-6)


def test_images_to_label_next_are_chosen_by_the_kernel_with_a_model_and_without() -> None:
    clf = classifier("small_cnn", noise=1e-3)
    rows = clf.choose(20, DATA.X)
    clf.fit(DATA.X[rows], DATA.y[rows])
    np.testing.assert_array_equal(rows, chosen(20, clf.kernel_(DATA.X)).rows)
    clf.fit(DATA.X[:20], DATA.y[:20])
    pool = DATA.X[20:]
    across = clf.kernel_(pool, DATA.X[:20])
    np.testing.assert_array_equal(clf.choose(20, pool), chosen(20, clf.kernel_(pool), clf.gp_, across).rows)
    np.testing.assert_array_equal(clf.choose(2, np.zeros_like(pool[:3])), [0, 1])  # without any variance, in order
