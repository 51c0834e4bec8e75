"""`cnngp predict MODEL IMAGE…`: labels and probabilities for image files, from a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .common import Device, Json, last_line, say, table, warnings_as_lines


def predict(
    model: Annotated[Path, typer.Argument(help="A file that `cnngp classify` or GPClassifier.save wrote.")],
    images: Annotated[list[Path], typer.Argument(help="PNG or JPEG files.")],
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Predict the class of image files; they are brought to the size and channels of the training images."""
    import numpy as np

    from cnngp.datasets.images import read_image
    from cnngp.estimators.classifier import GPClassifier

    clf = GPClassifier.load(model, device=device)  # type: ignore[arg-type]
    if len(clf.input_shape_) != 3:
        raise ValueError(f"{model} was fitted on inputs of shape {clf.input_shape_}, not on images")
    largest = largest_pixel(model, clf.X_)
    X = np.stack([read_image(path, clf.input_shape_) for path in images]).astype(np.float32)
    if largest == 1:
        X /= np.float32(255.0)
    with warnings_as_lines():
        P = clf.predict_proba(X)
    order = np.argsort(-P, axis=1, kind="stable")
    rows = [("image", "class", "probability", "next best")]
    results = []
    for path, p, ranks in zip(images, P, order, strict=True):
        first, second = (str(clf.classes_[k]) for k in ranks[:2])
        rows.append((str(path), first, f"{p[ranks[0]]:.4f}", f"{second} ({p[ranks[1]]:.4f})"))
        probabilities = {str(c): float(q) for c, q in zip(clf.classes_, p, strict=True)}
        results.append({"image": str(path), "class": first, "probabilities": probabilities})
    engine = clf.kernel_.engine_for(clf.input_shape_).identity
    say("engine", engine)
    if largest != 1:
        say("pixels", f"from 0 to {largest}, as in the images that the model was fitted on")
    typer.echo(table(rows, right=(2,)))
    last_line(
        as_json, {"command": "predict", "model": str(model), "engine": engine, "pixels": largest, "images": results}
    )


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
