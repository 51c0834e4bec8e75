"""What labels may be: wrong, new, random, several for one image, trusted more or less; and scores made of them."""

from typing import Any

import numpy as np
import pytest

from cnngp import GPClassifier, GPRegressor, datasets
from cnngp.common.arrays import DataError
from cnngp.estimators.labels import read_labels
from cnngp.gp import calibration
from helpers.estimators import NET, classifier

DATA = datasets.digits().take(200, 60)
NAMES = [f"{i}.png" for i in range(len(DATA.X))]
TWO = np.stack([DATA.y % 2, DATA.y > 4, DATA.y == 3], 1).astype(int)


# ---- suspects --------------------------------------------------------------------------------------------------------


def test_wrong_labels_are_found_and_the_right_ones_proposed() -> None:
    rng = np.random.default_rng(0)
    wrong = rng.choice(len(DATA.y), 6, replace=False)
    y = DATA.y.copy()
    y[wrong] = (y[wrong] + rng.integers(1, 10, 6)) % 10
    clf = classifier().fit(DATA.X, y, names=NAMES)
    found = clf.suspect_labels(len(y))
    at = found["row"]
    assert len(set(at[:6]) & set(wrong)) >= 5
    assert (found["proposed"][:6] == DATA.y[at[:6]]).sum() >= 5
    P = clf.loo_probabilities_[at, np.searchsorted(clf.classes_, found["given"])]
    np.testing.assert_allclose(found["score"], 1.0 - P, atol=1e-15)
    assert (np.diff(found["score"]) <= 0).all()
    assert (found["given"] == y[at]).all()
    assert list(found["name"]) == [NAMES[i] for i in at]
    nameless = classifier().fit(DATA.X, y)
    assert list(nameless.suspect_labels(1)["name"]) == [f"image {at[0]}"]
    assert len(nameless.suspect_labels(0)["row"]) == 0


def test_targets_that_the_others_contradict() -> None:
    y = DATA.y.astype(float)
    y[17] += 40.0
    found = GPRegressor(NET, device="cpu", noise=1e-2).fit(DATA.X, y, names=NAMES).suspect_labels(2)
    assert (found["row"][0], found["name"][0]) == (17, "17.png")
    assert abs(found["proposed"][0] - DATA.y[17]) < abs(found["given"][0] - DATA.y[17])
    both = GPRegressor(NET, device="cpu", noise=1e-2).fit(DATA.X, np.stack([DATA.y, y], 1)).suspect_labels(1)
    assert both["row"][0] == 17
    assert both["given"].shape == (1, 2)


def test_suspects_among_several_labels() -> None:
    y = TWO.copy()
    y[9, 2] = 1 - y[9, 2]
    found = classifier().fit(DATA.X, y).suspect_labels(3)
    at = list(found["row"]).index(9)
    np.testing.assert_array_equal([found["given"][at], found["proposed"][at]], [y[9], TWO[9]])


def test_names_grow_with_the_images() -> None:
    for names, known in ((NAMES[:150], NAMES[:150]), (None, [""] * 150)):
        clf = classifier().fit(DATA.X[:150], DATA.y[:150], names=names)
        clf.add(DATA.X[150:], DATA.y[150:], names=NAMES[150:])
        assert list(clf.names_) == [*known, *NAMES[150:]]


# ---- labels that are random ------------------------------------------------------------------------------------------


def noisy(y: Any, share: float = 0.3, classes: int = 10, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(len(y)) < share, rng.integers(classes, size=len(y)), y)


@pytest.mark.parametrize("options", [{}, {"kind": "ntk"}, {"inducing": 100}])
def test_probabilities_with_random_labels_are_honest(options: dict[str, Any]) -> None:
    data = datasets.digits().take(250, 500)
    y, y_test = noisy(data.y), noisy(data.y_test, seed=1)
    clf = classifier(noise="loo", **options).fit(data.X, y)
    assert 0.15 < clf.label_noise_ < 0.45
    P = clf.predict_proba(data.X_test)
    assert calibration.scores(P, y_test).ece < 0.08
    if len(clf.loo_rows_) == len(y):  # through inducing images there are too few for bins
        assert calibration.scores(clf.loo_probabilities_, y).ece < 0.08
    np.testing.assert_array_equal(P.argmax(1), clf.predict(data.X_test))
    np.testing.assert_allclose(P.sum(1), 1.0)
    assert P.min() >= clf.label_noise_ / 10
    assert clf.explain(data.X_test[:1])[0].probabilities == pytest.approx(P[0])


@pytest.mark.parametrize(("classes", "share"), [(10, 0.0), (2, 0.0), (10, 0.3), (2, 0.2)])
def test_decisions_are_the_logarithms_of_odds(classes: int, share: float) -> None:
    data = datasets.digits().take(300, 60)
    clf = classifier(noise="loo").fit(data.X, noisy(data.y % classes, share, classes))
    assert (clf.label_noise_ > 0.05) == (share > 0)
    scores, P = clf.decision_function(DATA.X_test), clf.predict_proba(DATA.X_test)
    np.testing.assert_allclose(np.exp(clf.predict_log_proba(DATA.X_test)), P, rtol=1e-12)
    if classes == 2:
        np.testing.assert_allclose(scores, np.log(P[:, 1] / P[:, 0]), rtol=1e-6)
        np.testing.assert_array_equal(scores > 0, clf.predict(DATA.X_test))
    else:
        np.testing.assert_allclose(calibration.softmax(scores), P, atol=1e-11)


