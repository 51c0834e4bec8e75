"""The arithmetic of cutting a kernel matrix into tiles: which there are, what they cover, how many pairs they cost.

Pure numbers, so that a plan for a million images is made without an image, a store or an engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cnngp.common.checks import is_whole

# Map elements that one tile may compute: about five seconds on two CPU cores, half a second on a card. In smaller tiles
# the tables of each image, which every tile makes anew, would cost several per cent.
_TILE_ELEMENTS = {"cpu": 1.2e10, "cuda": 4e11}
# A tile is a file: large enough for a disk, small enough to hold a few in memory.
_SMALLEST = {"cpu": 256, "cuda": 1024}
_LARGEST = {"cpu": 2048, "cuda": 4096}


@dataclass(frozen=True, slots=True)
class Tile:
    """Row `i` and column `j` of the grid of tiles, and the rows and columns of the matrix that it covers."""

    i: int
    j: int
    rows: slice
    columns: slice
    pairs: int
    """Kernel evaluations that the tile costs; the mirror image and the diagonal cost none."""


@dataclass(frozen=True)
class Grid:
    """An N × M matrix in tiles of `tile` rows and columns. In a symmetric one the tiles below the diagonal are mirror
    images, so only those with i ≤ j are work.

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
        """Tiles along each axis."""
        return -(-self.shape[0] // self.tile[0]), -(-self.shape[1] // self.tile[1])

    @property
    def pairs(self) -> int:
        n, m = self.shape
        return n * (n - 1) // 2 if self.symmetric else n * m

    def __len__(self) -> int:
        a, b = self.counts
        return a * (a + 1) // 2 if self.symmetric else a * b

    def __iter__(self) -> Iterator[Tile]:
        """Row by row, so that the images of a row of tiles are read once."""
        a, b = self.counts
        for i in range(a):
            for j in range(i if self.symmetric else 0, b):
                yield self.at(i, j)

    def at(self, i: int, j: int) -> Tile:
        (n, m), (a, b) = self.shape, self.tile
        rows, columns = slice(i * a, min((i + 1) * a, n)), slice(j * b, min((j + 1) * b, m))
        height, width = rows.stop - rows.start, columns.stop - columns.start
        pairs = height * (height - 1) // 2 if self.symmetric and i == j else height * width
        return Tile(i, j, rows, columns, pairs)

    def chunks_of(self, i: int, j: int) -> tuple[tuple[int, int], ...]:
        """The places where the numbers of tile (i, j) stand: itself and its mirror image."""
        return ((i, j), (j, i)) if self.symmetric and i != j else ((i, j),)

    def cut_by_growth(self, shape: tuple[int, int]) -> list[tuple[int, int]]:
        """Chunks at the edge that do not cover what their place holds once the matrix has grown to `shape`."""
        a, b = self.counts
        cut = set()
        if shape[0] > self.shape[0] and self.shape[0] % self.tile[0]:
            cut |= {(a - 1, j) for j in range(b)}
        if shape[1] > self.shape[1] and self.shape[1] % self.tile[1]:
            cut |= {(i, b - 1) for i in range(a)}
        return sorted(cut)


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
