"""The estimators as scikit-learn sees them, and as a user does."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor

from cnngp import GPClassifier, GPRegressor, Kernel, zoo
from cnngp.common.arrays import CheckedImages, DataError, as_images
from helpers.estimators import DATA, NET


def test_classifier_is_what_the_equations_say(fitted: GPClassifier) -> None:
    K = Kernel(NET)(DATA.X).astype(float)
    Kt = Kernel(NET)(DATA.X_test, DATA.X).astype(float)
    Y = 2.0 * np.eye(10)[DATA.y] - 1.0
    inverse = np.linalg.inv(K)
    alpha = inverse @ Y
    mean, variance = fitted.predict_latent(DATA.X_test)
    np.testing.assert_allclose(mean, Kt @ alpha, atol=1e-7)
    amplitude = (Y * alpha).sum() / Y.size
    expected = amplitude * (Kernel(NET).diag(DATA.X_test) - np.einsum("mi,ij,mj->m", Kt, inverse, Kt))
    np.testing.assert_allclose(variance, expected, rtol=1e-5)
    np.testing.assert_array_equal(fitted.predict(DATA.X_test), mean.argmax(1))
    loo = Y - alpha / np.diag(inverse)[:, None]
    assert fitted.loo_error_ == np.mean(loo.argmax(1) != DATA.y)
    np.testing.assert_array_equal(fitted.loo_predictions_, loo.argmax(1))


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_probabilities_are_calibrated_without_held_out_data(noise: float) -> None:
    fitted = GPClassifier(NET, noise=noise).fit(DATA.X, DATA.y)
    P = fitted.predict_proba(DATA.X_test)
    assert P.shape == (80, 10)
    np.testing.assert_allclose(P.sum(1), 1.0)
    np.testing.assert_array_equal(P.argmax(1), fitted.predict(DATA.X_test))
    mean, variance = fitted.predict_latent(DATA.X_test)
    scale = fitted.temperature_ * np.sqrt(1.0 + variance + fitted.gp_.amplitude * noise)
    expected = np.exp(mean / scale[:, None])
    np.testing.assert_allclose(P, expected / expected.sum(1, keepdims=True), rtol=1e-6, atol=1e-11)
    right = P.argmax(1) == DATA.y_test
    assert abs(P.max(1).mean() - right.mean()) < 0.1
    assert P.max(1)[right].mean() > P.max(1)[~right].mean()


def test_regressor_like_scikit_learn() -> None:
    flat, test = DATA.X.reshape(150, -1), DATA.X_test.reshape(80, -1)
    y = np.stack([flat.sum(1), flat[:, 20]], 1).astype(np.float64)
    theirs = GaussianProcessRegressor(
        Kernel(NET, dtype="float64").as_sklearn((1, 8, 8)), alpha=0.01, optimizer=None, normalize_y=True
    ).fit(flat, y)
    ours = GPRegressor(NET, noise=0.01, amplitude=1.0, dtype="float64", input_shape=(1, 8, 8), normalize_y=True).fit(
        flat, y
    )
    mean, std = theirs.predict(test, return_std=True)
    my_mean, my_std = ours.predict(test, return_std=True)
    np.testing.assert_allclose(my_mean, mean, atol=1e-8)
    np.testing.assert_allclose(my_std, std, atol=1e-8)
    np.testing.assert_allclose(
        ours.predict(test[:5], return_cov=True)[1], theirs.predict(test[:5], return_cov=True)[1], atol=1e-8
    )
    assert ours.log_marginal_likelihood_ == pytest.approx(theirs.log_marginal_likelihood_value_, rel=1e-8)
    one = GPRegressor(NET, noise=0.01, dtype="float64").fit(DATA.X, y[:, 0])
    assert one.predict(DATA.X_test).shape == one.predict(DATA.X_test, return_std=True)[1].shape == (80,)
    assert one.sample_y(DATA.X_test[:4], 3).shape == (4, 3)
    assert ours.sample_y(DATA.X_test[:4], 3).shape == (4, 2, 3)
    assert len(ours.add(DATA.X_test, y[:80]).X_) == 230


@pytest.mark.gpu
def test_on_a_card(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    card = GPClassifier(NET, device="cuda").fit(DATA.X, DATA.y)
    here = GPClassifier(NET, device="cpu").fit(DATA.X, DATA.y)
    assert type(card.gp_.alpha).__module__.startswith("cupy")
    np.testing.assert_allclose(card.predict_proba(DATA.X_test), here.predict_proba(DATA.X_test), atol=1e-3)
    assert card.loo_error_ == here.loo_error_
    assert card.fit_report_.kernel_error < 1e-6
    card.save(tmp_path / "m.gp")
    for device in ("cuda", "cpu"):
        again = GPClassifier.load(tmp_path / "m.gp", device=device)
        np.testing.assert_allclose(again.predict_proba(DATA.X_test), here.predict_proba(DATA.X_test), atol=1e-3)
    card.add(DATA.X_test[:5], DATA.y_test[:5])
    reg = GPRegressor(NET, noise="ml", device="cuda").fit(DATA.X, DATA.y)
    assert reg.sample_y(DATA.X_test[:4], 3).shape == (4, 3)


def test_precomputed_matrices(fitted: GPClassifier) -> None:
    K, Kt = Kernel(NET)(DATA.X), Kernel(NET)(DATA.X_test, DATA.X)
    clf = GPClassifier().fit(K=K, y=DATA.y)
    np.testing.assert_array_equal(clf.predict(K=Kt), fitted.predict(DATA.X_test))
    P = clf.predict_proba(K=Kt, diagonal=Kernel(NET).diag(DATA.X_test))
    np.testing.assert_allclose(P, fitted.predict_proba(DATA.X_test), atol=1e-9)
    assert clf.fit_report_.kernel_error is None
    both = GPClassifier(NET).fit(DATA.X, DATA.y, K=K)
    np.testing.assert_array_equal(both.predict(DATA.X_test), fitted.predict(DATA.X_test))
    np.testing.assert_array_equal(fitted.predict(K=Kt), fitted.predict(DATA.X_test))
    other = GPClassifier(NET).fit(DATA.X, DATA.y, K=Kernel(zoo.small_cnn())(DATA.X)).fit_report_
    assert "not this network's kernel" in other.verdict


def test_a_kernel_is_accepted_and_default_networks_fit_the_shape() -> None:
    kernel = Kernel(NET, dtype="float64")
    assert GPClassifier(kernel).fit(DATA.X[:40], DATA.y[:40]).kernel_ is kernel
    assert GPClassifier().fit(DATA.X[:40], DATA.y[:40]).network_ == zoo.pooled_cnn("large", 0, nonlinearity="exp")
    big = np.kron(DATA.X[:6], np.ones((1, 1, 2, 2)))
    assert GPClassifier().fit(big, DATA.y[:6]).network_ == zoo.pooled_cnn("large", 0, nonlinearity="exp")
    waves = DATA.X[:40].reshape(40, 1, 64)
    assert GPClassifier(input_shape=(1, 64)).fit(waves, DATA.y[:40]).network_ == zoo.pooled_cnn(
        "large", 2, nonlinearity="exp"
    )


def test_certificate(fitted: GPClassifier) -> None:
    report = fitted.fit_report_
    assert report.kernel_error < 1e-6
    assert report.residual < 1e-9
    K = Kernel(NET)(DATA.X).astype(float)
    low, high = report.smallest_eigenvalue
    assert low <= np.linalg.eigvalsh(K)[0] <= high * (1 + 1e-9)
    assert high < 2 * np.linalg.eigvalsh(K)[0]
    assert "exact kernel" in report.verdict
    assert "cpu-3-float32" in str(report)
    assert json.dumps(report.as_dict())


@pytest.mark.parametrize(
    ("worrying", "changes", "sentence"),
    [
        (True, {"kernel_error": 0.2}, "not this network's kernel on these images"),
        (True, {"residual": 1e-3}, "solved to 1e-03 only"),
        (True, {"kernel_error": 1e-4}, "larger than the smallest eigenvalue"),
        (True, {"kernel_error": 2e-6}, "off by 2e-06 of the largest, where rounding explains 1e-06"),
        (True, {"spread": 1e-9}, "hardly tells these images apart: they differ by 1e-09 on average"),
        (True, {"guessing": (0.35, 0.5)}, "Not clearly better than guessing: leave-one-out is wrong on 35 % of the"),
        (True, {"guessing": (0.6, 0.5), "residual": 1e-3}, "No better than guessing: leave-one-out is wrong on 60 %"),
        (True, {"no_better": (2.0, 1.5)}, "No better than the mean of all targets: leave-one-out is off by 2, root"),
        (True, {"no_better": (1.4, 1.5)}, "Not clearly better than the mean of all targets: leave-one-out is off by"),
        (False, {"jitter": 1e-7}, "1e-07 of its mean variance added as noise"),
        (False, {"kernel_error": None}, "how exact the matrix is was not measured"),
        (False, {"kernel_error": 9e-7}, "exact kernel: its rounding moves the solution by about 3 %"),
        (False, {"kernel_error": 1e-8, "images": 10**6}, "moves the solution by less than 0.1 %"),
        (False, {"kernel_error": 4e-6, "kernel_bound": 1e-5}, "may move variances and the likelihood by up to 13 %"),
        (False, {"method": "inducing"}, "How far its error is from that of the exact process was not measured."),
        (False, {"method": "inducing", "excess": 1e-3, "excess_uncertainty": 5e-4}, "Its error is within 0.20 points"),
        (
            False,
            {"method": "inducing", "excess": 1e-3, "excess_uncertainty": 2e-3},
            "its error may be up to 0.5 points",
        ),
    ],
)
def test_what_the_certificate_says(
    fitted: GPClassifier, worrying: bool, changes: dict[str, Any], sentence: str
) -> None:
    sound = {"images": 100, "largest_variance": 1.0, "smallest_eigenvalue": (1e-5, 1e-4), "kernel_bound": 1e-6}
    report = replace(fitted.fit_report_, **sound | changes)
    assert sentence in report.verdict
    assert report.worrying is worrying
    assert ("solved to 1e-03 only" in report.verdict) == ("residual" in changes)


def test_compiling_is_not_in_the_time_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where the fit would have to compile: not for a given matrix, and not for a store that may be whole."""
    prepare = Kernel.prepare

    def slow(kernel: Kernel, X: Any) -> float:
        time.sleep(0.6)
        return prepare(kernel, X) + 0.6

    monkeypatch.setattr(Kernel, "prepare", slow)
    report = GPClassifier(NET).fit(DATA.X, DATA.y).fit_report_
    assert report.compile_seconds > 0.6 > report.kernel_seconds
    assert report.compiling is not None
    given = GPClassifier(NET).fit(DATA.X, DATA.y, K=Kernel(NET)(DATA.X)).fit_report_
    stored = GPClassifier(NET, store=tmp_path / "K.zarr").fit(DATA.X, DATA.y).fit_report_
    assert given.compile_seconds == stored.compile_seconds == 0.0


