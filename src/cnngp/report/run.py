"""One run from images to a report, for commands and notebooks: fit, evaluate, and write the results."""

from __future__ import annotations

import json
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cnngp.common.arrays import DataError
from cnngp.common.files import write_atomically
from cnngp.common.progress import duration, progress_bar
from cnngp.common.tables import csv_text
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.base import GPEstimator
from cnngp.estimators.classifier import GPClassifier

from . import page, plots
from .classification import Classes, check_labels
from .evaluation import Evaluation
from .regression import Numbers

Say = Callable[[str, str], None]
"""Callback for one line of a run: (name, text); an empty name is an empty line."""

WORTH_MEASURING = 10**12
"""Operations from which it is worth timing a few pairs first: about half a minute on two cores."""
_LONG = 3600.0
_SOON = 5.0  # seconds: shorter times are not announced
_REPORT = 2.5  # seconds for loading compiled code, figures and the page
_FLOPS = 2e10  # operations per second of a Cholesky factorisation on two cores


@dataclass(frozen=True)
class Run:
    """Result of a run, and the files that it wrote."""

    estimator: Any
    evaluation: Evaluation
    network: str
    notes: tuple[str, ...]
    files: dict[str, str]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """All numbers for JSON."""
        model = self.estimator
        return {
            "command": self.evaluation.command,
            "network": self.network,
            "preparation": model.recipe_.main.as_dict()["preparation"],
            "recipe": json.loads(model.recipe_.to_json()),
            "choice": None if model.choice_ is None else model.choice_.as_dict(),
            **self.evaluation.as_dict(),
            "learned": None if model.learned_ is None else model.learned_.as_dict(),
            "notes": list(self.notes),
            "fit": model.fit_report_.as_dict(),
            "seconds": self.seconds,
            "files": self.files,
        }


def run(
    images: Dataset,
    estimator: GPEstimator | None = None,
    folder: str | Path | None = None,
    *,
    model: bool = True,
    suspects: str | Path | None = None,
    verbose: bool = False,
    network: str | None = None,
    command: str = "",
    say: Say | None = None,
) -> Run:
    """Fit an estimator to a data set's training images, evaluate it, and write results, model and report to a `folder`.

    estimator : a `GPClassifier` or a `GPRegressor`; by default a classifier that chooses a recipe.
    folder : output folder; None writes no results, model or report.
    model : True to save the model too.
    suspects : path of a CSV file for all training images, the most suspect labels first.
    verbose : True to print measurements of the fit as well.
    network : name of the network in the report.
    command : command that repeats the run, for the report.
    say : called with a name and a text for every line; by default, lines are printed.
    """
    began = time.perf_counter()
    say = say or (lambda name, text: print(f"{name:<22} {text}".rstrip()))
    fitted: Any = GPClassifier() if estimator is None else estimator
    _check(images, isinstance(fitted, GPClassifier))
    stages = _Stages(say, images)
    with warnings.catch_warnings():
        if fitted.noise is None:  # the noise was searched by default, and the verdict says more than the warning
            warnings.filterwarnings("ignore", "noise='loo' chose the most noise", UserWarning)
        of_images = {"names": images.names, "groups": images.groups, "image_noise": images.image_noise}
        fitted.fit(images.X, images.y, **of_images, tell=stages.tell)
    fitted.image_aspect_, fitted.pictures_ = images.aspect, images.pictures
    name = fitted.recipe_.name if network is None or fitted.choice_ is not None else network
    _tell_fit(say, fitted, name, images)
    found = evaluate(fitted, images)
    if found.tested:
        say("predict", f"{found.predict_seconds:.2f} s")
    lines = [("", ""), *found.lines()]
    if verbose:  # without the network and the engine, which were shown before
        known = fitted.log_marginal_likelihood_
        lines.append(("log likelihood", "not known with this solver" if known is None else f"{known:,.1f}"))
        lines += replace(fitted.fit_report_, choice=None).rows()[1:]
    for line in lines:
        say(*line)
    done = Run(fitted, found, name, tuple(images.notes), {}, time.perf_counter() - began)
    if folder is not None:
        _write(say, done, Path(folder), model, command)
    if suspects is not None:
        rows = fitted.suspect_labels(len(fitted.loo_rows_))
        columns = ("row", "name", "given", "proposed", "score")
        table = csv_text(columns, zip(*(rows[column].tolist() for column in columns), strict=True))
        done.files["suspects"] = _written(Path(suspects), table)
    return replace(done, seconds=time.perf_counter() - began)


def evaluate(model: Any, images: Dataset) -> Evaluation:
    """Evaluate a fitted model by leave-one-out and on validation and test images."""
    return Classes(model, images) if isinstance(model, GPClassifier) else Numbers(model, images)


def _check(images: Dataset, classes: bool) -> None:
    """Raise unless there is one class, or one number, for each image."""
    y = images.y
    if y.ndim != 1:
        one, all_of = ("classifies by", "GPClassifier") if classes else ("is of", "GPRegressor")
        raise DataError(
            f"{images.name} has {y.shape[1]} labels for each image, and this run {one} one: choose it with "
            f"--columns, or fit all of them in Python with {all_of}"
        )
    if not classes and y.dtype.kind not in "fiub":
        raise DataError(
            f"{images.name} has words such as {str(y.ravel()[0])[:30]!r} for numbers; `cnngp classify` takes classes"
        )
    if not classes and np.ptp(np.asarray(y, np.float64)) == 0.0:
        raise DataError(
            f"{images.name} has the same number, {float(y.ravel()[0]):g}, for every image; there is nothing to predict"
        )
    if classes and y.dtype.kind == "f" and bool((y != y.round()).any()):
        raise DataError(
            f"{images.name} has numbers such as {y[y != y.round()][0]:g} for labels, which are no classes; "
            "`cnngp regress` fits numbers, as GPRegressor does in Python"
        )
    if classes:
        check_labels(y, images.y_test)


