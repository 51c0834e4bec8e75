"""Makes the engines that run a network on images of one shape."""

from __future__ import annotations

from collections.abc import Sequence

from cnngp.common.devices import ActualDevice
from cnngp.network.layers import Layer, Network, Sequential, Sum, as_layer
from cnngp.network.walk import inside

from .engines.base import Engine, TangentEngine
from .engines.weights import GradientEngine
from .program import Kind, lower
from .program.reverse import reverse
from .summed import SummedEngine


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
