"""Class probabilities from posterior moments, and measures of their calibration.

A GP on ±1 targets gives a mean per class and one variance; the functions here turn them into probabilities and score
those. Classes are integers 0 … C − 1, probabilities have shape (M, C).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .objectives import minimised

Array = NDArray[np.float64]
Labels = NDArray[np.intp]

# Smallest reported probability: below the rounding of a float32 kernel a probability carries no information.
_FLOOR = 1e-12
_SURE = 1e-100  # replaces a standard deviation of 0, so that equal means give equal probabilities
_CHUNK = 1024
# Mean and standard deviation of the normal prior of log T, so wide that a few dozen labels outweigh it. If targets of
# ±1 scatter around their mean with variance σ², which is at most 1, the log odds of two classes are the difference of
# their means over T = σ²/2, or over σ² if there are no others. A few labels alone can favour any T: with two images per
# class the one left out is of the rarest class, leave-one-out is mostly wrong, and T would be infinite.
_LOG_T, _LOG_T_STD = math.log(0.5), 2.0
# Nats by which random labels must improve the fit before some labels are taken to be random: e³ is twenty to one.
_CLEAR_GAIN = 3.0


def probability_of_largest(mean: Array, std: Array, nodes: int = 64) -> Array:
    """Return P(f_c is the largest) for independent f_c ~ N(mean_c, std²), from (M, C) and (M,).

    P_c = ∫ N(z; 0, 1) Π_{j≠c} Φ((m_c − m_j)/s + z) dz, by Gauss–Hermite quadrature. Two classes need none:
    P_0 = Φ((m_0 − m_1)/(s√2)).

    >>> probability_of_largest(np.array([[0.0, 0.0, 0.0]]), np.array([1.0])).round(6)
    array([[0.333333, 0.333333, 0.333333]])
    """
    from scipy.special import log_ndtr, ndtr

    m, s = np.asarray(mean, dtype=np.float64), np.maximum(np.asarray(std, dtype=np.float64), _SURE)
    if m.shape[1] == 2:
        return _normalised(ndtr(np.stack([m[:, 0] - m[:, 1], m[:, 1] - m[:, 0]], 1) / (math.sqrt(2.0) * s[:, None])))
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    P = np.empty_like(m)
    classes = m.shape[1]
    for start in range(0, len(m), _CHUNK):
        rows = slice(start, start + _CHUNK)
        for c in range(classes):
            others = [j for j in range(classes) if j != c]
            d = (m[rows, c, None] - m[rows][:, others]) / s[rows, None]  # (rows, C − 1)
            P[rows, c] = np.exp(log_ndtr(d[:, :, None] + z).sum(1)) @ w
    return _normalised(P)


def softmax(scores: Array) -> Array:
    """Return e^{s_c}/Σ_j e^{s_j} for each row."""
    e = np.exp(scores - scores.max(1, keepdims=True))
    return _normalised(e)


def fit_temperature(scores: Array, labels: Labels) -> float:
    """Fit the temperature T of softmax(scores/T) to these labels by `smoothed_loss`, with a search along log T.

    The search for the noise calls this for each noise that it tries. The arrays have one row per class, because NumPy
    sums long rows many times as fast as short ones.
    """
    below = np.ascontiguousarray((scores - scores.max(1, keepdims=True)).T)  # (C, n)
    target, least = smoothed(labels, scores.shape[1]).T, math.log(_FLOOR)

    def loss(log_t: float) -> float:
        s = np.maximum(below / math.exp(log_t), least)
        return -float((target * np.maximum(s - np.log(np.exp(s).sum(0)), least)).sum()) / len(labels)

    return math.exp(_best_log_t(loss))


def fit_label_noise(scores: Array, labels: Labels) -> tuple[float, float]:
    """Fit T and ε of `with_label_noise(softmax(scores/T), ε)` to these labels; ε is 0 unless it clearly helps.

    If a share of the labels is random, no temperature calibrates the probabilities: it makes all of them less
    confident. Both numbers maximise Platt's likelihood (`smoothed_loss`) times a wide prior of log T and, for ε, the
    prior Beta(1, 2), 2(1 − ε), which amounts to one more label that is not random.
    """
    n, target = len(labels), smoothed(labels, scores.shape[1])

    def loss(log_t: float, noise: float = 0.0) -> float:
        P = with_label_noise(softmax(scores / math.exp(log_t)), noise)
        prior = 0.5 * ((log_t - _LOG_T) / _LOG_T_STD) ** 2
        return n * smoothed_loss(P, labels) - math.log1p(-noise) + prior

    def share(log_t: float) -> float:
        return _best_share(softmax(scores / math.exp(log_t)), target)

    plain, noisy = _best_log_t(loss), _best_log_t(lambda log_t: loss(log_t, share(log_t)))
    if loss(plain) - loss(noisy, share(noisy)) > _CLEAR_GAIN:
        return math.exp(noisy), share(noisy)
    return math.exp(plain), 0.0


def with_label_noise(P: Array, noise: float | Array) -> Array:
    """Return (1 − ε)P + ε/C: a share ε of the labels is random among the C classes. ε is a number or (M, 1).

    >>> with_label_noise(np.array([[1.0, 0.0]]), 0.2)
    array([[0.9, 0.1]])
    """
    return np.asarray((1.0 - noise) * P + noise / P.shape[1])


def smoothed_loss(probabilities: Array, labels: Labels) -> float:
    """Return −mean log P(label), if each of the n labels may be wrong with probability 1/(n + 2) (Platt, 1999).

    Without this allowance, n correct predictions would give the temperature zero, and every probability 0 or 1.
    """
    target = smoothed(labels, probabilities.shape[1])
    return float(-(target * np.log(np.maximum(probabilities, _FLOOR))).sum(1).mean())


def smoothed(labels: Labels, classes: int) -> Array:
    """Target probabilities (n, classes) of Platt's smoothing, in which each label may be wrong."""
    n = len(labels)
    wrong = 1.0 / (n + 2)
    target = np.full((n, classes), wrong / max(classes - 1, 1))
    target[np.arange(n), labels] = 1.0 - wrong
    return target


