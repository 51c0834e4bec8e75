"""One run from images to a report, which `cnngp classify` and notebooks call: fit, test, and write what was found."""

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

from cnngp.common.arrays import DataError
from cnngp.common.files import write_atomically
from cnngp.common.progress import duration, progress_bar
from cnngp.common.tables import csv_text
from cnngp.datasets.dataset import Dataset
from cnngp.estimators.certificate import FitReport
from cnngp.estimators.choosing import Choice
from cnngp.estimators.classifier import GPClassifier
from cnngp.estimators.kernels import RecipeKernel
from cnngp.estimators.training_images import Images

from . import plots, report
from .evaluation import Evaluation, check_labels, evaluate

Say = Callable[[str, str], None]
"""Shows one line of a run under its name; an empty name is an empty line."""

_WORTH_MEASURING = 10**12
"""Operations from which a few pairs are worth timing first: about half a minute on two cores."""
_LONG = 3600.0
_REPORT = 3.0  # seconds for figures and the page
_FLOPS = 2e10  # of a factor on two cores, a second


@dataclass(frozen=True)
class Run:
    """What a run found, and the files that it wrote."""

    classifier: GPClassifier
    evaluation: Evaluation
    network: str
    notes: tuple[str, ...]
    files: dict[str, str]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for JSON."""
        clf = self.classifier
        recipe, choice = clf.recipe_, clf.choice_
        return {
            "network": self.network,
            "preparation": recipe.main.as_dict()["preparation"],
            "recipe": json.loads(recipe.to_json()),
            "choice": None if choice is None else choice.as_dict(),
            **self.evaluation.as_dict(),
            "learned": None if clf.learned_ is None else clf.learned_.as_dict(),
            "notes": list(self.notes),
            "fit": clf.fit_report_.as_dict(),
            "seconds": self.seconds,
            "files": self.files,
        }


def run(
    images: Dataset,
    classifier: GPClassifier | None = None,
    folder: str | Path | None = None,
    *,
    model: bool = True,
    suspects: str | Path | None = None,
    verbose: bool = False,
    network: str | None = None,
    command: str = "",
    say: Say | None = None,
) -> Run:
    """Fit a classifier to a data set's training images, test it, and write results, model and report to a `folder`.

    classifier : by default `GPClassifier()`, which chooses a recipe.
    folder : None writes nothing.
    model : whether the model is saved too.
    suspects : a CSV file for all training images, the most suspect labels first.
    verbose : whether what was measured about the fit is shown as well.
    network : what the network is called in the report.
    command : how the run is repeated, for the report.
    say : called with a name and a text for every line; by default they are printed.
    """
    began = time.perf_counter()
    say = say or _printed
    clf = GPClassifier() if classifier is None else classifier
    _check_classes(images)
    check_labels(images.y, images.y_test)
    with warnings.catch_warnings():
        if clf.noise is None:  # nobody asked for a search of the noise, and the verdict says more
            warnings.filterwarnings("ignore", "noise='loo' chose the most noise", UserWarning)
        clf.fit(
            images.X,
            images.y,
            names=images.names,
            groups=images.groups,
            image_noise=images.image_noise,
            tell=lambda stage, value: _stage(say, images, stage, value),
        )
    clf.image_aspect_ = images.aspect  # type: ignore[assignment]
    name = clf.recipe_.name if network is None or clf.choice_ is not None else network
    _tell_fit(say, clf, name, images)
    evaluation = evaluate(clf, images)
    _tell_scores(say, evaluation, images)
    if verbose:
        _tell_measures(say, clf.fit_report_, evaluation)
    found = Run(clf, evaluation, name, tuple(images.notes), {}, time.perf_counter() - began)
    if folder is not None:
        _write(say, found, Path(folder), model, command)
    if suspects is not None:
        with _naming(Path(suspects)):
            _write_suspects(Path(suspects), clf)
        found.files["suspects"] = str(suspects)
    return replace(found, seconds=time.perf_counter() - began)


def _check_classes(images: Dataset) -> None:
    """Refuse labels that are no classes, one for each image."""
    y = images.y
    if y.ndim != 1:
        raise DataError(
            f"{images.name} has {y.shape[1]} labels for each image, and this run classifies by one: choose it with "
            "--columns, or fit all of them in Python with GPClassifier"
        )
    if y.dtype.kind == "f" and bool((y != y.round()).any()):
        raise DataError(
            f"{images.name} has numbers such as {y[y != y.round()][0]:g} for labels, which are no classes; "
            "fit them in Python with GPRegressor"
        )


def _printed(name: str, text: str) -> None:
    print(f"{name:<22} {text}".rstrip())


# ---- what is said --------------------------------------------------------------------------------------------------


def _stage(say: Say, images: Dataset, stage: str, value: Any) -> None:
    """A stage of the fit, as it begins or ends."""
    if stage == "choosing":
        say("choosing", f"{value:,} recipes are compared by leave-one-out")
    elif stage == "chosen":
        choice: Choice = value
        say("choice", f"{choice.name}, {choice.reason}")
        say("more effort", choice.better())
    elif stage == "kernel":
        _tell_expected(say, images, *value)


def _tell_expected(say: Say, images: Dataset, kernel: RecipeKernel, training: Images) -> None:
    """How long all that follows takes: compiling, kernels, predictions, and the report."""
    n = len(training)
    to_predict = len(images.X_test) + (0 if images.X_validation is None else len(images.X_validation))
    pairs = n * (n - 1) // 2 + n * to_predict
    operations = sum(t.kernel.network.shapes(t.preparation.output_shape(training.shape[1:])).cost for t in kernel.terms)
    if operations * pairs < _WORTH_MEASURING:
        return
    begun = time.perf_counter()
    with progress_bar(1, "compiling, timing a few pairs", "run", delay=0.0):
        seconds = kernel.expected_seconds(training.at(slice(0, min(n, 512))), pairs)
    seconds += _REPORT + (n**3 / 3 + 12 * n * n * to_predict) / _FLOPS
    took = time.perf_counter() - begun
    said = f"{took:.1f} s to compile" if took > 2.0 else "compiled"
    say("expected time", f"about {duration(seconds)} for {pairs:,} pairs, the solve and the report; {said}")
    if seconds > _LONG:
        warnings.warn(
            f"the run takes about {duration(seconds)} here, more than an hour; use fewer images (--train), a network "
            "that shrinks before its pools (`cnngp networks NAME` shows the cost of each layer) or a GPU",
            UserWarning,
            stacklevel=2,
        )


def _tell_fit(say: Say, clf: GPClassifier, name: str, images: Dataset) -> None:
    fit, recipe = clf.fit_report_, clf.recipe_
    shape = clf.fit_.only_kernel.terms[0].preparation.output_shape(clf.input_shape_)
    chosen = "" if clf.choice_ is None else " (chosen)"
    say("network", f"{name}{chosen}, {clf.network_.shapes(shape).cost:,} operations per pair")
    if recipe.main.preparation != "plain":
        say("preparation", f"{recipe.main.preparation}{chosen if clf.preparation is None else ''}")
    if clf.learned_ is not None:
        say("learned", str(clf.learned_))
    say("engine", fit.engine)
    if fit.compiling is not None:
        say("compiling, loading", fit.compiling)
    compared = len(images.X) * (len(images.X) - 1) // 2
    say("kernel", f"{fit.kernel_seconds:.2f} s, {compared / max(fit.kernel_seconds, 1e-9):,.0f} pairs/s")
    say("solve", f"{fit.solve_seconds:.2f} s")


def _tell_scores(say: Say, evaluation: Evaluation, images: Dataset) -> None:
    if evaluation.test is not None:
        say("predict", f"{evaluation.predict_seconds:.2f} s")
    say("", "")
    if evaluation.validation is not None:
        say("validation", str(evaluation.validation))
    if evaluation.test is not None:
        say("test", f"{evaluation.test}; {_counted(evaluation.test.error, len(images.X_test))}")
    say("leave-one-out", f"{evaluation.loo}; {_counted(evaluation.loo.error, evaluation.loo_images)}")


def _tell_measures(say: Say, fit: FitReport, evaluation: Evaluation) -> None:
    likelihood = evaluation.log_marginal_likelihood
    say("log likelihood", "not known with this solver" if likelihood is None else f"{likelihood:,.1f}")
    for name, value in replace(fit, choice=None).rows()[1:]:  # the network and the engine were shown before
        say(name, value)


def _counted(share: float, images: int) -> str:
    return f"{round(share * images):,} of {images:,} wrong" if images else "of no images"


# ---- what is written -----------------------------------------------------------------------------------------------


def _write(say: Say, found: Run, folder: Path, model: bool, command: str) -> None:
    """Results, the model, and the report; `found.files` gets their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    results = folder / "results.json"
    found.files["results"] = str(results)
    with _naming(results):  # before the model, for which a disk may have no room
        write_atomically(results, json.dumps({"command": "classify", **found.as_dict()}, indent=1) + "\n")
    if model:
        path = folder / "model.gp"
        with _naming(path):
            found.classifier.save(path)
        found.files["model"] = str(path)
    try:
        page = _page(found, command)
    except plots.PlotsUnavailable as error:
        say("report", f"not written: {error}")
        return
    path = folder / "report.html"
    with _naming(path):
        report.write(path, page)
    found.files["report"] = str(path)


def _page(found: Run, command: str) -> str:
    from cnngp import __version__

    clf = found.classifier
    return report.render(
        found.evaluation,
        clf.fit_report_,
        clf.network_,
        clf.fit_.only_kernel.terms[0].preparation.output_shape(clf.input_shape_),
        learned=clf.learned_,
        command=command,
        versions=f"cnngp {__version__}, Python {platform.python_version()}, {platform.system()}",
    )


def _write_suspects(path: Path, clf: GPClassifier) -> None:
    """A table of all training images with a leave-one-out prediction, the most suspect first."""
    found = clf.suspect_labels(len(clf.loo_rows_))
    columns = ("row", "name", "given", "proposed", "score")
    write_atomically(path, csv_text(columns, zip(*(found[column].tolist() for column in columns), strict=True)))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Have the error of a write say which file it was: that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # one of our own, which says all
            raise
        raise OSError(f"{path} cannot be written: {error.strerror}; files written before it are kept") from None
