"""Probabilities against Monte Carlo and closed forms, metrics against scikit-learn."""

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import log_loss

from cnngp.gp import calibration

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_probability_of_largest_is_what_sampling_gives(classes: int) -> None:
    mean = RNG.normal(size=(6, classes))
    std = np.array([0.05, 0.2, 0.5, 1.0, 2.0, 10.0])
    P = calibration.probability_of_largest(mean, std)
    np.testing.assert_allclose(P.sum(1), 1.0, rtol=1e-12)
    draws = mean + std[:, None] * RNG.normal(size=(100_000, 6, classes))
    wins = np.stack([(draws.argmax(2) == c).mean(0) for c in range(classes)], 1)
    assert np.abs(P - wins).max() < 5 * 0.5 / np.sqrt(100_000)


def test_confident_certain_and_only_predictions_stay_finite() -> None:
    P = calibration.probability_of_largest(np.array([[1.0, -1.0, -1.0]]), np.array([1e-9]))
    assert np.isfinite(np.log(P)).all()
    assert P[0, 0] > 0.999999
    known = calibration.probability_of_largest(np.array([[1.0, 1.0, 0.0], [0.0, 2.0, 1.0]]), np.zeros(2))
    np.testing.assert_allclose(known, [[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]], atol=1e-9)
    np.testing.assert_allclose(calibration.probability_of_largest(np.ones((1, 2)), np.zeros(1)), 0.5)
    scores, labels = RNG.normal(size=(5, 1)), np.zeros(5, int)  # of one class
    fitted = calibration.fit_temperature(scores, labels), *calibration.fit_label_noise(scores, labels)
    assert np.isfinite(fitted).all()
    assert calibration.smoothed_loss(calibration.softmax(scores), labels) == 0.0


def test_metrics_by_hand_and_like_scikit_learn() -> None:
    found = calibration.scores(np.array([[0.8, 0.2], [0.8, 0.2], [0.4, 0.6]]), np.array([0, 1, 1]))
    expected = (0.08 + 1.28 + 0.32) / 3, (2 * 0.3 + 0.4) / 3, 1 / 3
    assert (found.brier, found.ece, found.error) == pytest.approx(expected)
    P, labels = calibration.softmax(RNG.normal(size=(400, 4))), RNG.integers(0, 4, 400)
    assert calibration.negative_log_likelihood(P, labels) == pytest.approx(log_loss(labels, P))
    curve = calibration.reliability(P, labels, bins=10)
    accuracy, confidence = calibration_curve(P.argmax(1) == labels, P.max(1), n_bins=10)
    filled = curve.count > 0
    np.testing.assert_allclose(curve.accuracy[filled], accuracy)
    np.testing.assert_allclose(curve.confidence[filled], confidence)


@pytest.mark.parametrize("classes", [2, 7])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_no_other_temperature_has_less_of_the_loss(classes: int, scale: float) -> None:
    labels = RNG.integers(0, classes, 80)
    scores = scale * (RNG.normal(size=(80, classes)) + 2.0 * np.eye(classes)[labels])
    T = calibration.fit_temperature(scores, labels)
    losses = [calibration.smoothed_loss(calibration.softmax(scores / t), labels) for t in np.geomspace(1e-3, 1e3, 2000)]
    assert calibration.smoothed_loss(calibration.softmax(scores / T), labels) <= min(losses) + 1e-6


def drawn(n: int, noise: float, seed: int, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Scores, and labels of softmax(scores/0.3) of which a share is random."""
    rng = np.random.default_rng(seed)
    sure = 2.0 * rng.random((n, 1))  # some images are easy, others are not
    scores = sure * (2.0 * np.eye(classes)[rng.integers(classes, size=n)] - 1.0) + rng.normal(0, 0.2, (n, classes))
    P = calibration.with_label_noise(calibration.softmax(scores / 0.3), noise)
    return scores, (P.cumsum(1) > rng.random(n)[:, None]).argmax(1)


def test_temperatures_and_shares_of_random_labels_are_recovered() -> None:
    scores = 3.0 * RNG.normal(size=(4000, 5))
    labels = np.array([RNG.choice(5, p=p) for p in calibration.softmax(scores)])
    assert calibration.fit_temperature(2.5 * scores, labels) == pytest.approx(2.5, rel=0.1)
    T, noise = calibration.fit_label_noise(*drawn(4000, 0.3, 1))
    assert pytest.approx(0.3, rel=0.1) == T
    assert pytest.approx(0.3, abs=0.03) == noise


def test_labels_that_follow_the_scores_are_not_taken_to_be_random() -> None:
    for n in (20, 100, 400):
        found = [calibration.fit_label_noise(*drawn(n, 0.0, seed)) for seed in range(10)]
        assert sum(noise > 0.0 for _, noise in found) <= 1
        assert all(0.1 < T < 1.0 for T, _ in found)


def test_a_few_labels_that_are_all_predicted_wrongly_leave_the_temperature_finite() -> None:
    labels = np.repeat(np.arange(6), 2)
    scores = 0.3 * RNG.normal(size=(12, 6)) - np.eye(6)[labels]  # the class that was left out is the rarest
    assert calibration.fit_temperature(scores, labels) > 1000
    T, noise = calibration.fit_label_noise(scores, labels)
    assert 0.5 < T < 50
    assert noise == 0.0
