"""Engines for a network on images of one shape, and the engine of a network that is a sum: one for each branch.

The kernel of independent branches is the sum of theirs. So `Sum(a, b)` runs branch by branch, each on the fastest path
that it has alone, and the matrices are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import Output, kind, namespace, to_output
from cnngp.common.checks import is_whole
from cnngp.common.devices import ActualDevice, check_device
from cnngp.network.layers import Layer, Network, Sequential, Sum, as_layer
from cnngp.network.walk import inside

from .engines.base import Advance, Engine, RangeError, TangentEngine
from .engines.weights import GradientEngine
from .program import Kind, lower
from .program.reverse import reverse
from .symmetry import share_progress

DTYPES = ("float32", "float64")


def checked(device: object, dtype: Any, threads: Any, kind: object) -> tuple[str, int | None]:
    """The type's name, and the threads as an int; refused where they, the device or the kind are none."""
    if kind not in ("nngp", "ntk"):
        raise ValueError(
            f"Kernel: kind={kind!r} is not 'nngp', the kernel of the Gaussian process, or 'ntk', the tangent kernel"
        )
    check_device(device, "Kernel: ")
    try:
        name = str(np.dtype(dtype))
    except TypeError:
        name = ""
    if dtype is None or name not in DTYPES:
        raise ValueError(f"Kernel: dtype={dtype!r} is not 'float32' or 'float64'")
    if threads is None:
        return name, None
    if not is_whole(threads, least=1):
        raise ValueError(f"Kernel: threads={threads!r} is not a positive integer or None")
    return name, int(threads)


def branches(net: Layer, place: str = "") -> list[tuple[str, Layer]]:
    """The branches of a network that is a sum, with their places; any other network is its own only one.

    >>> from cnngp import Conv, Dense, ReLU, Sum
    >>> [place for place, _ in branches(Sum(Dense(), Sequential(Conv(3), ReLU(), Dense())))]
    ['branches[0]', 'branches[1]']
    """
    if isinstance(net, Sum) or (isinstance(net, Sequential) and len(net.layers) == 1):
        return [found for where, layer in inside(net, place) for found in branches(layer, where)]
    return [(place, net)]


def make_engine(
    network: Network,
    shape: Sequence[int],
    kind: Kind,
    device: ActualDevice,
    dtype: str,
    threads: int | None = None,
    cards: Sequence[int] | None = None,
) -> Engine:
    """The engine of a network on images of one shape; on some of the cards, by default all."""
    whole = lower(network, shape, kind)  # refuses what does not fit, by its place in the whole network
    parts: list[TangentEngine] = []
    found = branches(as_layer(network))
    for place, branch in found:
        program = whole if len(found) == 1 else lower(branch, shape, kind, place)
        if device == "cuda":
            from .engines.cuda.engine import CudaEngine

            parts.append(CudaEngine(program, dtype, cards))
        else:
            from .engines.cpu.engine import CpuEngine

            parts.append(CpuEngine(program, dtype, threads))
    return parts[0] if len(parts) == 1 else SummedEngine(parts)


def make_gradient(
    network: Network,
    shape: Sequence[int],
    to_images: bool,
    device: ActualDevice,
    dtype: str,
    threads: int | None = None,
) -> GradientEngine:
    """The engine of a network's gradient, by its parameters and perhaps by the pixels."""
    program = reverse(network, shape, to_images)
    if device == "cuda":
        from .engines.cuda.gradient_engine import CudaGradient

        return CudaGradient(program, dtype)
    from .engines.cpu.gradient import CpuGradient

    return CpuGradient(program, dtype, threads)


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
