"""Estimators where something is wrong: with the labels, the matrices, a second fit, an addition that is stopped."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from cnngp import Conv, Dense, GPClassifier, GPRegressor, Kernel, ReLU, Sequential, datasets, zoo
from cnngp.common.arrays import DataError
from cnngp.common.errors import ModelFileError
from cnngp.gp import calibration
from cnngp.gp.linalg import JitterWarning

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Dense())
DATA = datasets.digits().take(300, 200)
RNG = np.random.default_rng(0)


def two_classes(n: int, labels: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """The first n training images of two digits, and all test images of them."""
    data = datasets.digits()
    at, test = np.isin(data.y, labels), np.isin(data.y_test, labels)
    return data.X[at][:n], data.y[at][:n], data.X_test[test], data.y_test[test]


# ---- probabilities ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"inducing": 20}], ids=str)
def test_no_mistake_so_far_is_not_certainty(options: dict[str, Any]) -> None:
    """Leave-one-out is right about all fifty images, which says nothing of images that are no digits."""
    X, y, X_test, y_test = two_classes(50, (0, 1))
    clf = GPClassifier(zoo.small_cnn(), device="cpu", **options).fit(X, y)
    assert clf.loo_error_ == 0.0
    P = clf.predict_proba(X_test)
    assert calibration.negative_log_likelihood(P, y_test.astype(np.intp)) < 0.1
    assert clf.predict_proba(RNG.random((20, 1, 8, 8))).max() < 0.95
    assert P.max() < 1.0 - 1e-3


def test_smoothing_allows_one_wrong_label_in_all() -> None:
    """With n labels at confidence p for two classes, the best p is Platt's (n + 1)/(n + 2)."""
    labels = np.zeros(8, np.intp)
    confidences = np.linspace(0.5, 0.999, 2000)
    losses = [calibration.smoothed_loss(np.tile([p, 1.0 - p], (8, 1)), labels) for p in confidences]
    assert confidences[int(np.argmin(losses))] == pytest.approx(9.0 / 10.0, abs=5e-4)
    many = np.zeros(10**6, np.intp)
    P = np.tile([0.9, 0.1], (10**6, 1))
    assert calibration.smoothed_loss(P, many) == pytest.approx(calibration.negative_log_likelihood(P, many), rel=1e-4)


def test_two_labels_of_one_image_leave_the_others_their_probabilities() -> None:
    X, y = np.concatenate([DATA.X, DATA.X[:1]]), np.append(DATA.y, (DATA.y[0] + 1) % 10)
    with pytest.warns(UserWarning, match="contradict each other"), pytest.warns(JitterWarning) as told:
        clf = GPClassifier(zoo.small_cnn(), dtype="float64", device="cpu").fit(X, y)
    assert {warning.filename for warning in told} == {__file__}
    assert clf.gp_.amplitude > 1e3  # the reason: no other explains the two
    whole = GPClassifier(zoo.small_cnn(), device="cpu").fit(DATA.X, DATA.y)
    loss = [calibration.scores(m.predict_proba(DATA.X_test), DATA.y_test.astype(np.intp)).nll for m in (clf, whole)]
    assert loss[0] < 1.5 * loss[1]
    np.testing.assert_allclose(clf.loo_probabilities_.sum(1), 1.0)


# ---- a second fit, an addition ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [DATA.y + 0.5, np.zeros(300), DATA.y[:-1]])
def test_a_fit_that_fails_leaves_no_model(labels: np.ndarray) -> None:
    clf = GPClassifier(NET, device="cpu").fit(DATA.X, DATA.y)
    clf.set_params(network=Sequential(Conv(3, weight_var=8.0), ReLU(), Dense()))
    with pytest.raises(ValueError, match=r"class|label|Unknown"):
        clf.fit(DATA.X, labels)
    for method in (clf.predict, clf.predict_proba, clf.predict_latent, clf.most_uncertain):
        with pytest.raises(NotFittedError):
            method(DATA.X_test)


