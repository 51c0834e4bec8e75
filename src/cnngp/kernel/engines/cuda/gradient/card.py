"""One card with a gradient's compiled kernels: `tables` for images, `pairs`, and `selves` for images again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..card import OPTIONS, OneCard
from ..source import Launch
from .source import GradientSource

RESIDENT = 4  # blocks that a multiprocessor gets where their maps lie in global memory


class GradientCard(OneCard):
    """The kernels of one source on one card; arrays are CuPy's."""

    def __init__(
        self, device: int, source: GradientSource, dtype: np.dtype[Any], sites: int, panels: NDArray[np.float64]
    ) -> None:
        super().__init__(device)
        self.source, self.dtype, self.sites = source, dtype, sites
        self._host = (panels, source.ints, source.reals, source.ways)
        self._functions: dict[str, Any] | None = None
        self._data: tuple[Any, ...] | None = None

    @property
    def functions(self) -> dict[str, Any]:
        """Compiled when first asked for."""
        if self._functions is None:
            import cupy

            module = cupy.RawModule(code=self.source.text, options=OPTIONS)
            found = {name: module.get_function(name) for name in ("tables", "pairs", "selves")}
            for name, function in found.items():
                launch: Launch = getattr(self.source, name)
                if launch.shared > 48 * 1024:
                    function.max_dynamic_shared_size_bytes = launch.shared
            self._functions = found
        return self._functions

    @property
    def data(self) -> tuple[Any, ...]:
        """The panels of series, and the program."""
        if self._data is None:
            import cupy

            self._data = tuple(map(cupy.asarray, self._host))
        return self._data

    def images(self, images: Any) -> Any:
        import cupy

        return cupy.ascontiguousarray(cupy.asarray(images), dtype=self.dtype)

    def tables(self, x: Any) -> tuple[Any, Any]:
        """Rows (N, row), and the largest variance of each image at each nonlinearity, (N, nonlinearities)."""
        import cupy

        rows = cupy.empty((len(x), self.source.row), self.dtype)
        peaks = self._peaks(len(x))
        self._launch("tables", len(x))(lambda scratch: (x, rows, peaks, np.int32(len(x)), scratch, *self.data))
        return rows, peaks[:, : self.sites]

    def pairs(self, first: Any, second: Any, weights: Any, shares: tuple[Any, Any], sums: Any) -> Callable[[int], None]:
        """What launches a phase of pairs (source.py), one phase after the other.

        Where both `shares` are the same array, the pairs are of one set of images.
        """
        n, m = weights.shape
        one_set = shares[0] is shares[1]
        launch = self._launch("pairs", n if one_set else min(n, m))
        before, behind = (first, second, weights, np.int32(n), np.int32(m)), (np.int32(one_set), *shares, sums)
        program = self.data[1:]
        return lambda phase: launch(lambda scratch: (*before, np.int32(phase), *behind, scratch, *program))

    def selves(self, x: Any, seeds: NDArray[np.float64], shares: Any) -> tuple[Any, Any]:
        """The sums of each image, (N, slots), and the gradients of its pixels, (N, pixels) or none."""
        import cupy

        n = len(x)
        sums = cupy.empty((n, self.source.slots), np.float64)
        pixels = cupy.empty((n, self.source.pixels), np.float64) if self.source.pixels else None
        place = np.uint64(0) if pixels is None else pixels
        weights, peaks = cupy.asarray(seeds), self._peaks(n)
        self._launch("selves", n)(lambda s: (x, weights, shares, sums, place, peaks, np.int32(n), s, *self.data))
        return sums, pixels

    def _peaks(self, n: int) -> Any:
        import cupy

        return cupy.zeros((n, max(1, self.sites)), np.float64)

    def _launch(self, name: str, wanted: int) -> Callable[[Callable[[Any], tuple[Any, ...]]], None]:
        """What launches a kernel with the arguments that a function makes of its scratch memory.

        Asking the card for its memory takes longer than a short launch, so it is asked once.
        """
        how: Launch = getattr(self.source, name)
        blocks, scratch = self._blocks(wanted, how.scratch, RESIDENT)
        function = self.functions[name]

        def launch(arguments: Callable[[Any], tuple[Any, ...]]) -> None:
            function((blocks,), (how.threads,), arguments(scratch), shared_mem=how.shared)

        return launch
