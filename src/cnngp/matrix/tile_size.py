"""Tile size: validation and default.

Pure numbers, so that a plan for a million images is made without an image, a store or an engine.
"""

from __future__ import annotations

from cnngp.common.checks import is_whole
from cnngp.common.tiles import Grid

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
    cost = max(1, cost)
    side = _SMALLEST[device]
    while side < _LARGEST[device] and (2 * side) ** 2 * cost <= _TILE_ELEMENTS[device]:
        side *= 2

    while workers > 1 and side > _SMALLEST[device] and len(Grid(shape, (side, side), symmetric)) < 8 * workers:
        side //= 2

    def fit(images: int) -> int:
        return min(side, max(256, 1 << (images - 1).bit_length()))

    return (fit(shape[0]), fit(shape[0])) if symmetric else (fit(shape[0]), fit(shape[1]))


def may_be_slow(elements: int, device: str) -> bool:
    """Whether a tile with so many map elements might take longer than `of_seconds` allows."""
    return elements > _QUICK * _TILE_ELEMENTS[device]


def of_seconds(tile: tuple[int, int], rate: float) -> tuple[int, int]:
    """The tile, or the largest smaller one that takes a few seconds at a rate of pairs per second.

    >>> of_seconds((256, 256), 240.0), of_seconds((256, 512), 1e6)
    ((32, 32), (256, 512))
    """
    a, b = tile
    while a * b > _SECONDS * rate and max(a, b) > _SLOWEST:
        a, b = min(a, max(a, b) // 2), min(b, max(a, b) // 2)
    return a, b