@pytest.mark.parametrize("stop", ["cnngp.estimators.fit.measured", "cnngp.gp.calibration.fit_temperature"])
def test_an_addition_that_is_stopped_leaves_the_model_as_it_was(stop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clf = GPClassifier(NET, device="cpu").fit(DATA.X, DATA.y)
    P, loo, T = clf.predict_proba(DATA.X_test), clf.loo_probabilities_, clf.temperature_

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stop, stopped)
        with pytest.raises(KeyboardInterrupt):
            clf.add(DATA.X_test[:50], DATA.y_test[:50])
    assert len(clf.X_) == clf.fit_report_.images == 300
    np.testing.assert_array_equal(clf.predict_proba(DATA.X_test), P)
    assert clf.loo_probabilities_ is loo
    assert clf.temperature_ == T
    assert len(clf.add(DATA.X_test[:50], DATA.y_test[:50]).X_) == 350


# ---- matrices --------------------------------------------------------------------------------------------------------


def test_matrices_that_do_not_fit() -> None:
    kernel = Kernel(NET, device="cpu")
    K, K_test = kernel(DATA.X), kernel(DATA.X_test, DATA.X)
    diagonal = kernel.diag(DATA.X_test)
    clf = GPClassifier().fit(K=K, y=DATA.y)
    expected = clf.predict_proba(K=K_test, diagonal=diagonal)
    listed = GPClassifier().fit(K=K.tolist(), y=DATA.y)
    np.testing.assert_array_equal(listed.predict_proba(K=K_test.tolist(), diagonal=diagonal.tolist()), expected)
    for wrong, message in (
        (kernel.diag(DATA.X), r"diagonal has shape \(300,\).*expected 200 numbers, one for each row of K"),
        ([1.0], r"diagonal has shape \(1,\)"),
        (1.0, r"diagonal has shape \(\)"),
        (-diagonal, "negative numbers"),
        (np.full(200, np.nan), "NaN"),
        (None, "also need diagonal="),
    ):
        with pytest.raises(DataError, match=message):
            clf.predict_proba(K=K_test, diagonal=wrong)
    for wrong in (K_test[:0], K_test[:, 1:], K_test[0], 3.0):
        with pytest.raises(DataError, match=r"K has shape .* expected \(test images, 300\)"):
            clf.predict(K=wrong)
    for wrong in (K[1:], K[0], 3.0):
        with pytest.raises(DataError, match=r"K has shape .* expected \(N, N\)"):
            GPClassifier().fit(K=wrong, y=DATA.y)
    with pytest.raises(DataError, match=r"K='K.zarr' is a path; give the array in it"):
        GPClassifier().fit(K="K.zarr", y=DATA.y)
    with pytest.raises(DataError, match="fit again with images X to add to it"):
        clf.add(DATA.X_test, DATA.y_test)
    with pytest.raises(DataError, match=r"give K\(test, training\) as K="):
        clf.predict(DATA.X_test)
    regressor = GPRegressor(noise=0.1).fit(K=K, y=DATA.y)
    with pytest.raises(ValueError, match="give X instead of K"):
        regressor.predict(K=K_test, return_cov=True)


# ---- inducing images, files ------------------------------------------------------------------------------------------


def test_repeated_inducing_images_give_a_warning() -> None:
    rows = np.r_[np.arange(60), np.arange(60)]
    with pytest.warns(JitterWarning, match="not positive definite") as told:
        clf = GPClassifier(NET, inducing=DATA.X[rows], device="cpu").fit(DATA.X, DATA.y)
    assert told[0].filename == __file__
    assert clf.fit_report_.jitter > 0
    assert f"but for {clf.fit_report_.jitter:.0e} of the mean variance added as noise" in clf.fit_report_.verdict
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of images that are there three times, one is chosen
        clf = GPClassifier(NET, inducing=60, device="cpu").fit(
            np.concatenate([DATA.X] * 3), np.concatenate([DATA.y] * 3)
        )
    assert len(np.unique(clf.X_.reshape(60, -1), axis=0)) == 60


def test_a_bad_pixel_is_named_by_its_image() -> None:
    X = np.concatenate([DATA.X] * 3)
    X[600, 0, 0, 0] = np.nan
    with pytest.raises(DataError, match=r"X\[600\] has NaN pixels"):
        GPClassifier(NET, inducing=20, device="cpu").fit(X, np.concatenate([DATA.y] * 3))


