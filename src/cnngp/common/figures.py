"""The opening of a figure: the one place that imports matplotlib, without pyplot, so that nothing global is touched."""

from __future__ import annotations

from typing import Any

import numpy as np


class PlotsUnavailable(ImportError):
    """matplotlib is not installed."""


def need_matplotlib() -> Any:
    """matplotlib, or one line that names the extra."""
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError:
        raise PlotsUnavailable("figures need matplotlib: pip install 'cnngp[plots]'") from None
    return matplotlib


def bare_figure(width: float, height: float, **options: Any) -> Any:
    """A matplotlib figure of this size in inches, without axes; it needs no display."""
    return need_matplotlib().figure.Figure(figsize=(width, height), layout="constrained", **options)


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **subplots: Any) -> tuple[Any, Any]:
    """A figure in our style and its axes: one, a row or column of them, or (rows, columns)."""
    figure = bare_figure(width, height, dpi=130)
    axes = figure.subplots(rows, columns, **subplots)
    for a in np.atleast_1d(axes).flat:
        a.tick_params(labelsize=8)
        a.spines[["top", "right"]].set_visible(False)
    return figure, axes
