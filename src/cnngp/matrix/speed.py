"""The speed of an engine, measured on a few pairs of images, and the tile that follows from it."""

from __future__ import annotations

import time
from typing import Any

from cnngp.kernel.engines.base import Engine
from cnngp.kernel.kernel import Kernel

from .images import ImageRows
from .tile_size import default_tile, may_be_slow, of_seconds

_FEWEST = 16  # images a side of the smallest block that is timed: a processor's vector of pairs


def tile_here(x: ImageRows, shape: tuple[int, int], symmetric: bool) -> tuple[int, int]:
    """The default tile on this machine's engine: smaller than the usual one where that would take long."""
    cost, device = x.kernel.network.shapes(x.image_shape).elements, x.kernel.device
    tile = default_tile(cost, device, shape, symmetric)
    most = min(tile[0], shape[0]), min(tile[1], shape[1])
    if not may_be_slow(cost * most[0] * most[1], device):
        return tile
    return of_seconds(tile, measured_rate(x, min(tile)))


def measured_rate(x: ImageRows, side: int) -> float:
    """Pairs per second in tiles of that side, from as many pairs as take half a second, or from one tile.

    Tables cost time for each image and are a large part of a small block, so they are timed apart.
    """
    engine = x.kernel.engine_for(x.image_shape)
    half = max(1, min(side, len(x) // 2))
    card = 0 if x.kernel.device == "cuda" else None
    first, second = x.block(slice(0, half), card), x.block(slice(len(x) - half, len(x)), card)
    engine.cross(first[:2], second[:2], "numpy", None)  # compiles
    count = min(half, _FEWEST)
    while True:
        whole, tables = _timed(engine, first[:count], second[:count])
        if whole > 0.5 or count == half:
            break
        count = min(half, 2 * count)
    pair, image = max(whole - tables, 0.1 * whole) / count**2, tables / (2 * count)
    return half**2 / (half**2 * pair + 2 * half * image)


def _timed(engine: Engine, first: Any, second: Any) -> tuple[float, float]:
    """Seconds for all pairs of two blocks of images, and for the images' tables alone."""
    start = time.perf_counter()
    engine.diagonal(first)
    engine.diagonal(second)
    middle = time.perf_counter()
    engine.cross(first, second, "numpy", None)
    return max(time.perf_counter() - middle, 1e-9), middle - start


def expected_seconds(kernel: Kernel, X: Any, pairs: int) -> float:
    """How long `pairs` of images such as X take here, by timing a few."""
    rows = ImageRows(X, kernel, "X")
    elements = kernel.network.shapes(rows.image_shape).elements
    side = default_tile(elements, kernel.device, (len(rows), len(rows)), True)[0]
    return pairs / measured_rate(rows, side)
