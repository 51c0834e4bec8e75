"""Letters and digits as strokes: lines through points in the square from −1 to 1, with y pointing down."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Stroke = list[tuple[float, float]]


def _arc(x: float, y: float, across: float, down: float, start: float, stop: float) -> Stroke:
    """Arc of an ellipse around (x, y) between two angles in degrees, 0 to the right and 90 down."""
    angles = np.deg2rad(np.linspace(start, stop, 13))
    return [(x + across * float(np.cos(a)), y + down * float(np.sin(a))) for a in angles]


_BOWL = _arc(0.1, -0.5, 0.6, 0.5, -90, 90)
_LOWER = _arc(0.1, 0.5, 0.7, 0.5, -90, 90)
_STEM: Stroke = [(-0.6, -1.0), (-0.6, 1.0)]

DIGITS: list[list[Stroke]] = [
    [_arc(0.0, 0.0, 0.7, 1.0, 0, 360)],
    [[(-0.4, -0.6), (0.1, -1.0), (0.1, 1.0)]],
    [[*_arc(0.0, -0.45, 0.65, 0.55, -170, 40), (-0.7, 1.0), (0.7, 1.0)]],
    [_arc(-0.1, -0.5, 0.65, 0.5, -150, 90), _arc(-0.1, 0.5, 0.75, 0.5, -90, 150)],
    [[(0.3, 1.0), (0.3, -1.0), (-0.7, 0.4), (0.7, 0.4)]],
    [[(0.6, -1.0), (-0.5, -1.0), (-0.55, -0.1), *_arc(-0.05, 0.4, 0.7, 0.6, -120, 150)]],
    [_arc(0.0, 0.45, 0.65, 0.55, 0, 360), [(0.4, -1.0), (-0.4, -0.3), (-0.65, 0.4)]],
    [[(-0.7, -1.0), (0.7, -1.0), (-0.2, 1.0)]],
    [_arc(0.0, -0.5, 0.55, 0.5, 0, 360), _arc(0.0, 0.5, 0.65, 0.5, 0, 360)],
    [_arc(0.0, -0.45, 0.65, 0.55, 0, 360), [(0.65, -0.4), (0.5, 0.3), (0.1, 1.0)]],
]

LETTERS: list[list[Stroke]] = [
    [[(-0.8, 1.0), (0.0, -1.0), (0.8, 1.0)], [(-0.5, 0.3), (0.5, 0.3)]],
    [_STEM, [(-0.6, -1.0), *_BOWL, (-0.6, 0.0)], [(-0.6, 0.0), *_LOWER, (-0.6, 1.0)]],
    [_arc(0.1, 0.0, 0.8, 1.0, -50, -310)],
    [_STEM, [(-0.6, -1.0), *_arc(0.0, 0.0, 0.8, 1.0, -90, 90), (-0.6, 1.0)]],
    [_STEM, [(-0.6, -1.0), (0.7, -1.0)], [(-0.6, 0.0), (0.5, 0.0)], [(-0.6, 1.0), (0.7, 1.0)]],
    [_STEM, [(-0.6, -1.0), (0.7, -1.0)], [(-0.6, 0.0), (0.5, 0.0)]],
    [[*_arc(0.1, 0.0, 0.8, 1.0, -50, -330), (0.8, 0.1), (0.2, 0.1)]],
    [_STEM, [(0.6, -1.0), (0.6, 1.0)], [(-0.6, 0.0), (0.6, 0.0)]],
    [[(0.0, -1.0), (0.0, 1.0)], [(-0.4, -1.0), (0.4, -1.0)], [(-0.4, 1.0), (0.4, 1.0)]],
    [[(0.5, -1.0), *_arc(0.0, 0.5, 0.5, 0.5, 0, 170)]],
    [_STEM, [(0.7, -1.0), (-0.6, 0.1), (0.7, 1.0)]],
    [[(-0.6, -1.0), (-0.6, 1.0), (0.7, 1.0)]],
    [[(-0.8, 1.0), (-0.7, -1.0), (0.0, 0.5), (0.7, -1.0), (0.8, 1.0)]],
    [[(-0.7, 1.0), (-0.7, -1.0), (0.7, 1.0), (0.7, -1.0)]],
    [_arc(0.0, 0.0, 0.8, 1.0, 0, 360)],
    [_STEM, [(-0.6, -1.0), *_BOWL, (-0.6, 0.0)]],
    [_arc(0.0, 0.0, 0.8, 1.0, 0, 360), [(0.2, 0.5), (0.8, 1.0)]],
    [_STEM, [(-0.6, -1.0), *_BOWL, (-0.6, 0.0)], [(0.0, 0.0), (0.7, 1.0)]],
    [[*_arc(0.0, -0.5, 0.6, 0.5, -30, -270), *_arc(0.0, 0.5, 0.65, 0.5, -90, 150)]],
    [[(-0.8, -1.0), (0.8, -1.0)], [(0.0, -1.0), (0.0, 1.0)]],
    [[(-0.7, -1.0), *_arc(0.0, 0.3, 0.7, 0.7, 180, 0), (0.7, -1.0)]],
    [[(-0.8, -1.0), (0.0, 1.0), (0.8, -1.0)]],
    [[(-0.9, -1.0), (-0.5, 1.0), (0.0, -0.4), (0.5, 1.0), (0.9, -1.0)]],
    [[(-0.7, -1.0), (0.7, 1.0)], [(0.7, -1.0), (-0.7, 1.0)]],
    [[(-0.7, -1.0), (0.0, 0.0), (0.7, -1.0)], [(0.0, 0.0), (0.0, 1.0)]],
    [[(-0.7, -1.0), (0.7, -1.0), (-0.7, 1.0), (0.7, 1.0)]],
]


def segment(u: Array, v: Array, start: tuple[float, float], end: tuple[float, float]) -> Array:
    """Distance of each point (u, v) from the line segment between two points."""
    (a, b), (c, d) = start, end
    length = max((c - a) ** 2 + (d - b) ** 2, 1e-9)
    along = np.clip(((u - a) * (c - a) + (v - b) * (d - b)) / length, 0.0, 1.0)
    return np.asarray(np.hypot(u - a - along * (c - a), v - b - along * (d - b)))


def nearness(strokes: list[list[Any]] | list[Any], u: Array, v: Array, width: float, soft: float = 0.08) -> Array:
    """Soft mask of strokes of this width: 1 on them, 0 away from them."""
    far = np.full(u.shape, np.inf)
    for stroke in strokes:
        for start, end in pairwise(stroke):
            far = np.minimum(far, segment(u, v, start, end))
    return np.asarray(1.0 / (1.0 + np.exp((far - width) / (soft / 2))))