@pytest.mark.parametrize("scale", [1e160, 1e-160])
def test_normalised_targets_may_have_any_scale(scale: float) -> None:
    x = np.random.default_rng(0).standard_normal((30, 3))
    y = np.sin(x[:, 0])
    plain, scaled = (GPRegressor(zoo.dense_nngp(), device="cpu", normalize_y=True).fit(x, s * y) for s in (1.0, scale))
    for a, b in zip(scaled.predict(x + 0.1, return_std=True), plain.predict(x + 0.1, return_std=True), strict=True):
        np.testing.assert_allclose(a / scale, b, rtol=1e-9)
    assert scaled.loo_error_ == pytest.approx(scale * plain.loo_error_)


def test_images_are_checked_once_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(np, name)

        def isfinite(self, a: Any) -> Any:
            looked.append(len(a))
            return np.isfinite(a)

    monkeypatch.setattr("cnngp.common.arrays.namespace", lambda a: Counting())
    clf = GPClassifier(NET, device="cpu").fit(DATA.X, DATA.y)
    assert looked.count(150) == 1
    for predict in (clf.predict, clf.predict_proba, clf.predict_latent, clf.explain, clf.novelty):
        looked.clear()
        predict(DATA.X_test)
        assert looked == [80]
    looked.clear()
    clf.add(DATA.X_test, DATA.y_test)
    assert looked == [80]


