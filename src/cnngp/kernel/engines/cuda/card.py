"""One card with a program's compiled kernels: `tables` for images, `pairs` for a tile of the matrix.

The compiled code is kept in CuPy's cache on disk, under a hash of its source.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from cnngp.kernel.program import Kind

from .source import CudaSource

OPTIONS = ("-std=c++17",)
KINDS: tuple[Kind, ...] = ("nngp", "ntk")
"""In which order results stand side by side."""
NEVER = -(1 << 40)  # a `below` that leaves no pair out


@dataclass(frozen=True)
class Made:
    """What the `tables` kernel leaves: rows (N, row), peaks (N, nonlinearities) and the diagonals.

    Those are (1, N), K(x, x) alone, or (2, N) with Θ(x, x).
    """

    rows: Any
    peaks: Any
    diagonals: Any


class OneCard:
    """A card and its memory. `with card:` makes it the current one."""

    def __init__(self, device: int) -> None:
        self.device = device
        self._entered = threading.local()

    def __enter__(self) -> Self:
        import cupy

        stack = self._entered.__dict__.setdefault("stack", [])
        stack.append(cupy.cuda.Device(self.device))
        stack[-1].__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.stack.pop().__exit__(*error)

    def free_bytes(self) -> int:
        import cupy

        free, _ = cupy.cuda.runtime.memGetInfo()
        return int(free + cupy.get_default_memory_pool().free_bytes())

    def _blocks(self, wanted: int, scratch: int, resident: int = 0) -> tuple[int, Any]:
        """How many blocks walk over the work, and the scratch memory that they share."""
        import cupy

        processors = cupy.cuda.Device(self.device).attributes["MultiProcessorCount"]
        blocks = min(wanted, 8 * processors)
        if scratch:
            blocks = max(1, min(wanted, (resident or 2) * processors, int(0.2 * self.free_bytes()) // scratch))
        return blocks, cupy.empty(max(1, blocks * scratch), cupy.uint8)


class Card(OneCard):
    """One card with the compiled kernels."""

    def __init__(
        self, device: int, source: CudaSource, dtype: np.dtype[Any], sites: int, panels: NDArray[np.float64]
    ) -> None:
        super().__init__(device)
        self.source, self.dtype, self.sites = source, dtype, sites
        self._panels = panels
        self._functions: tuple[Any, Any] | None = None
        self._data: tuple[Any, ...] | None = None

    @property
    def functions(self) -> tuple[Any, Any]:
        """(tables, pairs), compiled when first asked for."""
        if self._functions is None:
            import cupy

            module = cupy.RawModule(code=self.source.text, options=OPTIONS)
            tables, pairs = module.get_function("tables"), module.get_function("pairs")
            for function, launch in ((tables, self.source.tables), (pairs, self.source.pairs)):
                if launch.shared > 48 * 1024:
                    function.max_dynamic_shared_size_bytes = launch.shared
            self._functions = tables, pairs
        return self._functions

    @property
    def data(self) -> tuple[Any, ...]:
        """A program's operations on the card, where they are not part of the text."""
        if self._data is None:
            import cupy

            data = self.source.data
            self._data = () if data is None else (cupy.asarray(data.ints), cupy.asarray(data.reals))
        return self._data

    def tables(self, images: Any) -> Made:
        import cupy

        x = cupy.ascontiguousarray(cupy.asarray(images), dtype=self.dtype)
        n = len(x)
        rows = cupy.empty((n, self.source.row), self.dtype)
        peaks = cupy.zeros((n, max(1, self.sites)), np.float64)
        diagonals = cupy.empty((len(KINDS) if self.source.kind == "ntk" else 1, n), np.float64)
        launch = self.source.tables
        blocks, scratch = self._blocks(n, launch.scratch)
        arguments = (x, rows, peaks, diagonals, np.int32(n), scratch, cupy.asarray(self._panels), *self.data)
        self.functions[0]((blocks,), (launch.threads,), arguments, shared_mem=launch.shared)
        return Made(rows, peaks[:, : self.sites], diagonals)

    def pairs(
        self,
        first: Any,
        second: Any,
        out: Any,
        mirror: Any,
        ld: int,
        below: int,
        theta: Any = None,
        theta_mirror: Any = None,
    ) -> None:
        """K of rows `first` and `second` into `out`, and transposed into `mirror`; all have `ld` entries a row.

        Of kind "ntk" Θ goes into `theta` and `theta_mirror`, and K only where there is an `out`.
        """
        n, m = len(first), len(second)
        source, launch = self.source, self.source.pairs

        def place(a: Any) -> Any:
            return np.uint64(0) if a is None else a

        arguments: tuple[Any, ...] = (
            first,
            second,
            place(out),
            place(mirror),
            np.int32(n),
            np.int32(m),
            np.int64(ld),
            np.int64(below),
        )
        if source.kind == "ntk":
            arguments = (*arguments, place(theta), place(theta_mirror))
        if source.block_rows:
            blocks = -(-n // source.block_rows) * -(-m // source.block_columns)
            if source.path == "sheets":
                few, scratch = self._blocks(blocks, launch.scratch, source.resident)
                arguments = (*arguments, scratch)
                blocks = few if launch.scratch else blocks
        else:
            blocks, scratch = self._blocks(n * m, launch.scratch)
            arguments = (*arguments, scratch, *self.data)
        self.functions[1]((blocks,), (launch.threads,), arguments, shared_mem=launch.shared)
