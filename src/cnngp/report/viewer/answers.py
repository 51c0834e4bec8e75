"""What the viewer's page asks of a model, as plain values that become JSON."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from cnngp.common.checks import is_whole
from cnngp.common.errors import DatasetError, ModelFileError
from cnngp.common.tables import printable, share_for_people
from cnngp.datasets.images import MAX_PIXELS, read_image
from cnngp.estimators.classifier import GPClassifier
from cnngp.estimators.explanation import Voice

from .. import plots, web_page
from ..suspects import SuspectLabels, suspect_labels
from .decisions import Decisions, LabelledImages

_VOICES = 7
_EXAMPLES = 5


class Answers:
    """A fitted model, its most suspect labels, and what was decided about them.

    `largest` is the pixels' scale that the model was fitted on, 1 or 255.
    """

    def __init__(
        self,
        clf: GPClassifier,
        name: str,
        decisions: Decisions,
        *,
        largest: int = 1,
        suspects: int | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        if len(clf.input_shape_) != 3 or clf.input_shape_[0] not in (1, 3):
            raise ModelFileError(f"{name} was fitted on inputs of shape {clf.input_shape_}, not on pictures")
        if np.ndim(clf.y_) == 2:
            raise ModelFileError(f"{name} has several labels for each image; the viewer shows models with one")
        self.clf, self.name, self.decisions, self._largest = clf, name, decisions, largest
        self._max_pixels = max_pixels
        self._aspect = clf.image_aspect_ or "squash"
        self._no_suspects = _no_suspects(clf)
        self._about_suspects = self._no_suspects or ""
        self.suspects: list[dict[str, Any]] = []
        if not self._no_suspects:
            found = suspect_labels(clf, suspects)
            self._about_suspects = _introduction(found, suspects)
            self.suspects = _entries(found)
        self._images = LabelledImages(clf.X_, clf.y_, clf.names_)
        if clf.inducing_rows_ is None:
            decisions.only_about(self._images)
        self._by_row = {suspect["row"]: suspect for suspect in self.suspects}
        self._classes = {printable(str(c)): str(c) for c in clf.classes_}

    @property
    def images(self) -> int:
        return len(self.clf.X_)

    def model(self) -> dict[str, Any]:
        clf = self.clf
        shape = " × ".join(map(str, clf.input_shape_))
        about = f"{clf.fit_report_.images:,} training images of {shape}, {len(clf.classes_)} classes"
        if not math.isnan(clf.loo_error_):
            about += f", leave-one-out error {share_for_people(clf.loo_error_, len(clf.loo_rows_))[0]}"
        if clf.fit_report_.guessing is not None:
            about += ", not clearly better than guessing"
        self.decisions.refresh()
        return {
            "name": printable(self.name),
            "about": about,
            "classes": list(self._classes),
            "light_on_dark": self._light_on_dark(),
            "ink": self._ink(),
            "width": clf.input_shape_[2],
            "height": clf.input_shape_[1],
            "examples": self._examples(),
            "about_suspects": self._about_suspects,
            "suspects": [self._suspect(s) for s in self.suspects],
            **self._saved(),
        }

    def _suspect(self, suspect: dict[str, Any]) -> dict[str, Any]:
        """A suspect label for the page, with what was decided about it."""
        row, words = suspect["row"], {key: printable(suspect[key]) for key in ("given", "proposed", "name")}
        label = self.decisions.label(row)
        return (
            suspect
            | words
            | {
                "decision": self.decisions.action(row),
                "label": None if label is None else printable(label),
            }
        )

    def labels_csv(self) -> str:
        """The decisions as they are in their file."""
        self.decisions.refresh()
        return self.decisions.text()

    def training_image(self, row: int) -> bytes:
        return plots.picture(self.clf.X_[row])

    def look(self, file: bytes) -> dict[str, Any]:
        """Class, probabilities, novelty and the training images behind them, of an image file's content."""
        x = self._read(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a jitter, or a drawing's scale: the fit has said so already
            why = self.clf.explain(x[None])[0]
        order = np.argsort(-why.probabilities, kind="stable")
        return {
            "picture": web_page.inline(plots.picture(x)),
            "class": printable(str(self.clf.classes_[order[0]])),
            "probabilities": [
                {"class": printable(str(self.clf.classes_[k])), "probability": float(why.probabilities[k])}
                for k in order[:10]
            ],
            "novelty": why.novelty,
            "novelty_rank": None if math.isnan(why.novelty_rank) else why.novelty_rank,
            "for": [_voice(v) for v in why.speaking_for(self.clf.classes_[order[0]], _VOICES)],
            "against": [_voice(v) for v in why.speaking_against(self.clf.classes_[order[0]], _VOICES)],
        }

    def decide(self, asked: Any) -> dict[str, Any]:
        """Note a decision about a suspect label: {row, decision, label}."""
        if not isinstance(asked, dict) or not is_whole(asked.get("row"), least=0) or asked["row"] not in self._by_row:
            raise ValueError("a decision needs the row of a suspect label")
        suspect, decision = self._by_row[asked["row"]], asked.get("decision")
        label = self._classes.get(str(asked.get("label", "")))
        if decision is not None and not isinstance(decision, str):
            raise ValueError(f"decision {decision!r}: expected a word")
        if decision == "relabel" and label is None:
            raise ValueError(f"{asked.get('label')!r} is not a class of the model")
        words = (suspect["name"], suspect["given"], suspect["proposed"])
        self.decisions.decide(suspect["row"], *words, decision, label or "", self._images.fingerprint(suspect["row"]))
        return self._saved()

    def _examples(self) -> list[int]:
        """Rows of training images to try the page with, of different classes, whose labels the others confirm."""
        clf = self.clf
        if clf.inducing_rows_ is not None:
            return []
        best = clf.loo_rows_[clf.loo_probabilities_.argmax(0)[:_EXAMPLES]]
        return [int(row) for row in best]

    def _saved(self) -> dict[str, Any]:
        return {"decisions": len(self.decisions), "file": printable(str(self.decisions.path))}

    def _read(self, file: bytes) -> Any:
        try:
            pixels = read_image(file, self.clf.input_shape_, self._aspect, self._max_pixels)
        except DatasetError:
            raise DatasetError("this is not a picture that can be read; try a PNG or JPEG file") from None
        x = pixels.astype(np.float32)
        return x / np.float32(255.0) if self._largest == 1 else x

    def _light_on_dark(self) -> bool:
        """Whether drawings should be: by the pixels at the border of the training images."""
        X = self.clf.X_
        border = np.concatenate(
            [X[:, :, 0].ravel(), X[:, :, -1].ravel(), X[:, :, :, 0].ravel(), X[:, :, :, -1].ravel()]
        )
        return bool(np.median(border) < self._largest / 2)

    def _ink(self) -> float | None:
        """The share of the frame that a training image fills, by its longer side; None for colour pictures."""
        X = self.clf.X_[:1000]
        if X.shape[1] != 1:
            return None
        ink = (X[:, 0] > self._largest / 2) == self._light_on_dark()
        sides = [ink.any(axis).sum(1) / ink.shape[3 - axis] for axis in (1, 2)]
        return float(np.median(np.maximum(*sides)))


def _no_suspects(clf: GPClassifier) -> str | None:
    """Why no labels are shown as suspect."""
    if clf.inducing_rows_ is not None:
        return "This model keeps only its inducing images, so suspect labels cannot be shown."
    if clf.fit_report_.guessing is not None:
        return f"{clf.fit_report_.verdict} So it cannot tell which labels are suspect."
    return None


def _introduction(found: SuspectLabels, asked: int | None) -> str:
    """What the list of suspect labels means."""
    if asked is not None:
        return f"The {len(found)} labels that the other images doubt most, the most suspect first."
    more = "" if found.beyond_errors else " Start this page with --suspects 50 to go through more of them."
    return found.sentence + more


def _entries(found: SuspectLabels) -> list[dict[str, Any]]:
    columns = found.columns
    words = {key: [str(value) for value in columns[key]] for key in ("given", "proposed", "name")}
    numbers = {"row": columns["row"].tolist(), "probability": (1.0 - columns["score"]).tolist()}
    named = numbers | words
    return [dict(zip(named, values, strict=True)) for values in zip(*named.values(), strict=True)]


def _voice(voice: Voice) -> dict[str, Any]:
    label, name = printable(str(voice.label)), printable(voice.name or "")
    return {"row": voice.row, "share": voice.share, "label": label, "name": name}