def test_checked_images_of_another_precision_are_checked_again() -> None:
    images = CheckedImages(np.full((2, 1, 2, 2), 1e300))
    assert as_images(images[1:], np.dtype("float64")).shape == (1, 1, 2, 2)
    with pytest.raises(DataError, match=r"X\[0\] has infinite"):
        as_images(images, np.dtype("float32"))


@pytest.mark.parametrize("estimator", [GPClassifier, GPRegressor])
def test_the_most_uncertain_images(estimator: Any) -> None:
    with pytest.raises(NotFittedError):
        estimator().most_uncertain()
    model = estimator(NET, noise=0.1, device="cpu").fit(DATA.X, DATA.y)
    rows, new = model.most_uncertain(5), model.most_uncertain(np.int64(3), DATA.X_test)
    known, of_new = (
        (-model.loo_probabilities_.max(1), -model.predict_proba(DATA.X_test).max(1))
        if estimator is GPClassifier
        else (model.loo_std_, model.predict(DATA.X_test, return_std=True)[1])
    )
    assert known[rows].mean() > np.median(known)
    assert of_new[new].min() > np.median(of_new)
    assert (len(rows), len(new)) == (5, 3)


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
def test_generators_as_random_states(make: Any, tmp_path: Path) -> None:
    first, second, other = (
        GPClassifier(NET, inducing=20, random_state=make(seed)).fit(DATA.X, DATA.y) for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first.X_, second.X_)
    assert not np.array_equal(other.X_, first.X_)
    first.save(tmp_path / "m.gp")
    assert len(GPClassifier.load(tmp_path / "m.gp", device="cpu").X_) == 20
    assert GPClassifier(NET, inducing=20, random_state=None).fit(DATA.X, DATA.y).gp_.points == 20


def test_torch_tensors_are_images_too(fitted: GPClassifier) -> None:
    torch = pytest.importorskip("torch")
    np.testing.assert_array_equal(fitted.predict(torch.from_numpy(DATA.X_test)), fitted.predict(DATA.X_test))