# ---- what is said --------------------------------------------------------------------------------------------------


class _Stages:
    """Announces the stages of a fit and the expected time of the whole run."""

    def __init__(self, say: Say, images: Dataset) -> None:
        self._say, self._told = say, False
        n = len(images.X)
        predicted = len(images.X_test) + (0 if images.X_validation is None else len(images.X_validation))
        self._pairs = n * (n - 1) // 2 + n * predicted
        self._afterwards = _REPORT + (n**3 / 3 + 12 * n * n * predicted) / _FLOPS
        """Expected seconds for the solve, predictions from kernels, and the report."""

    def tell(self, stage: str, value: Any) -> None:
        """Callback of a fit at the beginning or end of a stage."""
        if stage == "choosing":
            said = "one recipe is" if value == 1 else f"{value:,} recipes are"
            self._say("choosing", f"{said} compared by leave-one-out")
        elif stage == "chosen":
            gain = f"; {value.gain:.3f} better than the usual one" if value.gain > 0.0 else ""
            self._say("choice", f"{value.name}, {value.reason}{gain}")
            self._say("more effort", value.better())
        elif stage == "expected":
            self._told = True
            seconds = value.choosing + value.a_pair * self._pairs + self._afterwards
            if seconds > _SOON:
                self._expected(seconds)
        elif stage == "kernel" and not self._told:
            kernel, training = value
            shape = training.shape[1:]
            costs = [t.kernel.network.shapes(t.preparation.output_shape(shape)).cost for t in kernel.terms]
            if sum(costs) * self._pairs < WORTH_MEASURING:
                return
            begun = time.perf_counter()
            with progress_bar(1, "compiling, timing a few pairs", "run", delay=0.0):
                seconds = kernel.expected_seconds(training.at(slice(0, min(len(training), 512))), self._pairs)
            seconds += self._afterwards
            took = time.perf_counter() - begun
            self._expected(seconds, f"; {took:.1f} s to compile" if took > 2.0 else "; compiled")
            if hours := said_of_hours(seconds, "run"):
                warnings.warn(hours, UserWarning, stacklevel=2)

    def _expected(self, seconds: float, more: str = "") -> None:
        said = f"about {duration(seconds)} for {self._pairs:,} pairs, the solve and the report{more}"
        self._say("expected time", said)


def said_of_hours(seconds: float, what: str) -> str:
    """Warning with a remedy if a run or a kernel takes more than an hour, else ""."""
    if seconds <= _LONG:
        return ""
    return (
        f"the {what} takes about {duration(seconds)} here, more than an hour; use fewer images (--train), a network "
        "that shrinks before its pools (`cnngp networks NAME` shows the cost of each layer) or a GPU"
    )


def _tell_fit(say: Say, clf: Any, name: str, images: Dataset) -> None:
    fit, recipe = clf.fit_report_, clf.recipe_
    shape = clf.fit_.only_kernel.terms[0].preparation.output_shape(clf.input_shape_)
    chosen = "" if clf.choice_ is None else " (chosen)"
    prepared = " (chosen)" if clf.preparation == "loo" else chosen if clf.preparation is None else ""
    say("network", f"{name}{chosen}, {clf.network_.shapes(shape).cost:,} operations per pair")
    if recipe.main.preparation != "plain" or prepared:
        say("preparation", f"{recipe.main.said or 'plain'}{prepared}")
    if clf.learned_ is not None:
        say("learned", str(clf.learned_))
    say("engine", fit.engine)
    if fit.compiling is not None:
        say("compiling, loading", fit.compiling)
    compared = len(images.X) * (len(images.X) - 1) // 2
    say("kernel", f"{fit.kernel_seconds:.2f} s, {compared / max(fit.kernel_seconds, 1e-9):,.0f} pairs/s")
    say("solve", f"{fit.solve_seconds:.2f} s")


# ---- what is written -----------------------------------------------------------------------------------------------


def _write(say: Say, found: Run, folder: Path, model: bool, command: str) -> None:
    """Write results, model and report, and put their paths into `found.files`."""
    from cnngp import __version__

    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"  # written before the model, for which the disk may be too full
    found.files["results"] = str(results)
    _written(results, json.dumps(found.as_dict(), indent=1) + "\n")
    if model:
        with _naming(folder / "model.gp") as path:
            found.estimator.save(path)
        found.files["model"] = str(path)
    versions = f"cnngp {__version__}, Python {platform.python_version()}, {platform.system()}"
    try:
        text = page.render(found.evaluation, command, versions)
    except plots.PlotsUnavailable as error:
        say("report", f"not written: {error}")
        return
    found.files["report"] = _written(folder / "report.html", text)


def _written(path: Path, text: str) -> str:
    with _naming(path):
        write_atomically(path, text)
    return str(path)


@contextmanager
def _naming(path: Path) -> Iterator[Path]:
    """Add the file's name to an error of writing it: the error of a full disk does not have it."""
    try:
        yield path
    except OSError as error:
        if error.strerror is None:  # raised by this package, with a full message
            raise
        raise OSError(f"{path} cannot be written: {error.strerror}; files written before it are kept") from None
