"""`cnngp classify` and `cnngp regress`: turn options into an estimator and call `report.run`."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Any

from .inputs import MODEL, check_engine, check_writable, given_network, read_data
from .options import Asked
from .output import last_line, say, tell, warn, warnings_as_lines

_FILES = (MODEL, "report.html", "results.json")


def classify(asked: Asked) -> None:
    """Fit an exact GP to images and write a report."""
    from cnngp.estimators.classifier import GPClassifier

    _fit(GPClassifier, asked)


def regress(asked: Asked) -> None:
    """Fit an exact GP to numbers and write a report.

    The numbers come from a column of a table, or from y in an .npz file. They are standardised to mean 0 and standard
    deviation 1 before the fit.
    """
    from cnngp.estimators.regressor import GPRegressor

    if asked.data is None:
        raise ValueError("say what to fit with --data: a table (.csv) of image files with a column of numbers, or .npz")
    asked.noise = "loo" if asked.noise is None else asked.noise
    _fit(GPRegressor, asked, normalize_y=True)


def _fit(kind: Any, asked: Asked, **more: Any) -> None:
    began = time.perf_counter()
    given = given_network(asked)  # raises for options that conflict, before images are read
    if asked.learn is not None and asked.kind == "ntk":
        raise ValueError("--learn follows the gradient of the Gaussian process's kernel; leave out --kind ntk")
    check_engine(given if asked.recipe is None else given.main.network, asked)
    same = ("noise", "amplitude", "learn", "effort", "device", "dtype", "store", "threads", "kind", "preparation")
    estimator = kind(given, **{name: getattr(asked, name) for name in same}, **more)
    images = read_data(asked, whole=asked.test == 0).take(asked.train, asked.test)
    if len(images.image_shape) == 2:  # signals; the shape of images is unambiguous
        estimator.set_params(input_shape=images.image_shape)
    name = Path(asked.network).stem if asked.recipe is None else asked.recipe.stem
    tangent = "" if asked.kind == "nngp" else f"-{asked.kind}"
    folder = asked.output or Path("out") / f"{images.name}-{name}{tangent}-{len(images.X)}"
    check_writable("--output", folder)
    if asked.suspects is not None:
        check_writable("--suspects", asked.suspects, folder=False)
    say("data", repr(images).strip("<>"))
    earlier = [name for name in _FILES if (folder / name).exists()]
    from cnngp.report.run import run

    with warnings_as_lines():
        found = run(
            images,
            estimator,
            folder,
            model=asked.model,
            suspects=asked.suspects,
            verbose=asked.verbose,
            network=str(asked.recipe or asked.network),
            command=asked.words,
            say=lambda name, text: say(name, text) if name else tell(),
        )
    fit = found.estimator.fit_report_
    tell()
    if asked.verbose or fit.worrying:
        (tell if fit.guessing is fit.no_better is None else warn)(fit.verdict)
        tell()
    if MODEL in earlier and not asked.model:
        say("note", f"{folder / MODEL} stays as it is: it is of an earlier run, unlike the files below")
    elif earlier:
        say("replaced", f"{', '.join(earlier)} of an earlier run in {folder}")
    for name, path in found.files.items():
        say(name, path)
    say("time", f"{time.perf_counter() - began:.1f} s")
    if asked.model:
        path = shlex.quote(found.files["model"])
        tell()
        predict = f"cnngp predict {path} NEW.jpg\n" if found.estimator.pictures_ is None else ""
        say("what to do next", f"{predict}cnngp view {path}")
    last_line(found.as_dict())
