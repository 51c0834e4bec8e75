"""Evaluation of a fitted model, as plain values and pictures: the base class for classification and regression."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from cnngp.common.tables import printable, share_for_people
from cnngp.datasets.dataset import Dataset

from . import page
from .answers import kernels, told, where
from .suspects import SuspectLabels, suspect_labels

Array = NDArray[Any]
PICTURES = 12
"""Largest number of pictures of each kind."""
_OPERATIONS = 4 * 10**10  # budget for saliency: kernel operations over all pairs of shown and training images
TRIED = 500
"""Number of test images on which sets and intervals are evaluated."""
COVERAGE = 0.9
"""Coverage that is asked of them."""


@dataclass(frozen=True)
class Neighbour:
    """A training image behind a prediction, its label, and its share in the prediction or its similarity."""

    pixels: Array
    label: str
    share: str
    name: str | None


@dataclass(frozen=True)
class Picture:
    """An image with its prediction and its label."""

    pixels: Array
    label: str
    predicted: str
    sure: str
    """Certainty of the prediction, in words."""
    name: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Further values for JSON."""
    wrong: bool = False
    suspect: bool = False
    neighbours: tuple[Neighbour, ...] = ()
    saliency: Array | None = None
    """Effect of each pixel on the prediction, if known."""

    def as_dict(self) -> dict[str, Any]:
        """Words and numbers for JSON."""
        return {"name": self.name, "label": self.label, "predicted": self.predicted, **self.facts}


