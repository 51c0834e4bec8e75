"""`GPClassifier`: classification with a network's kernel behind scikit-learn's interface."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin

from cnngp.common.arrays import DataError, refuse_masked, to_numpy
from cnngp.gp.conformal import allowed, check_coverage, p_values, p_values_of_each
from cnngp.gp.near_copies import novelty, warn_of_near_copies

from .base import GPEstimator, Numbers
from .certificate import errors_if_guessing
from .choosing import Tell
from .door import ImagesLike
from .fit import Asked
from .labels import (
    Calibration,
    ClassTargets,
    Coding,
    coding_of,
    fitted_calibration,
    log_odds,
    probabilities,
    read_calibration,
    read_labels,
)

if TYPE_CHECKING:
    from .explanation import Explanation

Array = NDArray[Any]
Floats = NDArray[np.float64]


@dataclass(eq=False, repr=False)
class GPClassifier(ClassifierMixin, GPEstimator):  # type: ignore[misc]
    """GP classification: regression on ±1 targets, one output per class, no training loop.

    Parameters
    ----------
    network : a network, a `Kernel`, the name of a network such as "resnet32", or a `Recipe`; None chooses a recipe by
        leave-one-out, the same on every machine; see docs/classification.md.
    noise : noise variance of the targets in the kernel's units, "ml" for maximum likelihood, or "loo" for the best
        leave-one-out predictions. None means "loo" if the recipe is chosen, and 0 if a network or a matrix is given.
        With `inducing`, 0 means "loo", because that model needs noise.
    amplitude : factor of the kernel for variances and likelihood: "ml", "loo" or a number.
    device : "cpu", "cuda", or "auto" for the GPU if there is one. A `Kernel` given as the network has its own device,
        dtype, threads and kind; conflicting arguments raise.
    dtype : precision of the kernel, "float32" or "float64".
    threads : CPU threads for the kernel, as in `Kernel`.
    kind : "nngp" or "ntk", as in `Kernel`. With "ntk" this is regression with the tangent kernel: means, classes,
        leave-one-out and probabilities mean the same, but the variance is not that of a trained network; see
        docs/ntk.md.
    store : path or fsspec URL where fit and predict keep their kernel matrices, so that an interrupted run can
        continue and a repeated one computes nothing; see `gram`.
    input_shape : (channels, height, width), for flat rows or arrays with three axes.
    solver : "cholesky" or "cg" as in `cnngp.gp.solve`; "auto" is Cholesky if it fits in memory, else "cg" for a matrix
        in a store. Without a Cholesky factor, means and classes are the same, probabilities ignore the variance, each
        variance takes a solve, leave-one-out covers about 256 images, and there is no likelihood.
    inducing : None for the exact GP; for an approximation that handles any number of images, the number of inducing
        images, their row numbers in X, or the images themselves. X may then be a memory map, a Zarr array or anything
        else that has a `shape` and returns images for slices and arrays of row numbers; see docs/solve.md.
    learn : "loo" or "likelihood" to learn the network's variances, and the noise unless it is a positive number, from
        some of the images before the fit; a `Learning` has more options. See docs/learning.md.
    random_state : seed or generator for inducing images, samples for leave-one-out and images for learning.
    effort : cost limit of choosing and fitting if the recipe is chosen: "normal", "quick" for a tenth of that, "best"
        for ten times as much; in covariances, not seconds, so that the result does not depend on the machine.
    preparation : preprocessing of the images: a name such as "plain", "contrast", "detail", "edges" or "spectral", one
        of the transformers in `cnngp.datasets.preparation`, or a tuple of these; "loo" chooses among these names by
        leave-one-out ("plain" or "standardised" for rows of features). None is part of the choice if the recipe is
        chosen, and "plain" if a network is given.
    class_weight : None, "balanced", or a dict of weights by class: the noise of an image is divided by the weight of
        its class, as with `sample_weight` in `fit`.

    Attributes
    ----------
    recipe_ : recipe of the fit; `GPClassifier(clf.recipe_)` fits it again. `choice_` says why it was chosen.
    network_ : network of the recipe's term, or of the one with the largest weight.
    kernel_ : kernel of that network.
    classes_ : class labels; with several labels per image, their numbers.
    loo_rows_ : rows of the training images with leave-one-out predictions: all, or a random sample if the model has no
        factor of all images. If none could be solved for, there is a warning, it is empty, `loo_error_` is NaN and the
        temperature is 1.
    loo_error_ : leave-one-out error rate of these images, in closed form.
    loo_predictions_ : leave-one-out predictions of their labels.
    loo_probabilities_ : leave-one-out probabilities, (rows, classes).
    log_marginal_likelihood_ : summed over the outputs; None without a factor; with `inducing`, of the approximation.
    temperature_ : temperature of the probabilities, fitted to the leave-one-out predictions; with several labels per
        image one for each, (L,).
    label_noise_ : estimated share of random labels, fitted likewise; 0.0 unless leave-one-out clearly shows some, which
        a temperature alone cannot express. Predicted classes do not depend on it.
    learned_ : result of learning; None without `learn`.
    fit_report_ : measured accuracy of the fit, and a verdict on what can be trusted.

    >>> from cnngp import GPClassifier, datasets
    >>> data = datasets.digits().take(200, 100)
    >>> clf = GPClassifier(device="cpu").fit(data.X, data.y)
    >>> clf.score(data.X_test, data.y_test) > 0.9
    True
    """

    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    _coding: Coding = field(init=False)
    _calibration: Calibration = field(init=False)

    def fit(
        self,
        X: ImagesLike | None = None,
        y: ArrayLike | None = None,
        *,
        K: Any = None,
        sample_weight: ArrayLike | None = None,
        image_noise: ArrayLike | None = None,
        groups: Any = None,
        names: Any = None,
        tell: Tell = None,
    ) -> Self:
        """Fit images X (N, C, H, W) and labels y: (N,) of any kind, or (N, L) of 0 and 1 for several labels per image.

        A kernel matrix `K` (N, N) replaces or accompanies X. `names` of the images, such as their files, are shown by
        `suspect_labels` and `explain`. `image_noise` (N,) is a noise variance added to `noise` for single images, in
        the kernel's units: the larger it is, the less the label counts. With `sample_weight` (N,), an image's noise is
        `noise` / weight, so that an image of weight 2 counts as if it occurred twice. Images of weight 0 are left out,
        and row numbers in the results skip them. If the noise is 0, all other weights have the same effect, and a
        warning says so. Images of one of the `groups` (N,), such as frames of one film, are left out together wherever
        leave-one-out is used; copies from `cnngp.datasets.augmentation` have their groups already. `tell(stage, value)`
        is called at each stage, as in `report.run`.
        """
        said = {"sample_weight": sample_weight, "image_noise": image_noise, "groups": groups, "names": names}
        request, training = self._read(X, y, K, read_labels, class_weight=self.class_weight, **said)
        self._coding = coding_of(training.y)
        self.classes_ = self._coding.classes
        targets = ClassTargets(self._coding, training.y, training.weight)
        self._fit(request, training, targets, tell)
        if training.groups is None:
            classes = targets.Y.argmax(1) if not self._coding.several else None
            warn_of_near_copies(self.gp_, classes, lambda mean: targets.wrong(mean, targets.Y).astype(np.float64))
        return self

    def predict(self, X: ImagesLike | None = None, *, K: Any = None) -> Array:
        """Predict the label of each image; `K` is K(test, training) if the model was fitted on a matrix."""
        asked = self._asked(X, K)
        return self._coding.labels(self.fit_.mean(asked))

    def score(self, X: ImagesLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy of the predictions for X."""
        refuse_masked(y, "y")
        return float(super().score(X, y, sample_weight))

    def predict_proba(self, X: ImagesLike | None = None, *, K: Any = None, diagonal: Any = None) -> Floats:
        """Class probabilities P(label) of each image, (M, classes), in the order of `classes_`.

        They are (1 − ε) softmax(mean / (T√(1 + variance))) + ε/classes, with the temperature T and the share ε of
        random labels from the leave-one-out predictions; see docs/classification.md.
        The variance is left out without a factor (`solver`), because it would take a solve for each image, and if
        leave-one-out shows it to be meaningless, as with two labels for one image. With several labels per image, each
        has its own probability.
        """
        mean, variance = self._moments(X, K, diagonal)
        return probabilities(self._coding, mean, variance, self._calibration)

    def predict_log_proba(self, X: ImagesLike | None = None, *, K: Any = None, diagonal: Any = None) -> Floats:
        """Logarithm of `predict_proba`."""
        return np.log(self.predict_proba(X, K=K, diagonal=diagonal))

    def decision_function(self, X: ImagesLike | None = None, *, K: Any = None, diagonal: Any = None) -> Floats:
        """Scores whose softmax gives the probabilities, (M, classes); for two classes the log odds of the second, (M,).

        With several labels per image, the log odds of each, (M, labels): positive means yes.
        """
        mean, variance = self._moments(X, K, diagonal)
        return log_odds(self._coding, mean, variance, self._calibration)

    def predict_latent(
        self, X: ImagesLike | None = None, *, K: Any = None, diagonal: Any = None
    ) -> tuple[Floats, Floats]:
        """Posterior mean (M, classes) and variance (M,) of the ±1 functions; the variance is shared by the outputs."""
        asked = self._asked(X, K, diagonal)
        return self.fit_.moments(asked)

    def predict_set(
        self,
        X: ImagesLike | None = None,
        *,
        coverage: float = 0.9,
        by: Literal["class"] | None = None,
        K: Any = None,
        diagonal: Any = None,
    ) -> NDArray[np.bool_]:
        """Conformal prediction sets: a mask (M, classes) in the order of `classes_` that includes the right class as
        often as `coverage`, for new images like those of the fit.

        The coverage holds even if the model is wrong: an image is added to the training images and compared with their
        leave-one-out predictions (full conformal prediction, in closed form). With `by="class"` each class has the
        coverage. An empty set means that the image is unlike the training images of every class. With several labels
        per image, each has a set of no and yes, (M, labels, 2).

        >>> from cnngp import GPClassifier, datasets
        >>> data = datasets.digits().take(200)
        >>> sets = GPClassifier("small_cnn", device="cpu").fit(data.X, data.y).predict_set(data.X_test, coverage=0.9)
        >>> bool(sets[range(len(sets)), data.y_test].mean() > 0.85)
        True
        """
        if by not in (None, "class"):
            raise ValueError(f"by={by!r}: expected None or 'class'")
        check_coverage(coverage)
        asked, gp = self._asked(X, K, diagonal), self._exact("a set with a guarantee")
        if self._coding.several:
            p = self.fit_.over(asked, lambda block, own: p_values_of_each(gp, block, own))
        else:
            labels = to_numpy(gp.Y).argmax(1)
            p = self.fit_.over(asked, lambda block, own: p_values(gp, block, own, labels, by == "class"))
        return allowed(p, coverage)

    def add(
        self,
        X: ImagesLike,
        y: ArrayLike,
        *,
        sample_weight: ArrayLike | None = None,
        image_noise: ArrayLike | None = None,
        names: Any = None,
    ) -> Self:
        """Condition on more images, by a block update instead of a new factorisation; they may have new classes.

        The arguments are those of `fit`; a `class_weight` that is a dict applies here too.
        """
        labels = read_labels(y)
        said = {"sample_weight": sample_weight, "image_noise": image_noise, "names": names}
        if isinstance(self.class_weight, Mapping) and labels.ndim == 1:
            present = set(labels.tolist())
            said["class_weight"] = {label: w for label, w in self.class_weight.items() if label in present} or None
        added = self._added(X, labels, np.asarray, **said)
        coding, new = self._coding.grown(added.y)
        self._add(added, coding.targets(added.y), new, _coding=coding, classes_=coding.classes)
        return self

    def most_uncertain(self, n: int = 10, X: ImagesLike | None = None) -> Numbers:
        """Rows of the `n` images with the most uncertain label, highest entropy first: candidates to label next.

        These are rows of X, or of the training images by leave-one-out. To find wrong labels use `suspect_labels`: an
        image with a wrong label is usually not uncertain, because the others predict another label with confidence.
        """
        self._check_how_many(n)
        P = self.loo_probabilities_ if X is None else self.predict_proba(X)
        if self._coding.several:
            P = np.concatenate([P, 1.0 - P], axis=1)
        entropy = -(P * np.log(np.maximum(P, np.finfo(np.float64).tiny))).sum(1)
        return self._first(n, entropy, X)

    def suspect_labels(self, n: int = 20) -> dict[str, Array]:
        """Find the `n` training images whose labels are contradicted most by the others, the most suspect first.

        Returns a dict of arrays: `row`; `score`, 1 − the leave-one-out probability of the given label (with several
        labels, of the least probable one); `given`; `proposed`, the label that the others predict; `name`.

        >>> from cnngp import GPClassifier, datasets
        >>> data = datasets.digits().take(200)
        >>> y = data.y.copy()
        >>> y[7] = (y[7] + 5) % 10  # a wrong label
        >>> found = GPClassifier("small_cnn", device="cpu").fit(data.X, y).suspect_labels(1)
        >>> found["row"], bool(found["proposed"][0] == data.y[7])
        (array([7]), True)
        """
        self._check_how_many(n)
        targets = to_numpy(self.gp_.leave_one_out().targets)
        given = np.where(targets > 0.0, self.loo_probabilities_, 1.0)
        if self._coding.several:
            given = np.where(targets > 0.0, given, 1.0 - self.loo_probabilities_)
        score = 1.0 - given.min(1, initial=1.0)
        return self._suspects(n, score, self._coding.labels(targets), self.loo_predictions_)

    def explain(
        self, X: ImagesLike | None = None, *, saliency: bool = False, K: Any = None, diagonal: Any = None
    ) -> list[Explanation]:
        """Explain each prediction by the training images that speak for and against each class, and with `saliency` by
        the gradient with respect to the pixels of X.

        >>> from cnngp import GPClassifier, datasets
        >>> data = datasets.digits().take(200)
        >>> clf = GPClassifier(device="cpu").fit(data.X, data.y)
        >>> why = clf.explain(data.X_test[:1])[0]
        >>> bool(why.predicted == clf.predict(data.X_test[:1])[0])
        True
        >>> bool((why.shares.sum(0) == why.mean).all())
        True
        >>> [bool(v.label == why.predicted) for v in why.speaking_for(n=3)]
        [True, True, True]
        """
        from .explanation import Explanation

        asked = self._asked(X, K, diagonal)
        if saliency and asked.images is None:
            raise DataError("saliency is a gradient by pixels; give images X instead of K")
        looks = iter(self.saliency(X)) if saliency and X is not None else itertools.repeat(None)
        fit = self.fit_
        variances, diagonal, usual = fit.variances, fit.diagonal(asked), self.loo_novelty_
        labels, names = fit.of_points(fit.y), fit.of_points(fit.names)
        found = []
        for rows, block in fit.blocks(asked):
            P = self.predict_proba(K=block, diagonal=diagonal[rows])
            new = novelty(to_numpy(block), diagonal[rows], variances)
            for k, p, unlike in zip(block, P, new, strict=True):
                shares = to_numpy(self.gp_.votes(k[None])[0])
                mean = shares.sum(0)
                rank = math.nan if usual is None else float((usual < unlike).mean())
                said = self._coding.labels(mean[None])[0]
                facts = (said, p, mean, shares, float(unlike), rank, labels, names, next(looks))
                found.append(Explanation(self.classes_, *facts))
        return found

    def saliency(self, X: ImagesLike, label: Any = None) -> Floats:
        """Saliency maps: gradient by the pixels of the mean of the predicted class, or of class `label`, shaped like X.

        They include the recipe's preparations. With several labels per image, the predicted class is the one with the
        largest mean. Values are positive where more brightness speaks for the class; absolute values show where the
        model looks.

        >>> from cnngp import GPClassifier, datasets
        >>> data = datasets.digits().take(100)
        >>> clf = GPClassifier("small_cnn", noise=0.01, device="cpu").fit(data.X, data.y)
        >>> clf.saliency(data.X_test[:2]).shape
        (2, 1, 8, 8)
        """
        images = self._check_test(X)
        if label is None:
            outputs = self.fit_.mean(Asked(images)).argmax(1)
        elif len(found := np.flatnonzero(self.classes_ == label)):
            outputs = np.repeat(found, len(images))
        else:
            raise DataError(f"{label!r} is not a class of the model: {self.classes_.tolist()[:10]}")
        return self.fit_.saliency(images, outputs).reshape(np.shape(X))

    def _state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        numbers = {name: np.asarray(value).tolist() for name, value in self._calibration._asdict().items()}
        return {"several_labels": self._coding.several, "calibration": numbers}, {"classes": self.classes_}

    def _restore(self, header: dict[str, Any], arrays: dict[str, Array]) -> None:
        self._coding = Coding(arrays["classes"], bool(header["several_labels"]))
        self.classes_ = self._coding.classes
        outputs = self.gp_.leave_one_out().targets.shape[1]
        if len(np.unique(self.classes_)) != outputs:
            raise ValueError(f"{len(self.classes_)} classes for {outputs} outputs")
        self._after_fit(read_calibration(header["calibration"], self._coding.questions))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _moments(self, X: Any, K: Any, diagonal: Any) -> tuple[Floats, Floats]:
        """Mean (M, classes) and variance (M,) for the probabilities: 0 if the variance is left out."""
        asked = self._asked(X, K, diagonal)
        if not (self._calibration.moderated and self.gp_.cheap_variances):
            mean = self.fit_.mean(asked)
            return mean, np.zeros(len(mean))
        mean, variance = self.fit_.moments(asked)
        return mean, variance + self.gp_.amplitude * self.gp_.noise

    def _after_fit(self, known: Calibration | None = None) -> None:
        """Compute the leave-one-out results, and the calibration unless it is known from a file."""
        left = self.gp_.leave_one_out()
        mean, variance, targets = (to_numpy(a) for a in (left.mean, left.variance, left.targets))
        if not self.gp_.cheap_variances:
            variance = np.zeros(len(mean))
        self.loo_error_, found = math.nan, known or Calibration(1.0, 0.0, True)
        self.loo_predictions_, wrong = self._coding.labels(mean), np.empty(0, bool)
        if len(mean):
            wrong = self._coding.wrong(mean, targets)
            self.loo_error_ = float(wrong.mean())
            found = known or fitted_calibration(self._coding, mean, variance, targets)
        self._calibration, self.temperature_, self.label_noise_ = found, found.temperature, found.label_noise
        if not found.moderated:
            variance = np.zeros(len(mean))
        self.loo_probabilities_ = probabilities(self._coding, mean, variance, found)
        facts = (self.loo_probabilities_, wrong, targets > 0.0, self._coding.several, left.groups)
        self._say(guessing=errors_if_guessing(*facts))
