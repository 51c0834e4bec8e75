"""Clothes and objects as soft masks over coordinates u, v in the square from −1 to 1, with v pointing down."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .glyphs import segment

Array = NDArray[Any]


@dataclass(frozen=True)
class Canvas:
    """Coordinates, and a random generator for variation between objects of one class."""

    u: Array
    v: Array
    rng: np.random.Generator

    def any(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def inside(self, far: Array) -> Array:
        """Soft mask: 1 where the signed distance is below 0."""
        return np.asarray(1.0 / (1.0 + np.exp(np.clip(far / 0.03, -50, 50))))

    def line(self, start: tuple[float, float], end: tuple[float, float], width: float) -> Array:
        return self.inside(segment(self.u, self.v, start, end) - width)

    def box(self, x: float, y: float, half: float, tall: float) -> Array:
        return self.inside(np.maximum(abs(self.u - x) - half, abs(self.v - y) - tall))

    def oval(self, x: float, y: float, across: float, down: float) -> Array:
        return self.inside((np.hypot((self.u - x) / across, (self.v - y) / down) - 1.0) * min(across, down))

    def taper(self, top: float, bottom: float, above: float, below: float) -> Array:
        """A trapezium from v = `above` to `below`, with half-widths `top` and `bottom`."""
        part = np.clip((self.v - above) / (below - above), 0.0, 1.0)
        wide = top + (bottom - top) * part
        return self.inside(np.maximum(abs(self.u) - wide, np.maximum(above - self.v, self.v - below)))


def union(*masks: Array) -> Array:
    return np.asarray(np.maximum.reduce(masks))


def _torso(c: Canvas, sleeve: float, long: float, wide: float = 0.42) -> Array:
    """A torso with sleeves that hang down to v = `sleeve`."""
    out = c.any(0.6, 0.85)
    thick = c.any(0.13, 0.2)
    arms = [c.line((s * 0.35, -0.7), (s * (0.45 + 0.35 * out), sleeve), thick) for s in (-1.0, 1.0)]
    neck = c.oval(0.0, -0.9, c.any(0.15, 0.25), c.any(0.08, 0.2))
    return np.asarray(union(c.taper(wide, wide + c.any(-0.04, 0.06), -0.88, long), *arms) * (1.0 - neck))


def _t_shirt(c: Canvas) -> Array:
    return _torso(c, c.any(-0.4, -0.15), c.any(0.7, 0.95))


def _trousers(c: Canvas) -> Array:
    spread, wide = c.any(0.18, 0.32), c.any(0.13, 0.2)
    legs = [c.line((s * 0.2, -0.7), (s * spread, 0.95), wide) for s in (-1.0, 1.0)]
    return union(c.box(0.0, -0.75, 0.35, 0.2), *legs)


def _pullover(c: Canvas) -> Array:
    return _torso(c, c.any(0.45, 0.8), c.any(0.6, 0.85))


def _dress(c: Canvas) -> Array:
    waist = c.any(0.18, 0.28)
    straps = union(*[c.line((s * 0.15, -0.98), (s * 0.2, -0.6), 0.05) for s in (-1.0, 1.0)])
    return union(c.taper(0.28, waist, -0.75, -0.1), c.taper(waist, c.any(0.35, 0.6), -0.12, 0.97), straps)


def _coat(c: Canvas) -> Array:
    return np.asarray(
        _torso(c, c.any(0.5, 0.85), c.any(0.9, 1.0), 0.46) * (1.0 - 0.8 * c.line((0, -0.8), (0, 1), 0.03))
    )


def _sandal(c: Canvas) -> Array:
    high = c.any(-0.1, 0.25)
    sole = c.line((-0.85, 0.5), (0.85, high), c.any(0.06, 0.12))
    at = [c.any(-0.5, 0.5) for _ in range(3)]
    straps = [c.line((x, 0.5 - 0.2 * (x + 0.8)), (x + c.any(-0.3, 0.3), -0.35), 0.05) for x in at]
    return union(sole, *straps, c.line((0.8, high), (0.8, 0.65), 0.07))


def _shirt(c: Canvas) -> Array:
    body = _torso(c, c.any(-0.1, 0.8), c.any(0.7, 0.95))
    collar = union(*[c.line((0.0, -0.6), (s * 0.25, -0.9), 0.06) for s in (-1.0, 1.0)])
    buttons = union(*[c.oval(0.0, y, 0.04, 0.04) for y in np.linspace(-0.5, 0.7, 6)])
    return np.asarray(np.clip(body + 0.4 * collar, 0, 1.2) * (1.0 - 0.6 * buttons))


def _sneaker(c: Canvas) -> Array:
    low = c.any(0.35, 0.5)
    upper = c.inside(
        np.maximum(c.v - low, (-0.05 - 0.35 * c.u) - c.v + c.any(-0.1, 0.1)) + 2 * np.maximum(abs(c.u) - 0.85, 0)
    )
    return np.asarray(union(c.box(0.0, low, 0.88, 0.1), upper * (abs(c.u) < 0.9)))


def _bag(c: Canvas) -> Array:
    half, tall = c.any(0.55, 0.85), c.any(0.35, 0.6)
    handle = abs(np.hypot(c.u / c.any(0.3, 0.5), (c.v + tall - 0.2) / c.any(0.5, 0.8)) - 1.0) - 0.12
    return union(c.box(0.0, 0.25, half, tall), c.inside(handle * 0.5) * (c.v < 0.0))


def _boot(c: Canvas) -> Array:
    shaft = c.box(0.4, -0.2, c.any(0.25, 0.35), c.any(0.65, 0.8))
    return union(shaft, c.oval(-0.2, 0.5, 0.65, 0.28), c.box(-0.05, 0.7, 0.75, 0.08))


CLOTHES: list[Callable[[Canvas], Array]] = [
    _t_shirt,
    _trousers,
    _pullover,
    _dress,
    _coat,
    _sandal,
    _shirt,
    _sneaker,
    _bag,
    _boot,
]


def _plane(c: Canvas) -> tuple[Array, Array]:
    wings = union(c.line((0.1, 0.0), (-0.4, c.any(0.5, 0.8)), 0.1), c.line((0.1, 0.0), (-0.4, -c.any(0.3, 0.7)), 0.07))
    return union(c.oval(0.0, 0.0, 0.95, 0.17), wings, c.line((-0.8, 0.0), (-0.95, -0.4), 0.08)), wings


def _car(c: Canvas) -> tuple[Array, Array]:
    wheels = union(c.oval(-0.5, 0.45, 0.2, 0.2), c.oval(0.5, 0.45, 0.2, 0.2))
    window = c.box(0.0, -0.2, 0.4, 0.13)
    return union(c.box(0.0, 0.2, 0.9, 0.22), c.taper(0.4, 0.6, -0.4, 0.1), wheels), union(wheels, window)


def _bird(c: Canvas) -> tuple[Array, Array]:
    wing = c.oval(-0.1, c.any(-0.2, 0.1), 0.4, 0.2)
    head, beak = c.oval(0.55, -0.4, 0.22, 0.22), c.line((0.7, -0.4), (0.98, -0.35), 0.05)
    legs = c.line((0.0, 0.3), (0.05, 0.8), 0.04)
    return union(c.oval(0.0, 0.0, 0.6, 0.35), head, beak, c.line((-0.5, 0), (-0.95, 0.15), 0.09), legs), union(
        wing, beak
    )


def _house(c: Canvas) -> tuple[Array, Array]:
    roof = c.taper(0.02, 0.9, -0.9, -0.1)
    return union(c.box(0.0, 0.4, 0.7, 0.5), roof), union(roof, c.box(c.any(-0.4, 0.4), 0.55, 0.15, 0.35))


def _beast(c: Canvas) -> tuple[Array, Array]:
    legs = union(*[c.line((x, 0.1), (x + c.any(-0.1, 0.1), 0.85), 0.08) for x in (-0.5, -0.3, 0.3, 0.5)])
    head = c.oval(0.75, -0.45, 0.22, 0.18)
    return union(c.oval(0.0, 0.0, 0.65, 0.3), legs, c.line((0.5, 0), (0.75, -0.45), 0.12), head), legs


def _tree(c: Canvas) -> tuple[Array, Array]:
    trunk = c.line((0.0, 0.0), (0.0, 0.95), c.any(0.07, 0.14))
    crown = union(*[c.oval(c.any(-0.3, 0.3), c.any(-0.6, -0.1), 0.5, 0.42) for _ in range(3)])
    return union(trunk, crown), trunk


def _fish(c: Canvas) -> tuple[Array, Array]:
    tail = c.inside(np.maximum(abs(c.v) - 0.5 * (-c.u - 0.5), -c.u - 0.95))
    return union(c.oval(0.1, 0.0, 0.7, c.any(0.25, 0.45)), tail), union(tail, c.oval(0.5, -0.1, 0.07, 0.07))


def _ship(c: Canvas) -> tuple[Array, Array]:
    sail = c.inside(np.maximum(abs(c.u - 0.2) - 0.5 * (c.v + 0.9), c.v - 0.1))
    return union(c.taper(0.9, 0.6, 0.25, 0.7), sail, c.line((0.2, -0.9), (0.2, 0.3), 0.04)), sail


def _flower(c: Canvas) -> tuple[Array, Array]:
    petals = c.any(5.0, 7.0) // 1
    angle, radius = np.arctan2(c.v + 0.3, c.u), np.hypot(c.u, c.v + 0.3)
    heart = c.oval(0.0, -0.3, 0.18, 0.18)
    bloom = c.inside(radius - 0.4 - 0.2 * np.cos(petals * angle))
    return union(bloom, c.line((0.0, 0.2), (0.0, 0.98), 0.05)), heart


def _cup(c: Canvas) -> tuple[Array, Array]:
    handle = c.inside(abs(np.hypot(c.u - 0.55, c.v) - 0.3) - 0.08)
    return union(c.taper(0.55, c.any(0.3, 0.5), -0.6, 0.7), handle), c.oval(0.0, -0.58, 0.5, 0.12)


OBJECTS: list[Callable[[Canvas], tuple[Array, Array]]] = [
    _plane,
    _ship,
    _beast,
    _car,
    _bird,
    _fish,
    _tree,
    _house,
    _flower,
    _cup,
]
