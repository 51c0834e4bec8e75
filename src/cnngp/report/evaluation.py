"""What a run finds about a fitted model: the frame that classes and numbers share, as plain values and pictures."""

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
"""Of each kind."""
_OPERATIONS = 4 * 10**10  # of the pairs of images whose gradients are taken
TRIED = 500
"""Test images on which sets and intervals are tried."""
COVERAGE = 0.9
"""How often these are to hold the truth."""


@dataclass(frozen=True)
class Neighbour:
    """A training image behind a prediction, its label, and what is said of it."""

    pixels: Array
    label: str
    share: str
    name: str | None


@dataclass(frozen=True)
class Picture:
    """An image with what was predicted for it, and the label that it has."""

    pixels: Array
    label: str
    predicted: str
    sure: str
    """How sure that is."""
    name: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """More for JSON."""
    wrong: bool = False
    suspect: bool = False
    neighbours: tuple[Neighbour, ...] = ()
    saliency: Array | None = None
    """What each pixel does to the prediction, where that is known."""

    def as_dict(self) -> dict[str, Any]:
        """The words and numbers, for JSON."""
        return {"name": self.name, "label": self.label, "predicted": self.predicted, **self.facts}


class Evaluation(ABC):
    """A fitted model on its training images, left out, and on those for validation and tests."""

    command: ClassVar[str]
    title: ClassVar[str]
    texts: ClassVar[dict[str, tuple[str, str]]]
    """Heading and first paragraph of the sections `coverage`, `wrong`, `suspect` and `uncertain`."""
    behind: ClassVar[str]
    """What answers call the training images behind a prediction."""
    test: Any = None
    """Scores of the test images, None where there are none; `validation` likewise, `loo` of those left out."""
    validation: Any = None
    suspects: SuspectLabels | None = None
    """None of a model that is no better than guessing: that it contradicts a label says nothing."""
    suspect: tuple[Picture, ...] = ()

    def __init__(self, model: Any, data: Dataset) -> None:
        self.model, self.data = model, data
        self.images: int = model.fit_report_.images
        self.loo_images, self.tested = len(model.loo_rows_), len(data.X_test)
        self.validated = 0 if data.X_validation is None else len(data.X_validation)
        self.guessing = model.fit_report_.guessing is not None or model.fit_report_.no_better is not None
        self.predict_seconds, self._held = 0.0, None
        self.left_out = self.found = self._labels(np.asarray(model.y_)[model.loo_rows_]), *self._left_out()
        """Labels and predictions by leave-one-out; `found` has those of the test set where there is one."""
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
        """How often sets or intervals, asked to hold the truth so often, held it, and how large they were."""
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
        """Predictions of the training images."""

    @abstractmethod
    def _labels(self, y: Any) -> Array:
        """Labels as they are scored."""

    @abstractmethod
    def _predict(self, X: Any = None, **kernels: Any) -> tuple[Array, ...]:
        """What the model says of images, or by their kernels."""

    @abstractmethod
    def _scores(self, labels: Array, *found: Array) -> Any:
        """How good predictions are: a dataclass that prints as its numbers."""

    @abstractmethod
    def _coverage(self) -> dict[str, Any] | None:
        """Sets or intervals, tried."""

    @abstractmethod
    def _worth_a_look(self) -> tuple[Array, Array]:
        """Rows of what was found: the most uncertain first, and those that are wrong."""

    @abstractmethod
    def _said(self, row: int) -> dict[str, Any]:
        """The words of the picture in a row of what was found."""

    @abstractmethod
    def _doubt(self, score: float) -> tuple[str, dict[str, Any]]:
        """How much a label is doubted, in words and for JSON."""

    @abstractmethod
    def covered(self) -> list[tuple[str, str]]:
        """What `coverage` says, by name."""

    @abstractmethod
    def tiles(self) -> list[tuple[str, str]]:
        """The numbers that a report begins with: each with what it is."""

    @abstractmethod
    def summary(self) -> str:
        """Those numbers in a sentence or two."""

    @abstractmethod
    def figures(self) -> tuple[str, list[str]]:
        """A heading, and the figures of the scores."""

    def _beside(self, scores: Any, images: int) -> str:
        """What is printed beside scores of so many images."""
        return ""

    def _label(self, label: Any) -> str:
        """A label as people read it."""
        return word(label)

    # ---- what is said --------------------------------------------------------------------------------------------

    def lines(self) -> list[tuple[str, str]]:
        """What is printed of the scores, by name."""
        of = [("validation", self.validation, self.validated), ("test", self.test, self.tested)]
        of.append(("leave-one-out", self.loo, self.loo_images))
        told = [(name, f"{scores}{self._beside(scores, n)}") for name, scores, n in of if scores is not None]
        return told + self.covered()

    def sections(self) -> str:
        """The sections on coverage, and on single images."""
        suspect = "" if self.suspects is None else f"<p>{escape(self.suspects.sentence)}</p>{page.grid(self.suspect)}"
        uncertain, covered = page.grid(self.uncertain), page.table(self.covered()) if self.covered() else ""
        shown = {"coverage": covered, "wrong": self.shown_mistakes(), "suspect": suspect, "uncertain": uncertain}
        found = ""
        for name, (heading, said) in self.texts.items():
            if shown[name]:
                found += f'<h2>{heading}</h2>\n<p class="muted">{said}</p>\n{shown[name]}'
        return found

    def shown_mistakes(self) -> str:
        """The pictures of `wrong` that are worth showing."""
        return page.grid(self.wrong)

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
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
        """Kernels of some test images with the training images: what `predict_set` and its like are asked."""
        if self._held is None:
            K, diagonal = kernels(self.model, self.data.X_test[rows])
        else:  # of a small test set
            K, diagonal = (held[rows] for held in self._held)
        return {"K": K, "diagonal": diagonal}

    @property
    def _shown(self) -> Array:
        """Training images, or the pictures of what was given features of."""
        return self.data.X if self.data.pictures is None else self.data.pictures

    def _picture(self, row: int) -> Picture:
        """The test image in a row of what was found, or the training image where there are no tests."""
        data, at = self.data, row
        if self.tested:
            X, names = data.X_test if data.pictures_test is None else data.pictures_test, data.names_test
        else:
            X, names, at = self._shown, data.names, self.model.loo_rows_[row]
        return Picture(X[at], name=None if names is None else word(names[at]), **self._said(row))

    def _explained(self, rows: Array) -> tuple[Picture, ...]:
        """The pictures of `wrong` with the training images behind their predictions, and where the model looks."""
        model, pictures = self.model, self.data.pictures
        terms, kept = model.fit_.only_kernel.terms, model.inducing_rows_
        shapes = [t.kernel.network.shapes(t.preparation.output_shape(model.input_shape_)) for t in terms]
        pair = sum(shape.cost for shape in shapes) * len(model.X_)
        seen = self.data.X_test[rows[: _OPERATIONS // max(pair, 1)]]  # no more images than some seconds allow
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
        """The first of the suspect labels; what is predicted is what the others propose."""
        found = []
        for row, score, given, proposed, name in zip(*suspects.columns.values(), strict=True):
            doubt, facts = self._doubt(float(score))
            words = self._label(given), self._label(proposed), doubt, None if self.data.names is None else word(name)
            found.append(Picture(self._shown[row], *words, facts, suspect=True))
        return tuple(found[:PICTURES])


def word(name: object) -> str:
    """A class or a file's name, as people read it."""
    return printable(str(name))


def counted(share: float, count: int) -> str:
    """A share of `count` images, with the interval of it where they are few."""
    value, remark = share_for_people(share, count)
    return f"{value} ({remark})" if remark else value


def likelihood(value: float | None) -> tuple[str, str]:
    """A log marginal likelihood for people, and what it is."""
    return "not known" if value is None else page.minus(f"{value:,.0f}"), "log marginal likelihood"
