"""lower(network, input shape): the flat list of operations on maps that every engine runs.

A map is a real number per location, for one pair of images. An operation reads one map, applies a nonlinearity's
formula where it has one, sums boxes, and writes or adds to one map:

    dst ← keep · dst + scale · box(f(src)) + bias

That single form covers convolutions, transposed convolutions, dense layers, nonlinearities and sums of branches.
Buffers are assigned by liveness. A buffer holds values in a unit of its own (true value = unit · buffer), so constants
such as the ReLU's 1/2 and the filter's 1/9 fold into the next operation, and powers of two keep deep networks with
large variances inside the range of float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from .composition import at, child
from .geometry import AxisSum
from .network import (
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
    Network,
    NetworkError,
    Nonlinearity,
    ReLU,
    Sequential,
    Sin,
    Step,
    Sum,
    as_layer,
)
from .shapes import (
    Spatial,
    axis_sums,
    check_input_shape,
    output_spatial,
    shape_table,
    shape_text,
    sum_scale,
)

Shape = tuple[int, int, int]

# A buffer's typical value stays within 2^±24 for pixels of order one; float32 has 2^±126, so images of any usual scale
# (0 to 255, standardised, …) stay far from both ends.
_HEADROOM = 24.0


@dataclass(frozen=True)
class Activation:
    """A nonlinearity where it stands: the formula f, and where each image keeps its numbers for it.

    With K the map in buffer units and `unit` · K the true covariance, V = `factor` · f(K):

    ReLU, LeakyReLU, Abs:  f = α·R + β·K with R = 2A of section "ReLU" in the docs; (α, β) = `coefficients`
    Erf:                   f = asin(2K/√((1+2K₁)(1+2K₂)))
    Step:                  f = π − θ
    Sin, Cos, GELU, Elementwise: f = V
    """

    layer: Nonlinearity
    place: str
    site: int
    offset: int
    shape: Shape
    unit: float
    factor: float

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def coefficients(self) -> tuple[float, float]:
        """(α, β) of the ReLU family: V ∝ α·R + β·K."""
        match self.layer:
            case LeakyReLU():
                return (1.0 - self.layer.slope) * (1.0 - self.layer.slope) / 2.0, self.layer.slope
            case Abs():
                return 2.0, -1.0
            case _:
                return 1.0, 0.0


@dataclass(frozen=True)
class Op:
    """dst ← keep · dst + scale · box(f(src)) + bias. No activation: f(K) = K. No sums: box is the map itself.

    `dst` equals `src` only in operations without sums; with `keep` = 0 the old content of `dst` is not read.
    """

    place: str
    src: int
    dst: int
    shape: Shape
    out_shape: Shape
    activation: Activation | None
    sums: tuple[AxisSum, AxisSum, AxisSum] | None
    keep: float
    scale: float
    bias: float


@dataclass(frozen=True)
class Program:
    """What an engine runs for one pair of images.

    `buffers[input]` starts as Σ_c x_c x'_c at every location; after all `ops`, `unit` · `buffers[output]` is K.
    `buffers` are sizes in map elements. An image's variances at nonlinearity a are at [a.offset, a.offset + a.size) of
    its table, which has `elements` entries.
    """

    network: Network
    channels: int
    spatial: Spatial
    shape: Shape
    ops: tuple[Op, ...]
    buffers: tuple[int, ...]
    input: int
    output: int
    unit: float
    elements: int

    @property
    def activations(self) -> tuple[Activation, ...]:
        return tuple(op.activation for op in self.ops if op.activation is not None)


def lower(net: Network, input_shape: Sequence[int]) -> Program:
    """The program of a network on images of one shape.

    >>> from cnngp import Conv, Dense, ReLU, Sequential
    >>> program = lower(Sequential(Conv(3), ReLU(), Dense()), (1, 28, 28))
    >>> [(op.place, op.shape, op.out_shape) for op in program.ops]
    [('layers[0]', (1, 28, 28), (1, 28, 28)), ('layers[2]', (1, 28, 28), (1, 1, 1))]
    """
    layer = as_layer(net)
    channels, spatial = check_input_shape(input_shape)
    shape_table(layer, input_shape)  # refuses what does not fit, by its place in the network
    builder = _Builder()
    start = _Value(builder.new_input(spatial), 1.0 / channels, spatial, 0.0)
    end = builder.lower(layer, start, "")
    if math.prod(end.spatial) != 1:
        raise NetworkError(
            f"the network has {shape_text(end.spatial)} output locations for input {tuple(input_shape)}, but a kernel "
            "needs one; end it with Dense()"
        )
    ops, buffers, inp, out = _assign_buffers(builder.fused(end.node), end.node)
    ops, unit = _with_plain_unit(ops, end.unit)
    return Program(net, channels, spatial, _three(spatial), ops, buffers, inp, out, unit, builder.elements)


@dataclass(frozen=True)
class _Value:
    """A map while lowering: node · unit is the true value; `level` is log₂ of its size for pixels of order one."""

    node: int
    unit: float
    spatial: Spatial
    level: float


@dataclass(frozen=True)
class _Node:
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


class _Builder:
    def __init__(self) -> None:
        self.nodes: list[_Node] = []
        self.elements = 0
        self.sites = 0

    def new_input(self, spatial: Spatial) -> int:
        return self._add(_Node("(input)", None, None, _three(spatial), _three(spatial)))

    def _add(self, node: _Node) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def lower(self, net: Layer, x: _Value, place: str, into: _Value | None = None) -> _Value:
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

    def _sum(self, net: Sum, x: _Value, place: str, into: _Value | None) -> _Value:
        """Branches are added one after the other into the first; a bare skip goes first, so it costs nothing."""
        branches = sorted(enumerate(net.branches), key=lambda item: not _is_skip(item[1]))
        total = into
        for i, branch in branches:
            total = self.lower(branch, x, child(place, "branches", i), total)
        assert total is not None
        return total

    def _activation(self, layer: Nonlinearity, x: _Value, place: str) -> _Value:
        shape = _three(x.spatial)
        factor, level = _factor_and_level(layer, x)
        activation = Activation(layer, place, self.sites, self.elements, shape, x.unit, factor)
        self.sites += 1
        self.elements += activation.size
        node = self._add(_Node(place, x.node, None, shape, shape, activation))
        return _Value(node, factor, x.spatial, level)

    def _linear(self, layer: Conv | ConvTranspose | Dense, x: _Value, place: str, into: _Value | None) -> _Value:
        sums = axis_sums(layer, x.spatial, place)
        spatial = output_spatial(layer, sums)
        three = _three_sums(sums)
        pointwise = all(s.is_identity for s in three)
        weight = sum_scale(layer, x.spatial)
        terms = math.prod(max(map(len, s.sources), default=0) for s in sums)
        level = _log2_sum(_log2(layer.bias_var), _log2(weight * terms) + x.level)
        if pointwise and into is None and layer.bias_var == 0 and weight > 0:
            return _Value(x.node, _checked(x.unit * weight, level, place), spatial, level)  # a change of unit only
        node = _Node(place, x.node, None, _three(x.spatial), _three(spatial), None, None if pointwise else three)
        return self._finish(node, spatial, level, x.unit * weight, layer.bias_var, into)

    def _added(self, x: _Value, place: str, into: _Value | None) -> _Value:
        if into is None:
            return x
        shape = _three(x.spatial)
        return self._finish(_Node(place, x.node, None, shape, shape), x.spatial, x.level, x.unit, 0.0, into)

    def _finish(
        self, node: _Node, spatial: Spatial, level: float, true_scale: float, true_bias: float, into: _Value | None
    ) -> _Value:
        """Choose the unit of the result, which fixes keep, scale and bias.

        A fresh map takes the unit in which its scale is 1; a sum keeps the unit of what it adds to. Either is shifted
        by a power of two when the typical value would leave the headroom.
        """
        if into is None:
            unit = true_scale if true_scale > 0 else 1.0
        else:
            unit, level = into.unit, _log2_sum(into.level, level)
        drift = level - _log2(unit)
        if abs(drift) > _HEADROOM and math.isfinite(drift):
            unit = math.ldexp(unit, round(drift))
        _checked(unit, level, node.place)
        keep = 0.0 if into is None else into.unit / unit
        base = None if into is None else into.node
        index = self._add(replace(node, base=base, keep=keep, scale=true_scale / unit, bias=true_bias / unit))
        return _Value(index, unit, spatial, level)

    def fused(self, end: int) -> dict[int, _Node]:
        """The nodes that are needed, with each nonlinearity that has a single reader moved into that reader."""
        readers: dict[int, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for used in (node.src, node.base):
                if used is not None:
                    readers.setdefault(used, []).append(i)
        nodes = dict(enumerate(self.nodes))
        for i, node in enumerate(self.nodes):
            if node.activation is None or i == end or len(readers.get(i, [])) != 1:
                continue
            reader = nodes[readers[i][0]]
            if reader.src == i and reader.activation is None:
                nodes[readers[i][0]] = replace(reader, src=node.src, activation=node.activation)
                del nodes[i]
        return nodes


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


def _assign_buffers(nodes: dict[int, _Node], end: int) -> tuple[tuple[Op, ...], tuple[int, ...], int, int]:
    """Linear scan: a buffer is free again after the last operation that reads it."""
    order = sorted(nodes)
    last_use = {i: i for i in order}
    for i in order:
        for used in (nodes[i].src, nodes[i].base):
            if used is not None:
                last_use[used] = i
    last_use[end] = len(order) + order[-1]
    sizes: list[int] = []
    free: list[int] = []
    buffer_of: dict[int, int] = {}

    def take(size: int) -> int:
        fitting = [b for b in free if sizes[b] >= size] or free
        if not fitting:
            sizes.append(size)
            return len(sizes) - 1
        best = min(fitting, key=lambda b: (sizes[b] < size, abs(sizes[b] - size)))
        free.remove(best)
        sizes[best] = max(sizes[best], size)
        return best

    ops: list[Op] = []
    for i in order:
        node = nodes[i]
        size = math.prod(node.out_shape)
        if node.src is None:
            buffer_of[i] = take(size)
            continue
        src = buffer_of[node.src]
        if node.base is not None and last_use[node.base] == i and node.base != node.src:
            dst = buffer_of[node.base]
        elif node.base is not None:  # what it adds to is still needed, so it adds to a copy
            dst = take(size)
            copy = _Node(node.place, node.base, None, node.out_shape, node.out_shape)
            ops.append(_op(copy, buffer_of[node.base], dst))
        elif node.sums is None and last_use[node.src] == i:
            dst = src
        else:
            dst = take(size)
        ops.append(_op(node, src, dst))
        buffer_of[i] = dst
        for used in {node.src, node.base} - {None}:
            assert used is not None
            if last_use[used] == i and buffer_of[used] != dst:
                free.append(buffer_of[used])
    return tuple(ops), tuple(sizes), buffer_of[order[0]], buffer_of[end]


def _op(node: _Node, src: int, dst: int) -> Op:
    return Op(
        node.place,
        src,
        dst,
        node.shape,
        node.out_shape,
        node.activation,
        node.sums,
        node.keep,
        node.scale,
        node.bias,
    )


def _with_plain_unit(ops: tuple[Op, ...], unit: float) -> tuple[tuple[Op, ...], float]:
    """The last unit within 2^±100, for float32 to hold it: a power of two moves into the operation that ends there."""
    exponent = math.frexp(unit)[1]
    shift = exponent - max(-100, min(100, exponent))
    if not ops or shift == 0:
        return ops, unit
    last = ops[-1]
    keep, scale, bias = (math.ldexp(x, shift) for x in (last.keep, last.scale, last.bias))
    return (*ops[:-1], replace(last, keep=keep, scale=scale, bias=bias)), math.ldexp(unit, -shift)


def _checked(unit: float, level: float, place: str) -> float:
    if not 0.0 < unit < math.inf:
        raise NetworkError(
            at(place, f"the variance here is of order 2^{level:.0f}, beyond float64; use other variances")
        )
    return unit


def _factor_and_level(layer: Nonlinearity, x: _Value) -> tuple[float, float]:
    """V = factor · f, and log₂ of the V to expect."""
    match layer:
        case ReLU():
            square = layer.gain * layer.gain  # infinite beyond the range, where ** would raise
            return square * x.unit / 2.0, x.level + _log2(square / 2.0)
        case LeakyReLU():
            return x.unit, x.level + _log2((1.0 + layer.slope * layer.slope) / 2.0)
        case Abs():
            return x.unit, x.level
        case Erf():
            K = 2.0 ** min(x.level, 100.0)
            return 2.0 / math.pi, _log2(2.0 / math.pi * math.asin(2.0 * K / (1.0 + 2.0 * K)))
        case Step():
            return 1.0 / (2.0 * math.pi), -1.0
        case Sin():
            return 1.0, min(x.level, -1.0)
        case Cos():
            return 1.0, -1.0
        case GELU():
            return 1.0, x.level - 1.0
        case Elementwise():
            from .functions import second_moment

            return 1.0, _log2(second_moment(layer.fn, 2.0 ** (min(x.level, 200.0) / 2.0)))
        case _:
            assert_never(layer)


def _log2(x: float) -> float:
    return math.log2(x) if x > 0 else -math.inf


def _log2_sum(a: float, b: float) -> float:
    """log₂(2^a + 2^b)."""
    top = max(a, b)
    return top if math.isinf(top) else top + math.log2(2.0 ** (a - top) + 2.0 ** (b - top))


def _three(spatial: Spatial) -> Shape:
    one = (1,) * (3 - len(spatial))
    a, b, c = (*one, *spatial)
    return a, b, c


def _three_sums(sums: tuple[AxisSum, ...]) -> tuple[AxisSum, AxisSum, AxisSum]:
    one = (AxisSum(1, ((0,),)),) * (3 - len(sums))
    a, b, c = (*one, *sums)
    return a, b, c
