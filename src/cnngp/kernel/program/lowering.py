"""Lowering of a network to nodes of K and optionally of the tangent kernel Θ: the recursion of network/reference on
sheets.

After a layer with weights K itself is a term of Θ, and a skip adds both alike. So only the rest, T, is propagated:

    Θ = T + own · K

    input          T = 0, own = 0
    Conv, Dense    T ← weight_var · s · Σ T, own ← own + 1     (with a bias: Σ of all of Θ, own ← 1)
    nonlinearity   T ← V̇ · (T + own · K), own ← 0              one operation with a `Tangent`
    pools          as for K, own stays
    Sum            as for K, where own is the same

T is zero until the first nonlinearity, where Θ is a multiple of K; a zero T needs no map. T and K of the same sheet are
made one after the other, T first, so few maps are alive at a time, and a nonlinearity's slope comes right before its
value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, assert_never

from cnngp.kernel.formulas import formula
from cnngp.kernel.formulas.family import log2
from cnngp.network.layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Identity,
    Layer,
    Network,
    NetworkError,
    Nonlinearity,
    Sequential,
    Sum,
)
from cnngp.network.placed import Placed, placed_network
from cnngp.network.shapes import Displacement, shape_text
from cnngp.network.walk import leaves

from .nodes import NodeBuilder, Value, log2_sum
from .ops import NOTHING, Op, Tangent

# K may be as large as 2^100 in the units of its map. If these units are this many times those of T, float32 could not
# hold own · K in the unit of T.
_MOST_OWN = 2.0**20


def one_location(net: Network, input_shape: Sequence[int], place: str = "") -> tuple[int, Placed]:
    """Return the number of channels and the placed network; raise `NetworkError` for several output locations."""
    channels, root = placed_network(net, input_shape, place)
    if math.prod(root.after) != 1:
        raise NetworkError(
            f"the network has {shape_text(root.after)} output locations for input {tuple(input_shape)}, but a kernel "
            "needs one; end it with Dense()"
        )
    return channels, root


def check_slopes(net: Layer, place: str = "") -> None:
    """Raise `NetworkError` with its place for a nonlinearity that has no slope."""
    for where, layer in leaves(net, place):
        if isinstance(layer, Nonlinearity) and (reason := formula(layer).no_slope):
            raise NetworkError(reason, where)


@dataclass(frozen=True)
class Maps:
    """K and Θ = T + own · K after a layer; T is None if it is zero. Without Θ, T stays None and own stays 0."""

    K: Value
    T: Value | None = None
    own: int = 0

    @property
    def values(self) -> list[Value]:
        return [self.K] if self.T is None else [self.K, self.T]

    def make(self) -> None:
        """Make the sheets of displacement zero, which are always needed, before deep networks would recurse."""
        still = (0,) * len(self.K.spatial)
        if self.T is not None:
            self.T.sheet(still)
        self.K.sheet(still)


class Leaf(NamedTuple):
    """A layer of a network's outermost sequence, and the maps before and after it."""

    here: Placed
    before: Maps
    after: Maps


class Lowered(NamedTuple):
    """Source of a program with pools: all nodes, the leaves, and the nodes that hold K and Θ."""

    nodes: list[Op]
    leaves: list[Leaf]
    ends: list[int]


