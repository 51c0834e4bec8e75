"""`cnngp classify`: the main job. Data in; kernel, exact GP, errors, calibration, a report and a model out."""

from __future__ import annotations

import json
import platform
import shlex
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from . import values
from .common import (
    Aspect,
    Columns,
    Data,
    Device,
    Dtype,
    Kind,
    MaxPixels,
    NetworkName,
    Shape,
    Size,
    SkipBad,
    SplitName,
    Threads,
    Train,
    check_engine,
    check_writable,
    network_by_name,
    number_or_word,
    read_data,
    warnings_as_lines,
)
from .cost import choose_for, tell_choice, tell_cost
from .output import Json, Quiet, last_line, say, tell, warn


def classify(
    data: Data = "digits",
    network: NetworkName = "auto",
    train: Train = None,
    test: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=values.whole(0),
            help="Use only the first N test images; 0 makes no test set and fits all images.",
        ),
    ] = None,
    split: SplitName = "standard",
    size: Size = None,
    aspect: Aspect = "squash",
    skip_bad: SkipBad = False,
    max_pixels: MaxPixels = None,
    columns: Columns = None,
    shape: Shape = None,
    noise: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER|ml|loo",
            parser=values.noise,
            help="Noise variance in the kernel's units, or ml or loo to choose it; by default loo with --network auto, "
            "else 0.",
        ),
    ] = None,
    amplitude: Annotated[
        str,
        typer.Option(
            metavar="NUMBER|ml|loo", parser=values.amplitude, help="Scale of the kernel, or how to choose it."
        ),
    ] = "ml",
    learn: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            parser=values.choice("loo", "likelihood"),
            help="Learn the network's variances, by loo (leave-one-out) or by likelihood.",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            parser=values.seconds,
            help="Choose the best network whose kernels take at most this many seconds on this machine.",
        ),
    ] = None,
    preparation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=values.choice("plain", "contrast", "detail", "edges", "loo"),
            help="How each image is prepared: plain, contrast, detail, edges, or loo, which chooses one by "
            "leave-one-out; by default loo with auto, plain with others.",
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    threads: Threads = None,
    kind: Kind = "nngp",
    store: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="Keep the kernels here, so that an interrupted run can continue; a folder or an fsspec URL.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder for report.html, results.json and model.gp; by default out/DATA-NETWORK-N."
        ),
    ] = None,
    model: Annotated[
        bool, typer.Option(help="Save the model; the file takes 2·N² bytes for N images in float32.")
    ] = True,
    suspects: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write a table of all training images, the most suspect labels first."),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print what was measured about the fit, as in the report.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Classify images with an exact Gaussian process, and write a report."""
    from cnngp.estimators.classifier import GPClassifier
    from cnngp.kernel.kernel import Kernel
    from cnngp.report.evaluation import check_labels, evaluate

    began = time.perf_counter()
    given = network_by_name(network)
    if learn is not None and kind == "ntk":
        raise ValueError("--learn follows the gradient of the Gaussian process's kernel; leave out --kind ntk")
    if budget is not None and given is not None:
        raise ValueError(f"--budget chooses a network, and --network {network} names one; leave out one of them")
    check_engine(given, device, dtype, threads, kind)
    read = read_data(
        data,
        split=split,
        size=size,
        aspect=aspect,
        skip_bad=skip_bad,
        max_pixels=max_pixels,
        columns=columns,
        shape=shape,
        whole=test == 0,
    )
    images = read.some(train, test)
    _check_classes(images)
    check_labels(images.y, images.y_test)
    tangent = "" if kind == "nngp" else f"-{kind}"
    default = Path("out") / f"{images.name}-{Path(network).stem}{tangent}-{len(images.X)}"
    folder = output if output is not None else default
    check_writable("--output", folder)
    if suspects is not None:
        check_writable("--suspects", suspects, folder=False)
    say("data", repr(images).strip("<>"))
    to_predict = len(images.X_test) + (0 if images.X_validation is None else len(images.X_validation))
    pairs = len(images.X) * (len(images.X) - 1) // 2 + len(images.X) * to_predict
    choice = choose_for(images.X, pairs, given, budget, (device, dtype, threads, kind))
    net = given if choice is None else choice.option.network
    kernel = Kernel(net, device, dtype, threads, kind)  # type: ignore[arg-type]
    usual = "0" if choice is None or learn is not None else "loo"
    # Without a budget the estimator repeats the choice and goes on from it, by leave-one-out.
    goes_on = choice is not None and budget is None
    clf = GPClassifier(
        None if goes_on else net,
        noise=number_or_word(usual if noise is None else noise),
        amplitude=number_or_word(amplitude),
        learn=learn,  # type: ignore[arg-type]
        device=device,  # type: ignore[arg-type]
        dtype=dtype,
        store=store,
        threads=threads,
        kind=kind,  # type: ignore[arg-type]
        preparation="loo" if preparation is None and budget is not None else preparation,  # type: ignore[arg-type]
        input_shape=images.image_shape
        if len(images.image_shape) == 2
        else None,  # of signals; images speak for themselves
    )
    if choice is None:
        tell_cost(kernel, images.X, pairs)
    else:
        tell_choice(choice, kernel, images.X, pairs, _words(locals(), _OF_THE_DATA))
    with warnings_as_lines():
        if noise is None:  # nobody asked for a search of the noise, and the verdict says more
            warnings.filterwarnings("ignore", "noise='loo' chose the most noise", UserWarning)
        together, uncertain = images.groups, images.image_noise
        clf.fit(images.X, images.y, names=images.names, groups=together, image_noise=uncertain)
    clf.image_aspect_ = images.aspect
    if choice is not None:
        choice = clf.choice_ or choice
        clf.choice_, clf.fit_report_ = choice, replace(clf.fit_report_, choice=choice.text())
    report = clf.fit_report_
    name = network if choice is None else choice.option.name
    chosen = "" if choice is None else " (chosen)"
    say("network", f"{name}{chosen}, {clf.network_.shapes(clf.input_shape_).cost:,} operations per pair")
    if clf.preparation_ != "plain":
        say("preparation", f"{clf.preparation_}{'' if preparation == clf.preparation_ else ' (chosen)'}")
    if clf.learned_ is not None:
        say("learned", str(clf.learned_))
    say("engine", report.engine)
    if report.compiling is not None:
        say("compiling, loading", report.compiling)
    compared = len(images.X) * (len(images.X) - 1) // 2
    say("kernel", f"{report.kernel_seconds:.2f} s, {compared / max(report.kernel_seconds, 1e-9):,.0f} pairs/s")
    say("solve", f"{report.solve_seconds:.2f} s")
    with warnings_as_lines():
        evaluation = evaluate(clf, images)
    if evaluation.test is not None:
        say("predict", f"{evaluation.predict_seconds:.2f} s")
    tell()
    if evaluation.validation is not None:
        say("validation", str(evaluation.validation))
    if evaluation.test is not None:
        say("test", f"{evaluation.test}; {_counted(evaluation.test.error, len(images.X_test))}")
    say("leave-one-out", f"{evaluation.loo}; {_counted(evaluation.loo.error, evaluation.loo_images)}")
    if verbose:
        likelihood = evaluation.log_marginal_likelihood
        say("log likelihood", "not known with this solver" if likelihood is None else f"{likelihood:,.1f}")
        for row in replace(report, choice=None).rows()[1:]:  # the network and the engine were printed above
            say(*row)
    tell()
    (tell if report.guessing is None else warn)(report.verdict)
    result: dict[str, Any] = {
        "command": "classify",
        "network": name,
        "preparation": clf.preparation_,
        **evaluation.as_dict(),
    }
    result["learned"] = None if clf.learned_ is None else clf.learned_.as_dict()
    result |= {"notes": list(images.notes), "fit": report.as_dict(), "seconds": time.perf_counter() - began}
    repeated = {
        "network": name,
        "noise": noise or usual,
        "preparation": None if clf.preparation_ == "plain" else clf.preparation_,
    }
    asked = locals() | (repeated if budget is not None else {})
    command = _command(asked)
    earlier = _earlier(folder, model)
    with warnings_as_lines():  # of letters that the figures' font lacks, say
        result["files"] = _write(folder, clf, model, evaluation, result, command)
    if suspects is not None:
        with _naming(suspects):
            _write_suspects(suspects, clf)
        result["files"]["suspects"] = str(suspects)
    tell()
    if earlier is not None:
        say(*earlier)
    for kind, path in result["files"].items():
        say(kind, path)
    say("time", f"{time.perf_counter() - began:.1f} s")
    if model:
        path = shlex.quote(result["files"]["model"])
        tell()
        say("what to do next", f"cnngp predict {path} NEW.jpg\ncnngp view {path}")
    last_line(as_json, result)