def test_files_in_no_folder_and_devices_that_do_not_exist(tmp_path: Path) -> None:
    clf = GPClassifier(NET, device="cpu").fit(DATA.X[:30], DATA.y[:30])
    with pytest.raises(ModelFileError, match=r"nowhere: no such folder to save m\.gp in"):
        clf.save(tmp_path / "nowhere" / "m.gp")
    clf.save(tmp_path / "m.gp")
    with pytest.raises(ValueError, match="device='abacus'"):
        GPClassifier.load(tmp_path / "m.gp", device="abacus")  # type: ignore[arg-type]


def test_channels_that_seem_to_come_last_give_a_warning() -> None:
    last = DATA.X[:40].transpose(0, 2, 3, 1)
    with pytest.warns(UserWarning, match=r"read as 8 channels of 8 × 1; if the channels come last.*transpose") as told:
        GPClassifier(NET, device="cpu").fit(last, DATA.y[:40])
    assert told[0].filename == __file__
    GPClassifier(NET, device="cpu", input_shape=(8, 8, 1)).fit(last, DATA.y[:40])  # warnings are errors in tests


@pytest.mark.parametrize("flat", [True, False])
def test_targets_that_are_objects(flat: bool) -> None:
    X = DATA.X[:40].reshape(40, -1) if flat else DATA.X[:40]
    model = GPRegressor(Sequential(Dense(), ReLU(), Dense()), noise=0.1, device="cpu")
    numbers = model.fit(X, DATA.y[:40].astype(object)).predict(X)
    np.testing.assert_array_equal(numbers, model.fit(X, DATA.y[:40]).predict(X))
    for wrong in (np.array(["3"] * 40, dtype=object), DATA.y[:40] * 1j):
        with pytest.raises(ValueError, match=r"real numbers|[Cc]omplex"):
            model.fit(X, wrong)


@pytest.mark.parametrize("estimator", [GPClassifier, GPRegressor])
@pytest.mark.parametrize("inducing", [None, 20])
def test_no_images(estimator: Any, inducing: int | None) -> None:
    with pytest.raises(DataError, match=r"X .*(0, 1, 8, 8)"):
        estimator(NET, inducing=inducing, device="cpu").fit(DATA.X[:0], DATA.y[:0])


def test_saving_replaces_files_alone(tmp_path: Path) -> None:
    clf = GPClassifier(NET, device="cpu").fit(DATA.X[:30], DATA.y[:30])
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(ModelFileError, match=f"{name} exists and is not a file"):
            clf.save(tmp_path / name)
    (tmp_path / "link.gp").symlink_to(tmp_path / "target.gp")
    clf.save(tmp_path / "link.gp")
    assert (tmp_path / "link.gp").is_symlink()
    assert GPClassifier.load(tmp_path / "target.gp", device="cpu").fit_report_.images == 30


def test_images_that_the_kernel_cannot_tell_apart() -> None:
    """Nearly the same image 100 times: in float32 nothing is left of the differences, and the verdict says so."""
    X = DATA.X[:1] + 1e-6 * RNG.normal(size=(100, 1, 8, 8))
    y = np.arange(100) % 2
    with pytest.warns(JitterWarning):
        clf = GPClassifier(NET, device="cpu").fit(X, y)
    assert "hardly tells these images apart" in clf.fit_report_.verdict
    assert "dtype='float64'" in clf.fit_report_.verdict
    usual = GPClassifier(NET, device="cpu").fit(DATA.X, DATA.y).fit_report_
    K = np.asarray(Kernel(NET, device="cpu", dtype="float64")(DATA.X))
    assert usual.spread == pytest.approx(K.diagonal().mean() - K.mean(), rel=1e-4)
    assert "apart" not in usual.verdict


@pytest.mark.parametrize("shape", [(60, 1, 8, 8), (60, 64)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_caller_who_overwrites_the_images_of_a_fit_changes_no_prediction(dtype: str, shape: tuple[int, ...]) -> None:
    X, new = DATA.X[:60].astype(dtype).reshape(shape), DATA.X_test[:10].reshape(10, *shape[1:])
    reg = GPRegressor("dense_nngp", noise=0.1, dtype=dtype, device="cpu").fit(X, DATA.y[:60].astype(float))
    before = reg.predict(new)
    X[:] = 0.0
    np.testing.assert_array_equal(reg.predict(new), before)
