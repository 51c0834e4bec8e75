"""Kernels averaged over reflections, or over the eight symmetries of a square: an engine that wraps the network's own.

    k_G(x, z) = (1/|G|) Σ_g k(x, g z)                 if k(g x, g z) = k(x, z) for all g in G
              = (1/|G|²) Σ_gh k(g x, h z)             for any other network

is the kernel of functions averaged over G. The second sum is needed for filters and pools that reach further to one
side than to the other, such as a filter of 3 with stride 2 on an even size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import DataError, Output, namespace, to_cupy, to_numpy, to_output

from .engines.base import Advance, Engine
from .making import Matrices, added, scaled, where_of, with_diagonal

Symmetry = Literal["flip", "d4"]
"""Reflection of left and right, or all rotations and reflections of a square."""
SYMMETRIES: tuple[Symmetry, ...] = get_args(Symmetry)

# A symmetric matrix is computed in at most `_STRIPES` stripes of rows from the diagonal on, each of at least `_ROWS`
# rows; with ten stripes a twentieth of the matrix is computed twice.
_STRIPES, _ROWS, _ROWS_ON_A_CARD = 10, 16, 256
# Block of images whose kernels with their own transformed copies are computed; only the diagonal of the block is used.
# A GPU takes as long for few pairs as for some thousand.
_BLOCK, _BLOCK_ON_A_CARD = 8, 64
# Largest difference between two roundings of the same kernel, relative to its largest entry.
_SAME = 1e-5

Map = Callable[[Any], Any]


def check_symmetry(symmetry: object, input_shape: Sequence[int] | None = None) -> None:
    """Raise `ValueError` for an unknown symmetry, and `DataError` for images that it does not apply to."""
    if symmetry is None:
        return
    if symmetry not in SYMMETRIES:
        raise ValueError(f"symmetry={symmetry!r} is not None, {' or '.join(map(repr, SYMMETRIES))}")
    if input_shape is None:
        return
    places = tuple(input_shape)[1:]
    if not places:
        raise DataError(f"symmetry={symmetry!r} is for images, and rows of features have no left and right")
    if symmetry == "d4" and (len(places) != 2 or places[0] != places[1]):
        raise DataError(f"symmetry='d4' is for square images; of {' × '.join(map(str, places))} use 'flip'")


def maps_of(symmetry: Symmetry) -> tuple[Map, ...]:
    """Return the group elements as maps of arrays whose last axes are locations, the identity first."""
    if symmetry == "flip":
        return (lambda A: A, lambda A: A[..., ::-1])
    turns = [lambda A, k=k: namespace(A).rot90(A, k, axes=(-2, -1)) for k in range(4)]
    return (*turns, *(lambda A, turn=turn: turn(A[..., ::-1]) for turn in turns))


class SymmetricEngine:
    """An `Engine` of the averaged kernel, which wraps the network's `engine` for one input shape."""

    def __init__(self, engine: Engine, symmetry: Symmetry, input_shape: Sequence[int]) -> None:
        check_symmetry(symmetry, input_shape)
        self.inner, self.dtype = engine, engine.dtype
        self.symmetry: Symmetry = symmetry
        self.identity = f"{engine.identity}, symmetry {symmetry}"
        self.threads = getattr(engine, "threads", 1)
        self._shape = tuple(input_shape)
        self._maps = maps_of(symmetry)

    @cached_property
    def commutes(self) -> bool:
        """True if k(g x, g z) = k(x, z) for all g in the group, tested on random images."""
        few = np.random.default_rng(0).random((3, *self._shape)).astype(self.dtype)
        K = self._plain(few, few)
        off = max(float(np.abs(self._plain(*[np.ascontiguousarray(g(few))] * 2) - K).max()) for g in self._maps[1:])
        return off <= _SAME * (float(np.abs(K).max()) or 1.0)

    @property
    def pairs(self) -> int:
        """Number of kernel evaluations for one entry."""
        return len(self._terms())

    def diagonal(self, X: Any) -> NDArray[np.float64]:
        """Return k_G(x, x), from blocks of a few images and their own transformed copies."""
        total = np.zeros(len(X))
        block = _BLOCK_ON_A_CARD if "cuda" in self.identity else _BLOCK
        for g, h in self._terms():
            left, right = self._moved(X, g), self._moved(X, h)
            if g is h:
                total += self.inner.diagonal(left)
                continue

            def of_block(start: int, left: Any = left, right: Any = right) -> Any:
                rows = slice(start, start + block)
                return to_numpy(self.inner.cross(left[rows], right[rows])).diagonal()

            with ThreadPoolExecutor(1 if "cuda" in self.identity else self.threads) as pool:
                total += np.concatenate([*pool.map(of_block, range(0, len(X), block))])  # a block is too small to split
        return total / self.pairs

    def cross(self, X: Any, Z: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        def term(g: Map, h: Map) -> Matrices:
            return lambda *to: [self.inner.cross(self._moved(X, g), self._moved(Z, h), *to)]

        (total,) = added(X, where_of(X), advance, [term(g, h) for g, h in self._terms()])
        total *= self.dtype.type(1.0 / self.pairs)
        return to_output(total, output)

    def symmetric(self, X: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        """Compute the upper triangle as in `cross`, in stripes of rows from the diagonal on."""
        n, xp = len(X), namespace(X)
        K = xp.empty((n, n), self.dtype)
        rows = _ROWS_ON_A_CARD if "cuda" in self.identity else _ROWS
        edges = np.linspace(0, n, min(_STRIPES, max(n // rows, 1)) + 1).round().astype(int).tolist()
        stripes = list(pairwise(edges))
        told = scaled(advance, n * (n - 1) // 2, sum((end - first) * (n - first) for first, end in stripes))
        for first, end in stripes:
            K[first:end, first:] = self.cross(X[first:end], X[first:], where_of(X), told)
            upper = xp.triu(K[first:end, first:end], 1)
            K[first:end, first:end] = upper + upper.T
            K[end:, first:end] = K[first:end, end:].T
        return with_diagonal(K, self.diagonal(X), output)

    def _terms(self) -> list[tuple[Map, Map]]:
        """Pairs (g, h) over which k(g x, h z) is averaged."""
        if self.commutes:
            return [(self._maps[0], h) for h in self._maps]
        return [(g, g) for g in self._maps] + [(g, h) for g in self._maps for h in self._maps if g is not h]

    def _moved(self, X: Any, g: Map) -> Any:
        images = X.reshape(len(X), *self._shape)
        return namespace(X).ascontiguousarray(g(images)).reshape(X.shape)

    def _plain(self, A: NDArray[Any], B: NDArray[Any]) -> NDArray[np.float64]:
        """Kernel of the network itself, in host memory."""
        a, b = (X.reshape(len(X), X.shape[1], -1) for X in (A, B))
        if "cuda" in self.identity:
            a, b = to_cupy(a), to_cupy(b)
        return to_numpy(self.inner.cross(a, b)).astype(np.float64)
