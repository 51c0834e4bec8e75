"""Tile size: validation, default, and the speed of an engine that it follows from."""

from __future__ import annotations

import time
from typing import Any

from cnngp.common.errors import is_whole
from cnngp.common.tiles import Grid
from cnngp.kernel.kernel import Kernel

from .images import ImageRows

# Map elements that one tile may compute: about five seconds on two CPU cores, half a second on a card. In smaller tiles
# the tables of each image, which every tile makes anew, would cost several per cent.
_TILE_ELEMENTS = {"cpu": 1.2e10, "cuda": 4e11}
# A tile is a file: large enough for a disk, small enough to hold a few in memory.
_SMALLEST = {"cpu": 256, "cuda": 1024}
_LARGEST = {"cpu": 2048, "cuda": 4096}
# An interrupted run loses the tiles in progress, so none should take long on the engine at hand, whatever its speed.
_SECONDS = 5.0
_SLOWEST = 16
# The share of its usual elements up to which a tile is quick on any engine.
_QUICK = 1 / 16
# Images a side of the smallest block that is timed: a processor's vector of pairs.
_FEWEST = 16


def check_tile(tile: object) -> tuple[int, int] | None:
    """`tile=` of a user: None, one side or (rows, columns)."""
    if tile is None:
        return None
    pair = tile if isinstance(tile, (tuple, list)) else (tile, tile)
    if len(pair) != 2 or not all(is_whole(s, least=1) for s in pair):
        raise ValueError(f"tile={tile!r}: expected a positive number of images, a pair (rows, columns), or None")
    return int(pair[0]), int(pair[1])


def default_tile(cost: int, device: str, shape: tuple[int, int], symmetric: bool, workers: int = 1) -> tuple[int, int]:
    """The side, or sides, for a network with `cost` map elements a pair; several tiles for each worker.

    Powers of two: a few seconds of work at most, no larger than the matrix, and never so small that a data set which
    grows later lies in millions of files.
    """
    side = _SMALLEST[device]
    while side < _LARGEST[device] and (2 * side) ** 2 * max(1, cost) <= _TILE_ELEMENTS[device]:
        side *= 2
    while workers > 1 and side > _SMALLEST[device] and len(Grid(shape, (side, side), symmetric)) < 8 * workers:
        side //= 2
    rows, columns = (min(side, max(256, 1 << (images - 1).bit_length())) for images in shape)
    return rows, columns


def tile_here(x: ImageRows, shape: tuple[int, int], symmetric: bool) -> tuple[int, int]:
    """The default tile on this machine's engine: smaller than the usual one where that would take long.

    It takes a few seconds at the measured rate, or has the smallest side.
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
    """How long `pairs` of images such as X take here, by timing a few."""
    rows = ImageRows(X, kernel, "X")
    elements = kernel.network.shapes(rows.image_shape).elements
    side = default_tile(elements, kernel.device, (len(rows), len(rows)), True)[0]
    return pairs / measured_rate(rows, side)
