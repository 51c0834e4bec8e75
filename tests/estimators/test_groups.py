"""Images that belong together, in estimators: copies bring their groups, files keep them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from cnngp import GPClassifier, GPRegressor, datasets
from cnngp.common.arrays import DataError
from cnngp.datasets import augmentation
from cnngp.estimators import Learning

DATA = datasets.digits().take(80, 300)
NETWORK = "small_cnn"
X5, Y5 = augmentation.warped(DATA.X, DATA.y)


def classifier(**options) -> GPClassifier:
    return GPClassifier(NETWORK, **({"noise": "loo", "device": "cpu"} | options))


def test_leave_one_out_does_not_learn_from_copies(tmp_path: Path):
    honest, naive, given = classifier().fit(X5, Y5), classifier().fit(X5[:], Y5), classifier()
    error = 1.0 - honest.score(DATA.X_test, DATA.y_test)
    assert naive.loo_error_ < 0.3 * error < 0.5 * error < honest.loo_error_ < 2.0 * error
    given.fit(X5[:], Y5, groups=X5.groups)
    assert given.loo_error_ == honest.loo_error_
    rows = np.arange(300), np.searchsorted(np.unique(Y5), DATA.y_test)
    nll = [-np.log(clf.predict_proba(DATA.X_test)[rows]).mean() for clf in (honest, naive)]
    assert nll[0] < nll[1]
    honest.save(tmp_path / "m.gp")
    again = GPClassifier.load(tmp_path / "m.gp", device="cpu")
    assert (again.loo_error_, again.temperature_) == (honest.loo_error_, honest.temperature_)
    np.testing.assert_array_equal(again.loo_probabilities_, honest.loo_probabilities_)


@pytest.mark.slow
def test_the_default_takes_copies():
    clf = GPClassifier(device="cpu", effort="quick").fit(X5, Y5)
    assert clf.X_.shape == X5.shape
    assert clf.loo_error_ > 0.02


def test_a_regressor_leaves_groups_out_together():
    y = np.tile(DATA.y.astype(float), 2)
    nearly = DATA.X + np.random.default_rng(0).normal(0.0, 1e-3, DATA.X.shape).astype(np.float32)
    twice, groups = np.concatenate([DATA.X, nearly]), np.tile(np.arange(80), 2)
    spread = []
    for g in (groups, None):
        with nullcontext() if g is not None else pytest.warns(UserWarning, match="by groups="):
            reg = GPRegressor(NETWORK, noise=1e-3, device="cpu").fit(twice, y, groups=g)
        spread.append(np.abs(reg.gp_.leave_one_out().mean[:, 0] - y).mean())
    assert spread[0] > 3.0 * spread[1]


def test_classes_of_one_group_each_are_fitted_without_noise():
    with pytest.warns(UserWarning, match="no class has two"):
        clf = classifier().fit(DATA.X, DATA.y, groups=DATA.y)
    assert clf.gp_.noise == 0.0


def test_an_iterative_solver_leaves_groups_out_together(tmp_path: Path):
    exact, clf = (classifier(noise=0.1, solver=solver).fit(X5, Y5) for solver in ("cholesky", "cg"))
    assert 200 < len(clf.loo_rows_) <= 256
    np.testing.assert_allclose(clf.gp_.leave_one_out().mean, exact.gp_.leave_one_out().mean[clf.loo_rows_], atol=1e-6)
    assert (np.bincount(clf.gp_.groups)[clf.gp_.groups] == 5).all()
    clf.save(tmp_path / "m.gp")
    again = GPClassifier.load(tmp_path / "m.gp", device="cpu")
    np.testing.assert_array_equal(again.loo_probabilities_, clf.loo_probabilities_)
    twice = np.concatenate([DATA.X, DATA.X])  # equal images are groups without being told
    repeated = classifier(noise=0.1, solver="cg").fit(twice, np.tile(DATA.y, 2))
    assert repeated.loo_error_ == classifier(noise=0.1).fit(twice, np.tile(DATA.y, 2)).loo_error_


def test_learning_sees_one_image_of_each_group():
    learning = Learning("loo", images=400, starts=1, steps=3)
    copies, once = (classifier(learn=learning, noise=None).fit(X, y) for X, y in ((X5, Y5), (DATA.X, DATA.y)))
    assert copies.network_ == once.network_
    assert copies.learned_.after == once.learned_.after
    with pytest.raises(DataError, match="one image of each group, and 10 groups are too few to learn from"):
        classifier(learn=learning, noise=None).fit(DATA.X, DATA.y, groups=np.arange(80) % 10)


MANY = datasets.digits().take(400, 500)


def test_inducing_images_leave_an_image_out_with_its_copies(tmp_path: Path):
    """The error is that of new images and their copies; a fit of the copies as if they were images is too hopeful."""
    copies, y = augmentation.warped(MANY.X, MANY.y, turn=6, wider=1.1)
    honest, naive = (classifier(inducing=100, noise=0).fit(X, y) for X in (copies, copies[:]))
    unseen, y_unseen = augmentation.warped(MANY.X_test, MANY.y_test, turn=6, wider=1.1)
    error = 1.0 - honest.score(unseen, y_unseen)
    # Copies of one image are right or wrong together.
    uncertainty = 2.0 * np.sqrt(error * (1.0 - error) * (5.0 / len(honest.loo_rows_) + 1.0 / 500.0))
    assert abs(honest.loo_error_ - error) < 0.003 + uncertainty
    assert naive.loo_error_ < 0.5 * error
    assert (np.bincount(copies.groups[honest.loo_rows_]) % 5 == 0).all()  # whole groups alone
    assert not np.isin(copies.groups[honest.inducing_rows_], copies.groups[honest.loo_rows_]).any()
    honest.save(tmp_path / "m.gp")
    assert GPClassifier.load(tmp_path / "m.gp", device="cpu").loo_error_ == honest.loo_error_


def test_groups_larger_than_the_sample_are_refused(monkeypatch):
    monkeypatch.setattr("cnngp.estimators.inducing.SAMPLE", 100)
    with pytest.raises(
        DataError, match="the smallest of the groups has 200 images, and inducing= leaves at most 100 out"
    ):
        classifier(inducing=50, noise=0).fit(MANY.X, MANY.y, groups=np.arange(400) % 2)


def test_wrong_groups_are_refused_before_any_kernel(monkeypatch):
    monkeypatch.setattr("cnngp.estimators.kernels.gram", None)
    with pytest.raises(ValueError, match=r"groups has shape \(3,\); expected 80 names or numbers"):
        classifier().fit(DATA.X, DATA.y, groups=[1, 2, 3])


@pytest.mark.parametrize("estimator", [GPClassifier, GPRegressor])
def test_near_copies_without_groups_are_told_of(estimator):
    """Pictures that somebody saved three times as lossy files: leave-one-out sees 0 % errors, new images 5 %."""
    rng = np.random.default_rng(0)
    X = np.concatenate([DATA.X + 0.02 * rng.standard_normal(DATA.X.shape).astype(np.float32) for _ in range(3)])
    y, groups = np.tile(DATA.y, 3), np.tile(np.arange(80), 3)
    model = estimator(NETWORK, noise=0.01, device="cpu")
    with pytest.warns(UserWarning, match=r"say which belong together by groups=") as told:
        model.fit(X, y)
    assert told[0].filename == __file__
    model.fit(X, y, groups=groups)  # warnings are errors here
    model.fit(DATA.X, DATA.y)
