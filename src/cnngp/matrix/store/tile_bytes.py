"""Encoding of tiles in a store: chunks in the format of Zarr's `bytes` and `crc32c` codecs, and seals.

Zarr's own encoder makes the same bytes with four copies, which next to a fast GPU would be the slowest step.

    STORE/K/c/i/j          the chunk at (i, j): a tile, or its mirror image
    STORE/K/seals/i/j      the checksums of the chunks of tile (i, j), then a SHA-256 over them, the place of the tile,
                           its size, and the identity of the matrix

The checksum at the end of a chunk shows that its bytes are intact. The seal shows that they belong to this tile of this
matrix: a chunk that was moved, or that comes from another store, does not have the checksum that the seal contains, and
a seal that was moved along with it has the wrong SHA-256. A seal is written after its chunks, so a tile without one was
not finished.
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
    """Size of a chunk in bytes; chunks at the edge of the matrix have the full size too."""
    return tile[0] * tile[1] * int(np.dtype(dtype).itemsize) + CHECKSUM_BYTES


def encoded_chunk(part: Any, tile: tuple[int, int]) -> NDArray[np.uint8]:
    """Encode a chunk: numbers in row order, little-endian, NaN beyond the edge of the matrix, then their CRC-32C.

    `part` is a tile or the transpose of one, in host memory or on a GPU.
    """
    dtype = np.dtype(part.dtype).newbyteorder("<")
    data = np.empty(chunk_bytes(tile, dtype), np.uint8)
    chunk = decoded_chunk(data, tile, dtype)
    height, width = part.shape
    chunk[height:] = np.nan
    chunk[:height, width:] = np.nan
    if kind(part) == "cupy":
        chunk[:height, :width] = namespace(part).ascontiguousarray(part).get()  # transposed on the GPU, which is fast
    elif part.flags.c_contiguous:
        chunk[:height, :width] = part
    else:
        for rows, band in _bands(part.T):
            chunk[:height, rows] = band.T
    data[-CHECKSUM_BYTES:] = _checksum(data)
    return data


def checked_sum(data: NDArray[np.uint8], tile: tuple[int, int], dtype: Any) -> bytes:
    """Return the checksum at the end of a chunk; raise `ValueError` if it or the size of the chunk is wrong."""
    if len(data) != chunk_bytes(tile, dtype):
        raise ValueError(f"it has {len(data):,} bytes instead of {chunk_bytes(tile, dtype):,}")
    if not np.array_equal(data[-CHECKSUM_BYTES:], _checksum(data)):
        raise ValueError("its checksum is wrong")
    return data[-CHECKSUM_BYTES:].tobytes()


def decoded_chunk(data: NDArray[np.uint8], tile: tuple[int, int], dtype: Any) -> NDArray[Any]:
    """Return the numbers of a chunk, without a copy."""
    numbers: NDArray[Any] = data[:-CHECKSUM_BYTES].view(np.dtype(dtype).newbyteorder("<"))
    return numbers.reshape(tile)


def is_mirror(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """True if a equals bᵀ and has no NaN."""
    return all(bool((a[:, rows] == band.T).all()) for rows, band in _bands(b))


def seal(matrix: str, grid: Grid, i: int, j: int, sums: Sequence[bytes]) -> bytes:
    """Seal of tile (i, j) of the matrix with identity `matrix`; `sums` are the checksums of `grid.chunks_of(i, j)`."""
    t = grid.at(i, j)
    covers = (t.rows.start, t.rows.stop, t.columns.start, t.columns.stop)
    joined = b"".join(sums)
    return joined + hashlib.sha256(f"cnngp tile {matrix} {i} {j} {covers} ".encode() + joined).digest()


def sealed_sum(data: bytes, matrix: str, grid: Grid, i: int, j: int) -> bytes:
    """Return the checksum of chunk (i, j) from its tile's seal; raise `ValueError` if `data` is not that seal."""
    at = tile_of(grid, i, j)
    chunks = grid.chunks_of(*at)
    sums = [data[k : k + CHECKSUM_BYTES] for k in range(0, len(data) - _DIGEST_BYTES, CHECKSUM_BYTES)]
    if len(sums) != len(chunks) or data != seal(matrix, grid, *at, sums):
        raise ValueError("its seal is that of another tile, or damaged")
    return sums[chunks.index((i, j))]


def tile_of(grid: Grid, i: int, j: int) -> tuple[int, int]:
    """Return the tile whose entries chunk (i, j) holds."""
    return (min(i, j), max(i, j)) if grid.symmetric else (i, j)


def _bands(a: NDArray[Any]) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield bands of rows, copied so that the row stride is not a power of two. Transposing the copy is several times
    faster than transposing `a`, in which all reads of a column fall into the same few cache sets.
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
