"""Coding of labels as targets of ±1, calibration of probabilities, and the losses that select noise and recipes.

One label per image and several labels both become choices between a few options with a mean for each, so temperature,
probabilities and losses are computed in the same way.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from cnngp.common.arrays import DataError, to_numpy
from cnngp.gp import calibration
from cnngp.gp.objectives import Loss, MeansLoss

Array = NDArray[Any]
Floats = NDArray[np.float64]
# Variances are left out if the leave-one-out loss without them is smaller by this factor.
_MUCH_BETTER = 2.0


class Calibration(NamedTuple):
    """Parameters of the probabilities; T and ε are numbers, or (L,) for several labels."""

    temperature: float | Floats
    label_noise: float | Floats
    """ε, the estimated share of random labels."""
    moderated: bool
    """True if variances are used."""


@dataclass(frozen=True)
class Coding:
    """Coding of labels as targets of ±1, and of means as choices between options.

    With one label per image, y (N,), the image makes one choice between the classes; the target of its class is +1.
    With `several`, y (N, L) of 0 and 1 says whether each of L labels holds, and each is a choice between no and yes.
    """

    classes: Array
    several: bool = False

    @property
    def questions(self) -> int:
        """Number of choices per image."""
        return len(self.classes) if self.several else 1

    def targets(self, y: Array) -> Floats:
        """Targets of ±1, (N, outputs)."""
        yes = y.astype(np.float64) if self.several else np.eye(len(self.classes))[np.searchsorted(self.classes, y)]
        return 2.0 * yes - 1.0

    def grown(self, y: Array) -> tuple[Coding, list[int]]:
        """Return the coding with the classes of more labels, and the present positions where new ones are inserted."""
        if self.several or y.ndim == 2:
            labels = len(self.classes)
            if not self.several or y.shape[1:] != (labels,):
                of_fit = f"(N, {labels})" if self.several else "(N,)"
                raise DataError(f"y has shape {y.shape}, unlike the labels of fit, {of_fit}")
            return self, []
        if (y.dtype.kind in "US") != (self.classes.dtype.kind in "US"):
            raise DataError(f"y holds labels of type {y.dtype}; expected those of fit, {self.classes.dtype}")
        unknown = np.setdiff1d(y, self.classes)
        if not len(unknown):
            return self, []
        return Coding(np.union1d(self.classes, unknown)), np.searchsorted(self.classes, unknown).tolist()

    def labels(self, targets: Floats) -> Array:
        """Decode means or targets to labels."""
        return np.asarray((targets > 0.0).astype(np.int64) if self.several else self.classes[targets.argmax(1)])

    def wrong(self, mean: Floats, targets: Floats) -> NDArray[np.bool_]:
        """Mask of the images that are classified wrongly."""
        return np.asarray((self.labels(mean) != self.labels(targets)).reshape(len(mean), -1).any(1))

    def choices(self, mean: Floats) -> Floats:
        """Arrange means of images as means of choices, (choices, options)."""
        return np.stack([-mean.reshape(-1), mean.reshape(-1)], 1) if self.several else mean

    def codes(self, targets: Floats) -> NDArray[np.intp]:
        """Correct option of each choice."""
        return np.asarray(self.choices(targets).argmax(1))

    def arranged(self, P: Floats) -> Floats:
        """Arrange probabilities of choices as (images, classes)."""
        return P[:, 1].reshape(-1, len(self.classes)) if self.several else P

    def by_mean(self, slopes: Floats) -> Floats:
        """Convert slopes of a loss by the means of choices to slopes by the means of images, (images, classes)."""
        return (slopes[:, 1] - slopes[:, 0]).reshape(-1, len(self.classes)) if self.several else slopes


def read_labels(y: Any) -> Array:
    """Check labels: (N,) of any kind, or (N, L) of 0 and 1."""
    labels = to_numpy(y, "y")
    if labels.ndim == 2 and labels.shape[1] > 1:
        check_classification_targets(labels)
        if not np.isin(labels, (0, 1)).all():
            raise DataError(
                f"y has shape {labels.shape} and holds more than 0 and 1; expected one label for each image, (N,), or "
                "whether each of several labels holds, (N, labels) of 0 and 1"
            )
        return labels.astype(np.int64)
    labels = column_or_1d(labels, warn=True)
    if labels.dtype == object and all(isinstance(label, str) for label in labels):
        labels = labels.astype(str)
    if labels.dtype == object and all(isinstance(label, Integral | np.bool_) for label in labels):
        labels = np.array(labels.tolist())  # Python's own numbers
    if labels.dtype.kind in "fO":
        for i, label in enumerate(labels):
            if label is None or (isinstance(label, float) and label != label):
                raise DataError(f"y[{i}] is {label}; every image needs a label")
    check_classification_targets(labels)
    return np.asarray(labels)


def coding_of(y: Array) -> Coding:
    """Return the coding of training labels checked by `read_labels`."""
    if y.ndim == 2:
        return Coding(np.arange(y.shape[1]), several=True)
    classes = np.unique(y)
    if len(classes) < 2:
        raise DataError(f"y holds one class only ({classes[0]}); classification needs at least two classes")
    return Coding(classes)


def probabilities(coding: Coding, mean: Floats, variance: Floats, found: Calibration) -> Floats:
    """Return P(label), (images, classes): (1 − ε) softmax(mean / (T√(1 + variance))) + ε/C for a choice between C."""
    scores, noise = _scores(coding, mean, variance, found)
    return coding.arranged(calibration.with_label_noise(calibration.softmax(scores), noise))


def log_odds(coding: Coding, mean: Floats, variance: Floats, found: Calibration) -> Floats:
    """Scores whose softmax gives `probabilities`, (images, classes); for choices between two, the log odds, (images,)
    or (images, labels).
    """
    scores, noise = _scores(coding, mean, variance, found)
    if noise.any():  # otherwise the logarithm of probabilities near 0 would lose digits
        P = calibration.with_label_noise(calibration.softmax(scores), noise)
        scores = np.where(noise > 0.0, np.log(P), scores)
    return scores if scores.shape[1] > 2 else (scores[:, 1] - scores[:, 0]).reshape(coding.labels(mean).shape)


def _scores(coding: Coding, mean: Floats, variance: Floats, found: Calibration) -> tuple[Floats, Floats]:
    """Return mean / (T√(1 + variance)) of all choices, (choices, options), and their ε, (choices, 1)."""
    m, v = coding.choices(mean), np.repeat(variance, coding.questions)
    temperature, noise = (np.resize(a, len(m)) for a in (found.temperature, found.label_noise))
    return m / (temperature * np.sqrt(1.0 + v))[:, None], noise[:, None]


def moderated_scores(coding: Coding, mean: Floats, variance: Floats) -> Floats:
    """Return mean / √(1 + variance) of all choices, (choices, options)."""
    return coding.choices(mean) / np.sqrt(1.0 + np.repeat(variance, coding.questions))[:, None]


def at_best_temperature(scores: Floats, codes: NDArray[np.intp]) -> tuple[float, Floats]:
    """Return the best temperature for choices, and the probabilities (choices, options) at it."""
    temperature = calibration.fit_temperature(scores, codes)
    return temperature, calibration.softmax(scores / temperature)


def fitted_calibration(coding: Coding, mean: Floats, variance: Floats, targets: Floats) -> Calibration:
    """Fit the temperature and the share of random labels to leave-one-out predictions, with several labels for each.

    Contradictory labels of equal images make the amplitude, and so the variances, extremely large, which would give all
    classes the same probability: then the variances are left out.
    """
    codes, scores = coding.codes(targets), [moderated_scores(coding, mean, v) for v in (variance, np.zeros(len(mean)))]
    with_, without = (calibration.smoothed_loss(at_best_temperature(each, codes)[1], codes) for each in scores)
    moderated = without >= with_ / _MUCH_BETTER
    each = [slice(question, None, coding.questions) for question in range(coding.questions)]
    T, noise = np.array([calibration.fit_label_noise(scores[not moderated][rows], codes[rows]) for rows in each]).T
    return Calibration(float(T[0]), float(noise[0]), moderated) if len(T) == 1 else Calibration(T, noise, moderated)


def read_calibration(saved: dict[str, Any], questions: int) -> Calibration:
    """Read a calibration from a file; raise `ValueError` for numbers that no fit gives."""
    T, noise = np.array(saved["temperature"], np.float64), np.array(saved["label_noise"], np.float64)
    if {T.shape, noise.shape} - {(), (questions,) if questions > 1 else ()}:
        raise ValueError(f"temperatures of shape {T.shape} and label noise of shape {noise.shape}")
    if not (np.isfinite(T).all() and (T > 0.0).all() and ((noise >= 0.0) & (noise < 1.0)).all()):
        raise ValueError(f"a temperature of {T} and label noise of {noise}")
    return Calibration(T if T.ndim else float(T), noise if noise.ndim else float(noise), bool(saved["moderated"]))


# ---- targets ---------------------------------------------------------------------------------------------------------


class _Targets:
    """Targets `Y` (N, outputs), and the weight of each image, None if all are 1."""

    Y: Floats
    weight: Floats | None

    def at(self, rows: slice | NDArray[np.intp]) -> Self:
        """Targets of some images."""
        some = copy.copy(self)
        some.Y, some.weight = self.Y[rows], None if self.weight is None else self.weight[rows]
        return some


class ClassTargets(_Targets):
    """Class targets, judged by the log loss at the best temperature, which matters more than squared errors."""

    def __init__(self, coding: Coding, labels: NDArray[Any], weight: Floats | None = None) -> None:
        self.coding, self.Y, self.weight = coding, coding.targets(labels), weight
        self.wrong = coding.wrong

    def loss(self, mean: Floats, targets: Floats) -> float:
        """Loss of leave-one-out means and targets, which selects the noise."""
        codes = self.coding.codes(targets)
        return calibration.smoothed_loss(at_best_temperature(self.coding.choices(mean), codes)[1], codes)

    def slopes(self, mean: Floats, targets: Floats) -> tuple[float, Floats]:
        """Loss with its gradient, for learning; at the best temperature, a change of that has no first-order effect."""
        codes = self.coding.codes(targets)
        temperature, P = at_best_temperature(self.coding.choices(mean), codes)
        slopes = (P - calibration.smoothed(codes, P.shape[1])) / (temperature * len(P))
        return calibration.smoothed_loss(P, codes), self.coding.by_mean(slopes)

    def each(self, mean: Floats, variance: Floats, targets: Floats) -> Floats:
        """Loss of each image (n,), in nats, for the comparison of recipes."""
        rows: Any = slice(None)
        if self.weight is not None:  # fit the temperature to n images drawn in proportion to their weights
            total = np.cumsum(self.weight)
            rows = np.searchsorted(total, total[-1] * (np.arange(len(total)) + 0.5) / len(total))
        temperature, _ = at_best_temperature(self.coding.choices(mean[rows]), self.coding.codes(targets[rows]))
        P = calibration.softmax(self.coding.choices(mean) / temperature)
        smoothed = calibration.smoothed(self.coding.codes(targets), P.shape[1])
        losses = -(smoothed * np.log(np.maximum(P, np.finfo(np.float64).tiny))).sum(1)
        return np.asarray(losses.reshape(len(mean), -1).sum(1))

    def no_label_twice(self, groups: NDArray[np.intp] | None) -> bool:
        """True if leave-one-out must be wrong for every image, because no other image has the same label."""
        if self.coding.several:
            return False
        labels = self.Y.argmax(1)
        apart = len(labels) if groups is None else len(np.unique(np.column_stack([labels, groups])[:, :2], axis=0))
        return len(self.coding.classes) == apart


class RealTargets(_Targets):
    """Regression targets, judged by their leave-one-out density. Members as in `ClassTargets`."""

    loss: Loss | None = None
    slopes: MeansLoss | None = None
    wrong: None = None

    def __init__(self, Y: Floats, weight: Floats | None = None) -> None:
        self.Y, self.weight = Y, weight

    def each(self, mean: Floats, variance: Floats, targets: Floats) -> Floats:
        v = np.maximum(variance, np.finfo(np.float64).tiny)
        return np.asarray(0.5 * ((targets - mean) ** 2 / v[:, None] + np.log(v)[:, None]).mean(1))

    def no_label_twice(self, groups: NDArray[np.intp] | None) -> bool:
        return False


Targets = ClassTargets | RealTargets