class Evaluation(ABC):
    """Evaluation of a fitted model by leave-one-out, and on validation and test images."""

    command: ClassVar[str]
    title: ClassVar[str]
    texts: ClassVar[dict[str, tuple[str, str]]]
    """Heading and first paragraph of the sections `coverage`, `wrong`, `suspect` and `uncertain`."""
    behind: ClassVar[str]
    """Key under which answers list the training images behind a prediction."""
    test: Any = None
    """Scores on the test images, or None without any; `validation` likewise; `loo` are the leave-one-out scores."""
    validation: Any = None
    suspects: SuspectLabels | None = None
    """None for a model no better than guessing, because its contradicting a label means nothing."""
    suspect: tuple[Picture, ...] = ()

    def __init__(self, model: Any, data: Dataset) -> None:
        self.model, self.data = model, data
        self.images: int = model.fit_report_.images
        self.loo_images, self.tested = len(model.loo_rows_), len(data.X_test)
        self.validated = 0 if data.X_validation is None else len(data.X_validation)
        self.guessing = model.fit_report_.guessing is not None or model.fit_report_.no_better is not None
        self.predict_seconds, self._held = 0.0, None
        self.left_out = self.found = self._labels(np.asarray(model.y_)[model.loo_rows_]), *self._left_out()
        """Labels and predictions by leave-one-out; `found` has those of the test set if there is one."""
        self.loo = self._scores(*self.left_out)
        if self.tested:
            start = time.perf_counter()
            if self.tested <= TRIED:
                self._held = kernels(model, data.X_test)
            found = self._predict(**({"X": data.X_test} if self._held is None else self._of_test(slice(None))))
            self.predict_seconds = time.perf_counter() - start
            self.found = self._labels(data.y_test), *found
            self.test = self._scores(*self.found)
        if data.X_validation is not None:
            self.validation = self._scores(self._labels(data.y_validation), *self._predict(data.X_validation))
        self.coverage = self._coverage()
        """Measured coverage and size of the sets or intervals, beside the coverage that was asked for."""
        uncertain, wrong = (rows[:PICTURES] for rows in self._worth_a_look())
        self.uncertain = tuple(map(self._picture, uncertain)) if self.tested else ()
        self.wrong = tuple(map(self._picture, wrong))
        if self.tested and self.wrong:
            self.wrong = self._explained(wrong)
        if not self.guessing:
            self.suspects = suspect_labels(model)
            self.suspect = self._suspect(self.suspects)

    @abstractmethod
    def _left_out(self) -> tuple[Array, ...]:
        """Leave-one-out predictions of the training images."""

    @abstractmethod
    def _labels(self, y: Any) -> Array:
        """Convert labels to the form in which they are scored."""

    @abstractmethod
    def _predict(self, X: Any = None, **kernels: Any) -> tuple[Array, ...]:
        """Predictions for images, or from their kernels."""

    @abstractmethod
    def _scores(self, labels: Array, *found: Array) -> Any:
        """Scores of predictions: a dataclass that prints as its numbers."""

    @abstractmethod
    def _coverage(self) -> dict[str, Any] | None:
        """Measured coverage of sets or intervals; None if they were not evaluated."""

    @abstractmethod
    def _worth_a_look(self) -> tuple[Array, Array]:
        """Rows of `found`: by decreasing uncertainty, and the wrong ones in the order to show."""

    @abstractmethod
    def _said(self, row: int) -> dict[str, Any]:
        """Fields of the `Picture` for one row of `found`, except its pixels and name."""

    @abstractmethod
    def _doubt(self, score: float) -> tuple[str, dict[str, Any]]:
        """Doubt about a label, in words and for JSON."""

    @abstractmethod
    def covered(self) -> list[tuple[str, str]]:
        """`coverage` as lines: (name, text)."""

    @abstractmethod
    def tiles(self) -> list[tuple[str, str]]:
        """Headline numbers of the report: (value, name)."""

    @abstractmethod
    def summary(self) -> str:
        """The main numbers in a few sentences."""

    @abstractmethod
    def figures(self) -> tuple[str, list[str]]:
        """Heading and HTML of the figures on the scores."""

    def _beside(self, scores: Any, images: int) -> str:
        """Text printed after the scores of this number of images."""
        return ""

    def _label(self, label: Any) -> str:
        """A label as text for people."""
        return word(label)

    # ---- what is said --------------------------------------------------------------------------------------------

    def lines(self) -> list[tuple[str, str]]:
        """Scores as printed lines: (name, text)."""
        of = [("validation", self.validation, self.validated), ("test", self.test, self.tested)]
        of.append(("leave-one-out", self.loo, self.loo_images))
        told = [(name, f"{scores}{self._beside(scores, n)}") for name, scores, n in of if scores is not None]
        return told + self.covered()

    def sections(self) -> str:
        """HTML sections on coverage and on single images."""
        suspect = "" if self.suspects is None else f"<p>{escape(self.suspects.sentence)}</p>{page.grid(self.suspect)}"
        uncertain, covered = page.grid(self.uncertain), page.table(self.covered()) if self.covered() else ""
        shown = {"coverage": covered, "wrong": self.shown_mistakes(), "suspect": suspect, "uncertain": uncertain}
        found = ""
        for name, (heading, said) in self.texts.items():
            if shown[name]:
                found += f'<h2>{heading}</h2>\n<p class="muted">{said}</p>\n{shown[name]}'
        return found

    def shown_mistakes(self) -> str:
        """HTML of the pictures in `wrong` that are worth showing."""
        return page.grid(self.wrong)

    def as_dict(self) -> dict[str, Any]:
        """All numbers for JSON."""
        scores, counts = {"test": self.test, "loo": self.loo, "validation": self.validation}, None
        if (s := self.suspects) is not None:
            counts = {"beyond_errors": s.beyond_errors, "expected_by_errors": s.expected}
            counts["contradicted"] = s.contradicted
        pictures = {"mistakes": self.wrong, "uncertain": self.uncertain, "suspects": self.suspect}
        return {
            "data": repr(self.data).strip("<>"),
            "train": self.images,
            **{name: None if found is None else asdict(found) for name, found in scores.items()},
            "log_marginal_likelihood": self.model.log_marginal_likelihood_,
            "predict_seconds": self.predict_seconds,
            "coverage": self.coverage,
            **{name: [picture.as_dict() for picture in shown] for name, shown in pictures.items()},
            "suspect_labels": counts,
        }

    # ---- images --------------------------------------------------------------------------------------------------

    def _of_test(self, rows: Any) -> dict[str, Any]:
        """Kernels of some test images with the training images, as arguments of `predict_set` and similar methods."""
        if self._held is None:
            K, diagonal = kernels(self.model, self.data.X_test[rows])
        else:  # kept for a small test set
            K, diagonal = (held[rows] for held in self._held)
        return {"K": K, "diagonal": diagonal}

    @property
    def _shown(self) -> Array:
        """Training images, or for features the pictures that they were computed from."""
        return self.data.X if self.data.pictures is None else self.data.pictures

    def _picture(self, row: int) -> Picture:
        """The `Picture` of one row of `found`: a test image, or a training image if there is no test set."""
        data, at = self.data, row
        if self.tested:
            X, names = data.X_test if data.pictures_test is None else data.pictures_test, data.names_test
        else:
            X, names, at = self._shown, data.names, self.model.loo_rows_[row]
        return Picture(X[at], name=None if names is None else word(names[at]), **self._said(row))

    def _explained(self, rows: Array) -> tuple[Picture, ...]:
        """The pictures of `wrong` with the training images behind each prediction, and with saliency."""
        model, pictures = self.model, self.data.pictures
        terms, kept = model.fit_.only_kernel.terms, model.inducing_rows_
        shapes = [t.kernel.network.shapes(t.preparation.output_shape(model.input_shape_)) for t in terms]
        pair = sum(shape.cost for shape in shapes) * len(model.X_)
        seen = self.data.X_test[rows[: _OPERATIONS // max(pair, 1)]]  # as many images as take a few seconds
        places = where(model, seen) if len(seen) and pictures is None else None
        found = []
        for i, said in enumerate(told(model, **self._of_test(rows), voices=3)):
            neighbours = []
            for voice in said[self.behind]:
                row, label, name = voice["row"], voice["label"], voice["name"]
                pixels = model.X_[row] if pictures is None else pictures[row if kept is None else kept[row]]
                share = f"{voice['share']:.3f}" if self.behind == "near" else page.minus(f"{voice['share']:+.2f}")
                label = "" if label is None else self._label(label)
                neighbours.append(Neighbour(np.asarray(pixels), label, share, word(name) if name else None))
            facts = self.wrong[i].facts | {"novelty": said["novelty"], "because_of": said[self.behind]}
            place = None if places is None or i >= len(places) else places[i]
            found.append(replace(self.wrong[i], facts=facts, neighbours=tuple(neighbours), saliency=place))
        return tuple(found)

    def _suspect(self, suspects: SuspectLabels) -> tuple[Picture, ...]:
        """Pictures of the most suspect labels; `predicted` is the label that the other images propose."""
        found = []
        for row, score, given, proposed, name in zip(*suspects.columns.values(), strict=True):
            doubt, facts = self._doubt(float(score))
            words = self._label(given), self._label(proposed), doubt, None if self.data.names is None else word(name)
            found.append(Picture(self._shown[row], *words, facts, suspect=True))
        return tuple(found[:PICTURES])


def word(name: object) -> str:
    """A class or file name as printable text."""
    return printable(str(name))


def counted(share: float, count: int) -> str:
    """A share of `count` images as text, with its confidence interval if they are few."""
    value, remark = share_for_people(share, count)
    return f"{value} ({remark})" if remark else value


def likelihood(value: float | None) -> tuple[str, str]:
    """A log marginal likelihood as text, and its name."""
    return "not known" if value is None else page.minus(f"{value:,.0f}"), "log marginal likelihood"
