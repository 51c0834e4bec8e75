"""How far a fit through inducing images says it is from the exact process, against the exact process itself."""

import re
from typing import NamedTuple

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from cnngp import Conv, Dense, GPClassifier, GPRegressor, ReLU, Sequential, datasets
from cnngp.estimators.inducing import excess

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


class Compared(NamedTuple):
    """A fit, its error on images that it has not seen, and how much that is above the exact one, ± standard error."""

    clf: GPClassifier
    error: float
    above: float
    uncertainty: float
    unseen: int


def compared(kind: str, seed: int) -> Compared:
    X, y = images(kind, seed)
    exact = GPClassifier(NET, noise="loo", device="cpu").fit(X[:TRAIN], y[:TRAIN])
    clf = GPClassifier(NET, inducing=INDUCING, random_state=seed, device="cpu").fit(X[:TRAIN], y[:TRAIN])
    a, b = (np.asarray(m.predict(X[TRAIN:]) != y[TRAIN:], float) for m in (clf, exact))
    return Compared(clf, a.mean(), (a - b).mean(), (a - b).std() / np.sqrt(len(a)), len(a))


@pytest.mark.parametrize("kind", ["wrong", "textured"])
def test_the_report_says_how_far_the_exact_process_is(kind: str) -> None:
    found = compared(kind, 0)
    report = found.clf.fit_report_
    assert abs(report.excess - found.above) < 3.0 * np.hypot(report.excess_uncertainty, found.uncertainty)
    # The sentence gives the upper end, in points, and it holds.
    said = re.search(r"Warning: its error may be up to ([\d.]+) points above", report.verdict)
    assert said
    assert float(said[1]) / 100 > found.above - 2.0 * found.uncertainty
    if kind == "textured":
        assert found.above > 0.05
        assert report.excess > 0.03
    # Leave-one-out of images that could not be chosen is honest: 0.3 points and two standard errors.
    loo = found.clf.loo_error_
    errors = np.hypot(*(np.sqrt(found.error * (1 - found.error) / n) for n in (found.unseen, len(found.clf.loo_rows_))))
    assert abs(loo - found.error) < 0.003 + 2.0 * errors


@pytest.mark.slow
def test_what_it_says_holds_over_sets_and_random_states() -> None:
    """Of 15 fits the warning's upper end holds for 14, the estimate is not far too high on any kind of images, and
    leave-one-out is right on average."""
    fits = {kind: [compared(kind, seed) for seed in range(5)] for kind in ("plain", "wrong", "textured")}
    held = []
    for found in fits.values():
        reports = [f.clf.fit_report_ for f in found]
        ends = [r.excess + 2.0 * r.excess_uncertainty for r in reports]  # type: ignore[operator]
        held += [end >= f.above - f.uncertainty for end, f in zip(ends, found, strict=True)]
        assert abs(np.mean([r.excess for r in reports]) - np.mean([f.above for f in found])) < 0.02
        optimism = np.mean([f.error - f.clf.loo_error_ for f in found])
        error = np.mean([f.error for f in found])
        assert abs(optimism) < 0.003 + 2.0 * np.sqrt(error * (1 - error) / (5 * 250))
    assert sum(held) >= 14


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
    given = GPClassifier(NET, inducing=rows, device="cpu").fit(X[:400], y[:400])
    assert given.fit_report_.excess is not None
    given.add(X[400:420], y[400:420])
    assert given.fit_report_.excess is None  # of other images than those it was measured on
    own = GPClassifier(NET, inducing=X[1000:1050], device="cpu").fit(X[:400], y[:400])
    few = GPClassifier(NET, inducing=30, device="cpu").fit(X[:100], y[:100])
    every = GPClassifier(NET, inducing=300, device="cpu").fit(X[:300], y[:300])
    numbers = GPRegressor(NET, inducing=50, device="cpu").fit(X[:400], y[:400])
    for model in (own, few, every, numbers):
        assert model.fit_report_.excess is None
        assert "exact process of all" not in model.fit_report_.verdict
