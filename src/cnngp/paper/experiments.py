"""Run an experiment, write its numbers and figures, and the page of all that are done."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from cnngp.common.files import write_atomically
from cnngp.report.plots import PlotsUnavailable

from . import page, results
from .setting import Setting

NAMES = ("table1", "figure2", "figure3")
"""The modules that `cnngp reproduce all` runs."""
PAGE = "reproduction.html"


def reproduce(module: str, setting: Setting, command: str) -> results.Document:
    """Run the experiment of a module and write NAME.json, its figures and the page.

    Raises `OutOfTime` where the budget ends before.
    """
    experiment: Any = importlib.import_module(module)
    name = module.rpartition(".")[2]
    first = len(setting.done)
    found = experiment.run(setting)
    try:
        figures = experiment.draw(found, setting.out)
    except PlotsUnavailable as error:
        setting.say("figures", f"not drawn: {error}")
        figures = []
    doc = results.document(
        name, experiment.TITLE, found, setting.done[first:], figures, command=command, quick=setting.quick
    )
    results.write(setting.out / f"{name}.json", doc)
    write_page(setting.out)
    return doc


def write_page(folder: Path) -> Path:
    """Write the page of all experiments that have a file in the folder, the paper's own first."""
    found = {path.stem: path for path in sorted(folder.glob("*.json"))}
    names = [*(name for name in NAMES if name in found), *(name for name in found if name not in NAMES)]
    documents = [results.read(found[name]) for name in names]
    write_atomically(folder / PAGE, page.render(documents, folder).encode())
    return folder / PAGE
