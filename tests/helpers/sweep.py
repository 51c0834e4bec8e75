"""Many single layers at once, as the branches of one wide sum, each behind and before a nonlinearity.

Each has a weight of its own, so a wrong place in any of them moves the result, and in float64 by far more than rounding
does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cnngp import Abs, Conv, Dense, Erf, LeakyReLU, ReLU, Sequential, Sum
from cnngp.network import Network
from helpers import generator
from helpers.generator import Spatial

SHAPES: list[Spatial] = [
    *((1,), (2,), (6,), (9,), (40,)),
    *((1, 1), (1, 6), (6, 1), (2, 3), (6, 6), (9, 8), (2, 28), (3, 37)),
    *((1, 1, 1), (1, 3, 2), (2, 1, 3), (3, 2, 1), (3, 3, 3)),
]
BEFORE: tuple[tuple[Network, ...], ...] = ((), (ReLU(),), (Abs(),), (Erf(),))


def sweep(
    spatial: Spatial, count: int, batch: int = 50, longest: Spatial = (), seed: int = 0
) -> Iterator[tuple[Network, tuple[int, ...]]]:
    """Wide sums of at most `batch` layers with the shape of their images.

    Outputs are at most `longest` places long along each axis, a little longer than the input where that is not given.
    """
    pick = generator.Random(np.random.default_rng(seed))
    ends = longest or tuple(max(32, n + 8) for n in spatial)
    layers: list[Network] = []
    while len(layers) < count:
        layer = pick.among([generator.convolution, generator.convolution, generator.transposed])(pick, spatial)
        out = generator.output(layer, spatial)
        if out is not None and all(n <= end for n, end in zip(out, ends, strict=True)):
            layers.append(layer)
    for i in range(0, count, batch):
        yield wide_sum(layers[i : i + batch]), (2, *spatial)


def wide_sum(branches: Sequence[Network]) -> Network:
    """One network of many layers: Σ_i w_i · mean(ReLU-like(layer_i(f_i(·))))."""
    numbered = enumerate(branches)
    made = [Sequential(*BEFORE[i % 4], x, LeakyReLU(0.2), Dense(1.0 + 0.37 * (i % 7))) for i, x in numbered]
    return Sequential(Conv(1), Sum(*made))


def parts(net: Network) -> Iterator[Network]:
    """The layers of a wide sum, each as a network of its own, to find the one that is wrong."""
    assert isinstance(net, Sequential)
    total = net.layers[1]
    assert isinstance(total, Sum)
    return (Sequential(net.layers[0], branch) for branch in total.branches)
