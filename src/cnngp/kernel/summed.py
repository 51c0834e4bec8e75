"""The engine of a network that is a sum: one for each branch.

The kernel of independent branches is the sum of theirs. So `Sum(a, b)` runs branch by branch, each on the fastest path
that it has alone, and the matrices are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import Output, kind, namespace, to_output

from .engines.base import Advance, RangeError, TangentEngine
from .symmetry import share_progress


class SummedEngine:
    """An `Engine` that adds up what those of the branches give."""

    def __init__(self, parts: Sequence[TangentEngine]) -> None:
        self.parts, self.dtype = parts, parts[0].dtype
        self.identity = "sum of " + " and ".join(part.identity for part in parts)
        self.threads = getattr(parts[0], "threads", 1)

    def diagonal(self, X: Any) -> NDArray[np.float64]:
        total = np.sum([part.diagonal(X) for part in self.parts], axis=0)
        if total.max(initial=0.0) > np.finfo(self.dtype).max:
            raise RangeError(f"K(x, x) of image {int(np.argmax(total))} does not fit {self.dtype.name}; use 'float64'")
        return np.asarray(total)

    def cross(self, X: Any, Z: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        return self._added(X, output, advance, lambda part, where, told: [part.cross(X, Z, where, told)])[0]

    def symmetric(self, X: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        K = self._added(X, _where(X), advance, lambda part, where, told: [part.symmetric(X, where, told)])[0]
        at = namespace(X).arange(len(X))
        K[at, at] = namespace(X).asarray(self.diagonal(X), self.dtype)
        return to_output(K, output)

    def both(self, X: Any, Z: Any | None, output: Output = "numpy", advance: Advance = None) -> tuple[Any, Any]:
        K, theta = self._added(X, output, advance, lambda part, where, told: part.both(X, Z, where, told))
        return K, theta

    def _added(
        self,
        X: Any,
        output: Output,
        advance: Advance,
        matrices: Callable[[TangentEngine, Output, Advance], Sequence[Any]],
    ) -> list[Any]:
        told = share_progress(advance, len(self.parts))
        first, *others = self.parts
        totals = list(matrices(first, _where(X), told))
        for part in others:
            for total, more in zip(totals, matrices(part, _where(X), told), strict=True):
                total += more
        return [to_output(total, output) for total in totals]


def _where(X: Any) -> Output:
    return "cupy" if kind(X) == "cupy" else "numpy"
