"""`GPRegressor`: regression with a network's kernel behind scikit-learn's interface."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from cnngp.common.arrays import DataError, as_real, refuse_masked, to_numpy
from cnngp.common.errors import is_whole
from cnngp.gp.conformal import check_coverage, intervals
from cnngp.gp.exact import posterior_samples
from cnngp.gp.near_copies import warn_of_near_copies

from .base import GPEstimator, Numbers
from .certificate import error_beside_mean
from .choosing import Tell
from .door import ImagesLike, Training
from .labels import RealTargets

Array = NDArray[Any]
Floats = NDArray[np.float64]
Given = ImagesLike | None
No = Literal[False]
Yes = Literal[True]

# Warn that targets are not centred if centring them makes errors smaller by this factor.
_MUCH = 2.0


@dataclass(eq=False, repr=False)
class GPRegressor(RegressorMixin, GPEstimator):  # type: ignore[misc]
    """GP regression with one or several outputs that share the kernel.

    Parameters are those of `GPClassifier` except `class_weight`; `normalize_y=True` scales targets to mean 0, std 1.

    Attributes
    ----------
    log_marginal_likelihood_ : summed over the outputs, of the scaled targets; None without a factor.
    loo_rows_ : rows of the training images with leave-one-out predictions; see `GPClassifier`.
    loo_predictions_ : leave-one-out predictions of their targets, in closed form.
    loo_std_ : standard deviations of these predictions, noise included.
    loo_error_ : root mean square of the leave-one-out errors.
    fit_report_ : measured accuracy of the fit, and a verdict on what can be trusted.

    >>> import numpy as np
    >>> from cnngp import GPRegressor
    >>> x = np.linspace(-1, 1, 20)[:, None]
    >>> reg = GPRegressor(noise=1e-6, device="cpu").fit(x, np.abs(x[:, 0]))
    >>> mean, std = reg.predict(x, return_std=True)
    >>> bool(np.abs(mean - np.abs(x[:, 0])).max() < 0.01)
    True
    """

    normalize_y: bool = False

    def fit(
        self,
        X: ImagesLike | None = None,
        y: ArrayLike | None = None,
        *,
        K: Any = None,
        y_std: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        image_noise: ArrayLike | None = None,
        groups: Any = None,
        names: Any = None,
        tell: Tell = None,
    ) -> Self:
        """Fit images X (N, C, H, W) and targets y, (N,) or (N, outputs); `K` (N, N) replaces or accompanies X.

        `y_std` (N,) are the standard deviations of known measurement errors, in the units of y; `noise` is added to
        them, and the amplitude "ml" maximises the likelihood with these errors. `sample_weight`, `image_noise`,
        `groups`, `names` and `tell` are those of `GPClassifier.fit`.
        """
        beside = {"sample_weight": sample_weight, "image_noise": image_noise, "groups": groups, "names": names}
        request, training = self._read(X, y, K, _as_targets, numbers=True, y_std=y_std, **beside)
        self._one_output = training.y.ndim == 1
        Y = training.y.reshape(len(training.y), -1)
        self._y_mean, self._y_std = np.zeros(Y.shape[1]), np.ones(Y.shape[1])
        if self.normalize_y:
            largest = np.abs(Y - Y.mean(0)).max(0)
            scale = np.where(largest > 0.0, largest, 1.0)  # keeps the squares from overflowing
            spread = scale * ((Y - Y.mean(0)) / scale).std(0)
            self._y_mean, self._y_std = Y.mean(0), np.where(spread > 0, spread, 1.0)
        training = self._normalised(training, Y.shape[1])
        self._fit(request, training, RealTargets((Y - self._y_mean) / self._y_std, training.weight), tell)
        self._warn_of_far_targets(Y)
        if training.groups is None:
            warn_of_near_copies(self.gp_, None, lambda mean: np.abs(mean * self._y_std + self._y_mean - Y).mean(1))
        return self

    @overload
    def predict(
        self, X: Given = None, return_std: No = False, return_cov: No = False, *, noise: bool = False, K: Any = None
    ) -> Floats: ...
    @overload
    def predict(
        self, X: Given = ..., return_std: Yes = ..., *, noise: bool = ..., K: Any = ..., diagonal: Any = ...
    ) -> tuple[Floats, Floats]: ...
    @overload
    def predict(self, X: Given, *, return_cov: Yes, noise: bool = ...) -> tuple[Floats, Floats]: ...
    def predict(
        self,
        X: ImagesLike | None = None,
        return_std: bool = False,
        return_cov: bool = False,
        *,
        noise: bool = False,
        K: Any = None,
        diagonal: Any = None,
    ) -> Floats | tuple[Floats, Floats]:
        """Posterior mean, shaped like y; with `return_std` or `return_cov` also its uncertainty.

        The uncertainty is that of the function, as in scikit-learn's `GaussianProcessRegressor`; `noise=True` adds the
        noise of a new target.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov were both asked for; choose one")
        check_is_fitted(self, "fit_")
        added = self.gp_.amplitude * self.gp_.noise if noise else 0.0
        if return_cov:
            if K is not None:
                raise ValueError("return_cov needs the kernel between the test images; give X instead of K")
            mean, cov = self.fit_.mean_and_covariance(self._check_test(X))
            return self._restored(mean), self._in_units(cov + added * np.eye(len(cov)), 2)
        asked = self._asked(X, K, diagonal)
        if not return_std:
            return self._restored(self.fit_.mean(asked))
        mean, variance = self.fit_.moments(asked)
        return self._restored(mean), self._in_units(np.sqrt(variance + added), 1)

    def predict_interval(
        self, X: ImagesLike | None = None, *, coverage: float = 0.9, K: Any = None, diagonal: Any = None
    ) -> Floats:
        """Conformal prediction intervals of the targets, (M, 2), or (M, outputs, 2) with this `coverage` for each.

        They include the noise. Like `GPClassifier.predict_set`, they do not rely on a correct model, only on new images
        being like those of the fit; they are infinite if these are too few for the coverage.
        """
        check_coverage(coverage)
        asked, gp = self._asked(X, K, diagonal), self._exact("a set with a guarantee")
        found = self.fit_.over(asked, lambda block, own: intervals(gp, block, own, coverage))
        found = found * self._y_std[:, None] + self._y_mean[:, None]
        return np.asarray(found[:, 0] if self._one_output else found)

    def score(self, X: ImagesLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return R² of the predictions for X."""
        refuse_masked(y, "y")
        return float(super().score(X, y, sample_weight))

    def sample_y(self, X: ImagesLike, n_samples: int = 1, random_state: int | None = 0) -> Floats:
        """Draw samples of the posterior at X: (M, n_samples), or (M, outputs, n_samples) for several outputs."""
        images = self._check_test(X)
        if not is_whole(n_samples, least=0):
            raise ValueError(f"n_samples={n_samples!r}: expected how many functions, 0 or more")
        mean, covariance = self.fit_.mean_and_covariance(images)
        draws = to_numpy(posterior_samples(mean, covariance, n_samples, random_state)) * self._y_std + self._y_mean
        return np.asarray(np.moveaxis(draws[..., 0] if self._one_output else draws, 0, -1))

    def add(
        self,
        X: ImagesLike,
        y: ArrayLike,
        *,
        y_std: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        image_noise: ArrayLike | None = None,
        names: Any = None,
    ) -> Self:
        """Condition on more images, by a block update instead of a new factorisation; y is scaled as in `fit`."""
        beside = {"sample_weight": sample_weight, "image_noise": image_noise, "names": names}
        added = self._added(X, y, _as_targets, y_std=y_std, **beside)
        if added.y.shape[1:] != (() if self._one_output else self._y_mean.shape):
            of_fit = "(N,)" if self._one_output else f"(N, {len(self._y_mean)})"
            raise DataError(f"y has shape {added.y.shape}, unlike the targets of fit, {of_fit}; give as many outputs")
        added = self._normalised(added, len(self._y_mean))
        self._add(added, (added.y.reshape(len(added.y), -1) - self._y_mean) / self._y_std)
        return self

    def most_uncertain(self, n: int = 10, X: ImagesLike | None = None) -> Numbers:
        """Rows of the `n` images with the largest variance, of X, or of the training images by leave-one-out."""
        self._check_how_many(n)
        asked = None if X is None else self._asked(X, None)
        variance = to_numpy(self.gp_.leave_one_out().variance) if asked is None else self.fit_.moments(asked)[1]
        return self._first(n, variance, X)

    def suspect_labels(self, n: int = 20) -> dict[str, Array]:
        """Find the `n` training images whose targets are contradicted most by the others, the most suspect first.

        Returns a dict of arrays: `row`; `score`, the leave-one-out error in standard deviations (with several outputs,
        the largest); `given`; `proposed`, the leave-one-out prediction; `name`.
        """
        self._check_how_many(n)
        given = self._restored(to_numpy(self.gp_.leave_one_out().targets))
        scaled = np.abs(given - self.loo_predictions_) / np.maximum(self.loo_std_, np.finfo(np.float64).tiny)
        score = scaled.reshape(len(scaled), -1).max(1, initial=0.0)
        return self._suspects(n, score, given, self.loo_predictions_)

    def saliency(self, X: ImagesLike, output: int = 0) -> Floats:
        """Saliency maps: gradient by the pixels of the prediction of one output, in the shape of X."""
        images = self._check_test(X)
        if not is_whole(output, least=0) or output >= len(self._y_std):
            raise DataError(f"output={output!r}: expected the number of one of the {len(self._y_std)} outputs, from 0")
        found = self.fit_.saliency(images, np.full(len(images), output)) * self._y_std[output]
        return np.asarray(found.reshape(np.shape(X)))

    def _normalised(self, training: Training, outputs: int) -> Training:
        """Scale the measurement errors to the units of the scaled targets."""
        if training.y_std is None:
            return training
        if outputs > 1:
            raise DataError("y_std is for a single output, as outputs share one covariance; fit each output by itself")
        return replace(training, y_std=training.y_std / self._y_std[0])

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        return {"one_output": self._one_output}, {"y_mean": self._y_mean, "y_std": self._y_std}

    def _restore(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        self._y_mean, self._y_std = arrays["y_mean"], arrays["y_std"]
        outputs = self.gp_.leave_one_out().targets.shape[1:]
        if not self._y_mean.shape == self._y_std.shape == outputs or (self._y_std < 0.0).any():
            raise ValueError(f"means and deviations of {self._y_mean.shape} for outputs of {outputs}")
        self._one_output = bool(header["one_output"])
        self._after_fit()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _restored(self, mean: Array) -> Array:
        y = mean * self._y_std + self._y_mean
        return np.asarray(y[:, 0] if self._one_output else y)

    def _in_units(self, spread: Floats, power: int) -> Floats:
        """Scale standard deviations, or with power 2 variances, to the units of each output, shaped like y."""
        scale = self._y_std**power
        return spread * scale[0] if self._one_output else spread[..., None] * scale

    def _after_fit(self) -> None:
        left = self.gp_.leave_one_out()
        mean, variance, targets = (to_numpy(a) for a in (left.mean, left.variance, left.targets))
        self.loo_predictions_ = self._restored(mean)
        self.loo_std_ = self._in_units(np.sqrt(variance), 1)
        scale = float(self._y_std.max())  # factored out, so that no square overflows
        errors = (mean - targets) * (self._y_std / scale)
        self.loo_error_ = scale * float(np.sqrt((errors**2).mean())) if len(errors) else math.nan
        found = error_beside_mean(errors, targets * (self._y_std / scale), left.groups)
        self._say(no_better=None if found is None else (scale * found[0], scale * found[1]))

    def _warn_of_far_targets(self, Y: Array) -> None:
        """Warn if centred targets would be predicted much better, because the process has mean zero.

        Their leave-one-out errors follow from the existing factor.
        """
        gp = self.gp_.exact
        if self.normalize_y or gp is None or gp.groups is not None or not self.loo_error_ > 0.0:
            return
        without = float(np.sqrt((to_numpy(gp.deviations_of(gp.Y - gp.Y.mean(0))) ** 2).mean()))
        if without < self.loo_error_ / _MUCH:
            mean = float(Y.mean(0)[np.abs(Y.mean(0)).argmax()])
            warnings.warn(
                f"the targets lie around {mean:.3g}, far from the 0 that the process starts from: leave-one-out is off "
                f"by {self.loo_error_:.3g}, and would be by about {without:.3g} with normalize_y=True",
                UserWarning,
                stacklevel=3,
            )


def _as_targets(y: Any) -> Floats:
    targets = as_real(to_numpy(y, "y"), "y")
    if targets.ndim not in (1, 2):
        raise DataError(f"y has shape {targets.shape}; expected (N,) or (N, outputs)")
    if not np.isfinite(targets).all():
        raise DataError("y contains NaN or infinity; remove or replace those targets")
    return np.asarray(targets, dtype=np.float64)
