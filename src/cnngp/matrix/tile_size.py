"""Tile size: validation, default, and the engine's measured speed on which the default depends."""

from __future__ import annotations

import time
from typing import Any

from cnngp.common.errors import is_whole
from cnngp.common.tiles import Grid
from cnngp.kernel.kernel import Kernel

from .images import ImageRows

# Covariances that one tile may compute: about five seconds on two CPU cores, half a second on a GPU. In smaller tiles
# the per-image tables, which every tile computes anew, would cost several per cent.
_TILE_ELEMENTS = {"cpu": 1.2e10, "cuda": 4e11}
# A tile is a file: large enough for a disk, small enough to hold a few in memory.
_SMALLEST = {"cpu": 256, "cuda": 1024}
_LARGEST = {"cpu": 2048, "cuda": 4096}
# An interrupted run loses the tiles in progress, so a tile should not take long even on a slow engine.
_SECONDS = 5.0
_SLOWEST = 16
# A tile with at most this share of `_TILE_ELEMENTS` is quick on any engine.
_QUICK = 1 / 16
# Images along each side of the smallest block that is timed: one SIMD vector of pairs on a CPU.
_FEWEST = 16


def check_tile(tile: object) -> tuple[int, int] | None:
    """Validate the argument `tile=`: None, one side or (rows, columns)."""
    if tile is None:
        return None
    pair = tile if isinstance(tile, (tuple, list)) else (tile, tile)
    if len(pair) != 2 or not all(is_whole(s, least=1) for s in pair):
        raise ValueError(f"tile={tile!r}: expected a positive number of images, a pair (rows, columns), or None")
    return int(pair[0]), int(pair[1])


def default_tile(cost: int, device: str, shape: tuple[int, int], symmetric: bool, workers: int = 1) -> tuple[int, int]:
    """Default (rows, columns) of a tile for a network with `cost` covariances per pair; several tiles per worker.

    The sides are powers of two: about a few seconds of work, no larger than the matrix needs, and not so small that a
    data set that grows later takes millions of files.
    """
    side = _SMALLEST[device]
    while side < _LARGEST[device] and (2 * side) ** 2 * max(1, cost) <= _TILE_ELEMENTS[device]:
        side *= 2
    while workers > 1 and side > _SMALLEST[device] and len(Grid(shape, (side, side), symmetric)) < 8 * workers:
        side //= 2
    rows, columns = (min(side, max(256, 1 << (images - 1).bit_length())) for images in shape)
    return rows, columns


def tile_here(x: ImageRows, shape: tuple[int, int], symmetric: bool) -> tuple[int, int]:
    """Default tile on this machine's engine: halved until it takes a few seconds at the measured rate.

    The sides stay at least 16, so a tile on a very slow engine may take longer.
    """
    cost, device = x.kernel.network.shapes(x.image_shape).elements, x.kernel.device
    a, b = default_tile(cost, device, shape, symmetric)
    if cost * min(a, shape[0]) * min(b, shape[1]) <= _QUICK * _TILE_ELEMENTS[device]:
        return a, b
    rate = measured_rate(x, min(a, b))
    while a * b > _SECONDS * rate and max(a, b) > _SLOWEST:
        a, b = min(a, max(a, b) // 2), min(b, max(a, b) // 2)
    return a, b


def measured_rate(x: ImageRows, side: int) -> float:
    """Pairs per second in tiles of this side, measured on pairs that take half a second, or on one tile.

    The per-image tables are a large part of the time of a small block, so they are timed separately.
    """
    engine = x.kernel.engine_for(x.image_shape)
    half = max(1, min(side, len(x) // 2))
    card = 0 if x.kernel.device == "cuda" else None
    first, second = x.block(slice(0, half), card), x.block(slice(len(x) - half, len(x)), card)
    engine.cross(first[:2], second[:2], "numpy", None)  # compiles
    count = min(half, _FEWEST)
    while True:
        start = time.perf_counter()
        engine.diagonal(first[:count])
        engine.diagonal(second[:count])
        middle = time.perf_counter()
        engine.cross(first[:count], second[:count], "numpy", None)
        whole, tables = max(time.perf_counter() - middle, 1e-9), middle - start
        if whole > 0.5 or count == half:
            break
        count = min(half, 2 * count)
    pair, image = max(whole - tables, 0.1 * whole) / count**2, tables / (2 * count)
    return half**2 / (half**2 * pair + 2 * half * image)


def expected_seconds(kernel: Kernel, X: Any, pairs: int) -> float:
    """Estimate the seconds for `pairs` pairs of images like X on this machine, by timing a few."""
    rows = ImageRows(X, kernel, "X")
    elements = kernel.network.shapes(rows.image_shape).elements
    side = default_tile(elements, kernel.device, (len(rows), len(rows)), True)[0]
    return pairs / measured_rate(rows, side)
