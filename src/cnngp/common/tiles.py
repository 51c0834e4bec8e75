"""Tiles of a kernel matrix, and their distribution to lanes: several GPUs, or engines that fill a store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, TypeVar

L = TypeVar("L")
Tell = Callable[[int], Any]
"""Progress callback, given the number of pairs just computed; may raise to cancel."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile at row `i` and column `j` of the grid, and the rows and columns of the matrix that it covers.

    `symmetric` refers to the whole matrix, in which a tile is its own mirror image or has one that costs nothing.
    """

    i: int
    j: int
    rows: slice = field(hash=False)
    columns: slice = field(hash=False)
    symmetric: bool

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def on_diagonal(self) -> bool:
        """True if the tile is its own mirror image."""
        return self.symmetric and self.i == self.j

    @property
    def mirrored(self) -> bool:
        """True if the transposed tile is another tile of the matrix."""
        return self.symmetric and self.i != self.j

    @property
    def pairs(self) -> int:
        """Number of kernel evaluations of the tile; its mirror image and the diagonal cost none."""
        n, m = self.shape
        return n * (n - 1) // 2 if self.on_diagonal else n * m


@dataclass(frozen=True)
class Grid:
    """An N × M matrix in tiles of `tile` rows and columns. In a symmetric matrix the tiles below the diagonal are
    mirror images, so only those with i ≤ j are computed.

    >>> grid = Grid((5, 5), (2, 2), symmetric=True)
    >>> [(t.i, t.j, t.pairs) for t in grid]
    [(0, 0, 1), (0, 1, 4), (0, 2, 2), (1, 1, 1), (1, 2, 2), (2, 2, 0)]
    >>> grid.pairs, len(grid)
    (10, 6)
    """

    shape: tuple[int, int]
    tile: tuple[int, int]
    symmetric: bool

    @property
    def counts(self) -> tuple[int, int]:
        """Number of tiles along each axis."""
        return -(-self.shape[0] // self.tile[0]), -(-self.shape[1] // self.tile[1])

    @property
    def pairs(self) -> int:
        n, m = self.shape
        return n * (n - 1) // 2 if self.symmetric else n * m

    def __len__(self) -> int:
        a, b = self.counts
        return a * (a + 1) // 2 if self.symmetric else a * b

    def __iter__(self) -> Iterator[Tile]:
        """Iterate row by row, so that the images of a row of tiles are read once."""
        a, b = self.counts
        for i in range(a):
            for j in range(i if self.symmetric else 0, b):
                yield self.at(i, j)

    def at(self, i: int, j: int) -> Tile:
        (n, m), (a, b) = self.shape, self.tile
        rows, columns = slice(i * a, min((i + 1) * a, n)), slice(j * b, min((j + 1) * b, m))
        return Tile(i, j, rows, columns, self.symmetric)

    def chunks_of(self, i: int, j: int) -> tuple[tuple[int, int], ...]:
        """Positions of the chunks that hold the entries of tile (i, j): the tile itself and its mirror image."""
        return ((i, j), (j, i)) if self.symmetric and i != j else ((i, j),)

    def cut_by_growth(self, shape: tuple[int, int]) -> list[tuple[int, int]]:
        """Chunks at the edge that become incomplete when the matrix grows to `shape`."""
        a, b = self.counts
        cut = set()
        if shape[0] > self.shape[0] and self.shape[0] % self.tile[0]:
            cut |= {(a - 1, j) for j in range(b)}
        if shape[1] > self.shape[1] and self.shape[1] % self.tile[1]:
            cut |= {(i, b - 1) for i in range(a)}
        return sorted(cut)


def share(
    lanes: Sequence[L],
    tiles: Iterable[Tile],
    run: Callable[[L, Iterator[Tile], Tell], None],
    advance: Tell | None,
) -> None:
    """Distribute tiles to lanes: each `run` takes the next tile from a shared iterator when it has room.

    Several lanes run in threads of their own. An error in one, or Ctrl-C, ends all of them: none gets another tile, and
    a lane that reports progress stops in the middle of its tile.
    """
    advance = advance or (lambda pairs: None)
    if len(lanes) == 1:
        run(lanes[0], iter(tiles), advance)
        return
    left, taking, telling, closed = iter(tiles), threading.Lock(), threading.Lock(), threading.Event()

    def take() -> Tile | None:
        with taking:
            return None if closed.is_set() else next(left, None)

    def tell(pairs: int) -> None:
        if closed.is_set():
            raise RuntimeError("stopped")  # `share` raises the error of the lane that failed
        with telling:
            advance(pairs)

    with ThreadPoolExecutor(len(lanes), thread_name_prefix="cnngp-lane") as pool:
        running = [pool.submit(run, lane, iter(take, None), tell) for lane in lanes]
        try:
            for lane in as_completed(running):
                lane.result()
        finally:
            closed.set()
