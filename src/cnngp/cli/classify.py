"""`cnngp classify`: the main job. Data in; kernel, exact GP, errors, calibration, a report and a model out."""

from __future__ import annotations

import csv
import json
import platform
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import (
    Aspect,
    Data,
    Device,
    Dtype,
    NetworkName,
    Size,
    SkipBad,
    Threads,
    check_writable,
    network_by_name,
    number_or_word,
    read_data,
    warnings_as_lines,
    zoo_name,
)
from .cost import tell_cost
from .output import Json, Quiet, last_line, say, tell


def classify(
    data: Data = "digits",
    network: NetworkName = "auto",
    train: Annotated[int | None, typer.Option(help="Use only the first N training images.")] = None,
    test: Annotated[int | None, typer.Option(help="Use only the first N test images.")] = None,
    split: Annotated[str, typer.Option(help="standard, or paper (mnist and fashion_mnist).")] = "standard",
    size: Size = None,
    aspect: Aspect = "squash",
    skip_bad: SkipBad = False,
    noise: Annotated[str, typer.Option(help="Noise variance in the kernel's units, ml or loo.")] = "0",
    amplitude: Annotated[str, typer.Option(help="ml, loo or a number.")] = "ml",
    device: Device = "auto",
    dtype: Dtype = "float32",
    threads: Threads = None,
    store: Annotated[
        str | None, typer.Option(help="Keep the kernels here, so that a killed run goes on; a folder or an fsspec URL.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for report.html, results.json and model.gp; out/DATA-NETWORK-N.")
    ] = None,
    model: Annotated[bool, typer.Option(help="Write the model; it takes 2·N² bytes in float32.")] = True,
    suspects: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="Write all training images here, the most suspect labels first."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Classify images with an exact Gaussian process, and write a report."""
    from cnngp.estimators.classifier import GPClassifier
    from cnngp.estimators.inputs import default_network
    from cnngp.kernel.kernel import Kernel
    from cnngp.report.evaluation import check_labels, evaluate

    began = time.perf_counter()
    images = read_data(data, split, size, aspect, skip_bad).some(train, test)
    check_labels(images.y, images.y_test)
    given = network_by_name(network)
    clf = GPClassifier(
        given,
        noise=number_or_word("noise", noise),
        amplitude=number_or_word("amplitude", amplitude),
        device=device,  # type: ignore[arg-type]
        dtype=dtype,
        store=store,
        threads=threads,
    )
    default = Path("out") / f"{images.name}-{Path(network).stem}-{len(images.X)}"
    folder = output if output is not None else default
    check_writable("--output", folder)
    if suspects is not None:
        check_writable("--suspects", suspects, folder=False)
    say("data", repr(images).strip("<>"))
    kernel = Kernel(given or default_network(images.X.shape[1:]), device, dtype, threads)  # type: ignore[arg-type]
    tell_cost(kernel, images.X, len(images.X) * (len(images.X) - 1) // 2 + len(images.X) * len(images.X_test))
    with warnings_as_lines():
        clf.fit(images.X, images.y, names=images.names)
    clf.image_aspect_ = images.aspect
    report = clf.fit_report_
    pairs = len(images.X) * (len(images.X) - 1) // 2
    name = network if network != "auto" else zoo_name(clf.network_)
    chosen = " (chosen)" if network == "auto" else ""
    say("network", f"{name}{chosen}, {clf.network_.shapes(clf.input_shape_).cost:,} operations per pair")
    say("engine", report.engine)
    if report.compiling is not None:
        say("compiling, loading", report.compiling)
    say("kernel", f"{report.kernel_seconds:.2f} s, {pairs / max(report.kernel_seconds, 1e-9):,.0f} pairs/s")
    say("solve", f"{report.solve_seconds:.2f} s")
    with warnings_as_lines():
        evaluation = evaluate(clf, images)
    say("predict", f"{evaluation.predict_seconds:.2f} s")
    tell()
    if evaluation.validation is not None:
        say("validation", str(evaluation.validation))
    say("test", str(evaluation.test))
    say("leave-one-out", str(evaluation.loo))
    likelihood = evaluation.log_marginal_likelihood
    say("log likelihood", "not known without a factor" if likelihood is None else f"{likelihood:,.1f}")
    tell()
    for line in str(report).splitlines()[1:]:
        tell(line)
    result: dict[str, Any] = {"command": "classify", "network": name, **evaluation.as_dict()}
    result |= {"notes": list(images.notes), "fit": report.as_dict(), "seconds": time.perf_counter() - began}
    command = _command(locals())
    with warnings_as_lines():  # of letters that the figures' font lacks, say
        result["files"] = _write(folder, clf, model, evaluation, result, command)
    if suspects is not None:
        with _naming(suspects):
            _write_suspects(suspects, clf)
        result["files"]["suspects"] = str(suspects)
    tell()
    for kind, path in result["files"].items():
        say(kind, path)
    say("time", f"{time.perf_counter() - began:.1f} s")
    last_line(as_json, result)


def _write_suspects(path: Path, clf: Any) -> None:
    """A table of all training images with a leave-one-out prediction, the most suspect first."""
    found = clf.suspect_labels(len(clf.loo_rows_))
    columns = ("row", "name", "given", "proposed", "score")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*(found[column].tolist() for column in columns), strict=True))


def _write(
    folder: Path, clf: Any, model: bool, evaluation: Any, result: dict[str, Any], command: str
) -> dict[str, str]:
    from cnngp import __version__
    from cnngp.report import plots, report

    folder.mkdir(parents=True, exist_ok=True)
    files = {"results": folder / "results.json"}
    with _naming(files["results"]):  # before the model, for which a disk may have no room
        files["results"].write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
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
        raise OSError(f"{path} cannot be written: {error.strerror}; what was written before it stays") from None


_DEFAULTS = {
    "data": "digits",
    "network": "auto",
    "split": "standard",
    "aspect": "squash",
    "noise": "0",
    "amplitude": "ml",
    "dtype": "float32",
}
_OPTIONS = ("data", "network", "train", "test", "split", "size", "aspect", "noise", "amplitude", "dtype")


def _command(given: dict[str, Any]) -> str:
    """The shortest command that repeats the run; the device and the folder do not change the result."""
    words = ["cnngp", "classify"]
    for name in _OPTIONS:
        if given[name] is not None and given[name] != _DEFAULTS.get(name):
            words += [f"--{name}", str(given[name])]
    words += ["--skip-bad"] if given["skip_bad"] else []
    return shlex.join(words)
