"""Predictions of a fitted model for images, as plain values for `cnngp predict`, notebooks and the viewer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, to_numpy
from cnngp.common.errors import DatasetError, ModelFileError, is_whole
from cnngp.common.tables import printable, share_for_people
from cnngp.datasets.images import MAX_PIXELS, read_image
from cnngp.estimators.classifier import GPClassifier
from cnngp.estimators.fit import Asked
from cnngp.network.layers import NetworkError

from . import page, plots
from .suspects import Decisions, suspect_labels

_BLOCK = 256  # images per block of kernels
_VOICES, _EXAMPLES, _SHOWN = 7, 5, 10


def answers(model: Any, X: NDArray[Any], coverage: float | None = None, voices: int = 5) -> Iterator[dict[str, Any]]:
    """Predict each image: class with probabilities, or number; novelty; and the training images behind the prediction.

    With a `coverage` also `set`, the classes of the prediction set, or `interval` for a number, with None for an end
    that too few training images leave unbounded. See `predict_set` and `predict_interval`.
    """
    for start in range(0, len(X), _BLOCK):
        yield from told(model, *kernels(model, X[start : start + _BLOCK]), coverage, voices)


def told(
    model: Any, K: NDArray[Any], diagonal: NDArray[Any], coverage: float | None = None, voices: int = 5
) -> Iterator[dict[str, Any]]:
    """Like `answers`, from K(images, training) and k(x, x)."""
    return (_classes if isinstance(model, GPClassifier) else _numbers)(model, K, diagonal, coverage, voices)


def kernels(model: Any, X: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """K(images, training) and k(x, x): the arguments `K` and `diagonal` of a model's methods."""
    fit = model.fit_
    asked = Asked(np.asarray(X, fit.only_kernel.dtype))
    return np.concatenate([to_numpy(block) for _, block in fit.blocks(asked)]), fit.diagonal(asked)


def _classes(
    clf: GPClassifier, K: NDArray[Any], diagonal: NDArray[Any], coverage: float | None, voices: int
) -> Iterator[dict[str, Any]]:
    words = np.array([str(c) for c in clf.classes_], dtype=object)
    if coverage is not None and np.ndim(clf.y_) == 2:
        raise DataError("the model has several labels for each image; ask for their sets in Python, by predict_set")
    sets = None if coverage is None else clf.predict_set(K=K, diagonal=diagonal, coverage=coverage)
    for i, why in enumerate(clf.explain(K=K, diagonal=diagonal)):
        p = why.probabilities
        said: dict[str, Any] = {
            "class": words[np.argsort(-p, kind="stable")[0]],
            "probabilities": dict(zip(words, p.tolist(), strict=True)),
        }
        if sets is not None:
            said["set"] = words[sets[i]].tolist()
        yield said | why.as_dict(voices)


def _numbers(
    reg: Any, K: NDArray[Any], diagonal: NDArray[Any], coverage: float | None, voices: int
) -> Iterator[dict[str, Any]]:
    if np.ndim(reg.y_) == 2:
        raise DataError("the model predicts several numbers for each image; use it in Python, with GPRegressor.load")
    mean, std = reg.predict(K=K, diagonal=diagonal, return_std=True, noise=True)
    ends = None if coverage is None else reg.predict_interval(K=K, diagonal=diagonal, coverage=coverage)
    fit, usual, novelty = reg.fit_, reg.loo_novelty_, reg.novelty(K=K, diagonal=diagonal)
    alike = K / np.sqrt(np.maximum(np.outer(diagonal, fit.variances), np.finfo(np.float64).tiny))
    labels, names = fit.of_points(fit.y), fit.of_points(fit.names)
    for i, value in enumerate(mean):
        said: dict[str, Any] = {"value": float(value), "std": float(std[i])}
        if ends is not None:
            said["interval"] = [float(end) if math.isfinite(end) else None for end in ends[i]]
        near = [
            {
                "row": int(row),
                "share": float(alike[i, row]),
                "label": None if labels is None else float(labels[row]),
                "name": None if names is None else str(names[row]),
            }
            for row in np.argsort(-alike[i], kind="stable")[:voices]
        ]
        rank = None if usual is None else float((usual < novelty[i]).mean())
        yield said | {"novelty": float(novelty[i]), "novelty_rank": rank, "near": near}


