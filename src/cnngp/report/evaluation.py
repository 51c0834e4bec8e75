"""How a fitted classifier does on a test set: what the command line prints and the report shows, as plain values."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, to_numpy
from cnngp.common.tables import printable
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.classifier import GPClassifier
from cnngp.gp import calibration
from cnngp.gp.calibration import Reliability, Scores

from .suspects import SuspectLabels, suspect_labels

Array = NDArray[Any]
_IMAGES_A_BIN, _FEWEST_BINS, _MOST_BINS = 10, 5, 15


@dataclass(frozen=True)
class Neighbour:
    """A training image that speaks for a prediction, and its share in the mean."""

    pixels: Array
    label: str
    share: float
    name: str | None


@dataclass(frozen=True)
class Picture:
    """An image with what was said of it."""

    pixels: Array
    label: str
    predicted: str
    probability: float
    """Of the predicted class; of the label that was given where that is suspect."""
    name: str | None = None
    neighbours: tuple[Neighbour, ...] = ()
    novelty: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The words and numbers, for JSON."""
        told: dict[str, Any] = {
            "name": self.name,
            "label": self.label,
            "predicted": self.predicted,
            "probability": self.probability,
        }
        if self.neighbours:
            said = [{"name": n.name, "label": n.label, "share": n.share} for n in self.neighbours]
            told |= {"novelty": self.novelty, "because_of": said}
        return told


@dataclass(frozen=True)
class Evaluation:
    data: str
    images: int
    loo_images: int
    """Of the training images, those with a leave-one-out prediction."""
    classes: tuple[str, ...]
    loo: Scores
    test: Scores | None
    """None where there is no test set: `reliability` and `confusion` are of the leave-one-out predictions then."""
    validation: Scores | None
    validation_images: int
    log_marginal_likelihood: float | None
    temperature: float
    label_noise: float
    reliability: Reliability
    confusion: NDArray[np.int64]
    """Rows are the labels, columns the predictions."""
    uncertain: tuple[Picture, ...]
    wrong: tuple[Picture, ...]
    suspect: tuple[Picture, ...]
    """Training images whose label the others contradict; `predicted` is what they propose."""
    suspects: SuspectLabels | None
    """The whole list that these are the first of; None of a model that is no better than guessing."""
    correlations: NDArray[np.float64]
    """K_ij/√(K_ii K_jj) of training images ordered by class."""
    boundaries: tuple[int, ...]
    """Where the classes end in `correlations`."""
    predict_seconds: float

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return {
            "data": self.data,
            "train": self.images,
            "classes": len(self.classes),
            "loo_error": self.loo.error,
            "test_error": None if self.test is None else self.test.error,
            "test": None if self.test is None else asdict(self.test),
            "loo": asdict(self.loo),
            "validation": None if self.validation is None else asdict(self.validation),
            "log_marginal_likelihood": self.log_marginal_likelihood,
            "temperature": self.temperature,
            "label_noise": self.label_noise,
            "predict_seconds": self.predict_seconds,
            "mistakes": [p.as_dict() for p in self.wrong],
            "uncertain": [p.as_dict() for p in self.uncertain],
            "suspects": [p.as_dict() for p in self.suspect],
            "suspect_labels": None
            if self.suspects is None
            else {
                "beyond_errors": self.suspects.beyond_errors,
                "expected_by_errors": self.suspects.expected,
                "contradicted": self.suspects.contradicted,
            },
        }


