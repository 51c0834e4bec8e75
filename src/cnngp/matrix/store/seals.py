"""Which tile belongs where: a few bytes beside the tiles, without which a good chunk in a wrong place would pass.

    STORE/K/seals/i/j      the checksums of the chunks of tile (i, j), then a SHA-256 over them, the place of the tile,
                           its size, and the identity of the matrix

The checksum at the end of a chunk says that its bytes are whole. The seal says that they are those of this tile of this
matrix: a chunk that was moved, or that comes from another store, does not have the checksum that is written in the
seal, and a seal that was moved with it does not have the right SHA-256. It is written after its chunks, so a tile
without one was not finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from cnngp.common.tiles import Grid

_SUM = 4
_DIGEST = 32


def seal(matrix: str, grid: Grid, i: int, j: int, sums: Sequence[bytes]) -> bytes:
    """The seal of tile (i, j) of the matrix with that identity; `sums` are the checksums of `grid.chunks_of(i, j)`."""
    joined = b"".join(sums)
    return joined + _digest(matrix, grid, i, j, joined)


def sealed_sum(data: bytes, matrix: str, grid: Grid, i: int, j: int) -> bytes:
    """The checksum that chunk (i, j) has by its tile's seal. `ValueError` where this is not the seal of that tile."""
    at = tile_of(grid, i, j)
    chunks = grid.chunks_of(*at)
    joined = data[:-_DIGEST]
    if len(joined) != _SUM * len(chunks) or data[-_DIGEST:] != _digest(matrix, grid, *at, joined):
        raise ValueError("its seal is that of another tile, or damaged")
    k = chunks.index((i, j))
    return joined[_SUM * k : _SUM * (k + 1)]


def tile_of(grid: Grid, i: int, j: int) -> tuple[int, int]:
    """The tile whose numbers stand in chunk (i, j)."""
    return (min(i, j), max(i, j)) if grid.symmetric else (i, j)


def _digest(matrix: str, grid: Grid, i: int, j: int, sums: bytes) -> bytes:
    t = grid.at(i, j)
    covers = (t.rows.start, t.rows.stop, t.columns.start, t.columns.stop)
    return hashlib.sha256(f"cnngp tile {matrix} {i} {j} {covers} ".encode() + sums).digest()
