"""Evaluation of a classifier: errors, calibration of its probabilities, prediction sets, and images worth a look."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError
from cnngp.common.tables import percent, share_for_people
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.classifier import GPClassifier
from cnngp.gp import calibration

from . import page, plots
from .evaluation import COVERAGE, TRIED, Array, Evaluation, counted, likelihood, word

CLEAR = 0.6
"""Probability from which a wrong prediction counts as confident."""
_IMAGES_A_BIN, _FEWEST_BINS, _MOST_BINS = 10, 5, 15


class Classes(Evaluation):
    """Evaluation of a fitted classifier on a data set."""

    command, title = "classify", "Exact Gaussian process classification"
    texts: ClassVar[dict[str, tuple[str, str]]] = {
        "coverage": (
            "Sets instead of classes",
            "A set holds the right class as often as asked, whether or not the probabilities are right: new images of "
            "which the model knows little get several classes, or none where they are unlike all that was seen. "
            "<code>cnngp predict --coverage 0.9</code> prints them.",
        ),
        "wrong": (
            "Confidently wrong",
            "Test images with a wrong prediction, the most certain first. Below each are the training images that "
            "contribute most to the prediction, with their labels and shares. Orange is where it looks: the pixels "
            "whose change would change it most.",
        ),
        "suspect": (
            "Suspect labels",
            "By leave-one-out, the most suspect first: look at these when cleaning labels. The proposed label comes "
            "first; the percentage is the probability of the label as given.",
        ),
        "uncertain": (
            "Most uncertain",
            "Test images whose predicted class is least probable: look at these, or label more like them, next.",
        ),
    }
    behind = "for"

    def __init__(self, clf: GPClassifier, data: Dataset) -> None:
        self.classes = tuple(map(word, clf.classes_))
        super().__init__(clf, data)
        self.confusion = np.zeros((len(self.classes),) * 2, np.int64)
        """Confusion matrix of the test set, or by leave-one-out if there is none; rows are the labels."""
        codes, P = self.found
        np.add.at(self.confusion, (codes, P.argmax(1)), 1)

    def _left_out(self) -> tuple[Array, ...]:
        return (self.model.loo_probabilities_,)

    def _labels(self, y: Any) -> Array:
        """Indices of the labels among the classes."""
        check_labels(self.model.classes_, y)
        return np.asarray(np.searchsorted(self.model.classes_, y))

    def _predict(self, X: Any = None, **kernels: Any) -> tuple[Array, ...]:
        return (self.model.predict_proba(X, **kernels),)

    def _scores(self, labels: Array, *found: Array) -> calibration.Scores:
        return calibration.scores(found[0], labels)

    # ---- images worth a look -------------------------------------------------------------------------------------

    def _worth_a_look(self) -> tuple[Array, Array]:
        """Rows by increasing certainty, and wrong predictions of test images, the most certain first."""
        codes, P = self.found
        uncertain = np.argsort(P.max(1), kind="stable")
        wrong = np.flatnonzero(P.argmax(1) != codes) if self.tested else uncertain[:0]
        return uncertain, wrong[np.argsort(-P.max(1)[wrong], kind="stable")]

    def _said(self, row: int) -> dict[str, Any]:
        codes, P = self.found
        code, best, p = codes[row], P[row].argmax(), float(P[row].max())
        words = {"label": self.classes[code], "predicted": self.classes[best], "sure": percent(p)}
        return words | {"facts": {"probability": p}, "wrong": bool(best != code)}

    def shown_mistakes(self) -> str:
        sure = [p for p in self.wrong if p.facts["probability"] >= CLEAR]
        least = f" with a probability of {percent(CLEAR)} or more" if self.wrong else ""
        return page.grid(sure) or (f"<p>No test image is predicted wrongly{least}.</p>" if self.tested else "")

    def _doubt(self, score: float) -> tuple[str, dict[str, Any]]:
        return percent(1.0 - score), {"probability": 1.0 - score}

    # ---- sets ----------------------------------------------------------------------------------------------------

    def _coverage(self) -> dict[str, Any] | None:
        if not self.tested or self.model.gp_.exact is None:
            return None
        sets = self.model.predict_set(coverage=COVERAGE, **self._of_test(slice(TRIED)))
        right = sets[np.arange(len(sets)), self.found[0][:TRIED]]
        none, classes = float((~sets.any(1)).mean()), float(sets.sum(1).mean())
        return {"asked": COVERAGE, "images": len(sets), "right": float(right.mean()), "classes": classes, "none": none}

    def covered(self) -> list[tuple[str, str]]:
        if (of := self.coverage) is None:
            return []
        said = f"right for {counted(of['right'], of['images'])} of the test images"
        return [("sets at 90 %", f"{said}, {of['classes']:.2f} classes each, none for {percent(of['none'])}")]

    # ---- what is said --------------------------------------------------------------------------------------------

    def _beside(self, scores: Any, images: int) -> str:
        return f"; {round(scores.error * images):,} of {images:,} wrong" if images else "; of no images"

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {
            "classes": len(self.classes),
            "loo_error": self.loo.error,
            "test_error": None if self.test is None else self.test.error,
            "temperature": float(self.model.temperature_),
            "label_noise": float(self.model.label_noise_),
        }

    def tiles(self) -> list[tuple[str, str]]:
        scores, image = (self.loo, "image, left out") if self.test is None else (self.test, "test image")
        shares = (
            ("test error", self.test, self.tested),
            ("validation error", self.validation, self.validated),
            ("leave-one-out error", self.loo, self.loo_images),
        )
        return [
            *(_error(name, found.error, count) for name, found, count in shares if found is not None),
            (f"{scores.ece:.4f}", "calibration error (ECE)"),
            (f"{scores.nll:.4f}", f"NLL per {image}"),
            likelihood(self.model.log_marginal_likelihood_),
        ]

    def summary(self) -> str:
        tested = ""
        if self.test is not None:
            tested = f"It gets {round(self.test.error * self.tested):,} of {self.tested:,} test images wrong. "
        loo, remark = share_for_people(self.loo.error, self.loo_images)
        return (
            f"The model was trained on {self.images:,} images by one linear solve. {tested}By leave-one-out, which "
            f"needs no test set, it gets {loo} of the training images wrong{f' ({remark})' if remark else ''}, each "
            "predicted from all the others."
        )

    def figures(self) -> tuple[str, list[str]]:
        scores, of, where = (self.loo, "leave-one-out", "leave-one-out predictions")
        if self.test is not None:
            scores, of, where = self.test, "test", "test set"
        (codes, P), noise = self.found, float(self.model.label_noise_)
        random = f", by which {percent(noise, 1)} of the labels are taken to be random." if noise else "."
        curve = calibration.reliability(P, codes, bins_for(P.max(1)))
        confusion = f"Confusion matrix of the {where}: rows are labels, mistakes are orange."
        return "Which classes are confused, and how honest the probabilities are", [
            page.figure(plots.confusion(self.confusion, self.classes), confusion),
            page.figure(
                plots.reliability(curve),
                f"Reliability of the {of} probabilities: ECE {scores.ece:.4f}, NLL {scores.nll:.4f}. The temperature "
                f"{float(self.model.temperature_):.3f} was chosen on leave-one-out predictions{random}",
            ),
        ]


def check_labels(y: Any, y_test: Any) -> None:
    """Raise if the test set has labels that are missing from training; call it before the kernel is computed."""
    unknown = np.setdiff1d(y_test, y)
    if len(unknown):
        raise DataError(
            f"the test set has labels that are missing from the training set: {unknown.tolist()[:5]}; use more "
            "training images"
        )


def bins_for(top: NDArray[np.float64]) -> int:
    """Number of bins of the reliability curve, few enough that images with uncertain predictions fill them."""
    uncertain = np.count_nonzero(top < 1.0 - 1.0 / _MOST_BINS)
    return int(np.clip(uncertain // _IMAGES_A_BIN, _FEWEST_BINS, _MOST_BINS))


def _error(name: str, share: float, count: int) -> tuple[str, str]:
    value, remark = share_for_people(share, count)
    return value, f"{name}: {remark}" if remark else name
