"""reverse(network, input shape): a program that runs forwards and then backwards, for the gradients of a kernel.

L = Σ G K over pairs of images. For one pair the operations of the kernel run first, and every map that a derivative
reads is kept; below a pool only what the pool has made, and each sheet is computed again when its turn comes, so that
one is kept at a time. Then they are gone through from the last to the first, with g = ∂L/∂map for each map. Where

    new = keep · base + scale · box(f(src)) + bias

its backward steps are

    times ← boxᵀ(g)                         an operation of the usual form, with the sums transposed
    g[src] ← g[src] + scale · f'(src) · times       (`Back`)
    g[base] ← g[base] + keep · g

f also reads the two images' variances. What that gives to them is added up over all pairs of an image, in the order of
its table; the same program then runs once for an image with itself, where the variances are the maps.

A parameter gets its part from sums over maps: of times · f(src) for a weight_var, of g for a bias_var (`Total`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cnngp.kernel.formulas import RELU_LIKE
from cnngp.network.composition import check_network
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import (
    AvgPool,
    GlobalAvgPool,
    LeakyReLU,
    Network,
    NetworkError,
    NormalizedExp,
    Rbf,
    ReLU,
    as_layer,
)
from cnngp.network.placed import placed
from cnngp.network.shapes import check_input_shape
from cnngp.network.walk import at, name_of

from .lowering import Builder, Maps
from .nodes import Node
from .ops import NOTHING, PIXELS, Op, Program, as_shape
from .scheduling import Buffers, as_op, fused
from .steps import Back, Pixels, Reverse, Share, Total, maps_of, renamed

__all__ = ["Back", "Pixels", "Reverse", "Share", "Total", "reverse", "transposed"]


def reverse(net: Network, input_shape: Sequence[int], to_images: bool = False) -> Reverse:
    """The program of a network's gradient on images of one shape; `to_images` goes on to the pixels."""
    layer = as_layer(net)
    channels, spatial = check_input_shape(input_shape)
    check_network(layer)
    root = placed(layer, spatial)
    builder = Builder(every_layer=True)
    end = builder.lower(root, Maps(builder.new_input(spatial, 1.0 / channels))).K
    last = end.sheet((0,) * len(end.spatial))
    pools = frozenset(here.place for here in root.walk() if isinstance(here.layer, AvgPool | GlobalAvgPool))
    writer = _Writer(fused(dict(enumerate(builder.nodes)), last), last, pools, to_images)
    steps, buffers, input_, seed, value = writer.finished()
    ops = tuple(step for step in steps if type(step) is Op)
    program = Program(net, channels, spatial, as_shape(spatial), ops, buffers, input_, seed, end.unit, builder.elements)
    return Reverse(program, steps, writer.forwards, seed, writer.slots, tuple(writer.shares), value)


def transposed(sums: AxisSum) -> AxisSum:
    """Input ν collects the outputs that added it, as often as they did.

    >>> transposed(AxisSum(3, ((0, 1), (1, 2))))
    AxisSum(size=2, sources=((0,), (0, 1), (1,)))
    """
    sources: list[list[int]] = [[] for _ in range(sums.size)]
    for m, row in enumerate(sums.sources):
        for nu in row:
            sources[nu].append(m)
    return AxisSum(sums.out_size, tuple(map(tuple, sources)))


