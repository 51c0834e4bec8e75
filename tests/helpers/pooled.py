"""Networks with pools, with every legal argument of the pools: drawn like those of generator.py, and from it."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from cnngp import AvgPool, Conv, Dense, GlobalAvgPool, Identity, NetworkError, Sequential, Sum
from cnngp.network import Network
from cnngp.network.placed import placed

from . import generator
from .generator import Act, Choices, Spatial
from .networks import Drawn, networks_with_shapes, relu_like

MOST_COVARIANCES = 100_000  # of one layer in the reference, which carries them all


def pool(pick: Choices, axes: int) -> Network:
    """Any pool: windows larger and smaller than their stride, padded, uneven, counted either way."""
    if pick.integer(0, 4) == 0:
        return GlobalAvgPool()
    size = tuple(pick.integer(1, 4) for _ in range(axes))
    padding = tuple(pick.integer(0, k // 2) for k in size)
    stride = None if pick.among([True, False]) else tuple(pick.integer(1, 4) for _ in range(axes))
    return AvgPool(size, stride, padding, pick.among([True, False]))


def filters(pick: Choices, spatial: Spatial) -> Network:
    """A transposed convolution, or one whose padding keeps displacements."""
    if pick.integer(0, 3) == 0:
        return generator.transposed(pick, spatial)
    return replace(generator.convolution(pick, spatial), padding_mode=pick.among(["zeros", "zeros", "circular"]))


def network(pick: Choices, act: Act, max_elements: int) -> tuple[Network, tuple[int, ...]]:
    """A network with at least one pool and the shape of an image it takes; draws that do not fit are drawn again."""
    for _ in range(60):
        axes = pick.among([1, 2, 2, 2, 3])
        shape = tuple(pick.integer(1, {1: 12, 2: 6, 3: 3}[axes]) for _ in range(axes))
        layers: list[Network] = [pool(pick, axes)] if pick.integer(0, 5) == 0 else []
        layers.append(filters(pick, shape))
        for _ in range(pick.integer(0, 3)):
            layers += _block(pick, act, shape)
        layers += [act(), pool(pick, axes), Dense(generator.variance(pick), generator.bias(pick))]
        if pick.integer(0, 2) == 0:
            net, shape = pick.among([chain, chain, over_axes])(pick, act)
        else:
            net = Sequential(*layers)
        try:
            walk = list(placed(net, shape).walk())
        except NetworkError:
            continue
        full = max(math.prod(n) ** 2 for here in walk for n in (here.before, here.after))
        if sum(here.elements for here in walk) <= max_elements and full <= MOST_COVARIANCES:
            return net, (pick.integer(1, 2), *shape)
    return Sequential(Conv(2), act(), AvgPool(2), Dense()), (1, 4, 4)


def chain(pick: Choices, act: Act) -> tuple[Network, Spatial]:
    """Layers in a row that keep or halve the shape, with pools between them: what cards have a fast way for."""

    def conv() -> Network:
        stride = pick.among([1, 1, 1, 1, 2])
        return Conv(
            pick.among([1, 3, 3, 5]), stride, weight_var=generator.variance(pick), bias_var=generator.bias(pick)
        )

    shape = (pick.integer(2, 8), pick.integer(2, 8))
    layers: list[Network] = [conv()]
    for _ in range(pick.integer(0, 2)):
        layers += [
            act(),
            *[conv(), act()] * pick.integer(0, 2),
            pick.among([AvgPool(2), AvgPool((1, 2)), AvgPool(3, 1)]),
            conv(),
        ]
        if pick.among([True, False]):
            layers.append(Sum(Identity(), Sequential(act(), Conv(3), act(), Conv(3))))
    end = pick.among([GlobalAvgPool(), AvgPool(2), pool(pick, 2)])
    return Sequential(*layers, act(), end, Dense(generator.variance(pick), generator.bias(pick))), shape


def over_axes(pick: Choices, act: Act) -> tuple[Network, Spatial]:
    """A mean over whole axes and not over others, such as over every picture of a film; then perhaps over the rest."""
    shape = tuple(pick.integer(1, 4) for _ in range(pick.among([2, 3, 3])))
    means = AvgPool(tuple(pick.among([1, n, n]) for n in shape))
    layers: list[Network] = [Conv(pick.integer(1, 3)), act(), means, Conv(1, bias_var=generator.bias(pick))]
    return Sequential(*layers, act(), pick.among([GlobalAvgPool(), AvgPool(1)]), Dense()), shape


def _block(pick: Choices, act: Act, shape: Spatial) -> list[Network]:
    match pick.among(["filter", "pool", "pool", "residual", "branches", "pool in a branch"]):
        case "filter":
            return [act(), filters(pick, shape)]
        case "pool":
            return [act(), pool(pick, len(shape)), filters(pick, shape)]
        case "residual":
            return [Sum(Identity(), Sequential(act(), Conv(3, bias_var=generator.bias(pick))))]
        case "branches":
            return [act(), Sum(Conv(1, stride=2), Sequential(Conv(3, stride=2), act(), Conv(2)))]
        case _:
            same = AvgPool(3, 1, 1, pick.among([True, False]))
            return [Sum(Conv(1), Sequential(Conv(3), act(), same, Conv(3)), same)]


@st.composite
def pooled_networks(
    draw: st.DrawFn, act: st.SearchStrategy[Network] = relu_like, max_elements: int = 4000
) -> tuple[Network, tuple[int, ...]]:
    return network(Drawn(draw), lambda: draw(act), max_elements)


def either(
    act: st.SearchStrategy[Network], max_pixels: int = 400, max_elements: int = 4000
) -> st.SearchStrategy[tuple[Network, tuple[int, ...]]]:
    """Networks without pools and with them."""
    return st.one_of(networks_with_shapes(act, max_pixels), pooled_networks(act, max_elements))


def small_network(rng: np.random.Generator, pools: bool) -> tuple[Network, tuple[int, ...]]:
    """A network of any layers that have derivatives, from a plain random generator."""
    pick, acts = generator.Random(rng), (*generator.RELU_LIKE, *generator.SMOOTH)
    if pools:
        return network(pick, lambda: pick.among(acts), 400)
    return generator.random_network(rng, acts, max_pixels=60)
