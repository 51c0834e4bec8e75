"""`cnngp predict MODEL IMAGE…`: what a saved model says of image files."""

from __future__ import annotations

from typing import Any

import click

from cnngp.common.tables import aligned, percent

from .inputs import read_model
from .options import Asked
from .output import last_line, say, tell, warn, warnings_as_lines

_LISTED = 5


def predict(asked: Asked) -> None:
    """Predict the class or number of image files. They are resized and converted to match the training images.

    With --coverage there is a set of classes that holds the right one as often as that: no class says that the image is
    none of these. Numbers come with an interval. The last column says how unusual an image is: more than that share of
    the training images, each beside all the others. The JSON also has the number behind it, the novelty, from 0 to 1. A
    file that cannot be read gives a warning and the exit code 1; the others are predicted all the same.
    """
    import numpy as np

    from cnngp.common.errors import DatasetError
    from cnngp.datasets.folders_and_tables import image_files
    from cnngp.datasets.images import MAX_PIXELS, read_image
    from cnngp.report.answers import answers

    path, model, largest = read_model(asked.model, asked.device)
    numbers = not hasattr(model, "classes_")
    coverage = asked.coverage
    if coverage is None and numbers and model.gp_.exact is not None:
        coverage = 0.9
    read, bad = {}, {}
    for file in image_files(asked.images):
        try:
            aspect = model.image_aspect_ or "squash"
            read[file] = read_image(file, model.input_shape_, aspect, asked.max_pixels or MAX_PIXELS)
        except DatasetError as error:
            bad[file] = str(error)
    if not read:
        more = f"; and {len(bad) - _LISTED:,} more" if len(bad) > _LISTED else ""
        raise DatasetError("; ".join(list(bad.values())[:_LISTED]) + more)
    for message in bad.values():
        warn(message)
    X = np.stack(list(read.values())).astype(np.float32)
    with warnings_as_lines():
        said = list(answers(model, X if largest != 1 else X / np.float32(255.0), coverage))
    engine = model.fit_.only_kernel.engine(model.input_shape_)
    say("engine", engine)
    if largest != 1:
        say("pixels", f"from 0 to {largest}, as in the images that the model was fitted on")
    heads = ("number", "±") if numbers else ("class", "probability", "next best")
    region = () if coverage is None else (f"{'interval' if numbers else 'set'} at {percent(coverage)}",)
    rows = [("image", *heads, *region, "more unusual than")]
    for file, answer in zip(read, said, strict=True):
        words = [*(_number if numbers else _class)(answer), *([] if coverage is None else [_region(answer)])]
        rows.append((str(file), *words, how_unusual(answer["novelty_rank"])))
    tell(aligned(rows, right=(1, 2) if numbers else (2,)))
    results = [{"image": str(file), **answer} for file, answer in zip(read, said, strict=True)]
    unreadable = [{"image": str(file), "error": message} for file, message in bad.items()]
    about = {"command": "predict", "model": str(path), "engine": engine, "pixels": largest, "coverage": coverage}
    last_line(about | {"images": results, "unreadable": unreadable})
    if bad:
        raise click.exceptions.Exit(1)


def _class(answer: dict[str, Any]) -> list[str]:
    (first, p), (second, next_p) = sorted(answer["probabilities"].items(), key=lambda pair: -pair[1])[:2]
    return [first, f"{p:.4f}", f"{second} ({next_p:.4f})"]


def _number(answer: dict[str, Any]) -> list[str]:
    return [f"{answer['value']:.5g}", f"{answer['std']:.2g}"]


def _region(answer: dict[str, Any]) -> str:
    """The set or the interval of an image in words."""
    if "set" in answer:
        return " or ".join(answer["set"]) or "none of these"
    low, high = answer["interval"]
    return "any: too few images" if low is None or high is None else f"{low:.5g} to {high:.5g}"


def how_unusual(rank: float | None) -> str:
    """The share of the training images that are less unusual, each beside all the others, than an image is."""
    if rank is None:
        return "not known"
    if rank in (0.0, 1.0):
        return f"{'all' if rank else 'none'} of the training images"
    return f"{int(100 * rank)} % of the training images"
