"""`cnngp predict MODEL IMAGE…`: labels and probabilities for image files, from a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import Device, Json, last_line, say, table


def predict(
    model: Annotated[Path, typer.Argument(help="A file that `cnngp classify` or GPClassifier.save wrote.")],
    images: Annotated[list[Path], typer.Argument(help="PNG or JPEG files.")],
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Predict the class of image files; they are brought to the size and channels of the training images."""
    import numpy as np

    from ..estimators import GPClassifier
    from ..images import read_image

    clf = GPClassifier.load(model, device=device)  # type: ignore[arg-type]
    if len(clf.input_shape_) != 3:
        raise ValueError(f"{model} was fitted on inputs of shape {clf.input_shape_}, not on images")
    X = np.stack([read_image(path, clf.input_shape_) for path in images]).astype(np.float32) / np.float32(255.0)
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
    typer.echo(table(rows, right=(2,)))
    last_line(as_json, {"command": "predict", "model": str(model), "engine": engine, "images": results})