@dataclass
class _Writer:
    """Writes steps over maps with names of their own, numbers; `finished` lets them share buffers."""

    nodes: dict[int, Node]
    end: int
    pools: frozenset[str]
    to_images: bool
    steps: list[Op] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    slots: int = 0
    shares: list[Share] = field(default_factory=list)
    input: int | None = None

    def __post_init__(self) -> None:
        order = sorted(self.nodes)
        products = [i for i in order if self.nodes[i].src == PIXELS]
        self.has_input = len(products) == 1 and all(self.nodes[i].src != NOTHING for i in order) and not self.to_images
        self.readers: dict[int, list[int]] = {}
        for j in order:
            for used in {self.nodes[j].src, self.nodes[j].base} - {None}:
                self.readers.setdefault(used, []).append(j)  # type: ignore[arg-type]
        self.of_pools = {i for i in order if self.nodes[i].place in self.pools}
        self.values: dict[int, int] = {}
        """The maps that backward steps read."""
        self.seed = self._new(1)
        self.parts = self._in_parts()
        if self.of_pools:
            once: dict[int, int] = {}
            for i in order:
                self._forwards(i, once, self._is_needed_forwards)
            self.values |= {i: once[i] for i in self.of_pools}
            self.value = once[self.end]
        else:
            for part in self.parts.values():
                self._again(part)
            self.value = self.values[self.end]
        self.forwards = len(self.steps)
        self.slopes: dict[int, int] = {self.end: self.seed}
        for i in reversed(order):
            self._backwards(i)

    def _new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1

    def _in_parts(self) -> dict[int, list[int]]:
        """The nodes that hang together without those of pools: for most networks one sheet each, under a key each."""
        above: dict[int, int] = {}

        def top(i: int) -> int:
            while above.setdefault(i, i) != i:
                above[i] = i = above[above[i]]
            return i

        inside = [i for i in sorted(self.nodes) if i not in self.of_pools]
        for i in inside:
            for used in (self.nodes[i].src, self.nodes[i].base):
                if used is not None and used >= 0 and used not in self.of_pools:
                    above[top(used)] = top(i)
        parts: dict[int, list[int]] = {}
        for i in inside:
            parts.setdefault(top(i), []).append(i)
        self.part_of = {i: key for key, part in parts.items() for i in part}
        return parts

    def _forwards(self, i: int, values: dict[int, int], is_needed: Callable[[int, int], bool]) -> None:
        """The operation of a node; `values` says where the maps of the others are."""
        node = self.nodes[i]
        size = math.prod(node.out_shape)
        if node.src == PIXELS and self.has_input:
            if self.input is None:
                self.input = self._new(size)
            values[i] = self.input
            return
        src = values.get(node.src, node.src)
        if node.base is None:
            dst = self._new(size)
        elif is_needed(node.base, i) or node.base == node.src:
            dst = self._new(size)
            copied = Node(node.place, node.base, None, node.out_shape, node.out_shape)
            self.steps.append(as_op(copied, values[node.base], dst))
        else:
            dst = values[node.base]
        self.steps.append(as_op(node, src, dst))
        values[i] = dst

    def _again(self, part: Sequence[int]) -> None:
        """A part of the network with all maps that backward steps read. What pools have made is there already."""
        for i in part:
            self._forwards(i, self.values, self._is_needed_backwards)

    def _is_needed_forwards(self, i: int, after: int) -> bool:
        """Whether the map of node i is read after node `after`, on the first way through a network with pools.

        What pools have made, and the input, are read again later; all else is made again.
        """
        lasting = i in self.of_pools or (self.has_input and self.nodes[i].src == PIXELS)
        readers = self.readers.get(i, ())
        return any(j > after for j in readers) or (lasting and any(j not in self.of_pools for j in readers))

    def _is_needed_backwards(self, i: int, after: int) -> bool:
        """Whether the map of node i is read after node `after` of the same part, forwards or backwards."""
        if i in self.of_pools:
            return True
        return any(
            (j > after and j not in self.of_pools) or (self.nodes[j].src == i and _reads_its_source(self.nodes[j]))
            for j in self.readers.get(i, ())
        )

    def _value(self, i: int) -> int:
        """The map of a node, for a backward step; its part is run again when first asked for."""
        if i not in self.values:
            self._again(self.parts[self.part_of[i]])
        return self.values[i]

    def _backwards(self, i: int) -> None:
        node = self.nodes[i]
        if node.src == PIXELS:
            if i in self.slopes:
                self.steps.append(
                    Pixels(
                        node.place, PIXELS, self.slopes[i], node.shape, node.shape, first=node.first, second=node.second
                    )
                )
            return
        g = self.slopes[i]
        if node.per_bias:
            slot = self._slot(1)
            self.steps.append(Total(node.place, g, g, node.out_shape, node.out_shape, slot=slot))
            self.shares.append(Share(name_of(node.place, "bias_var"), slot, node.per_bias))
        if node.src != NOTHING:
            self._to_source(node, g)
        if node.base is not None:
            self._to_base(node, g)

    def _stops(self, i: int) -> bool:
        """Whether nothing is asked for before a map: a product of images has no parameters."""
        return self.nodes[i].src == PIXELS and not self.to_images

    def _to_source(self, node: Node, g: int) -> None:
        stops = self._stops(node.src)
        begun = node.src in self.slopes
        size = math.prod(node.shape)
        sums: Any = None if node.sums is None else tuple(map(transposed, node.sums))
        if not _reads_its_source(node):
            if not stops:
                dst = self.slopes.setdefault(node.src, self._new(size)) if not begun else self.slopes[node.src]
                keep = 1.0 if begun else 0.0
                self.steps.append(Op(node.place, g, dst, node.out_shape, node.shape, None, sums, keep, node.scale))
            return
        value = self._value(node.src)
        times = g
        if sums is not None:
            times = self._new(size)
            self.steps.append(Op(node.place, g, times, node.out_shape, node.shape, None, sums))
        if not stops and not begun:
            self.slopes[node.src] = self._new(size)
        slot = self._slot(2)
        dst, keep = value if stops else self.slopes[node.src], 1.0 if begun else 0.0
        self.steps.append(
            Back(
                node.place, value, dst, node.shape, node.shape, node.activation, None, keep, node.scale, 0.0,
                node.first, node.second, None, times, slot, not stops,
            )
        )  # fmt: skip
        self.shares += shares_of(node, slot)

    def _to_base(self, node: Node, g: int) -> None:
        assert node.base is not None
        if self._stops(node.base):
            return
        if node.base not in self.slopes and node.keep == 1.0:
            self.slopes[node.base] = g  # nothing else reads it any more
            return
        begun = node.base in self.slopes
        dst = self.slopes[node.base] if begun else self._new(math.prod(node.out_shape))
        self.slopes[node.base] = dst
        self.steps.append(Op(node.place, g, dst, node.out_shape, node.out_shape, None, None, float(begun), node.keep))

    def _slot(self, count: int) -> int:
        self.slots += count
        return self.slots - count

    def finished(self) -> tuple[tuple[Op, ...], tuple[int, ...], int | None, int, int]:
        """The steps over buffers that maps share by liveness; sizes, input, seed and K."""
        last_use = {self.seed: -1}
        for t, step in enumerate(self.steps):
            last_use |= dict.fromkeys(maps_of(step), t)
        kept = max(self.forwards - 1, last_use.get(self.value, -1))
        buffer_of: dict[int, int] = {}
        buffers = Buffers()

        def take(v: int) -> int:
            if v not in buffer_of:
                buffer_of[v] = buffers.take(self.sizes[v])
            return buffer_of[v]

        take(self.seed)
        if self.input is not None:
            take(self.input)
        steps = []
        for t, step in enumerate(self.steps):
            steps.append(renamed(step, take))
            ended = {v for v in maps_of(step) if last_use[v] == t and v != self.value}
            ended |= {self.value} if t == kept else set()
            buffers.free.extend(buffer_of[v] for v in ended)
        return (
            tuple(steps),
            tuple(buffers.sizes),
            None if self.input is None else buffer_of[self.input],
            buffer_of[self.seed],
            buffer_of[self.value],
        )


