"""How far a fit through inducing images says it is from the exact process, against the exact process itself."""

import re

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from cnngp import Conv, Dense, GPRegressor, ReLU, Sequential, datasets
from cnngp.estimators.inducing import excess
from helpers.estimators import classifier

NET = Sequential(Conv(3, bias_var=0.1), ReLU(), Conv(3, bias_var=0.1), ReLU(), Dense())
TRAIN, INDUCING = 1000, 200


def images(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """1,797 digits in a random order: as they are, with labels that are wrong, or moved and laid over a texture."""
    rng = np.random.default_rng(seed)
    digits = datasets.digits()
    X, y = np.concatenate([digits.X, digits.X_test]), np.concatenate([digits.y, digits.y_test])
    order = rng.permutation(len(X))
    X, y = X[order], y[order]
    if kind == "wrong":
        y = np.where(rng.random(len(y)) < 0.15, (y + rng.integers(1, 10, len(y))) % 10, y)
    if kind == "textured":
        texture = np.stack([gaussian_filter(rng.standard_normal((8, 8)), 0.8) for _ in X])[:, None]
        texture -= texture.min((2, 3), keepdims=True)
        texture /= texture.max((2, 3), keepdims=True)
        X = np.stack([np.roll(x, rng.integers(-1, 2, 2), (1, 2)) for x in X])
        X = np.maximum(X, 0.7 * texture * (1.0 - X))
    return X, y


SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 5))]


@pytest.mark.parametrize("kind", ["plain", "wrong", "textured"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_report_says_how_far_the_exact_process_is(kind: str, seed: int) -> None:
    X, y = images(kind, seed)
    exact = classifier(NET, noise="loo").fit(X[:TRAIN], y[:TRAIN])
    clf = classifier(NET, inducing=INDUCING, random_state=seed).fit(X[:TRAIN], y[:TRAIN])
    wrong, wrong_exact = (np.asarray(model.predict(X[TRAIN:]) != y[TRAIN:], float) for model in (clf, exact))
    error, unseen = wrong.mean(), len(wrong)
    above = (wrong - wrong_exact).mean()
    uncertainty = (wrong - wrong_exact).std() / np.sqrt(unseen)
    report = clf.fit_report_
    assert abs(report.excess - above) < 3.0 * np.hypot(report.excess_uncertainty, uncertainty)
    # The sentence gives the upper end, in points, and it holds.
    said = re.search(r"Warning: its error may be up to ([\d.]+) points above", report.verdict)
    assert said
    assert float(said[1]) / 100 > above - 2.0 * uncertainty
    if kind == "textured":
        assert above > 0.05
        assert report.excess > 0.03
    # Leave-one-out of images that could not be chosen is honest: 0.3 points and two standard errors.
    errors = np.hypot(*(np.sqrt(error * (1 - error) / n) for n in (unseen, len(clf.loo_rows_))))
    assert abs(clf.loo_error_ - error) < 0.003 + 2.0 * errors


def test_a_share_of_the_error_with_what_chance_adds() -> None:
    small, exact, right = np.arange(100) < 20, np.arange(100) < 15, np.zeros(100)
    above, uncertainty = excess(1.0 * small, 1.0 * exact, 0.04, of=1000)
    assert above == pytest.approx(0.01)  # a quarter of the error
    likely, own = (40 + 1) / 1002, np.sqrt(0.05 * 0.95) / 10
    assert uncertainty == pytest.approx(np.hypot(own * likely / 0.2, 0.25 * np.sqrt(likely * (1 - likely) / 1000)))
    # No image wrong of a hundred is not an error of 0, and better than the exact process is chance.
    assert excess(1.0 * small, 1.0 * exact, 0.0, of=100)[1] > 0.0
    assert excess(1.0 * exact, 1.0 * small, 0.05, of=100)[0] == 0.0
    assert excess(right, right, 0.05, of=100) == (0.0, 0.0)


def test_where_it_is_measured_and_where_not() -> None:
    X, y = images("plain", 1)
    rows = np.arange(0, 400, 8)
    given = classifier(NET, inducing=rows, device="cpu").fit(X[:400], y[:400])
    assert given.fit_report_.excess is not None
    given.add(X[400:420], y[400:420])
    assert given.fit_report_.excess is None  # of other images than those it was measured on
    own = classifier(NET, inducing=X[1000:1050], device="cpu").fit(X[:400], y[:400])
    few = classifier(NET, inducing=30, device="cpu").fit(X[:100], y[:100])
    every = classifier(NET, inducing=300, device="cpu").fit(X[:300], y[:300])
    numbers = GPRegressor(NET, inducing=50, device="cpu").fit(X[:400], y[:400])
    for model in (own, few, every, numbers):
        assert model.fit_report_.excess is None
        assert "exact process of all" not in model.fit_report_.verdict
