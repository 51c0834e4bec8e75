"""Why a model says what it says, and how unlike its training images an image is."""

import json
import math
from typing import Any

import numpy as np
import pytest

from cnngp import Conv, Dense, GPClassifier, ReLU, Sequential, datasets
from cnngp.common.arrays import DataError
from cnngp.gp.near_copies import novelty_of_points
from helpers.estimators import classifier

NET = Sequential(Conv(3), ReLU(), Conv(3), ReLU(), Dense())
DATA = datasets.digits().take(250, 40)
NAMES = [f"{i}.png" for i in range(len(DATA.X))]


@pytest.mark.parametrize("options", [{}, {"solver": "cg", "noise": 1e-2}, {"inducing": 60}, {"noise": "ml"}])
def test_shares_sum_to_the_mean_and_voices_are_the_images_with_most_of_it(options: dict[str, Any]) -> None:
    clf = classifier(NET, **options).fit(DATA.X, DATA.y, names=NAMES)
    why = clf.explain(DATA.X_test)
    P = clf.predict_proba(DATA.X_test)
    for e, x, p in zip(why, DATA.X_test, P, strict=True):
        np.testing.assert_array_equal(e.shares.sum(0), e.mean)
        assert e.predicted == clf.predict(x[None])[0]
        np.testing.assert_array_equal(e.probabilities, p)
        shares = sorted(e.shares[:, list(clf.classes_).index(e.predicted)])
        assert [voice.share for voice in e.speaking_for(n=3)] == shares[:-4:-1]
        assert [voice.share for voice in e.speaking_against(n=3)] == shares[:3]
    means = np.array([e.mean for e in why])
    np.testing.assert_allclose(means, clf.fit_.mean(clf._asked(DATA.X_test, None)), atol=1e-9)
    for voice in why[0].speaking_for():
        row = int(voice.name.removesuffix(".png"))
        assert voice.label == DATA.y[row]
        np.testing.assert_array_equal(clf.X_[voice.row], DATA.X[row])


def test_shares_are_what_a_changed_target_would_move() -> None:
    """The mean is linear in the targets: without an image's, its share is what is missing."""
    clf = classifier(NET, noise=1e-3).fit(DATA.X, DATA.y)
    e = clf.explain(DATA.X_test[:1])[0]
    K = clf.gp_.kernel_between(np.arange(len(DATA.X)))
    k = clf.kernel_(DATA.X_test[:1], DATA.X)[0]
    Y = 2.0 * np.eye(10)[DATA.y] - 1.0
    voice = e.speaking_for(n=1)[0]
    Y[voice.row] = 0.0
    without = k @ np.linalg.solve(K + 1e-3 * np.eye(len(K)), Y)
    column = list(clf.classes_).index(e.predicted)
    assert e.mean[column] - without[column] == pytest.approx(voice.share, abs=1e-9)


def test_explanations_in_words_in_json_of_matrices_and_of_several_labels() -> None:
    clf = classifier(NET).fit(DATA.X, DATA.y, names=NAMES)
    K, K_test, diagonal = clf.kernel_(DATA.X), clf.kernel_(DATA.X_test, DATA.X), clf.kernel_.diag(DATA.X_test)
    given = GPClassifier().fit(K=K, y=DATA.y, names=NAMES)
    found = clf.explain(DATA.X_test[:3], saliency=True)
    np.testing.assert_array_equal([e.saliency for e in found], clf.saliency(DATA.X_test[:3]))
    for ours, theirs in zip(found, given.explain(K=K_test[:3], diagonal=diagonal[:3]), strict=True):
        np.testing.assert_array_equal(theirs.shares, ours.shares)
        assert theirs.novelty == pytest.approx(ours.novelty, abs=1e-12)
        assert theirs.novelty_rank == ours.novelty_rank
        assert theirs.speaking_for() == ours.speaking_for()
        assert theirs.saliency is None
    with pytest.raises(DataError, match="saliency is a gradient by pixels; give images X instead of K"):
        given.explain(K=K_test[:1], diagonal=diagonal[:1], saliency=True)

    e = found[0]
    assert e.speaking_for(n=1)[0].name in str(e)
    other = (e.predicted + 1) % 10
    assert e.speaking_for(label=other, n=1)[0].share == e.shares[:, list(clf.classes_).index(other)].max()
    with pytest.raises(DataError, match="'x' is not a class of the model"):
        e.speaking_for(label="x")
    told = json.loads(json.dumps(e.as_dict(n=2)))
    total = sum(v["share"] for v in (*told["for"], *told["against"])) + told["rest"]
    assert total == pytest.approx(told["mean"], abs=1e-12)
    assert told["for"][0]["label"] == int(e.predicted)

    several = np.stack([DATA.y % 2, DATA.y > 4], 1).astype(int)
    e = classifier(NET).fit(DATA.X, several).explain(DATA.X_test[:1])[0]
    assert e.shares.shape == (250, 2)
    np.testing.assert_array_equal(e.predicted, e.mean > 0)
    assert json.loads(json.dumps(e.as_dict()))["for"][0]["label"] in ([0, 0], [0, 1], [1, 0], [1, 1])


# ---- novelty ---------------------------------------------------------------------------------------------------------


def test_novelty_of_images() -> None:
    clf = classifier(NET).fit(DATA.X, DATA.y)
    assert clf.novelty(DATA.X).max() < 1e-5
    usual, noise = clf.novelty(DATA.X_test), clf.novelty(np.random.default_rng(0).random((40, 1, 8, 8)))
    assert np.median(usual) < 0.5 * np.median(noise)
    np.testing.assert_array_equal(clf.score_samples(DATA.X_test), -usual)
    assert clf.novelty(np.zeros((1, 1, 8, 8)))[0] == 1.0  # this network has no biases: nothing can be said of it
    np.testing.assert_allclose(clf.novelty(7.0 * DATA.X_test), usual, atol=1e-5)
    assert clf.explain(np.zeros((1, 1, 8, 8)))[0].novelty_rank == 1.0
    biased = classifier("small_cnn").fit(DATA.X, DATA.y)
    assert biased.novelty(np.zeros((1, 1, 8, 8)))[0] > biased.loo_novelty_.max()


def test_novelty_of_training_images_against_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clf = classifier(NET).fit(DATA.X, DATA.y)
    K = clf.gp_.kernel_between(np.arange(len(DATA.X)))
    s = np.sqrt(K.diagonal())
    C = K / np.outer(s, s) - 2.0 * np.eye(len(K))
    np.testing.assert_allclose(clf.loo_novelty_, 1.0 - C.max(1), atol=1e-12)
    monkeypatch.setattr("cnngp.gp.near_copies._ROWS", 7)
    np.testing.assert_allclose(novelty_of_points(K, K.diagonal()), 1.0 - C.max(1), atol=1e-12)
    before = clf.loo_novelty_
    assert len(clf.add(DATA.X_test, DATA.y_test).loo_novelty_) == len(before) + 40
    assert clf.fit(DATA.X, DATA.y).loo_novelty_.shape == before.shape
    inducing = classifier(NET, inducing=50).fit(DATA.X, DATA.y)
    assert inducing.loo_novelty_ is None
    assert math.isnan(inducing.explain(DATA.X_test[:1])[0].novelty_rank)
