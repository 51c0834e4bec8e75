"""Figures of experiments as PNG and SVG files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from cnngp.common.figures import new_figure as new_figure

from .setting import write_atomically

INK, BLUE, ORANGE, GREY = "#1f2933", "#2b6cb0", "#dd6b20", "#9aa5b1"
SEQUENCE = ("#dd6b20", "#d69e2e", "#38a169", "#2b6cb0", "#6b46c1")
"""For a quantity that grows, such as the width of a network."""


def save_figure(figure: Any, folder: Path, name: str) -> list[Path]:
    """NAME.png and NAME.svg, written at once each; the same figure gives the same bytes."""
    import matplotlib

    paths = []
    with matplotlib.rc_context({"svg.hashsalt": "cnngp", "svg.fonttype": "path"}):
        for suffix in ("png", "svg"):
            out = io.BytesIO()
            metadata = {"Date": None} if suffix == "svg" else None
            figure.savefig(out, format=suffix, facecolor="white", metadata=metadata)
            path = folder / f"{name}.{suffix}"
            write_atomically(path, out.getvalue())
            paths.append(path)
    return paths
