"""`cnngp classify`: the main job. Its options, what they mean for a classifier, and one call of `report.run`."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
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
    InputShape,
    Kind,
    MaxPixels,
    NetworkName,
    RecipeFile,
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
from .output import Json, Quiet, last_line, say, tell, warn

_PREPARATIONS = ("plain", "contrast", "detail", "edges", "normalised", "zca", "patches", "loo")


def classify(
    data: Data = "digits",
    network: NetworkName = "auto",
    recipe: RecipeFile = None,
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
    input_shape: InputShape = None,
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
    effort: Annotated[
        str,
        typer.Option(
            metavar="quick|normal|best",
            parser=values.choice("quick", "normal", "best"),
            help="How much choosing a recipe, and the kernels of the chosen one, may cost.",
        ),
    ] = "normal",
    preparation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            parser=values.choice(*_PREPARATIONS),
            help="How each image is prepared: plain, contrast, detail, edges, normalised, zca or patches; loo chooses "
            "one by leave-one-out; by default chosen with auto, plain with others.",
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
    began = time.perf_counter()
    asked = dict(locals())
    classifier = _classifier(asked)  # refuses what does not go together, before images are read
    images = read_data(
        data,
        split=split,
        size=size,
        aspect=aspect,
        skip_bad=skip_bad,
        max_pixels=max_pixels,
        columns=columns,
        input_shape=input_shape,
        whole=test == 0,
    ).some(train, test)
    if len(images.image_shape) == 2:  # of signals; images speak for themselves
        classifier.set_params(input_shape=images.image_shape)
    folder = output or Path("out") / _folder_name(images, asked)
    check_writable("--output", folder)
    if suspects is not None:
        check_writable("--suspects", suspects, folder=False)
    say("data", repr(images).strip("<>"))
    from cnngp.report.run import run

    earlier = _earlier(folder, model)
    with warnings_as_lines():
        found = run(
            images,
            classifier,
            folder,
            model=model,
            suspects=suspects,
            verbose=verbose,
            network=str(recipe) if recipe is not None else network,
            command=_command(asked),
            say=_line,
        )
    fit = found.classifier.fit_report_
    tell()
    if verbose or fit.worrying:
        (tell if fit.guessing is None else warn)(fit.verdict)
        tell()
    if earlier is not None:
        say(*earlier)
    for name, path in found.files.items():
        say(name, path)
    say("time", f"{time.perf_counter() - began:.1f} s")
    if model:
        path = shlex.quote(found.files["model"])
        tell()
        say("what to do next", f"cnngp predict {path} NEW.jpg\ncnngp view {path}")
    last_line(as_json, {"command": "classify", **found.as_dict()})


def _classifier(asked: dict[str, Any]) -> Any:
    """The classifier that the options ask for."""
    from cnngp.estimators.classifier import GPClassifier
    from cnngp.estimators.recipe import Recipe

    given: Any = network_by_name(asked["network"])
    if asked["recipe"] is not None:
        if given is not None:
            raise ValueError("--recipe names the networks; leave out --network")
        given = Recipe.read(asked["recipe"])
    if asked["learn"] is not None and asked["kind"] == "ntk":
        raise ValueError("--learn follows the gradient of the Gaussian process's kernel; leave out --kind ntk")
    check_engine(
        given.main.network if isinstance(given, Recipe) else given,
        *(asked[name] for name in ("device", "dtype", "threads", "kind")),
    )
    return GPClassifier(
        given,
        noise=None if asked["noise"] is None else number_or_word(asked["noise"]),
        amplitude=number_or_word(asked["amplitude"]),
        **{name: asked[name] for name in ("learn", "effort", "device", "dtype", "store", "threads", "kind")},
        preparation=asked["preparation"],
    )


def _line(name: str, text: str) -> None:
    """A line of the run."""
    say(name, text) if name else tell()


def _folder_name(images: Any, asked: dict[str, Any]) -> str:
    name = Path(asked["network"]).stem if asked["recipe"] is None else asked["recipe"].stem
    tangent = "" if asked["kind"] == "nngp" else f"-{asked['kind']}"
    return f"{images.name}-{name}{tangent}-{len(images.X)}"


def _earlier(folder: Path, model: bool) -> tuple[str, str] | None:
    """A line on what an earlier run wrote: that it is replaced; or not, where no model is saved."""
    found = [name for name in ("model.gp", "report.html", "results.json") if (folder / name).exists()]
    if "model.gp" in found and not model:
        return "note", f"{folder / 'model.gp'} stays as it is: it is of an earlier run, unlike the files below"
    return ("replaced", f"{', '.join(found)} of an earlier run in {folder}") if found else None


_DEFAULTS = {
    "data": "digits",
    "network": "auto",
    "split": "standard",
    "aspect": "squash",
    "amplitude": "ml",
    "effort": "normal",
    "dtype": "float32",
    "kind": "nngp",
}
_OPTIONS = (
    *("data", "columns", "network", "recipe", "train", "test", "split", "size", "aspect", "max_pixels", "input_shape"),
    *("noise", "amplitude", "learn", "effort", "dtype", "kind", "preparation"),
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