def _reads_its_source(node: Node) -> bool:
    """Whether a backward step reads the map that the node has read."""
    return node.activation is not None or node.per_weight != 0.0


def shares_of(node: Node, slot: int) -> list[Share]:
    """The shares of the two sums of a `Back`, from `slot` on."""
    shares: list[Share] = []
    a = node.activation
    value = [(slot, 1.0)]  # how the sum of times · f is made of the two sums
    if a is not None and a.formula.family is RELU_LIKE:
        alpha, beta = a.coefficients
        value = [(slot, alpha), (slot + 1, beta)]
    if node.per_weight:
        name = name_of(node.place, "weight_var")
        shares += [Share(name, s, node.per_weight * part) for s, part in value]
    if a is None:
        return shares
    if a.formula.no_gradient:
        raise NetworkError(at(a.place, a.formula.no_gradient))
    match a.layer:
        case ReLU() as layer:  # V is a multiple of gain²
            shares.append(Share(name_of(a.place, "gain"), slot, 2.0 / layer.gain * node.scale))
        case LeakyReLU() as layer:  # V = unit · ((1 − slope)²/2 · R + slope · K)
            name, own = name_of(a.place, "slope"), node.scale * a.unit / a.factor
            shares += [Share(name, slot, -(1.0 - layer.slope) * own), Share(name, slot + 1, own)]
        case Rbf() as layer:  # log V is a multiple of gamma
            shares.append(Share(name_of(a.place, "gamma"), slot + 1, node.scale / layer.gamma))
        case NormalizedExp():
            shares.append(Share(name_of(a.place, "gamma"), slot + 1, node.scale))
        case _:
            pass
    return shares
