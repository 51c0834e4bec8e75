"""`cnngp view MODEL`: a page on this machine to look at images through a model, and to go through suspect labels."""

from __future__ import annotations

import webbrowser

from .inputs import MODEL, check_writable, read_model
from .options import Asked
from .output import say, warnings_as_lines


def view(asked: Asked) -> None:
    """Try images on a model, and clean labels.

    The page can be opened from this machine only, by those who know its whole address, and no image leaves it.
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
        name = path.resolve().parent.name if path.name == MODEL else path.name  # which all folders have
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