def pixels_of(model: Any, file: Path | bytes, largest: int = 1, max_pixels: int = MAX_PIXELS) -> NDArray[np.float32]:
    """Read an image file, or its content, in the model's shape; `largest` is the scale of its pixels, 1 or 255."""
    pixels = read_image(file, model.input_shape_, model.image_aspect_ or "squash", max_pixels)
    return pixels.astype(np.float32) / np.float32(255.0 if largest == 1 else 1.0)


def where(model: Any, X: NDArray[Any]) -> NDArray[np.float64] | None:
    """Effect of each pixel on the prediction (saliency), in the shape of X; None if the kernel has no gradient."""
    if model.kind == "ntk":
        return None
    try:
        return np.asarray(model.saliency(X))
    except NetworkError:  # such as for Step, whose kernel has infinite slopes
        return None


# ---- the viewer's page ----


class Answers:
    """Contents of the viewer's page: a fitted model, its most suspect labels, and decisions in the file `labels`.

    `largest` is the scale of the pixels that the model was fitted on, 1 or 255.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        labels: Path,
        *,
        largest: int = 1,
        suspects: int | None = None,
        max_pixels: int = MAX_PIXELS,
        coverage: float = 0.9,
    ) -> None:
        self._pictures = model.X_ if model.pictures_ is None else model.pictures_
        shape = self._pictures.shape[1:]
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise ModelFileError(f"{name} was fitted on inputs of shape {model.input_shape_}, not on pictures")
        if np.ndim(model.y_) == 2:
            raise ModelFileError(f"{name} has several labels for each image; the viewer shows models with one")
        self.model, self.name, self._max_pixels = model, name, max_pixels
        self._largest = largest if model.pictures_ is None else 1
        self._coverage = coverage if model.gp_.exact is not None else None
        self._classes = {printable(str(c)): str(c) for c in getattr(model, "classes_", ())}
        whole, fit = model.inducing_rows_ is None, model.fit_report_
        self.decisions = Decisions(labels, *((model.X_, model.y_, model.names_) if whole else ((), ())))
        if whole:
            self.decisions.set_others_aside()
        self._guessing = fit.guessing is not None or fit.no_better is not None
        columns: dict[str, list[Any]] = {}
        if not whole:
            self._about_suspects = "This model keeps only its inducing images, so suspect labels cannot be shown."
        elif self._guessing:
            self._about_suspects = f"{fit.verdict} So it cannot tell which labels are suspect."
        else:
            found = suspect_labels(model, suspects)
            columns = {name: column.tolist() for name, column in found.columns.items()}
            more = "" if found.beyond_errors else " Start this page with --suspects 50 to go through more of them."
            self._about_suspects = found.sentence + more
            if suspects is not None:
                said = f"The {len(found)} labels that the other images doubt most, the most suspect first."
                self._about_suspects = said
        self.suspects = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    @property
    def images(self) -> int:
        return len(self.model.X_)

    def about(self) -> dict[str, Any]:
        """Everything that the page shows before an image is given."""
        model, fit, X = self.model, self.model.fit_report_, self._pictures
        features = "" if model.pictures_ is None else " features"
        about = f"{fit.images:,} training images of {' × '.join(map(str, model.input_shape_))}{features}"
        about += f", {len(self._classes)} classes" if self._classes else ", one number each"
        if not math.isnan(model.loo_error_):
            error, n = model.loo_error_, len(model.loo_rows_)
            about += f", leave-one-out error {share_for_people(error, n)[0] if self._classes else f'{error:.4g}'}"
        about += ", not clearly better than guessing" if self._guessing else ""
        self.decisions.refresh()
        # Drawings should match the training images: light on dark if those have dark borders, and the same size.
        border = np.concatenate([X[:, :, 0], X[:, :, -1]], axis=2), np.concatenate([X[..., 0], X[..., -1]], axis=2)
        light = bool(np.median(np.concatenate([edges.ravel() for edges in border])) < self._largest / 2)
        ink = (X[:1000, 0] > self._largest / 2) == light
        sides = [ink.any(axis).sum(1) / ink.shape[3 - axis] for axis in (1, 2)]
        shown = {
            "name": self.name,
            "about": about,
            "classes": list(self._classes.values()),
            "knows": f"numbers from {model.y_.min():.4g} to {model.y_.max():.4g}" if not self._classes else None,
            "coverage": self._coverage,
            "light_on_dark": light,
            "ink": float(np.median(np.maximum(*sides))) if X.shape[1] == 1 else None,
            "width": X.shape[3],
            "height": X.shape[2],
            "examples": self._examples(),
            "about_suspects": self._about_suspects,
            "suspects": [self._suspect(suspect) for suspect in self.suspects],
            **self._saved(),
        }
        return {key: _printable(value) for key, value in shown.items()}

    def _suspect(self, suspect: dict[str, Any]) -> dict[str, Any]:
        """A suspect label for the page, with its decision."""
        line, score = self.decisions.lines.get(suspect["row"], {}), suspect["score"]
        words = {key: str(suspect[key]) for key in ("given", "proposed", "name")}
        doubt = {"probability": 1.0 - score}
        if not self._classes:
            doubt = {"deviations": score}
            words |= {key: f"{suspect[key]:.5g}" for key in ("given", "proposed")}
        return {"row": suspect["row"], **words, **doubt, "decision": line.get("decision"), "label": line.get("label")}

    def training_image(self, row: int) -> bytes:
        return plots.picture(self._pictures[row])

    def where(self, file: bytes) -> dict[str, Any]:
        """Saliency picture for the content of an image file; None if the kernel has no gradient."""
        x = self._read(file)
        found = where(self.model, x[None])
        return {"where": None if found is None else page.inline(plots.saliency(x, found[0]))}

    def _read(self, file: bytes) -> Any:
        if self.model.pictures_ is not None:
            raise DatasetError(
                "this model was fitted on features of pictures, and needs those of a new one: see predict"
            )
        try:
            return pixels_of(self.model, file, self._largest, self._max_pixels)
        except DatasetError:
            raise DatasetError("this is not a picture that can be read; try a PNG or JPEG file") from None

    def look(self, file: bytes) -> dict[str, Any]:
        """Predict the content of an image file, with the training images behind the prediction."""
        x = self._read(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about jitter or a drawing's scale; the fit has already warned
            said = next(answers(self.model, x[None], self._coverage, _VOICES))
        likely = sorted(said.get("probabilities", {}).items(), key=lambda pair: -pair[1])[:_SHOWN]
        shown = {"probabilities": [{"class": c, "probability": p} for c, p in likely]}
        return {**_printable(said | shown), "picture": page.inline(plots.picture(x))}

    def decide(self, asked: Any) -> dict[str, Any]:
        """Record a decision about a suspect label: {row, decision, label}."""
        by_row = {suspect["row"]: suspect for suspect in self.suspects}
        if not isinstance(asked, dict) or not is_whole(asked.get("row"), least=0) or asked["row"] not in by_row:
            raise ValueError("a decision needs the row of a suspect label")
        decision, text = asked.get("decision"), str(asked.get("label", ""))
        if decision is not None and not isinstance(decision, str):
            raise ValueError(f"decision {decision!r}: expected a word")
        label = self._classes.get(text) if self._classes else _number(text)
        if decision == "relabel" and label is None:
            raise ValueError(f"{text!r} is not a {'class of the model' if self._classes else 'number'}")
        proposed = str(by_row[asked["row"]]["proposed"])
        self.decisions.decide(asked["row"], decision, proposed=proposed, label=label or "")
        return {key: _printable(value) for key, value in self._saved().items()}

    def _examples(self) -> list[int]:
        """Rows of example images for the page: the most certain of several classes by leave-one-out, or with numbers
        from the smallest to the largest."""
        model = self.model
        if model.inducing_rows_ is not None or model.pictures_ is not None:
            return []
        if isinstance(model, GPClassifier):
            return [int(row) for row in model.loo_rows_[model.loo_probabilities_.argmax(0)[:_EXAMPLES]]]
        order = np.argsort(model.y_, kind="stable")
        return [int(row) for row in order[np.linspace(0, len(order) - 1, _EXAMPLES).astype(int)]]

    def _saved(self) -> dict[str, Any]:
        return {"decisions": len(self.decisions), "file": str(self.decisions.path)}


def _number(text: str) -> str | None:
    try:
        return text if math.isfinite(float(text)) else None
    except ValueError:
        return None


def _printable(value: Any) -> Any:
    """The value with all strings in it, at any depth, made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value
