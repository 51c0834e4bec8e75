"""What a fit is judged by: losses of leave-one-out predictions, for classes and for real targets."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cnngp.gp import calibration
from cnngp.gp.noise import Loss
from cnngp.gp.objectives import MeansLoss

from .labels import Coding, OneLabel, class_loss, fitted_temperature

Floats = NDArray[np.float64]


class Targets(Protocol):
    """Targets `Y` (N, outputs), and how predictions of them are judged."""

    Y: Floats

    @property
    def loss(self) -> Loss | None:
        """Of leave-one-out means and targets, by which the noise is chosen; None for the density of the targets."""

    @property
    def slopes(self) -> MeansLoss | None:
        """The same loss with its gradient, for learning."""

    def wrong(self, mean: Floats, targets: Floats) -> NDArray[np.bool_] | None:
        """Which images are classified wrongly; None where there are no classes."""

    def each(self, mean: Floats, variance: Floats, targets: Floats) -> Floats:
        """The loss of every image (n,), in nats, by which recipes are compared."""

    def no_label_twice(self, groups: NDArray[np.intp] | None) -> bool:
        """Whether leave-one-out can be right about no image, because none of the others has its label."""


class ClassTargets:
    """Labels of a `Coding`: judged by the log loss at the best temperature, unlike squared errors what counts."""

    def __init__(self, coding: Coding, labels: NDArray[Any]) -> None:
        self.coding, self.Y = coding, coding.targets(labels)
        self.loss: Loss = lambda mean, targets: fitted_temperature(coding, mean, None, targets)[1]
        self.slopes: MeansLoss = lambda mean, targets: class_loss(coding, mean, targets)

    def wrong(self, mean: Floats, targets: Floats) -> NDArray[np.bool_]:
        differ = self.coding.labels(mean) != self.coding.labels(targets)
        return np.asarray(differ.reshape(len(mean), -1).any(1))

    def each(self, mean: Floats, variance: Floats, targets: Floats) -> Floats:
        temperature, _ = fitted_temperature(self.coding, mean, None, targets)
        m, _ = self.coding.choices(mean, np.zeros(len(mean)))
        codes = self.coding.codes(targets)
        P = calibration.softmax(m / temperature)
        smoothed = calibration.smoothed(codes, P.shape[1])
        losses = -(smoothed * np.log(np.maximum(P, np.finfo(np.float64).tiny))).sum(1)
        return np.asarray(losses.reshape(len(mean), -1).sum(1))

    def no_label_twice(self, groups: NDArray[np.intp] | None) -> bool:
        if not isinstance(self.coding, OneLabel):
            return False
        labels = self.Y.argmax(1)
        apart = len(labels) if groups is None else len(np.unique(np.column_stack([labels, groups])[:, :2], axis=0))
        return len(self.coding.classes) == apart


class RealTargets:
    """Targets of a regression: judged by their density given all others."""

    def __init__(self, Y: Floats) -> None:
        self.Y = Y
        self.loss: Loss | None = None
        self.slopes: MeansLoss | None = None

    def wrong(self, mean: Floats, targets: Floats) -> None:
        return None

    def each(self, mean: Floats, variance: Floats, targets: Floats) -> Floats:
        v = np.maximum(variance, np.finfo(np.float64).tiny)
        return np.asarray(0.5 * ((targets - mean) ** 2 / v[:, None] + np.log(v)[:, None]).mean(1))

    def no_label_twice(self, groups: NDArray[np.intp] | None) -> bool:
        return False
