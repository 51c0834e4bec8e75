"""Estimators that solve without a Cholesky factor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier, GPRegressor, datasets
from cnngp.common import memory
from cnngp.gp import iterative as iterative_gp
from cnngp.gp.solving import ConvergenceWarning
from cnngp.gp.solving.conjugate import Limits
from cnngp.gp.solving.matrices import SymmetricMatrix
from cnngp.report.run import evaluate
from helpers.estimators import classifier
from helpers.solves import DIGITS, KERNEL, NET, twice


def test_an_estimator_without_a_factor() -> None:
    exact = classifier(NET, noise=1e-3).fit(DIGITS.X, DIGITS.y)
    clf = classifier(NET, noise=1e-3, solver="cg", amplitude=exact.gp_.amplitude).fit(DIGITS.X, DIGITS.y)
    mean, variance = clf.predict_latent(DIGITS.X_test)
    exact_mean, exact_variance = exact.predict_latent(DIGITS.X_test)
    np.testing.assert_allclose(mean, exact_mean, atol=1e-6)
    np.testing.assert_allclose(variance, exact_variance, rtol=1e-3)
    # Leave-one-out of a sample is that of the exact fit, image by image.
    loo, exact_loo = (model.gp_.leave_one_out() for model in (clf, exact))
    np.testing.assert_allclose(loo.mean, exact_loo.mean[clf.loo_rows_], atol=1e-6)
    np.testing.assert_allclose(loo.variance, exact_loo.variance[clf.loo_rows_], rtol=1e-6)
    assert len(clf.loo_rows_) == 256
    np.testing.assert_array_equal(clf.loo_predictions_, exact.loo_predictions_[clf.loo_rows_])
    P = clf.predict_proba(DIGITS.X_test)
    np.testing.assert_allclose(P.sum(1), 1.0)
    assert np.abs(P - exact.predict_proba(DIGITS.X_test)).max() < 0.15
    assert (clf.fit_report_.method, clf.log_marginal_likelihood_) == ("cg", None)
    assert clf.fit_report_.residual < 1e-8
    assert set(clf.most_uncertain(3)) <= set(clf.loo_rows_)


@pytest.mark.parametrize("options", [{"solver": "cg", "noise": 1e-3}, {"inducing": 80}])
def test_the_report_of_a_model_without_a_factor(options: dict[str, Any]) -> None:
    clf = classifier(NET, **options).fit(DIGITS.X, DIGITS.y)
    found = evaluate(clf, DIGITS)
    assert found.images == 300
    assert found.loo.error == clf.loo_error_
    assert json.dumps(found.as_dict())


def test_auto_is_cholesky_until_it_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 images: a factor takes 8 MB, the vectors of an iteration with 18 columns 3 MB."""
    data = datasets.digits().take(1000, 100)
    clf = GPClassifier(NET, noise=1e-3, device="cpu", store=tmp_path / "K.zarr")
    assert clf.fit(data.X, data.y).fit_report_.method == "cholesky"
    expected = clf.predict(data.X_test)
    monkeypatch.setattr(iterative_gp, "SAMPLE", 8)
    monkeypatch.setattr(memory, "available", lambda device="cpu": 3_500_000)
    assert clf.fit(data.X, data.y).fit_report_.method == "cg"
    np.testing.assert_array_equal(clf.predict(data.X_test), expected)
    with pytest.raises(MemoryError, match=r"use fewer images.*keep the matrix on disk with store=.*or use inducing="):
        GPClassifier(NET, noise=1e-3, device="cpu").fit(data.X, data.y)
    with pytest.raises(MemoryError, match="noise='ml' takes most of it, give a number"):
        GPClassifier(NET, noise="ml", device="cpu", store=tmp_path / "K.zarr").fit(data.X, data.y)
    monkeypatch.setattr(iterative_gp, "SAMPLE", 256)
    with pytest.raises(MemoryError, match="solving for 1,000 points by cg needs"):
        clf.fit(data.X, data.y)


