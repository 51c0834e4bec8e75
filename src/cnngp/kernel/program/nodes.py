"""network → nodes: the operations in single-assignment form, each a new map.

Convolutions, transposed convolutions, dense layers, nonlinearities and sums of branches all become the one form of
`Op`, with the unit of each result chosen; which buffer holds it is decided later (scheduling.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import assert_never

from cnngp.network.composition import child
from cnngp.network.geometry import AxisSum, in_blocks, total
from cnngp.network.layers import (
    GELU,
    Abs,
    Conv,
    ConvTranspose,
    Cos,
    Dense,
    Elementwise,
    Erf,
    Identity,
    Layer,
    LeakyReLU,
    Nonlinearity,
    ReLU,
    Sequential,
    Sin,
    Step,
    Sum,
)
from cnngp.network.shapes import Spatial, axis_sums, output_spatial, sum_scale

from .ops import Activation, Shape, as_shape
from .units import checked, factor_and_level, log2, log2_sum, within_headroom

# The longest axis that is summed in one go, and the blocks that a longer one is summed in first.
_LONGEST_SUM = 256
_BLOCK = 64


@dataclass(frozen=True)
class Value:
    """A map while lowering: node · unit is the true value; `level` is log₂ of its size for pixels of order one."""

    node: int
    unit: float
    spatial: Spatial
    level: float


@dataclass(frozen=True)
class Node:
    """An operation in single-assignment form: it reads `src`, adds to `base` where there is one, and is a new map."""

    place: str
    src: int | None
    base: int | None
    shape: Shape
    out_shape: Shape
    activation: Activation | None = None
    sums: tuple[AxisSum, AxisSum, AxisSum] | None = None
    keep: float = 0.0
    scale: float = 1.0
    bias: float = 0.0


class Builder:
    """Collects the nodes of a network, and counts the nonlinearities and the table entries that they need."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.elements = 0
        self.sites = 0

    def new_input(self, spatial: Spatial) -> int:
        return self._add(Node("(input)", None, None, as_shape(spatial), as_shape(spatial)))

    def _add(self, node: Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def lower(self, net: Layer, x: Value, place: str, into: Value | None = None) -> Value:
        """The map of `net` applied to `x`, added to `into` where given."""
        match net:
            case Conv() | ConvTranspose() | Dense():
                return self._linear(net, x, place, into)
            case ReLU() | LeakyReLU() | Erf() | Abs() | Step() | Sin() | Cos() | GELU() | Elementwise():
                return self._added(self._activation(net, x, place), place, into)
            case Identity():
                return self._added(x, place, into)
            case Sequential():
                layers = list(enumerate(net.layers))
                for i, layer in layers[:-1]:
                    x = self.lower(layer, x, child(place, "layers", i))
                if not layers:
                    return self._added(x, place, into)
                i, layer = layers[-1]
                return self.lower(layer, x, child(place, "layers", i), into)
            case Sum():
                return self._sum(net, x, place, into)
            case _:
                assert_never(net)

    def _sum(self, net: Sum, x: Value, place: str, into: Value | None) -> Value:
        """Branches are added one after the other into the first; a bare skip goes first, so it costs nothing."""
        branches = sorted(enumerate(net.branches), key=lambda item: not _is_skip(item[1]))
        added = into
        for i, branch in branches:
            added = self.lower(branch, x, child(place, "branches", i), added)
        assert added is not None
        return added

    def _activation(self, layer: Nonlinearity, x: Value, place: str) -> Value:
        shape = as_shape(x.spatial)
        factor, level = factor_and_level(layer, x.unit, x.level)
        activation = Activation(layer, place, self.sites, self.elements, shape, x.unit, factor)
        self.sites += 1
        self.elements += activation.size
        node = self._add(Node(place, x.node, None, shape, shape, activation))
        return Value(node, factor, x.spatial, level)

    def _linear(self, layer: Conv | ConvTranspose | Dense, x: Value, place: str, into: Value | None) -> Value:
        sums = axis_sums(layer, x.spatial, place)
        spatial = output_spatial(layer, sums)
        terms = math.prod(max(map(len, s.sources), default=0) for s in sums)
        weight = sum_scale(layer, x.spatial) if terms else 0.0  # every patch may lie in the padding
        level = log2_sum(log2(layer.bias_var), log2(weight * terms) + x.level)
        if isinstance(layer, Dense):
            x = self._in_blocks(x, place)
            sums = tuple(map(total, x.spatial))
        three = _three_sums(sums)
        pointwise = all(s.is_identity for s in three)
        if pointwise and into is None and layer.bias_var == 0 and weight > 0:
            return Value(x.node, checked(x.unit * weight, level, place), spatial, level)  # a change of unit only
        node = Node(place, x.node, None, as_shape(x.spatial), as_shape(spatial), None, None if pointwise else three)
        return self._finish(node, spatial, level, x.unit * weight, layer.bias_var, into)

    def _in_blocks(self, x: Value, place: str) -> Value:
        """Sums over blocks of the axes that are long, for their sum to follow: one sum of n numbers after the other
        would round n times, which in float32 costs 1e-6 at ten thousand of them.
        """
        while max(x.spatial, default=1) > _LONGEST_SUM:
            longest = x.spatial.index(max(x.spatial))
            sums = tuple(in_blocks(n, _BLOCK if axis == longest else 1) for axis, n in enumerate(x.spatial))
            spatial = tuple(s.out_size for s in sums)
            node = Node(place, x.node, None, as_shape(x.spatial), as_shape(spatial), None, _three_sums(sums))
            x = self._finish(node, spatial, x.level + log2(_BLOCK), x.unit, 0.0, None)
        return x

    def _added(self, x: Value, place: str, into: Value | None) -> Value:
        if into is None:
            return x
        shape = as_shape(x.spatial)
        return self._finish(Node(place, x.node, None, shape, shape), x.spatial, x.level, x.unit, 0.0, into)

    def _finish(
        self, node: Node, spatial: Spatial, level: float, true_scale: float, true_bias: float, into: Value | None
    ) -> Value:
        """Choose the unit of the result, which fixes keep, scale and bias.

        A fresh map takes the unit in which its scale is 1; a sum keeps the unit of what it adds to. Either is shifted
        by a power of two when the typical value would leave the headroom.
        """
        if into is None:
            unit = true_scale if true_scale > 0 else 1.0
        else:
            unit, level = into.unit, log2_sum(into.level, level)
        unit = checked(within_headroom(unit, level), level, node.place)
        keep = 0.0 if into is None else into.unit / unit
        base = None if into is None else into.node
        index = self._add(replace(node, base=base, keep=keep, scale=true_scale / unit, bias=true_bias / unit))
        return Value(index, unit, spatial, level)


def _is_skip(net: Layer) -> bool:
    """A branch that lowers to no operation, or to a mere change of unit."""
    match net:
        case Identity():
            return True
        case Sequential():
            return all(map(_is_skip, net.layers))
        case Conv():
            one = net.kernel_size == 1 or (isinstance(net.kernel_size, tuple) and set(net.kernel_size) == {1})
            still = net.stride == 1 or (isinstance(net.stride, tuple) and set(net.stride) == {1})
            unpadded = net.padding in ("same", "valid", 0)
            return one and still and unpadded and net.bias_var == 0 and net.weight_var > 0
        case _:
            return False


def _three_sums(sums: tuple[AxisSum, ...]) -> tuple[AxisSum, AxisSum, AxisSum]:
    one = (AxisSum(1, ((0,),)),) * (3 - len(sums))
    a, b, c = (*one, *sums)
    return a, b, c
