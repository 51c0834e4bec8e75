"""Every geometry that a layer can be given, on the engines, against the reference: many single layers at once.

They are the branches of one wide sum, each behind and before a nonlinearity, and each with a weight of its own: a wrong
place in any of them moves the result, and in float64 by far more than rounding does.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from cnngp import Abs, Conv, Dense, Erf, Kernel, LeakyReLU, ReLU, Sequential, Sum
from cnngp.kernel.engines.cuda.cuda_source import generate
from cnngp.kernel.program import lower
from cnngp.network import Network, reference
from helpers import generator
from helpers.cuda_cases import OnCard
from helpers.fake_cards import MakeCards
from helpers.generator import Spatial
from helpers.kernels import error

SHAPES: list[Spatial] = [
    *((1,), (2,), (6,), (9,), (40,)),
    *((1, 1), (1, 6), (6, 1), (2, 3), (6, 6), (9, 8), (2, 28), (3, 37)),
    *((1, 1, 1), (1, 3, 2), (2, 1, 3), (3, 2, 1), (3, 3, 3)),
]
BEFORE: tuple[tuple[Network, ...], ...] = ((), (ReLU(),), (Abs(),), (Erf(),))


def sweep(
    spatial: Spatial, count: int, batch: int = 50, longest: Spatial = (), seed: int = 0
) -> Iterator[tuple[Network, tuple[int, ...]]]:
    """Wide sums of at most `batch` layers, Σ_i w_i · mean(ReLU-like(layer_i(f_i(·)))), with the shape of their images.

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
    for first in range(0, count, batch):
        branches = []
        for i, layer in enumerate(layers[first : first + batch]):
            branches.append(Sequential(*BEFORE[i % 4], layer, LeakyReLU(0.2), Dense(1.0 + 0.37 * (i % 7))))
        yield Sequential(Conv(1), Sum(*branches)), (2, *spatial)


def on_cpu(net: Network, X: Any) -> Any:
    return Kernel(net, device="cpu", dtype="float64", check=False)(X)


def on_card(net: Network, X: Any) -> Any:
    return OnCard(net, X.shape[1:], "float64").symmetric(X)


def check(run: Callable[[Network, Any], Any], networks: Iterable[tuple[Network, tuple[int, ...]]]) -> None:
    """Of three images one is half blank, so that zero variances occur.

    A `sweep` with a batch of one tells which layer is wrong.
    """
    for net, shape in networks:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(3, *shape))
        X[0] *= rng.random(shape) < 0.5
        assert error(run(net, X), reference.kernel(net, X)) <= 1e-12, f"on {shape}: {net}"


@pytest.mark.parametrize("spatial", SHAPES, ids=str)
def test_single_layers_on_the_cpu(spatial: Spatial) -> None:
    """About 4,000 layers in all; most where both axes have room for a window, which has fast code of its own."""
    check(on_cpu, sweep(spatial, 600 if len(spatial) == 2 and min(spatial) > 3 else 200))


# Where the source is written differently: few lanes of a warp, many, all; maps wider than it, volumes; one place in and
# out, where the network is a chain of numbers, but a layer may add up the one place several times.
@pytest.mark.parametrize(
    ("spatial", "longest", "path"),
    [
        ((6,), (32,), "warp"),
        ((6, 1), (32, 32), "warp"),
        ((9, 8), (32, 32), "warp"),
        ((2, 28), (32, 32), "warp"),
        ((3, 37), (50, 50), "walk"),
        ((1, 4, 5), (1, 32, 32), "warp"),
        ((2, 1, 3), (6, 6, 6), "walk"),
        ((1, 1), (1, 1), "dense"),
        ((1, 1, 1), (1, 1, 1), "dense"),
    ],
    ids=str,
)
def test_single_layers_through_the_cuda_source(cards: MakeCards, spatial: Spatial, longest: Spatial, path: str) -> None:
    networks = list(sweep(spatial, 40, 40, longest))
    assert {generate(lower(*drawn), "float64").path for drawn in networks} == {path}
    check(on_card, networks)


@pytest.mark.parametrize(
    ("on", "count"),
    [pytest.param("fake", 200, marks=pytest.mark.slow), pytest.param("card", 400, marks=pytest.mark.gpu)],
    indirect=["on"],
)
@pytest.mark.parametrize("spatial", SHAPES, ids=str)
def test_many_single_layers(on: str, spatial: Spatial, count: int) -> None:
    """Any outputs, such as are narrow enough for a warp, and no longer than one place where the input is not."""
    for longest in {(), (32,) * len(spatial), tuple(1 if n == 1 else 32 for n in spatial)}:
        check(on_card, sweep(spatial, count, 40, longest, seed=2))