def test_smoothing_allows_one_wrong_label_in_all() -> None:
    """With n labels at confidence p for two classes, the best p is Platt's (n + 1)/(n + 2)."""
    labels, confidences = np.zeros(8, np.intp), np.linspace(0.5, 0.999, 2000)
    losses = [calibration.smoothed_loss(np.tile([p, 1.0 - p], (8, 1)), labels) for p in confidences]
    assert confidences[int(np.argmin(losses))] == pytest.approx(9.0 / 10.0, abs=5e-4)


# ---- several labels --------------------------------------------------------------------------------------------------


def test_each_of_several_labels_has_a_temperature_and_noise_of_its_own() -> None:
    data = datasets.digits().take(300, 300)
    rng = np.random.default_rng(0)

    def labels(y: Any) -> Any:  # one that is easy, one with random values, one that has nothing to do with the image
        return np.stack([y == 0, noisy(y % 2, 0.3, 2), rng.integers(2, size=len(y))], 1)

    clf = classifier(noise="loo").fit(data.X, labels(data.y))
    assert np.shape(clf.temperature_) == np.shape(clf.label_noise_) == (3,)
    assert clf.label_noise_[0] == 0.0 < 0.1 < clf.label_noise_[1]
    P, truth = clf.predict_proba(data.X_test), labels(data.y_test)
    assert -np.log(np.where(truth, P, 1 - P)).mean(0)[2] < 0.75


def test_several_labels_an_image() -> None:
    clf = classifier().fit(DATA.X, TWO)
    truth = np.stack([DATA.y_test % 2, DATA.y_test > 4, DATA.y_test == 3], 1).astype(int)
    assert clf.score(DATA.X_test, truth) > 0.85
    P = clf.predict_proba(DATA.X_test)
    np.testing.assert_array_equal(clf.predict(DATA.X_test), P > 0.5)
    np.testing.assert_allclose(clf.decision_function(DATA.X_test), np.log(P / (1 - P)), rtol=1e-6)
    for k in range(3):  # each label is a question of its own
        one = classifier().fit(DATA.X, TWO[:, k])
        np.testing.assert_array_equal(one.predict(DATA.X_test), clf.predict(DATA.X_test)[:, k])
    assert clf.loo_error_ == (clf.loo_predictions_ != TWO).any(1).mean()
    assert len(clf.add(DATA.X_test, truth).X_) == 260
    with pytest.raises(DataError, match=r"y has shape \(60, 2\), unlike the labels of fit"):
        clf.add(DATA.X_test, truth[:, :2])


@pytest.mark.parametrize("new", [(0,), (4, 7), (9,)])
def test_new_classes_come_as_if_they_had_been_there(new: tuple[int, ...]) -> None:
    words = np.array([f"class {c}" for c in DATA.y])
    words[DATA.y == 9] = "something longer"
    old = ~np.isin(DATA.y, new)
    order = np.r_[np.flatnonzero(old), np.flatnonzero(~old)]
    grown = classifier(noise=1e-3).fit(DATA.X[old], words[old].astype("U7")).add(DATA.X[~old], words[~old])
    whole = classifier(noise=1e-3).fit(DATA.X[order], words[order])
    np.testing.assert_array_equal(grown.classes_, whole.classes_)
    np.testing.assert_array_equal(grown.y_, whole.y_)
    np.testing.assert_allclose(grown.predict_proba(DATA.X_test), whole.predict_proba(DATA.X_test), atol=1e-9)
    assert grown.loo_error_ == whole.loo_error_


@pytest.mark.parametrize("estimator", [GPClassifier, GPRegressor])
def test_weights_of_added_images_are_those_of_a_fit(estimator: Any) -> None:
    weight = np.random.default_rng(0).choice([0.0, 0.5, 1.0, 3.0], len(DATA.X))
    options = {"noise": 0.05, "device": "cpu", "dtype": "float64"}
    options |= {"class_weight": {3: 2.0, 5: 0.0}} if estimator is GPClassifier else {}
    whole = estimator(NET, **options).fit(DATA.X, DATA.y, sample_weight=weight)
    grown = estimator(NET, **options).fit(DATA.X[:120], DATA.y[:120], sample_weight=weight[:120])
    grown.add(DATA.X[120:], DATA.y[120:], sample_weight=weight[120:])
    np.testing.assert_array_equal(grown.X_, whole.X_)
    np.testing.assert_array_equal(grown.y_, whole.y_)
    np.testing.assert_allclose(grown.gp_.leave_one_out().mean, whole.gp_.leave_one_out().mean, rtol=1e-8, atol=1e-10)


def test_labels_of_any_kind() -> None:
    names = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    for y in (names[DATA.y], list(names[DATA.y]), names[DATA.y].astype(object)):
        clf = classifier().fit(DATA.X, y)
        assert set(clf.predict(DATA.X_test)) <= set(names)
        assert clf.score(DATA.X_test, names[DATA.y_test]) > 0.8
    assert clf.add(DATA.X_test[:2], np.array(["one", "two"], dtype=object)).fit_report_.images == 202
    assert classifier().fit(DATA.X, DATA.y % 2 == 0).predict(DATA.X_test).dtype == bool
    for labels in ([3, 1, 3, 2], [True, False, True, True]):
        read = read_labels(np.array(labels, dtype=object))
        assert read.tolist() == labels
        assert read.dtype.kind in "ib"
    with pytest.raises(ValueError):
        read_labels(np.array([1, "2", 1], dtype=object))
