"""`cnngp view MODEL`: a page on this machine to look at images through a model, and to go through suspect labels."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from . import values
from .common import Device, MaxPixels, check_writable, warnings_as_lines
from .models import Model, largest_pixel, load_classifier, model_file
from .output import Quiet, say


def view(
    model: Model,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE.csv", help="CSV file for decisions about labels; by default MODEL.labels.csv."),
    ] = None,
    suspects: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=values.whole(1),
            help="Show this many suspect labels; by default those that the model's own errors do not explain.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(metavar="N", parser=values.port, help="Port on this machine; 0 takes a free one.")
    ] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    device: Device = "auto",
    max_pixels: MaxPixels = None,
    quiet: Quiet = False,
) -> None:
    """Open a page to try images on a model, see the reasons for its answers, and clean labels.

    The page can be opened from this machine only, by those who know its whole address, and no image leaves it.
    """
    from cnngp.datasets.images import MAX_PIXELS
    from cnngp.report.viewer.answers import Answers
    from cnngp.report.viewer.decisions import Decisions
    from cnngp.report.viewer.server import Viewer

    model = model_file(model)
    path = model.with_suffix(".labels.csv") if labels is None else labels
    check_writable("--labels", path, folder=False)
    decisions = Decisions(path)
    with warnings_as_lines():
        clf = load_classifier(model, device)
        largest = largest_pixel(model, clf.X_)
        most = MAX_PIXELS if max_pixels is None else max_pixels
        answers = Answers(clf, model.name, decisions, largest=largest, suspects=suspects, max_pixels=most)
    try:
        server = Viewer(answers, port)
    except OSError as error:
        raise OSError(f"--port {port}: {error.strerror}; choose another, or 0 for a free one") from None
    with server:
        say("page", server.address)
        say("decisions", str(path))
        say("", "press Ctrl-C to stop")
        if browser:
            webbrowser.open(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            count = f"{len(decisions)} label{'' if len(decisions) == 1 else 's'}"
            say("decided", f"{count}, in {path}" if len(decisions) else "nothing")