def _check_classes(images: Any) -> None:
    """Refuse labels that are no classes, one for each image."""
    y = images.y
    if y.ndim != 1:
        raise ValueError(
            f"{images.name} has {y.shape[1]} labels for each image, and this command classifies by one: choose it with "
            "--columns, or fit all of them in Python with GPClassifier"
        )
    if y.dtype.kind == "f" and bool((y != y.round()).any()):
        raise ValueError(
            f"{images.name} has numbers such as {y[y != y.round()][0]:g} for labels, which are no classes; "
            "fit them in Python with GPRegressor"
        )


def _counted(share: float, images: int) -> str:
    return f"{round(share * images):,} of {images:,} wrong" if images else "of no images"


def _earlier(folder: Path, model: bool) -> tuple[str, str] | None:
    """A line on what an earlier run wrote: that it is replaced; or not, where no model is saved."""
    found = [name for name in ("model.gp", "report.html", "results.json") if (folder / name).exists()]
    if "model.gp" in found and not model:
        return "note", f"{folder / 'model.gp'} stays as it is: it is of an earlier run, unlike the files below"
    return ("replaced", f"{', '.join(found)} of an earlier run in {folder}") if found else None


def _write_suspects(path: Path, clf: Any) -> None:
    """A table of all training images with a leave-one-out prediction, the most suspect first."""
    from cnngp.common.files import write_atomically
    from cnngp.common.tables import csv_text

    found = clf.suspect_labels(len(clf.loo_rows_))
    columns = ("row", "name", "given", "proposed", "score")
    write_atomically(path, csv_text(columns, zip(*(found[column].tolist() for column in columns), strict=True)))


