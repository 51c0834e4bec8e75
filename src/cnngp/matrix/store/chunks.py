"""The bytes of a tile in a store, as Zarr's `bytes` and `crc32c` codecs write and read them.

Zarr's own coding gives the same bytes by way of four copies; beside a fast card that would be the slowest part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import kind, namespace

CHECKSUM_BYTES = 4
_BAND = 64


def chunk_bytes(tile: tuple[int, int], dtype: Any) -> int:
    """The size of a chunk; those at the edge of the matrix are as large as any."""
    return tile[0] * tile[1] * int(np.dtype(dtype).itemsize) + CHECKSUM_BYTES


def encoded_chunk(part: Any, tile: tuple[int, int], out: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """The bytes of a chunk: numbers in rows, low byte first, NaN beyond the edge of the matrix, then their CRC-32C.

    `part` is a tile or the transpose of one, in host memory or on the card; `out` is memory to use again.
    """
    dtype = np.dtype(part.dtype).newbyteorder("<")
    data = np.empty(chunk_bytes(tile, dtype), np.uint8) if out is None else out
    chunk = data[:-CHECKSUM_BYTES].view(dtype).reshape(tile)
    height, width = part.shape
    chunk[height:] = np.nan
    chunk[:height, width:] = np.nan
    if kind(part) == "cupy":
        _copy_from_card(part, chunk)
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
    """The numbers of a chunk that was checked."""
    numbers: NDArray[Any] = data[:-CHECKSUM_BYTES].view(np.dtype(dtype).newbyteorder("<"))
    return numbers.reshape(tile)


def device_of(block: Any) -> AbstractContextManager[Any]:
    """Makes the card that holds `block` the current one."""
    return block.device if kind(block) == "cupy" else nullcontext()


def is_mirror(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether a is bᵀ, without a NaN."""
    return all(bool((a[:, rows] == band.T).all()) for rows, band in _bands(b))


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


def _copy_from_card(part: Any, chunk: NDArray[Any]) -> None:
    whole = namespace(part).ascontiguousarray(part)  # a mirror image is turned on the card, where that is quick
    if part.shape == chunk.shape:
        whole.get(out=chunk)
    else:
        chunk[: part.shape[0], : part.shape[1]] = whole.get()


def _checksum(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    import google_crc32c

    return np.array([google_crc32c.value(data[:-CHECKSUM_BYTES])], "<u4").view(np.uint8)
