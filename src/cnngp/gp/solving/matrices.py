"""Products with a symmetric matrix that is never loaded whole: the tiles of a store, or an array in memory.

One pass reads each tile of the upper triangle once and uses it twice, for itself and for its mirror image, so memory
does not grow with the matrix. Tiles are usually float32; their products are computed and summed in float64.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cnngp.common.arrays import in_place, to_numpy
from cnngp.common.errors import StoreError
from cnngp.common.progress import progress_bar
from cnngp.common.tiles import Grid
from cnngp.matrix.cluster.cluster import Cluster
from cnngp.matrix.store.store import GramStore, verified

from ..checks import MatrixError, as_matrix
from ..linalg import Array, blocks, namespace

# Tile side for an array in memory, and number of tiles of a store that are read ahead.
_SIDE = 1024
_AHEAD = 3
_NAN = "the kernel matrix contains NaN or infinity; an unfinished store does too: finish it with gram"


class SymmetricMatrix:
    """Symmetric matrix K (N, N), accessed by products and its diagonal.

    `K` is a NumPy, CuPy or Zarr array. With a Dask `client`, workers that can read the same store multiply rows of
    tiles; only vectors are sent.
    """

    def __init__(self, K: Any, client: Any = None, progress: bool = True) -> None:
        self.K = K = as_matrix(K)
        self.n, self.dtype = int(K.shape[0]), np.dtype(K.dtype)
        self.progress = progress
        chunks = getattr(K, "chunks", None)
        self.stored = isinstance(chunks, tuple)
        self.tile: tuple[int, int] = (int(chunks[0]), int(chunks[1])) if isinstance(chunks, tuple) else (_SIDE, _SIDE)
        if client is not None and not self.stored:
            raise MatrixError("client= needs a matrix in a store that the workers see; this one is in memory")
        self._cluster = None if client is None else Cluster(client)

    def diagonal(self) -> Any:
        """Return diag K in float64 in host memory, from the tiles on the diagonal."""
        d = np.empty(self.n)
        for rows in blocks(self.n, min(self.tile)):
            d[rows] = to_numpy(_read(self.K, rows, rows).diagonal())
        if not np.isfinite(d).all():
            raise MatrixError(_NAN)
        return d

    def multiply(self, V: Array) -> Array:
        """Return KV for V (N, columns) in float64, on the device of V."""
        if self._cluster is None:
            Y = self._here(V)
        else:
            # A worker takes whole rows of tiles: it reads the mirror images too, but returns a few rows of the result
            # instead of a sum as long as V.
            product = partial(_row_product, self.K, self.tile[1])
            rows = blocks(self.n, self.tile[0])
            parts = dict(self._cluster.results(product, rows, to_numpy(V), parallel=True))
            Y = namespace(V).asarray(np.concatenate([parts[k] for k in range(len(parts))]))
        if not bool(namespace(Y).isfinite(Y).all()):
            raise MatrixError(_NAN)
        return Y

    def fingerprint(self) -> str:
        """Digest of the matrix: of its diagonal, and of some rows because many kernels share a diagonal."""
        digest = hashlib.sha256(f"{self.n} {self.dtype.name}".encode())
        digest.update(self.diagonal().tobytes())
        for i in (0, self.n // 2, self.n - 1):
            row = _read(self.K, slice(i, i + 1), slice(0, self.n))
            digest.update(np.ascontiguousarray(to_numpy(row)).data)
        return digest.hexdigest()

    def _here(self, V: Array) -> Array:
        xp = namespace(V)
        Y = xp.zeros_like(V)
        # If tiles are not square, those above the diagonal do not cover the mirror images.
        grid = Grid((self.n, self.n), self.tile, symmetric=self.tile[0] == self.tile[1])
        with progress_bar(len(grid), "pass", "tile", wanted=self.progress and self.stored) as bar:
            for t, numbers in zip(grid, self._read(grid), strict=True):
                A = xp.asarray(numbers).astype(xp.float64)  # converted after the copy to a GPU
                Y[t.rows] += A @ V[t.columns]
                if t.mirrored:
                    Y[t.columns] += A.T @ V[t.rows]
                bar.update()
        return Y

    def _read(self, grid: Grid) -> Iterator[Any]:
        """Yield the tiles in order; threads read those of a store while others are multiplied."""
        if not self.stored:
            for t in grid:
                yield self.K[t.rows, t.columns]
            return
        waiting: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(2, thread_name_prefix="cnngp-read") as readers:
            for t in grid:
                waiting.append(readers.submit(_read, self.K, t.rows, t.columns))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


def _row_product(K: Any, width: int, rows: slice, V: Any) -> Any:
    """Compute some rows of KV on a worker."""
    Y = np.zeros((rows.stop - rows.start, V.shape[1]))
    for columns in blocks(V.shape[0], width):
        Y += _read(K, rows, columns).astype(np.float64) @ V[columns]
    return Y


def _read(K: Any, rows: slice, columns: slice) -> Any:
    try:
        return K[rows, columns]
    except StoreError:
        raise
    except (ValueError, OSError) as error:
        raise StoreError(
            f"rows {rows.start}–{rows.stop - 1}, columns {columns.start}–{columns.stop - 1} of the kernel cannot be "
            f"read ({error}); run gram on the store again, which finds damaged tiles and computes them"
        ) from None


def opened_matrix(store: Any) -> Any:
    """Open the matrix that `gram` wrote to a path, a URL or a Zarr store; an array is returned unchanged."""
    if any(hasattr(store, name) for name in ("shape", "__dlpack__")) or isinstance(store, (list, tuple)):
        return verified(in_place(store, "K"))
    gram_store = GramStore(store, read_only=isinstance(store, (str, Path)))
    if gram_store.found is None:
        raise StoreError(f"{gram_store.name} is no store of a kernel matrix; compute it there with gram(…, store=)")
    if gram_store.found.Z is not None:
        raise StoreError(f"{gram_store.name} holds the matrix of two sets of images; solving needs that of one set")
    missing = len(gram_store.missing(gram_store.present()))
    if missing:
        raise StoreError(
            f"{gram_store.name} lacks {missing:,} of {len(gram_store.grid):,} tiles; run gram on it again to compute "
            "them"
        )
    return gram_store.array()
