"""Tiles cover a matrix once, and lanes that share them end together."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cnngp.common.tiles import Grid, Tell, Tile, share

MANY = Grid((60, 60), (1, 1), symmetric=True)


@pytest.mark.parametrize(("n", "m", "side"), [(1, 1, 1), (7, 7, 3), (9, 4, 5), (4, 9, 2), (5, 5, 8), (0, 0, 2)])
def test_tiles_cover_a_matrix_once(n: int, m: int, side: int) -> None:
    for symmetric in (False, True) if n == m else (False,):
        hits = np.zeros((n, m), int)
        grid = Grid((n, m), (side, side), symmetric)
        for tile in grid:
            assert hits[tile.rows, tile.columns].shape == tile.shape
            hits[tile.rows, tile.columns] += 1
            assert tile.on_diagonal == (symmetric and tile.i == tile.j)
            if tile.mirrored:
                hits[tile.columns, tile.rows] += 1
        assert (hits == 1).all()
        for tile in grid:
            for place in (grid.at(*at) for at in grid.chunks_of(tile.i, tile.j)):
                hits[place.rows, place.columns] += 1
        assert (hits == 2).all()
        assert len(list(grid)) == len(grid)
        assert sum(tile.pairs for tile in grid) == grid.pairs == (n * (n - 1) // 2 if symmetric else n * m)


@pytest.mark.parametrize("lanes", [1, 3])
def test_each_tile_goes_to_one_lane_and_is_reported_once(lanes: int) -> None:
    first = threading.Barrier(lanes, timeout=20)  # nobody goes on before each has a tile
    took: dict[int, list[Tile]] = {k: [] for k in range(lanes)}
    told: list[int] = []
    telling = threading.Semaphore(1)

    def advance(pairs: int) -> None:
        assert telling.acquire(blocking=False), "two lanes tell at a time"
        told.append(pairs)
        telling.release()

    def run(lane: int, tiles: Iterator[Tile], tell: Tell) -> None:
        for tile in tiles:
            if not took[lane]:
                first.wait()
            took[lane].append(tile)
            tell(tile.pairs)

    share(range(lanes), MANY, run, advance)
    assert sorted((t for taken in took.values() for t in taken), key=lambda t: (t.i, t.j)) == list(MANY)
    assert all(took.values())
    assert sum(told) == MANY.pairs


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["lane", "advance"])
def test_an_error_ends_all_lanes_and_is_the_one_that_is_heard(where: str, error: BaseException) -> None:
    """The others are in the middle of their tiles, told to stop when they next tell, and get no more."""
    ends: list[Any] = []
    left = threading.Barrier(3, timeout=20)

    def advance(pairs: int) -> None:
        if where == "advance" and pairs:
            raise error

    def run(lane: int, tiles: Iterator[Tile], tell: Tell) -> None:
        next(tiles)
        left.wait()
        if lane == 1:
            if where == "lane":
                raise error
            tell(1)
        for _ in range(20_000):  # a tile that takes long
            threading.Event().wait(0.001)
            try:
                tell(0)
            except RuntimeError as stopped:
                ends.append((lane, str(stopped), next(tiles, None)))
                raise
        ends.append((lane, "went on", None))

    with pytest.raises(type(error)) as found:
        share(range(3), MANY, run, advance)
    assert found.value is error
    assert sorted(ends) == [(0, "stopped", None), (2, "stopped", None)]


def test_an_error_of_whoever_lists_the_tiles_reaches_the_caller() -> None:
    def listed() -> Iterator[Tile]:
        yield MANY.at(0, 0)
        raise OSError("the store is gone")

    def run(lane: int, tiles: Iterator[Tile], tell: Tell) -> None:
        for tile in tiles:
            tell(tile.pairs)

    for lanes in (1, 2):
        share(range(lanes), [MANY.at(0, 0)], run, None)  # nobody has to listen
        with pytest.raises(OSError, match="the store is gone"):
            share(range(lanes), listed(), run, None)
