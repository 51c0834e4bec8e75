"""The model that a command is given: a file, or the folder that `cnngp classify` wrote it into."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cnngp.estimators.classifier import GPClassifier

Model = Annotated[
    Path, typer.Argument(help="A file that `cnngp classify` or GPClassifier.save wrote, or a folder with model.gp.")
]
MODEL = "model.gp"
"""What `cnngp classify` calls the model in its folder."""


def model_file(given: Path) -> Path:
    """The file that is meant."""
    from cnngp.common.errors import ModelFileError

    if not given.is_dir():
        return given
    if (given / MODEL).is_file():
        return given / MODEL
    raise ModelFileError(f"{given} is a folder without a {MODEL}; give a file that `cnngp classify` wrote")


def load_classifier(path: Path, device: str) -> GPClassifier:
    """The classifier in a file; a model of another kind is refused in words for people who did not write Python."""
    from cnngp.common.errors import ModelFileError
    from cnngp.estimators.classifier import GPClassifier
    from cnngp.estimators.files import OtherEstimatorError

    try:
        return GPClassifier.load(path, device=device)  # type: ignore[arg-type]
    except OtherEstimatorError as error:
        raise ModelFileError(
            f"{path} holds a {error.held}, and this command is for classifiers; use it in Python, with "
            f"{error.held}.load"
        ) from None


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
