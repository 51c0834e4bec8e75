"""`cnngp predict MODEL IMAGE…`: labels and probabilities for image files, from a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .common import Device, table, warnings_as_lines
from .output import Json, Quiet, last_line, say, tell, warn


def predict(
    model: Annotated[Path, typer.Argument(help="A file that `cnngp classify` or GPClassifier.save wrote.")],
    images: Annotated[list[Path], typer.Argument(help="Image files of any kind, or folders of them.")],
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict the class of image files. They are resized and converted to match the training images.

    Novelty, from 0 to 1, says how much an image differs from all training images. A file that cannot be read gives a
    warning and the exit code 1; the others are predicted all the same.
    """
    import numpy as np

    from cnngp.common.errors import DatasetError
    from cnngp.datasets.folders import image_files
    from cnngp.datasets.images import read_image
    from cnngp.estimators.classifier import GPClassifier

    clf = GPClassifier.load(model, device=device)  # type: ignore[arg-type]
    if len(clf.input_shape_) != 3:
        raise ValueError(f"{model} was fitted on inputs of shape {clf.input_shape_}, not on images")
    largest = largest_pixel(model, clf.originals_)
    read, bad = {}, {}
    for path in image_files(images):
        try:
            read[path] = read_image(path, clf.input_shape_, clf.image_aspect_ or "squash")
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
    rows = [("image", "class", "probability", "next best", "novelty")]
    results = []
    words = [str(c) for c in clf.classes_]
    for path, why in zip(read, explained, strict=True):
        p = why.probabilities
        first, second = (int(k) for k in np.argsort(-p, kind="stable")[:2])
        next_best = f"{words[second]} ({p[second]:.4f})"
        rows.append((str(path), words[first], f"{p[first]:.4f}", next_best, f"{why.novelty:.3f}"))
        result = {"image": str(path), "class": words[first]}
        results.append(result | {"probabilities": dict(zip(words, p.tolist(), strict=True)), **why.as_dict()})
    engine = clf.kernel_.engine_for(clf.input_shape_).identity
    say("engine", engine)
    if largest != 1:
        say("pixels", f"from 0 to {largest}, as in the images that the model was fitted on")
    tell(table(rows, right=(2, 4)))
    unreadable = [{"image": str(path), "error": message} for path, message in bad.items()]
    about = {"command": "predict", "model": str(model), "engine": engine, "pixels": largest}
    last_line(as_json, about | {"images": results, "unreadable": unreadable})
    if bad:
        raise typer.Exit(1)


def largest_pixel(model: Path, X: Any) -> int:
    """1 or 255: the scale of the images that a model was fitted on, which nothing but they themselves tell.

    A little beyond [0, 1] is what resampling leaves. Digits from 0 to 16 or images without their mean are refused.
    """
    low, high = float(X.min()), float(X.max())
    if low >= -0.1 and high <= 1.1:
        return 1
    if low >= 0.0 and 127.0 < high <= 255.0:
        return 255
    raise ValueError(
        f"{model} was fitted on pixels from {low:g} to {high:g}, and image files are read as 0 to 1 or 0 to 255; "
        "prepare them as for the fit and predict in Python, with GPClassifier.load"
    )
