"""`cnngp predict MODEL IMAGE…`: labels and probabilities for image files, from a saved model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from cnngp.common.tables import aligned

from .common import Device, MaxPixels, warnings_as_lines
from .models import Model, largest_pixel, load_classifier, model_file
from .output import Json, Quiet, last_line, say, tell, warn


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    device: Device = "auto",
    max_pixels: MaxPixels = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict the class of image files. They are resized and converted to match the training images.

    The last column says how unusual an image is: more than that share of the training images, each beside all the
    others. The JSON also has the number behind it, the novelty, from 0 to 1. A file that cannot be read gives a warning
    and the exit code 1; the others are predicted all the same.
    """
    import numpy as np

    from cnngp.common.errors import DatasetError
    from cnngp.datasets.folders import image_files
    from cnngp.datasets.images import MAX_PIXELS, read_image

    model = model_file(model)
    clf = load_classifier(model, device)
    if len(clf.input_shape_) != 3:
        raise ValueError(f"{model} was fitted on inputs of shape {clf.input_shape_}, not on images")
    largest = largest_pixel(model, clf.X_)
    read, bad = {}, {}
    for path in image_files(images):
        try:
            read[path] = read_image(path, clf.input_shape_, clf.image_aspect_ or "squash", max_pixels or MAX_PIXELS)
        except DatasetError as error:
            bad[path] = str(error)
    if not read:
        raise DatasetError("; ".join(bad.values()))
    for message in bad.values():
        warn(message)
    X = np.stack(list(read.values())).astype(np.float32)
    if largest == 1:
        X /= np.float32(255.0)
    with warnings_as_lines():
        explained = clf.explain(X)
    rows = [("image", "class", "probability", "next best", "more unusual than")]
    results = []
    words = [str(c) for c in clf.classes_]
    for path, why in zip(read, explained, strict=True):
        p = why.probabilities
        first, second = (int(k) for k in np.argsort(-p, kind="stable")[:2])
        next_best = f"{words[second]} ({p[second]:.4f})"
        rows.append((str(path), words[first], f"{p[first]:.4f}", next_best, how_unusual(why.novelty_rank)))
        result = {"image": str(path), "class": words[first]}
        results.append(result | {"probabilities": dict(zip(words, p.tolist(), strict=True)), **why.as_dict()})
    engine = clf.fit_.only_kernel.engine(clf.input_shape_)
    say("engine", engine)
    if largest != 1:
        say("pixels", f"from 0 to {largest}, as in the images that the model was fitted on")
    tell(aligned(rows, right=(2,)))
    unreadable = [{"image": str(path), "error": message} for path, message in bad.items()]
    about = {"command": "predict", "model": str(model), "engine": engine, "pixels": largest}
    last_line(as_json, about | {"images": results, "unreadable": unreadable})
    if bad:
        raise typer.Exit(1)


def how_unusual(rank: float) -> str:
    """The share of the training images that are less unusual, each beside all the others, than an image is."""
    if math.isnan(rank):
        return "not known"
    if rank in (0.0, 1.0):
        return f"{'all' if rank else 'none'} of the training images"
    return f"{math.floor(100 * rank)} % of the training images"
