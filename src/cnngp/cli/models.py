"""`cnngp predict` and `cnngp view`: predict image files with a saved model, and a page to try it on images."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cnngp.common.tables import aligned, percent

from .inputs import MODEL, check_writable
from .options import Asked
from .output import last_line, say, tell, warn, warnings_as_lines

if TYPE_CHECKING:
    from cnngp.estimators.base import GPEstimator

_LISTED = 5


def predict(asked: Asked) -> None:
    """Predict the class or number of image files. They are resized and converted to match the training images.

    With --coverage, each image gets a set of classes that holds the right one that often; an empty set means that the
    image is none of these. Numbers come with an interval. The last column is the share of training images that are less
    unusual than the image, each compared with all the others. The JSON also has the underlying number, the novelty,
    from 0 to 1. A file that cannot be read gives a warning and exit code 1; the others are still predicted.
    """
    import numpy as np

    from cnngp.common.errors import DatasetError
    from cnngp.datasets.folders_and_tables import image_files
    from cnngp.datasets.images import MAX_PIXELS
    from cnngp.report.answers import answers, pixels_of

    path, model, largest = read_model(asked.model, asked.device)
    numbers = not hasattr(model, "classes_")
    coverage = asked.coverage
    if coverage is None and numbers and model.gp_.exact is not None:
        coverage = 0.9
    read, bad = {}, {}
    for file in image_files(asked.images):
        try:
            read[file] = pixels_of(model, file, largest, asked.max_pixels or MAX_PIXELS)
        except DatasetError as error:
            bad[file] = str(error)
    if not read:
        more = f"; and {len(bad) - _LISTED:,} more" if len(bad) > _LISTED else ""
        raise DatasetError("; ".join(list(bad.values())[:_LISTED]) + more)
    for message in bad.values():
        warn(message)
    with warnings_as_lines():
        said = list(answers(model, np.stack(list(read.values())), coverage))
    engine = model.fit_.only_kernel.engine(model.input_shape_)
    say("engine", engine)
    if largest != 1:
        say("pixels", f"from 0 to {largest}, as in the images that the model was fitted on")
    heads = ("number", "±") if numbers else ("class", "probability", "next best")
    region = () if coverage is None else (f"{'interval' if numbers else 'set'} at {percent(coverage)}",)
    rows = [("image", *heads, *region, "more unusual than")]
    for file, answer in zip(read, said, strict=True):
        if numbers:
            words = [f"{answer['value']:.5g}", f"{answer['std']:.2g}"]
        else:
            (first, p), (second, next_p) = sorted(answer["probabilities"].items(), key=lambda pair: -pair[1])[:2]
            words = [first, f"{p:.4f}", f"{second} ({next_p:.4f})"]
        if "set" in answer:
            words.append(" or ".join(answer["set"]) or "none of these")
        elif "interval" in answer:
            low, high = answer["interval"]
            words.append("any: too few images" if low is None or high is None else f"{low:.5g} to {high:.5g}")
        rows.append((str(file), *words, how_unusual(answer["novelty_rank"])))
    tell(aligned(rows, right=(1, 2) if numbers else (2,)))
    results = [{"image": str(file), **answer} for file, answer in zip(read, said, strict=True)]
    unreadable = [{"image": str(file), "error": message} for file, message in bad.items()]
    about = {"command": "predict", "model": str(path), "engine": engine, "pixels": largest, "coverage": coverage}
    last_line(about | {"images": results, "unreadable": unreadable})
    if bad:
        raise click.exceptions.Exit(1)


def how_unusual(rank: float | None) -> str:
    """Words for the share of training images that are less unusual than an image, each compared with all the others."""
    if rank is None:
        return "not known"
    if rank in (0.0, 1.0):
        return f"{'all' if rank else 'none'} of the training images"
    return f"{int(100 * rank)} % of the training images"


def view(asked: Asked) -> None:
    """Open a web page to try images on a model and to clean labels.

    The page opens only on this machine and only with its full address, and no image leaves the machine.
    """
    from cnngp.datasets.images import MAX_PIXELS
    from cnngp.report.answers import Answers
    from cnngp.report.viewer import Viewer

    path, model, largest = read_model(asked.model, asked.device, pictures=True)
    labels = asked.labels or path.with_suffix(".labels.csv")
    check_writable("--labels", labels, folder=False)
    most, coverage = asked.max_pixels or MAX_PIXELS, asked.coverage or 0.9
    with warnings_as_lines():
        options = {"largest": largest, "suspects": asked.suspects, "max_pixels": most, "coverage": coverage}
        name = path.resolve().parent.name if path.name == MODEL else path.name  # model.gp is the same in all folders
        answers = Answers(model, name, labels, **options)
    try:
        server = Viewer(answers, asked.port)
    except OSError as error:
        raise OSError(f"--port {asked.port}: {error.strerror}; choose another, or 0 for a free one") from None
    with server:
        say("page", server.address)
        say("decisions", str(labels))
        say("", "press Ctrl-C to stop")
        if asked.browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            count = len(answers.decisions)
            say("decided", f"{count} label{'' if count == 1 else 's'}, in {labels}" if count else "nothing")


def read_model(given: Path, device: Any, pictures: bool = False) -> tuple[Path, GPEstimator, int]:
    """Load a model; return its path, the model, and the scale of its training pixels: their largest value, 1 or 255.

    A folder means the model in it. Pixels slightly outside [0, 1] are accepted, because resampling produces them. Other
    scales, such as 0 to 16 or centred images, raise `ValueError`: image files do not have them. With `pictures`, models
    fitted on features are accepted too, if they hold the pictures.
    """
    from cnngp.common.errors import ModelFileError
    from cnngp.estimators.base import OtherEstimatorError
    from cnngp.estimators.classifier import GPClassifier
    from cnngp.estimators.regressor import GPRegressor

    path = given / MODEL if given.is_dir() else given
    if given.is_dir() and not path.is_file():
        raise ModelFileError(f"{given} is a folder without a {MODEL}; give a file that `cnngp classify` wrote")
    try:
        model: GPEstimator = GPClassifier.load(path, device=device)
    except OtherEstimatorError:
        model = GPRegressor.load(path, device=device)
    if model.pictures_ is not None and pictures:
        return path, model, 1
    if len(model.input_shape_) != 3:
        raise ValueError(f"{path} was fitted on inputs of shape {model.input_shape_}, not on images")
    low, high = float(model.X_.min()), float(model.X_.max())
    if low >= -0.1 and high <= 1.1:
        return path, model, 1
    if low >= 0.0 and 127.0 < high <= 255.0:
        return path, model, 255
    raise ValueError(
        f"{path} was fitted on pixels from {low:g} to {high:g}, and image files are read as 0 to 1 or 0 to 255; "
        f"prepare them as for the fit and predict in Python, with {type(model).__name__}.load"
    )