def _write(
    folder: Path, clf: Any, model: bool, evaluation: Any, result: dict[str, Any], command: str
) -> dict[str, str]:
    from cnngp import __version__
    from cnngp.common.files import write_atomically
    from cnngp.report import plots, report

    folder.mkdir(parents=True, exist_ok=True)
    files = {"results": folder / "results.json"}
    with _naming(files["results"]):  # before the model, for which a disk may have no room
        write_atomically(files["results"], json.dumps(result, indent=1) + "\n")
    if model:
        files["model"] = folder / "model.gp"
        with _naming(files["model"]):
            clf.save(files["model"])
    try:
        page = report.render(
            evaluation,
            clf.fit_report_,
            clf.network_,
            clf.input_shape_,
            learned=clf.learned_,
            command=command,
            versions=f"cnngp {__version__}, Python {platform.python_version()}, {platform.system()}",
        )
    except plots.PlotsUnavailable as error:
        say("report", f"not written: {error}")
    else:
        files["report"] = folder / "report.html"
        with _naming(files["report"]):
            report.write(files["report"], page)
    return {kind: str(path) for kind, path in files.items()}


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Have the error of a write say which file it was: that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # one of our own, which says all
            raise
        raise OSError(f"{path} cannot be written: {error.strerror}; files written before it are kept") from None


_DEFAULTS = {
    "data": "digits",
    "network": "auto",
    "split": "standard",
    "aspect": "squash",
    "amplitude": "ml",
    "dtype": "float32",
    "kind": "nngp",
}
_OF_THE_DATA = ("data", "columns", "size", "aspect", "max_pixels", "shape")
_OPTIONS = (
    "data",
    "columns",
    "network",
    "train",
    "test",
    "split",
    "size",
    "aspect",
    "max_pixels",
    "shape",
    "noise",
    "amplitude",
    "learn",
    "dtype",
    "kind",
    "preparation",
)


def _command(given: dict[str, Any]) -> str:
    """The shortest command that repeats the run; the device and the folder do not change the result."""
    return f"cnngp classify{_words(given, _OPTIONS)}"


def _words(given: dict[str, Any], names: Sequence[str]) -> str:
    """Options with other values than the usual ones, each after a space, for a command to copy."""
    words = [""]
    for name in names:
        if given[name] is not None and given[name] != _DEFAULTS.get(name):
            words += [f"--{name.replace('_', '-')}", shlex.quote(str(given[name]))]
    return " ".join(words + (["--skip-bad"] if given["skip_bad"] else []))