def evaluate(clf: GPClassifier, data: Dataset, pictures: int = 12, matrix: int = 400) -> Evaluation:
    """Predict the test set and the validation set, where there are, and gather what there is to say."""
    loo, loo_codes = clf.loo_probabilities_, to_numpy(clf.gp_.leave_one_out().targets).argmax(1)
    tested = len(data.X_test) > 0
    start = time.perf_counter()
    P = clf.predict_proba(data.X_test) if tested else loo
    seconds = time.perf_counter() - start
    codes = _codes(clf, data.y_test) if tested else loo_codes
    names = tuple(map(_word, clf.classes_))
    best, top = P.argmax(1), P.max(1)
    confusion = np.zeros((len(names), len(names)), np.int64)
    np.add.at(confusion, (codes, best), 1)

    def show(rows: NDArray[np.intp]) -> tuple[Picture, ...]:
        return tuple(
            Picture(
                data.X_test[i],
                names[codes[i]],
                names[best[i]],
                float(top[i]),
                None if data.names_test is None else _word(data.names_test[i]),
            )
            for i in rows[:pictures]
            if tested
        )

    mistakes = np.flatnonzero(best != codes)
    confident = mistakes[np.argsort(-top[mistakes], kind="stable")]
    validation = None
    if data.X_validation is not None:
        validation = calibration.scores(clf.predict_proba(data.X_validation), _codes(clf, data.y_validation))
    # That another label is more probable says nothing where the model is no better than guessing.
    suspects = suspect_labels(clf) if clf.fit_report_.guessing is None else None
    correlations, boundaries = _correlations(clf, data, matrix)
    return Evaluation(
        data=repr(data).strip("<>"),
        images=clf.fit_report_.images,
        loo_images=len(clf.loo_rows_),
        classes=names,
        loo=calibration.scores(loo, loo_codes),
        test=calibration.scores(P, codes) if tested else None,
        validation=validation,
        validation_images=0 if data.X_validation is None else len(data.X_validation),
        log_marginal_likelihood=clf.log_marginal_likelihood_,
        temperature=float(clf.temperature_),
        label_noise=float(clf.label_noise_),
        reliability=calibration.reliability(P, codes, _bins(top)),
        confusion=confusion,
        uncertain=show(np.argsort(top, kind="stable")),
        wrong=_explained(clf, data.X_test[confident[:pictures]], show(confident)) if tested else (),
        suspect=() if suspects is None else _pictures_of(suspects, data, pictures),
        suspects=suspects,
        correlations=correlations,
        boundaries=boundaries,
        predict_seconds=seconds,
    )


def _explained(clf: GPClassifier, X: Array, pictures: tuple[Picture, ...], neighbours: int = 3) -> tuple[Picture, ...]:
    """The pictures with the training images that contribute most to what was predicted."""
    if not pictures:
        return ()
    found = []
    for picture, why in zip(pictures, clf.explain(X), strict=True):
        voices = why.speaking_for(n=neighbours)
        shown = (
            Neighbour(
                clf.X_[v.row],
                "" if v.label is None else _word(v.label),
                v.share,
                None if v.name is None else _word(v.name),
            )
            for v in voices
        )
        found.append(replace(picture, neighbours=tuple(shown), novelty=why.novelty))
    return tuple(found)


def _pictures_of(suspects: SuspectLabels, data: Dataset, most: int) -> tuple[Picture, ...]:
    """The first of the suspect labels with their images."""
    rows = zip(*(column[:most] for column in suspects.columns.values()), strict=True)
    return tuple(
        Picture(
            data.X[row],
            _word(given),
            _word(proposed),
            1.0 - float(score),
            None if data.names is None else _word(name),
        )
        for row, score, given, proposed, name in rows
    )


def _word(name: object) -> str:
    """A class or a file's name, as people read it."""
    return printable(str(name))


def _bins(top: NDArray[np.float64]) -> int:
    """The number of bins of the reliability curve: so few that images that are not all but certain fill them."""
    uncertain = np.count_nonzero(top < 1.0 - 1.0 / _MOST_BINS)
    return int(np.clip(uncertain // _IMAGES_A_BIN, _FEWEST_BINS, _MOST_BINS))


def check_labels(y: Any, y_test: Any) -> None:
    """Refuse a test set with labels that are not in training; worth doing before the kernel is computed."""
    unknown = np.setdiff1d(y_test, y)
    if len(unknown):
        raise DataError(
            f"the test set has labels that are missing from the training set: {unknown.tolist()[:5]}; use more "
            "training images"
        )


def _codes(clf: GPClassifier, y: Any) -> NDArray[np.intp]:
    check_labels(clf.classes_, y)
    return np.asarray(np.searchsorted(clf.classes_, y))


def _correlations(clf: GPClassifier, data: Dataset, most: int) -> tuple[NDArray[np.float64], tuple[int, ...]]:
    n = len(data.X)
    rows = np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))
    exact = clf.gp_.exact
    K = to_numpy(clf.fit_.among(data.X[rows]) if exact is None else exact.kernel_between(rows)).astype(np.float64)
    s = np.sqrt(np.maximum(K.diagonal(), np.finfo(np.float64).tiny))
    K /= np.outer(s, s)
    np.fill_diagonal(K, 1.0)
    labels = _codes(clf, data.y[rows])
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=len(clf.classes_)))
    return K[np.ix_(order, order)], tuple(int(e) for e in ends[:-1])
