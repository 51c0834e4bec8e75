"""The experiments by name: run one, write its numbers and figures, and the page of all that are done."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from cnngp.common.files import write_atomically
from cnngp.report.plots import PlotsUnavailable

from . import page, results
from .setting import Setting

NAMES = ("table1", "figure2", "figure3", "timings")
"""What the paper reports: `cnngp reproduce all`."""
MORE = ("rivals", "pooled", "beyond", "cifar10")
"""What it does not; each is asked for by its name."""
PAGE = "reproduction.html"


def reproduce(name: str, setting: Setting, command: str) -> results.Document:
    """Run one experiment and write NAME.json, its figures and the page. `OutOfTime` where the budget ends before."""
    module: Any = importlib.import_module(f".{name}", __package__)
    first = len(setting.done)
    found = module.run(setting)
    try:
        figures = module.draw(found, setting.out)
    except PlotsUnavailable as error:
        setting.say("figures", f"not drawn: {error}")
        figures = []
    doc = results.document(
        name, module.TITLE, found, setting.done[first:], figures, command=command, quick=setting.quick
    )
    results.write(setting.out / f"{name}.json", doc)
    write_page(setting.out)
    return doc


def write_page(folder: Path) -> Path:
    """The page of all experiments that have a file in the folder."""
    documents = [
        results.read(folder / f"{name}.json") for name in (*NAMES, *MORE) if (folder / f"{name}.json").exists()
    ]
    write_atomically(folder / PAGE, page.render(documents, folder).encode())
    return folder / PAGE
