"""What a run finds about a fitted model: the frame that classes and numbers share, as plain values and pictures."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
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
Floats = NDArray[np.float64]
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
    loo: Any
    """Scores of the leave-one-out predictions; `test` and `validation` are None where there are no such images."""
    test: Any = None
    validation: Any = None
    coverage: dict[str, Any] | None = None
    """How often sets or intervals, asked to hold the truth so often, held it, and how large they were."""
    suspects: SuspectLabels | None = None
    """None of a model that is no better than guessing: that it contradicts a label says nothing."""
    wrong: tuple[Picture, ...] = ()
    uncertain: tuple[Picture, ...] = ()
    suspect: tuple[Picture, ...] = ()

    def __init__(self, model: Any, data: Dataset) -> None:
        self.model, self.data = model, data
        self.images: int = model.fit_report_.images
        self.loo_images = len(model.loo_rows_)
        self.tested = len(data.X_test)
        self.predict_seconds = 0.0
        self._held: tuple[Array, Array] | None = None
        self.guessing = model.fit_report_.guessing is not None or model.fit_report_.no_better is not None
        self.suspects = None if self.guessing else suspect_labels(model)

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

    @abstractmethod
    def _doubt(self, score: float) -> tuple[str, dict[str, Any]]:
        """How much a label is doubted, in words and for JSON."""

    def _beside(self, scores: Any, images: int) -> str:
        """What is printed beside scores of so many images."""
        return ""

    def lines(self) -> list[tuple[str, str]]:
        """What is printed of the scores, by name."""
        validated = 0 if self.data.X_validation is None else len(self.data.X_validation)
        of = [("validation", self.validation, validated), ("test", self.test, self.tested)]
        of.append(("leave-one-out", self.loo, self.loo_images))
        told = [(name, f"{scores}{self._beside(scores, n)}") for name, scores, n in of if scores is not None]
        return told + self.covered()

    def sections(self) -> str:
        """The sections on coverage, and on single images."""
        suspect = "" if self.suspects is None else f"<p>{escape(self.suspects.sentence)}</p>{page.grid(self.suspect)}"
        uncertain, covered = page.grid(self.uncertain), page.table(self.covered()) if self.covered() else ""
        shown = {"coverage": covered, "wrong": self.shown_mistakes(), "suspect": suspect, "uncertain": uncertain}
        return "".join(page.section(*self.texts[name], content) for name, content in shown.items() if content)

    def shown_mistakes(self) -> str:
        """The pictures of `wrong` that are worth showing."""
        return page.grid(self.wrong)

    def _timed(self, predict: Callable[..., Any]) -> Any:
        """Predictions of the test images; their seconds are kept, and the kernels of a small test set."""
        start = time.perf_counter()
        if self.tested <= TRIED:
            self._held = kernels(self.model, self.data.X_test)
        found = predict(self.data.X_test) if self._held is None else predict(**self._of_test(slice(None)))
        self.predict_seconds = time.perf_counter() - start
        return found

    def _of_test(self, rows: Any) -> dict[str, Any]:
        """Kernels of some test images with the training images: what `predict_set` and its like are asked."""
        if self._held is None:
            K, diagonal = kernels(self.model, self.data.X_test[rows])
        else:
            K, diagonal = (held[rows] for held in self._held)
        return {"K": K, "diagonal": diagonal}

    def as_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        s, scores = self.suspects, {"test": self.test, "loo": self.loo, "validation": self.validation}
        pictures = {"mistakes": self.wrong, "uncertain": self.uncertain, "suspects": self.suspect}
        return {
            "data": repr(self.data).strip("<>"),
            "train": self.images,
            **{name: None if found is None else asdict(found) for name, found in scores.items()},
            "log_marginal_likelihood": self.model.log_marginal_likelihood_,
            "predict_seconds": self.predict_seconds,
            "coverage": self.coverage,
            **{name: [picture.as_dict() for picture in shown] for name, shown in pictures.items()},
            "suspect_labels": None if s is None else s.counts,
        }

    def _explained(self, pictures: tuple[Picture, ...], rows: Array, behind: str) -> tuple[Picture, ...]:
        """The pictures of test images with the training images behind their predictions, which answers have as
        `behind`, and where the model looks."""
        if not pictures:
            return ()
        shape, terms = self.model.input_shape_, self.model.fit_.only_kernel.terms
        pair = sum(t.kernel.network.shapes(t.preparation.output_shape(shape)).cost for t in terms) * len(self.model.X_)
        seen = self.data.X_test[rows[: _OPERATIONS // max(pair, 1)]]  # no more images than some seconds allow
        places = where(self.model, seen) if len(seen) and self.data.pictures is None else None
        found = []
        for i, (picture, said) in enumerate(
            zip(pictures, told(self.model, **self._of_test(rows), voices=3), strict=True)
        ):
            neighbours = tuple(
                Neighbour(
                    self._behind(voice["row"]),
                    "" if voice["label"] is None else self._label(voice["label"]),
                    f"{voice['share']:.3f}" if behind == "near" else page.minus(f"{voice['share']:+.2f}"),
                    word(voice["name"]) if voice["name"] else None,
                )
                for voice in said[behind]
            )
            facts = picture.facts | {"novelty": said["novelty"], "because_of": said[behind]}
            place = None if places is None or i >= len(places) else places[i]
            found.append(replace(picture, facts=facts, neighbours=neighbours, saliency=place))
        return tuple(found)

    def _suspect(self) -> tuple[Picture, ...]:
        """The first of the suspect labels; what is predicted is what the others propose."""
        if self.suspects is None:
            return ()
        found = []
        for row, score, given, proposed, name in zip(*self.suspects.columns.values(), strict=True):
            doubt, facts = self._doubt(float(score))
            words = self._label(given), self._label(proposed), doubt, None if self.data.names is None else word(name)
            found.append(Picture(self.shown[row], *words, facts, suspect=True))
        return tuple(found[:PICTURES])

    @property
    def shown(self) -> Array:
        """Training images, or the pictures of what was given features of."""
        return self.data.X if self.data.pictures is None else self.data.pictures

    @property
    def shown_test(self) -> Array:
        """The same of the test images."""
        return self.data.X_test if self.data.pictures_test is None else self.data.pictures_test

    def _behind(self, row: int) -> Array:
        """What is shown of the model's image in a row."""
        if self.data.pictures is None:
            return np.asarray(self.model.X_[row])
        rows = self.model.inducing_rows_
        return np.asarray(self.data.pictures[row if rows is None else rows[row]])

    def _label(self, label: Any) -> str:
        """A label as people read it."""
        return word(label)


def word(name: object) -> str:
    """A class or a file's name, as people read it."""
    return printable(str(name))


def counted(share: float, count: int) -> str:
    """A share of `count` images, with the interval of it where they are few."""
    value, remark = share_for_people(share, count)
    return f"{value} ({remark})" if remark else value


def likelihood(value: float | None) -> str:
    """A log marginal likelihood for people."""
    return "not known" if value is None else page.minus(f"{value:,.0f}")
