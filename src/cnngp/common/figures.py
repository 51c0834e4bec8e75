"""Creating and saving figures, with matplotlib imported at first use and without pyplot, which has global state."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np

from .files import write_atomically
from .optional import need


class PlotsUnavailable(ImportError):
    """Error raised if matplotlib is not installed."""


def need_matplotlib() -> Any:
    """Return matplotlib, or raise `PlotsUnavailable` with the extra that installs it."""
    need("matplotlib.figure", "a figure", PlotsUnavailable)
    return need("matplotlib", "a figure", PlotsUnavailable)


def bare_figure(width: float, height: float, **options: Any) -> Any:
    """Return a matplotlib figure of this size in inches, without axes; it needs no display."""
    return need_matplotlib().figure.Figure(figsize=(width, height), layout="constrained", **options)


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **subplots: Any) -> tuple[Any, Any]:
    """Return a figure in the package's style and its axes: one, a row or column of them, or (rows, columns)."""
    figure = bare_figure(width, height, dpi=130)
    axes = figure.subplots(rows, columns, **subplots)
    for a in np.atleast_1d(axes).flat:
        a.tick_params(labelsize=8)
        a.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save_figure(figure: Any, folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg, each atomically; the same figure gives the same bytes."""
    paths = []
    with need_matplotlib().rc_context({"svg.hashsalt": "cnngp", "svg.fonttype": "path"}):
        for suffix in ("png", "svg"):
            out = io.BytesIO()
            metadata = {"Date": None} if suffix == "svg" else None
            figure.savefig(out, format=suffix, facecolor="white", metadata=metadata)
            path = folder / f"{name}.{suffix}"
            write_atomically(path, out.getvalue())
            paths.append(path)
    return paths
