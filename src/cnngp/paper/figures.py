"""The colours of the experiments' figures, and how they are opened and saved."""

from __future__ import annotations

from cnngp.common.figures import new_figure as new_figure
from cnngp.common.figures import save_figure as save_figure

INK, BLUE, ORANGE, GREY = "#1f2933", "#2b6cb0", "#dd6b20", "#9aa5b1"
SEQUENCE = ("#dd6b20", "#d69e2e", "#38a169", "#2b6cb0", "#6b46c1")
"""For a quantity that grows, such as the width of a network."""