class Builder(NodeBuilder):
    """Collects the nodes of a network: of K alone, or with `tangents` of both kernels.

    `every_layer`: layers that only change a unit become operations too, so that the program has one for each.
    """

    def __init__(self, tangents: bool = False, every_layer: bool = False) -> None:
        super().__init__(every_layer)
        self.tangents = tangents

    def lower(self, here: Placed, x: Maps, into: Maps | None = None) -> Maps:
        """Return the maps of a layer applied to `x`, added to `into` if given."""
        match here.layer:
            case Conv() | ConvTranspose() | Dense() as layer:
                return self._weights(here, layer, x, into)
            case AvgPool() | GlobalAvgPool():
                return self._pooled(here, x, into)
            case Nonlinearity() as layer:
                return self._sum(self._nonlinearity(layer, x, here.place), here.place, into)
            case Identity():
                return self._sum(x, here.place, into)
            case Sequential():
                if not here.children:
                    return self._sum(x, here.place, into)
                for inner in here.children[:-1]:
                    x = self.lower(inner, x)
                    x.make()
                return self.lower(here.children[-1], x, into)
            case Sum():
                total = into
                # A bare skip comes first: adding the other branches to it then costs no operation of its own.
                for branch in sorted(here.children, key=lambda branch: not _is_skip(branch)):
                    total = self.lower(branch, x, total)
                    total.make()
                assert total is not None
                return total
            case _:
                assert_never(here.layer)

    def theta(self, x: Maps, place: str, left: int = 0) -> Value | None:
        """Θ − left · K as a map of its own; None if it is zero."""
        times = x.own - left
        if times == 0:
            return x.T
        K = replace(x.K, unit=times * x.K.unit, level=x.K.level + log2(times))  # the same sheets in another unit
        return K if x.T is None else self.added(K, place, x.T)

    def plain(self, x: Value, place: str) -> Value:
        """Return the map in a unit within 2^±100, which float32 can hold."""
        exponent = math.frexp(x.unit)[1]
        return self.in_unit(x, math.ldexp(x.unit, max(-100, min(100, exponent)) - exponent), place)

    def in_unit(self, x: Value, unit: float, place: str) -> Value:
        """Return the map in another unit, which differs by a power of two."""
        if unit == x.unit:
            return x
        return replace(x, unit=unit, make=partial(self.on_sheet, place, x, scale=x.unit / unit), made={})

    def _weights(self, here: Placed, layer: Conv | ConvTranspose | Dense, x: Maps, into: Maps | None) -> Maps:
        """Lower a layer with weights. Without a bias it maps own · K to own · K, so `own` only grows by one."""
        if layer.bias_var > 0:
            x = Maps(x.K, self.theta(x, here.place), 0)
        own = x.own + 1 if self.tangents else 0
        T, K = (None, None) if into is None else (into.T, into.K)
        if into is not None and into.own != own:
            # K is added by the same operations as without Θ, so that it has the same bits.
            T = self.theta(into, here.place, min(own, into.own))
            if own > into.own:
                T = self.linear(here, _times(layer, own - into.own), x.K, T)
            own = min(own, into.own)
        if x.T is not None:
            T = self.linear(here, replace(layer, bias_var=0.0), x.T, T)
        return Maps(self.linear(here, layer, x.K, K), T, own)

    def _pooled(self, here: Placed, x: Maps, into: Maps | None) -> Maps:
        own = x.own if into is None else min(x.own, into.own)
        T, U = self.theta(x, here.place, own), None if into is None else self.theta(into, here.place, own)
        K = x.K, None if into is None else into.K
        if T is None:
            return Maps(self.pool(here, K)[0], U, own)
        after, pooled = self.pool(here, (T, U), K)
        return Maps(pooled, after, own)

    def _nonlinearity(self, layer: Nonlinearity, x: Maps, place: str) -> Maps:
        """T ← V̇ · (T + own · K), with V̇ = ∂V/∂K = (factor/unit) · f' where f' is in units of the map."""
        activation = self.site(layer, x.K, place)
        if not self.tangents:
            return Maps(self.activated(activation, x.K))
        row, K, T = activation.formula, x.K, x.T
        unit, level = K.unit, K.level + log2(x.own)
        if T is not None:
            level = log2_sum(T.level, level)
            if x.own * (K.unit / T.unit) > _MOST_OWN:
                T = self.in_unit(T, math.ldexp(T.unit, round(log2(K.unit / T.unit))), place)
            unit = T.unit
        own = x.own * (K.unit / unit)

        def make(d: Displacement) -> int:
            tangent = Tangent(NOTHING if T is None else T.sheet(d), own)
            return self.on_sheet(place, K, d, activation=activation, tangent=tangent)

        slope = Value(unit * (activation.factor / K.unit), K.spatial, level + row.slope_level(K.level), make)
        return Maps(self.activated(activation, K), slope, 0)

    def _sum(self, x: Maps, place: str, into: Maps | None) -> Maps:
        if into is None:
            return x
        own = min(x.own, into.own)
        T, U = self.theta(into, place, own), self.theta(x, place, own)
        if U is not None:
            T = self.added(U, place, T)
        return Maps(self.added(x.K, place, into.K), T, own)


def _times(layer: Conv | ConvTranspose | Dense, n: int) -> Conv | ConvTranspose | Dense:
    """Return the layer whose K is n times as large."""
    return replace(layer, weight_var=n * layer.weight_var, bias_var=n * layer.bias_var)


def _is_skip(here: Placed) -> bool:
    """True for a branch that lowers to no operation, or only to a change of unit."""
    match here.layer:
        case Identity():
            return True
        case Sequential():
            return all(map(_is_skip, here.children))
        case Conv() as net:
            one = net.kernel_size == 1 or (isinstance(net.kernel_size, tuple) and set(net.kernel_size) == {1})
            still = net.stride == 1 or (isinstance(net.stride, tuple) and set(net.stride) == {1})
            unpadded = net.padding in ("same", "valid", 0)
            return one and still and unpadded and net.bias_var == 0 and net.weight_var > 0
        case _:
            return False