def negative_log_likelihood(probabilities: Array, labels: Labels) -> float:
    """Return −mean log P(label), in nats."""
    return float(-np.log(np.maximum(probabilities[np.arange(len(labels)), labels], _FLOOR)).mean())


def brier_score(probabilities: Array, labels: Labels) -> float:
    """Return the mean of Σ_c (P_c − [c = label])²: 0 is perfect, 2 the worst."""
    return float(((probabilities - np.eye(probabilities.shape[1])[labels]) ** 2).sum(1).mean())


@dataclass(frozen=True)
class Reliability:
    """Accuracy of predictions by their confidence, in bins of equal width over [0, 1]."""

    confidence: Array
    accuracy: Array
    count: Labels

    @property
    def ece(self) -> float:
        """Expected calibration error: Σ_b (n_b/n) |accuracy_b − confidence_b|."""
        filled = self.count > 0
        gaps = np.abs(self.accuracy[filled] - self.confidence[filled])
        return float((gaps * self.count[filled]).sum() / self.count.sum())


def reliability(probabilities: Array, labels: Labels, bins: int = 15) -> Reliability:
    """Reliability curve of the predicted class; empty bins hold NaN.

    >>> reliability(np.array([[0.9, 0.1], [0.9, 0.1]]), np.array([0, 1])).ece
    0.4
    """
    top = probabilities.max(1)
    right = probabilities.argmax(1) == labels
    bin_of = np.minimum((top * bins).astype(np.intp), bins - 1)
    count = np.bincount(bin_of, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence = np.bincount(bin_of, top, minlength=bins) / count
        accuracy = np.bincount(bin_of, right, minlength=bins) / count
    return Reliability(confidence, accuracy, count)


@dataclass(frozen=True)
class Scores:
    """Scores of a set of predicted probabilities: error, NLL, Brier score and calibration error."""

    error: float
    nll: float
    brier: float
    ece: float

    def __str__(self) -> str:
        return f"error {100 * self.error:.2f} %, NLL {self.nll:.4f}, Brier {self.brier:.4f}, ECE {self.ece:.4f}"


def scores(probabilities: Array, labels: Labels) -> Scores:
    """Compute the error, negative log likelihood, Brier score and expected calibration error."""
    P, error = probabilities, float((probabilities.argmax(1) != labels).mean())
    return Scores(error, negative_log_likelihood(P, labels), brier_score(P, labels), reliability(P, labels).ece)


def _best_log_t(loss: Callable[[float], float]) -> float:
    return minimised(loss, math.log(1e-3), math.log(1e3), points=25, tolerance=1e-3).at


def _best_share(P: Array, target: Array) -> float:
    """Maximise the concave Σ target · log((1 − ε)P + ε/C) + log(1 − ε) over ε, by bisection of its slope."""
    away = target * (1.0 / P.shape[1] - P)
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = 0.5 * (low + high)
        if (away / with_label_noise(P, middle)).sum() > 1.0 / (1.0 - middle):
            low = middle
        else:
            high = middle
    return low


def _normalised(P: Array) -> Array:
    P = np.maximum(P, _FLOOR)
    return np.asarray(P / P.sum(1, keepdims=True))
