"""`GPClassifier`: classification with a network's kernel behind scikit-learn's interface."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from cnngp.common.arrays import DataError, to_numpy
from cnngp.gp import calibration
from cnngp.kernel.kernel import Device

from . import files as model_files
from .base import GPEstimator

Array = NDArray[Any]


class GPClassifier(ClassifierMixin, GPEstimator):  # type: ignore[misc]
    """GP classification: regression on ±1 targets, one output per class, no training loop.

    Parameters
    ----------
    network : a network or a `Kernel`; None picks one for the shape of the images.
    noise : variance of the targets' noise in the kernel's units, or "ml" for the most likely one. With `inducing`, 0
        stands for the one with the best leave-one-out predictions: there is no such model without noise.
    amplitude : factor of the kernel for variances and likelihood: "ml", "loo" or a number.
    device, dtype, threads : as in `Kernel`. A `Kernel` that is given has its own, and others beside it are refused; the
        default dtype asks for nothing, so it goes with a `Kernel` of either precision.
    store : a path or fsspec URL where fit and predict keep their kernel matrices, so that a killed run goes on and a
        second one computes nothing; see `gram`.
    input_shape : (channels, height, width) of flat rows, or of arrays with three axes.
    solver : "cholesky", "mixed" or "cg" as in `cnngp.solve`; "auto" is Cholesky where it fits in memory, else what fits
        of a matrix in a store. Without a Cholesky factor means and classes are the same, probabilities do without the
        variance, variances take a solve each, leave-one-out is of 256 images, and there is no likelihood.
    inducing : None for the exact GP; how many images of X, which ones (row numbers), or images of your own, for
        regression through them over any number of images. X may then be a memory map, a Zarr array or anything else
        with a `shape` that gives images for slices and arrays of row numbers; see docs/solve.md.
    random_state : seed of what is chosen at random: inducing images, samples for leave-one-out.

    Attributes
    ----------
    classes_ : the labels.
    loo_rows_ : the training images that leave-one-out speaks of: all of them, or a random sample where the model has no
        factor of all images; none, with a warning, where that could not be solved for: `loo_error_` is then NaN and
        the temperature 1.
    loo_error_ : the error on each of them of a model that has not seen it, in closed form, as a fraction.
    loo_predictions_, loo_probabilities_ : what those models predict.
    log_marginal_likelihood_ : summed over the outputs; None without a factor, the approximation's own with `inducing`.
    temperature_ : of the probabilities, chosen by the leave-one-out predictions.
    fit_report_ : what was measured about the fit, and what can be trusted.

    >>> from cnngp import GPClassifier, datasets
    >>> data = datasets.digits().take(200, 100)
    >>> clf = GPClassifier(device="cpu").fit(data.X, data.y)
    >>> clf.score(data.X_test, data.y_test) > 0.9
    True
    """

    def fit(self, X: Any = None, y: Any = None, *, K: Any = None) -> Self:
        """Fit images X (N, C, H, W) and labels y (N,); a kernel matrix `K` (N, N) replaces or accompanies X."""
        images, y = self._check_fit(X, y, K)
        labels = self._check_labels(y)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise DataError(f"y holds one class only ({self.classes_[0]}); classification needs at least two classes")
        self._fit(images, self._targets(codes), K)
        return self

    def predict(self, X: Any = None, *, K: Any = None) -> Array:
        """The most probable label of each image; `K` is K(test, training) where the model was fitted on a matrix."""
        best = self._mean(X, K).argmax(1)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: Any = None, *, K: Any = None, diagonal: Any = None) -> Array:
        """P(label) for each image, (M, classes), in the order of `classes_`.

        softmax(mean / (T√(1 + variance))) with T from the leave-one-out predictions; see docs/classification.md.
        Without a factor (`solver`) the variance is left out: it would take a solve for every image. So it is where
        leave-one-out shows it to be meaningless, as with two labels for one image.
        """
        check_is_fitted(self, "gp_")
        if not self._moderated or not self.gp_.cheap_variances:
            mean = self._mean(X, K)
            return _moderated_softmax(mean, np.zeros(len(mean)), self.temperature_)
        mean, variance = self._mean_and_variance(X, K, diagonal)
        return _moderated_softmax(mean, variance + self.gp_.amplitude * self.gp_.noise, self.temperature_)

    def predict_latent(self, X: Any = None, *, K: Any = None, diagonal: Any = None) -> tuple[Array, Array]:
        """Posterior mean (M, classes) and variance (M,) of the ±1 functions; the variance is shared by the outputs."""
        return self._mean_and_variance(X, K, diagonal)

    def add(self, X: Any, y: Any) -> Self:
        """Condition on more images, by a block update instead of a new factorisation."""
        check_is_fitted(self, "gp_")
        images = self._check_added(X, y)
        labels = self._check_labels(y)
        if (labels.dtype.kind in "US") != (self.classes_.dtype.kind in "US"):
            raise DataError(f"y holds labels of type {labels.dtype}; expected those of fit, {self.classes_.dtype}")
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise DataError(
                f"y holds labels that the model was not fitted on: {unknown.tolist()[:5]}; fit again with them"
            )
        self._add(images, self._targets(np.searchsorted(self.classes_, labels)))
        return self

    def most_uncertain(self, n: int = 10, X: Any = None) -> NDArray[np.intp]:
        """Rows of the `n` images whose label is least certain (highest entropy first): of X, or of the training images
        by leave-one-out, where wrong and ambiguous labels show.
        """
        self._check_how_many(n)
        P = self.loo_probabilities_ if X is None else self.predict_proba(X)
        entropy = -(P * np.log(np.maximum(P, np.finfo(np.float64).tiny))).sum(1)
        order = np.argsort(-entropy, kind="stable")[:n]
        return self.loo_rows_[order] if X is None else order

    @classmethod
    def load(cls, path: str | Path, *, device: Device = "auto") -> Self:
        """A model that `save` wrote. Runs no code from the file; damaged files are refused."""

        def finish(model: Self, _: dict[str, Any], arrays: dict[str, Array]) -> None:
            model.classes_ = arrays["classes"]
            if len(np.unique(model.classes_)) != model.gp_.loo_targets.shape[1]:
                raise ValueError(f"{len(model.classes_)} classes for {model.gp_.loo_targets.shape[1]} outputs")
            model._after_fit()

        return model_files.load(cls, path, device, finish)

    def save(self, path: str | Path) -> None:
        """Write the fitted model to one file, without pickle."""
        check_is_fitted(self, "gp_")
        model_files.save(self, path, {}, {"classes": self.classes_})

    def _targets(self, codes: NDArray[np.intp]) -> NDArray[np.float64]:
        """±1: +1 at the label."""
        return 2.0 * np.eye(len(self.classes_))[codes] - 1.0

    def _check_labels(self, y: Any) -> Array:
        labels = column_or_1d(to_numpy(y, "y"), warn=True)
        if labels.dtype == object and all(isinstance(label, str) for label in labels):
            labels = labels.astype(str)
        check_classification_targets(labels)
        return np.asarray(labels)

    @staticmethod
    def _loo_loss(mean: Array, targets: Array) -> float:
        """The log loss at the best temperature: what counts for classes and probabilities, unlike squared errors."""
        codes, none = targets.argmax(1), np.zeros(len(mean))
        return _fitted_temperature(mean, none, codes)[1]

    def _after_fit(self) -> None:
        mean, variance = (to_numpy(a) for a in self.gp_.leave_one_out())
        if not self.gp_.cheap_variances:
            variance = np.zeros(len(mean))
        codes = to_numpy(self.gp_.loo_targets).argmax(1)
        self.loo_rows_ = self.gp_.loo_rows
        self.temperature_, self.loo_error_, self._moderated = 1.0, math.nan, True
        if len(mean):
            self.temperature_, loss = _fitted_temperature(mean, variance, codes)
            self.loo_error_ = float((mean.argmax(1) != codes).mean())
            # Two labels of one image have no likely explanation but an amplitude without bound, which would leave the
            # same probability to all classes.
            plain, without = _fitted_temperature(mean, np.zeros(len(mean)), codes)
            if without < loss / _MUCH_BETTER:
                self.temperature_, self._moderated, variance = plain, False, np.zeros(len(mean))
        self.loo_probabilities_ = _moderated_softmax(mean, variance, self.temperature_)
        self.loo_predictions_ = self.classes_[mean.argmax(1)]
        self.log_marginal_likelihood_ = self.gp_.log_marginal_likelihood


# How many times better probabilities must fit the leave-one-out labels without variances for these to be left out.
_MUCH_BETTER = 2.0


def _fitted_temperature(mean: Array, variance: Array, codes: NDArray[np.intp]) -> tuple[float, float]:
    """The best temperature of leave-one-out predictions, and their loss at it."""
    temperature = calibration.fit_temperature(lambda t: _moderated_softmax(mean, variance, t), codes)
    return temperature, calibration.smoothed_loss(_moderated_softmax(mean, variance, temperature), codes)


def _moderated_softmax(mean: Array, variance: Array, temperature: float) -> NDArray[np.float64]:
    return calibration.softmax(mean / (temperature * np.sqrt(1.0 + variance))[:, None])
