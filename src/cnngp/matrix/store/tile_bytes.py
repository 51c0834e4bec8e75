"""The bytes of a tile in a store: chunks as Zarr's `bytes` and `crc32c` codecs write and read them, and seals.

Zarr's own coding gives the same bytes by way of four copies; beside a fast card that would be the slowest part.

    STORE/K/c/i/j          the chunk at (i, j): a tile, or its mirror image
    STORE/K/seals/i/j      the checksums of the chunks of tile (i, j), then a SHA-256 over them, the place of the tile,
                           its size, and the identity of the matrix

The checksum at the end of a chunk says that its bytes are whole. The seal says that they are those of this tile of this
matrix: a chunk that was moved, or that comes from another store, does not have the checksum that is written in the
seal, and a seal that was moved with it does not have the right SHA-256. It is written after its chunks, so a tile
without one was not finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import kind, namespace
from cnngp.common.tiles import Grid

CHECKSUM_BYTES = 4
_DIGEST_BYTES = 32
_BAND = 64


def chunk_bytes(tile: tuple[int, int], dtype: Any) -> int:
    """The size of a chunk; those at the edge of the matrix are as large as any."""
    return tile[0] * tile[1] * int(np.dtype(dtype).itemsize) + CHECKSUM_BYTES


def encoded_chunk(part: Any, tile: tuple[int, int]) -> NDArray[np.uint8]:
    """The bytes of a chunk: numbers in rows, low byte first, NaN beyond the edge of the matrix, then their CRC-32C.

    `part` is a tile or the transpose of one, in host memory or on the card.
    """
    dtype = np.dtype(part.dtype).newbyteorder("<")
    data = np.empty(chunk_bytes(tile, dtype), np.uint8)
    chunk = decoded_chunk(data, tile, dtype)
    height, width = part.shape
    chunk[height:] = np.nan
    chunk[:height, width:] = np.nan
    if kind(part) == "cupy":
        chunk[:height, :width] = namespace(part).ascontiguousarray(part).get()  # turned on the card, which is quick
    elif part.flags.c_contiguous:
        chunk[:height, :width] = part
    else:
        for rows, band in _bands(part.T):
            chunk[:height, rows] = band.T
    data[-CHECKSUM_BYTES:] = _checksum(data)
    return data


def checked_sum(data: NDArray[np.uint8], tile: tuple[int, int], dtype: Any) -> bytes:
    """The checksum at the end of a chunk. `ValueError` where it, or the size of the chunk, is wrong."""
    if len(data) != chunk_bytes(tile, dtype):
        raise ValueError(f"it has {len(data):,} bytes instead of {chunk_bytes(tile, dtype):,}")
    if not np.array_equal(data[-CHECKSUM_BYTES:], _checksum(data)):
        raise ValueError("its checksum is wrong")
    return data[-CHECKSUM_BYTES:].tobytes()


def decoded_chunk(data: NDArray[np.uint8], tile: tuple[int, int], dtype: Any) -> NDArray[Any]:
    """The numbers of a chunk, without a copy."""
    numbers: NDArray[Any] = data[:-CHECKSUM_BYTES].view(np.dtype(dtype).newbyteorder("<"))
    return numbers.reshape(tile)


def is_mirror(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether a is bᵀ, without a NaN."""
    return all(bool((a[:, rows] == band.T).all()) for rows, band in _bands(b))


def seal(matrix: str, grid: Grid, i: int, j: int, sums: Sequence[bytes]) -> bytes:
    """The seal of tile (i, j) of the matrix with that identity; `sums` are the checksums of `grid.chunks_of(i, j)`."""
    t = grid.at(i, j)
    covers = (t.rows.start, t.rows.stop, t.columns.start, t.columns.stop)
    joined = b"".join(sums)
    return joined + hashlib.sha256(f"cnngp tile {matrix} {i} {j} {covers} ".encode() + joined).digest()


def sealed_sum(data: bytes, matrix: str, grid: Grid, i: int, j: int) -> bytes:
    """The checksum that chunk (i, j) has by its tile's seal. `ValueError` where this is not the seal of that tile."""
    at = tile_of(grid, i, j)
    chunks = grid.chunks_of(*at)
    sums = [data[k : k + CHECKSUM_BYTES] for k in range(0, len(data) - _DIGEST_BYTES, CHECKSUM_BYTES)]
    if len(sums) != len(chunks) or data != seal(matrix, grid, *at, sums):
        raise ValueError("its seal is that of another tile, or damaged")
    return sums[chunks.index((i, j))]


def tile_of(grid: Grid, i: int, j: int) -> tuple[int, int]:
    """The tile whose numbers stand in chunk (i, j)."""
    return (min(i, j), max(i, j)) if grid.symmetric else (i, j)


def _bands(a: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Some rows at a time in a copy whose rows are no power of two apart. Transposed from there they are several times
    as fast as from `a`, where every read of a column falls into the same few places of the cache.
    """
    height, width = a.shape
    memory = np.empty((_BAND, width + 16), a.dtype)
    for start in range(0, height, _BAND):
        rows = slice(start, min(start + _BAND, height))
        band = memory[: rows.stop - start, :width]
        band[:] = a[rows]
        yield rows, band


def _checksum(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import google_crc32c

    return np.array([google_crc32c.value(data[:-CHECKSUM_BYTES])], "<u4").view(np.uint8)
