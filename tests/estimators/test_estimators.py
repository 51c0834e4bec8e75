"""What a fit predicts, against the equations and a rival library, from images, matrices and tensors."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor

from cnngp import GPClassifier, GPRegressor, Kernel, zoo
from cnngp.common.arrays import CheckedImages, DataError, as_images
from cnngp.kernel.program import Kind
from helpers.estimators import DATA, NET, classifier, fitted


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_a_classifier_is_what_the_equations_say(kind: Kind, noise: float) -> None:
    """Probabilities are calibrated without held-out data."""
    kernel = Kernel(NET, device="cpu", kind=kind)
    K, K_test = (kernel(*given).astype(float) for given in ((DATA.X,), (DATA.X_test, DATA.X)))
    Y = 2.0 * np.eye(10)[DATA.y] - 1.0
    inverse = np.linalg.inv(K + noise * np.eye(150))
    alpha = inverse @ Y
    amplitude = (Y * alpha).mean()
    clf = classifier(kind=kind, noise=noise).fit(DATA.X, DATA.y)
    mean, variance = clf.predict_latent(DATA.X_test)
    np.testing.assert_allclose(mean, K_test @ alpha, atol=1e-7)
    known = np.einsum("mi,ij,mj->m", K_test, inverse, K_test)
    np.testing.assert_allclose(variance, amplitude * (kernel.diag(DATA.X_test) - known), rtol=1e-5)
    np.testing.assert_array_equal(clf.predict(DATA.X_test), mean.argmax(1))
    loo = Y - alpha / np.diag(inverse)[:, None]
    np.testing.assert_array_equal(clf.loo_predictions_, loo.argmax(1))
    assert clf.loo_error_ == np.mean(loo.argmax(1) != DATA.y) < 0.3

    P = clf.predict_proba(DATA.X_test)
    scale = clf.temperature_ * np.sqrt(1.0 + variance + amplitude * noise)
    expected = np.exp(mean / scale[:, None])
    np.testing.assert_allclose(P, expected / expected.sum(1, keepdims=True), rtol=1e-6, atol=1e-11)
    right = P.argmax(1) == DATA.y_test
    assert abs(P.max(1).mean() - right.mean()) < 0.1
    assert P.max(1)[right].mean() > P.max(1)[~right].mean()

    report = clf.fit_report_
    assert report.residual < 1e-9
    assert report.kernel_error < {"nngp": 1e-6, "ntk": 1e-5}[kind]
    assert ("-ntk" in report.engine) == (kind == "ntk")


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
    draws = ours.sample_y(test[:4], 4000)
    assert draws.shape == (4, 2, 4000)
    assert (np.abs(draws.mean(-1) - mean[:4]) < 5.0 * std[:4] / np.sqrt(4000)).all()
    np.testing.assert_allclose(draws.std(-1), std[:4], rtol=0.1)
    # The noise of a new target comes on top, in the units of each output.
    noisy = ours.predict(test, return_std=True, noise=True)[1]
    np.testing.assert_allclose(noisy**2 - std**2, np.broadcast_to(0.01 * y.var(0), std.shape), rtol=1e-6)
    one = GPRegressor(NET, noise=0.5, dtype="float64").fit(DATA.X, y[:, 0])
    assert one.predict(DATA.X_test).shape == one.predict(DATA.X_test, return_std=True)[1].shape == (80,)
    assert one.sample_y(DATA.X_test[:4], 3).shape == (4, 3)
    (_, plain), (_, noisy) = (one.predict(DATA.X_test, return_cov=True, noise=noise) for noise in (False, True))
    np.testing.assert_allclose(noisy - plain, 0.5 * one.gp_.amplitude * np.eye(80), atol=1e-9)
    assert len(ours.add(DATA.X_test, y[:80]).X_) == 230


@pytest.mark.gpu
@pytest.mark.parametrize(("options", "close"), [({}, 1e-3), ({"inducing": 60, "noise": 1e-3}, 0.05)])
def test_on_a_card(options: dict[str, Any], close: float, tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    card, here = (classifier(device=device, **options).fit(DATA.X, DATA.y) for device in ("cuda", "cpu"))
    P = here.predict_proba(DATA.X_test)
    assert type(card.gp_.alpha).__module__.startswith("cupy")
    np.testing.assert_allclose(card.predict_proba(DATA.X_test), P, atol=close)
    assert card.score(DATA.X_test, DATA.y_test) == pytest.approx(here.score(DATA.X_test, DATA.y_test), abs=0.02)
    assert options or card.loo_error_ == here.loo_error_
    assert card.fit_report_.kernel_error < 1e-6
    card.save(tmp_path / "m.gp")
    for device in ("cuda", "cpu"):
        again = GPClassifier.load(tmp_path / "m.gp", device=device)
        np.testing.assert_allclose(again.predict_proba(DATA.X_test), P, atol=close)
    card.add(DATA.X_test[:5], DATA.y_test[:5])
    reg = GPRegressor(NET, noise="ml", device="cuda").fit(DATA.X, DATA.y)
    assert reg.sample_y(DATA.X_test[:4], 3).shape == (4, 3)


def test_precomputed_matrices_kernels_and_tensors() -> None:
    torch = pytest.importorskip("torch")
    model, kernel = fitted(), Kernel(NET)
    expected = model.predict(DATA.X_test)
    K, K_test = kernel(DATA.X), kernel(DATA.X_test, DATA.X)
    clf = GPClassifier().fit(K=K, y=DATA.y)
    np.testing.assert_array_equal(clf.predict(K=K_test), expected)
    P = clf.predict_proba(K=K_test, diagonal=kernel.diag(DATA.X_test))
    np.testing.assert_allclose(P, model.predict_proba(DATA.X_test), atol=1e-9)
    assert clf.fit_report_.kernel_error is None
    both = GPClassifier(NET).fit(DATA.X, DATA.y, K=K)
    np.testing.assert_array_equal(both.predict(DATA.X_test), expected)
    np.testing.assert_array_equal(model.predict(K=K_test), expected)
    np.testing.assert_array_equal(model.predict(torch.from_numpy(DATA.X_test)), expected)
    other = GPClassifier(NET).fit(DATA.X, DATA.y, K=Kernel(zoo.small_cnn())(DATA.X)).fit_report_
    assert "not this network's kernel" in other.verdict
    assert GPClassifier(kernel).fit(DATA.X[:40], DATA.y[:40]).kernel_ is kernel


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

    def namespace(a: Any) -> Any:
        looked.append(len(a))
        return np

    monkeypatch.setattr("cnngp.common.arrays.namespace", namespace)
    clf = classifier().fit(DATA.X, DATA.y)
    assert looked.count(150) == 1
    calls = [(ask, DATA.X_test) for ask in (clf.predict_proba, clf.predict_latent, clf.explain, clf.novelty)]
    for ask, *given in (*calls, (clf.add, DATA.X_test, DATA.y_test)):
        looked.clear()
        ask(*given)
        assert looked == [80]


def test_checked_images_of_another_precision_are_checked_again() -> None:
    images = CheckedImages(np.full((2, 1, 2, 2), 1e300))
    assert as_images(images[1:], np.dtype("float64")).shape == (1, 1, 2, 2)
    with pytest.raises(DataError, match=r"X\[0\] has infinite"):
        as_images(images, np.dtype("float32"))


@pytest.mark.parametrize("estimator", [GPClassifier, GPRegressor])
def test_the_most_uncertain_images(estimator: Any) -> None:
    model = estimator(NET, noise=0.1, device="cpu").fit(DATA.X, DATA.y)
    if estimator is GPClassifier:
        P = model.loo_probabilities_, model.predict_proba(DATA.X_test)
        known, new = (-(p * np.log(p)).sum(1) for p in P)
    else:
        known, new = model.loo_std_, model.predict(DATA.X_test, return_std=True)[1]
    np.testing.assert_array_equal(model.most_uncertain(5), np.argsort(-known)[:5])
    np.testing.assert_array_equal(model.most_uncertain(np.int64(3), DATA.X_test), np.argsort(-new)[:3])


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
