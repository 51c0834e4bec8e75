"""Construction of engines for a network on images of one shape, including engines of sums, with one engine per branch.

The kernel of a sum of independent branches is the sum of their kernels. So `Sum(a, b)` runs branch by branch, each on
the fastest path that it has on its own, and the matrices are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cnngp.common.arrays import Output, kind, namespace, to_output
from cnngp.common.devices import ActualDevice, check_device
from cnngp.common.errors import is_whole
from cnngp.network.layers import Layer, Network, NetworkError, Sequential, Sum, as_layer
from cnngp.network.walk import inside

from .engines.base import Advance, Engine, GradientEngine, RangeError, TangentEngine
from .program import Kind, Program, lower
from .program.reverse import reverse

DTYPES = ("float32", "float64")


def checked(device: object, dtype: Any, threads: Any, kind: object) -> tuple[str, int | None]:
    """Validate the arguments of a `Kernel`; return the dtype's name and the threads as an int or None."""
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
    """Branches of a network that is a sum, with their places; any other network is its only branch.

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
    """Make the engine of a network on images of one shape; `cards` selects GPUs, by default all."""
    whole = lower(network, shape, kind)  # an error names the place in the whole network, not in a branch
    found = branches(as_layer(network))
    programs = [whole] if len(found) == 1 else [lower(branch, shape, kind, place) for place, branch in found]
    parts: list[TangentEngine]
    _check_device(whole, device)
    if device == "cuda":
        from .engines.cuda.engine import CudaEngine

        parts = [CudaEngine(program, dtype, cards) for program in programs]
    else:
        from .engines.cpu.engine import CpuEngine

        parts = [CpuEngine(program, dtype, threads) for program in programs]
    return parts[0] if len(parts) == 1 else SummedEngine(parts)


def _check_device(program: Program, device: ActualDevice) -> None:
    """Raise `NetworkError` for layers that only the CPU engine computes."""
    whole = [a for a in program.activations if a.formula.family.whole]
    if whole and device == "cuda":
        raise NetworkError(f"{whole[0].layer!r} runs on the CPU alone; use device='cpu'", whole[0].place)


def make_gradient(
    network: Network,
    shape: Sequence[int],
    to_images: bool,
    device: ActualDevice,
    dtype: str,
    threads: int | None = None,
) -> GradientEngine:
    """Make the gradient engine of a network, by its parameters and with `to_images` by the pixels."""
    program = reverse(network, shape, to_images)
    _check_device(program.program, device)
    if device == "cuda":
        from .engines.cuda.engine import CudaGradient

        return CudaGradient(program, dtype)
    from .engines.cpu.gradient import CpuGradient

    return CpuGradient(program, dtype, threads)


Matrices = Callable[[Output, Advance], Sequence[Any]]
"""Computes matrices, given the kind of output and a progress callback."""


def added(X: Any, output: Output, advance: Advance, parts: Sequence[Matrices]) -> list[Any]:
    """Add the matrices of all parts on the device of the images X, and convert the sums to `output`."""
    where, told = where_of(X), scaled(advance, 1, len(parts))
    totals = list(parts[0](where, told))
    for part in parts[1:]:
        for total, more in zip(totals, part(where, told), strict=True):
            total += more
    return [to_output(total, output) for total in totals]


def with_diagonal(K: Any, diagonal: Any, output: Output) -> Any:
    at = namespace(K).arange(len(K))
    K[at, at] = namespace(K).asarray(diagonal, K.dtype)
    return to_output(K, output)


def where_of(X: Any) -> Output:
    """Kind of array, and so the device, in which matrices of these images are added."""
    return "cupy" if kind(X) == "cupy" else "numpy"


def scaled(advance: Advance, times: int, of: int) -> Advance:
    """Progress callback that rescales counts: `of` pairs computed are reported as `times` pairs."""
    if advance is None:
        return None
    seen = said = 0

    def tell(pairs: int) -> None:
        nonlocal seen, said
        seen += pairs
        if seen * times // of > said:
            advance(seen * times // of - said)
            said = seen * times // of

    return tell


class SummedEngine:
    """An `Engine` that adds the matrices of the branches' engines."""

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
        return self._added(X, output, advance, lambda part, *to: [part.cross(X, Z, *to)])[0]

    def symmetric(self, X: Any, output: Output = "numpy", advance: Advance = None) -> Any:
        K = self._added(X, where_of(X), advance, lambda part, *to: [part.symmetric(X, *to)])[0]
        return with_diagonal(K, self.diagonal(X), output)

    def both(self, X: Any, Z: Any | None, output: Output = "numpy", advance: Advance = None) -> tuple[Any, Any]:
        K, theta = self._added(X, output, advance, lambda part, *to: part.both(X, Z, *to))
        return K, theta

    def _added(self, X: Any, output: Output, advance: Advance, compute: Callable[..., Sequence[Any]]) -> list[Any]:
        return added(X, output, advance, [partial(compute, part) for part in self.parts])