def test_repeated_images_without_noise_cost_only_their_own_leave_one_out() -> None:
    rows = np.r_[0:300, 0:30]
    K, K_test, y = twice(rows), KERNEL(DIGITS.X_test, DIGITS.X)[:, rows], DIGITS.y[rows]
    clf = GPClassifier(device="cpu", solver="cg")
    with pytest.warns(ConvergenceWarning, match=r"unit vectors of \d+ of 256 images.*loo_rows_; add noise") as told:
        clf.fit(K=K, y=y)
    assert [warning.filename for warning in told] == [__file__]
    assert clf.fit_report_.residual < 1e-8
    assert 200 <= len(clf.loo_rows_) < 240
    assert not set(clf.loo_rows_) & {*range(30), *range(300, 330)}
    exact = classifier(NET).fit(DIGITS.X, DIGITS.y)  # noiseless copies of an image add nothing
    np.testing.assert_array_equal(clf.predict(K=K_test), exact.predict(DIGITS.X_test))
    np.testing.assert_array_equal(clf.loo_predictions_, exact.loo_predictions_[clf.loo_rows_])
    # The bound from the other rows would praise a singular matrix.
    assert clf.fit_report_.smallest_eigenvalue[1] < 1e-10


def test_unit_vectors_without_a_solution_do_not_hold_up_the_others() -> None:
    """On a badly conditioned matrix they do when they are in one block: it is solved again without them."""
    x = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    single = np.exp(-((x[:, None] - x[None]) ** 2).sum(-1) / (2 * 0.3**2)) + 1e-7 * np.eye(300)
    rows = np.r_[0:300, 0:10]
    with pytest.warns(ConvergenceWarning, match="16 of 256 images"):
        gp = iterative_gp.IterativeGP(SymmetricMatrix(single[np.ix_(rows, rows)]), np.sin(3 * x)[rows], np, noise=0.0)
    assert not set(gp.loo_rows) & {*range(10), *range(300, 310)}
    np.testing.assert_allclose(gp.inverse_diagonal, np.linalg.inv(single).diagonal()[gp.loo_rows], rtol=1e-3)


def test_without_any_leave_one_out_there_are_still_predictions() -> None:
    """Every image twice: no unit vector is solvable."""
    rows = np.r_[0:100, 0:100]
    K, K_test, y = twice(rows), KERNEL(DIGITS.X_test, DIGITS.X)[:, rows], DIGITS.y[rows]
    clf = GPClassifier(device="cpu", solver="cg", amplitude="loo")
    with pytest.warns(ConvergenceWarning, match="has none: loo_error_ is NaN and the temperature 1"):
        clf.fit(K=K, y=y)
    assert np.isnan(clf.loo_error_)
    assert clf.temperature_ == 1.0
    assert len(clf.loo_rows_) == len(clf.loo_predictions_) == len(clf.loo_probabilities_) == 0
    exact = classifier(NET).fit(DIGITS.X[:100], DIGITS.y[:100])
    np.testing.assert_array_equal(clf.predict(K=K_test), exact.predict(DIGITS.X_test))
    np.testing.assert_allclose(clf.predict_proba(K=K_test).sum(1), 1.0)
    with pytest.warns(ConvergenceWarning, match="has none"):
        reg = GPRegressor(device="cpu", solver="cg").fit(K=K, y=y)
    assert np.isnan(reg.loo_error_)


def test_variances_that_were_not_solved_for_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reg = GPRegressor(NET, noise=1e-3, device="cpu", solver="cg", store=tmp_path / "K.zarr").fit(DIGITS.X, DIGITS.y)
    _, right = reg.predict(DIGITS.X_test, return_std=True)
    monkeypatch.setattr(iterative_gp, "_LIMITS", Limits(1e-6, 2))
    with pytest.warns(ConvergenceWarning, match="variances were not solved, so these are too large") as told:
        _, std = reg.predict(DIGITS.X_test, return_std=True)
    assert told[0].filename == __file__
    assert (std > right).all()
    assert not list(tmp_path.glob("*solve*"))  # a state for every block of test images would fill the disk
