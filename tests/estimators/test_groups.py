"""Images that belong together, in estimators: copies bring their groups, files keep them, other models refuse them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cnngp import GPClassifier, GPRegressor, augmentation, datasets
from cnngp.common.arrays import DataError

DATA = datasets.digits().take(80, 300)
NETWORK = "small_cnn"
X5, Y5 = augmentation.warped(DATA.X, DATA.y)


def classifier(**options) -> GPClassifier:
    return GPClassifier(NETWORK, **({"noise": "loo", "device": "cpu"} | options))


def test_leave_one_out_does_not_learn_from_copies():
    honest, naive, given = classifier().fit(X5, Y5), classifier().fit(X5[:], Y5), classifier()
    error = 1.0 - honest.score(DATA.X_test, DATA.y_test)
    assert naive.loo_error_ < 0.3 * error < 0.5 * error < honest.loo_error_ < 2.0 * error
    given.fit(X5[:], Y5, groups=X5.groups)
    assert given.loo_error_ == honest.loo_error_


def test_probabilities_are_better_where_copies_are_left_out_together():
    rows = np.arange(300), np.searchsorted(np.unique(Y5), DATA.y_test)
    nll = [-np.log(classifier().fit(X, Y5).predict_proba(DATA.X_test)[rows]).mean() for X in (X5, X5[:])]
    assert nll[0] < nll[1]


def test_the_default_takes_copies():
    clf = GPClassifier(device="cpu").fit(X5, Y5)
    assert clf.X_.shape == X5.shape
    assert clf.loo_error_ > 0.02


def test_files_keep_groups(tmp_path: Path):
    clf = classifier().fit(X5, Y5)
    clf.save(tmp_path / "m.gp")
    again = GPClassifier.load(tmp_path / "m.gp", device="cpu")
    assert (again.loo_error_, again.temperature_) == (clf.loo_error_, clf.temperature_)
    np.testing.assert_array_equal(again.loo_probabilities_, clf.loo_probabilities_)


def test_a_regressor_leaves_groups_out_together():
    y = np.tile(DATA.y.astype(float), 2)
    twice, groups = np.concatenate([DATA.X, DATA.X]), np.tile(np.arange(80), 2)
    spread = []
    for g in (groups, None):
        reg = GPRegressor(NETWORK, noise=1e-3, device="cpu").fit(twice, y, groups=g)
        spread.append(np.abs(reg.gp_.leave_one_out()[0][:, 0] - y).mean())
    assert spread[0] > 3.0 * spread[1]


def test_classes_of_one_group_each_are_fitted_without_noise():
    with pytest.warns(UserWarning, match="no class has two"):
        clf = classifier().fit(DATA.X, DATA.y, groups=DATA.y)
    assert clf.gp_.noise == 0.0


@pytest.mark.parametrize("options", [{"inducing": 20, "noise": 0}, {"learn": "loo"}, {"solver": "cg", "noise": 0.1}])
def test_models_that_leave_images_out_one_by_one_refuse_groups(options):
    with pytest.raises(DataError, match=r"leaves? images out one by one; fit without groups="):
        classifier(**options).fit(X5[:], Y5, groups=X5.groups)


def test_wrong_groups_are_refused_before_any_kernel(monkeypatch):
    monkeypatch.setattr("cnngp.estimators.base.gram", None)
    with pytest.raises(ValueError, match=r"groups has shape \(3,\); expected 80 names or numbers"):
        classifier().fit(DATA.X, DATA.y, groups=[1, 2, 3])
