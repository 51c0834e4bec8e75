"""Reverse-mode differentiation: a program that runs forwards and then backwards, for the gradients of a kernel.

L = Σ G K over pairs of images. For one pair the operations of the kernel run first, and every map that a derivative
reads is kept. With pools only the pools' outputs are kept, and each sheet is computed again when needed, so that one is
kept at a time. Then the operations are visited from the last to the first, with g = ∂L/∂map for each map. For

    new = keep · base + scale · box(f(src)) + bias

the backward steps are

    times ← boxᵀ(g)                         an operation of the usual form, with the sums transposed
    g[src] ← g[src] + scale · f'(src) · times       (`Back`)
    g[base] ← g[base] + keep · g

f also reads the two images' variances. Their gradients are summed over all pairs of an image, in the order of its
table; the same program then runs once for each image with itself, where the variances are the maps.

Gradients by parameters are sums over maps: of times · f(src) for a weight_var, of g for a bias_var (`Total`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from cnngp.kernel.formulas import RELU_LIKE
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import AvgPool, GlobalAvgPool, LeakyReLU, Network, NetworkError, NormalizedExp, Rbf, ReLU
from cnngp.network.walk import name_of

from .lowering import Builder, Maps, one_location
from .ops import NOTHING, PIXELS, Back, Op, Pixels, Program, Reverse, Share, Total, as_shape
from .scheduling import Steps, fused, readers_of


def reverse(net: Network, input_shape: Sequence[int], to_images: bool = False) -> Reverse:
    """Return the program of a network's gradient on images of one shape; `to_images` adds gradients by pixels."""
    channels, root = one_location(net, input_shape)
    spatial = root.before
    builder = Builder(every_layer=True)
    end = builder.lower(root, Maps(builder.new_input(spatial, 1.0 / channels))).K
    last = end.sheet((0,) * len(end.spatial))
    pools = frozenset(here.place for here in root.walk() if isinstance(here.layer, AvgPool | GlobalAvgPool))
    writer = _Writer(fused(dict(enumerate(builder.nodes)), last), last, pools, to_images)
    held = [writer.seed] if writer.input is None else [writer.seed, writer.input]
    steps, sizes, buffers = writer.in_buffers(held, {writer.seed: -1, writer.value: writer.forwards - 1})
    ops = tuple(step for step in steps if type(step) is Op)
    seed, start = buffers[writer.seed], None if writer.input is None else buffers[writer.input]
    program = Program(
        net, channels, spatial, as_shape(spatial), ops, tuple(sizes), start, seed, end.unit, builder.elements
    )
    shares, value = tuple(writer.shares), buffers[writer.value]
    return Reverse(program, steps, writer.forwards, seed, writer.slots, shares, value, writer.spare)


def transposed(sums: AxisSum) -> AxisSum:
    """Transpose sums: input ν collects the outputs that added it, as often as they did.

    >>> transposed(AxisSum(3, ((0, 1), (1, 2))))
    AxisSum(size=2, sources=((0,), (0, 1), (1,)))
    """
    sources: list[list[int]] = [[] for _ in range(sums.size)]
    for m, row in enumerate(sums.sources):
        for nu in row:
            sources[nu].append(m)
    return AxisSum(sums.out_size, tuple(map(tuple, sources)))


class _Writer(Steps):
    """Writes the forward and then the backward steps."""

    def __init__(self, nodes: dict[int, Op], end: int, pools: frozenset[str], to_images: bool) -> None:
        super().__init__(nodes, to_images)
        self.to_images = to_images
        self.slots = self.spare = 0
        self.shares: list[Share] = []
        self.readers = readers_of(nodes)
        self.of_pools = {i for i in self.order if nodes[i].place in pools}
        self.values: dict[int, int] = {}
        """Maps that backward steps read, by node."""
        self.seed = self.new(1)
        self.parts = self._in_parts() if self.of_pools else {}
        if self.of_pools:
            once: dict[int, int] = {}
            for i in self.order:
                self._forward(i, once, self._is_read_later)
            self.values |= {i: once[i] for i in self.of_pools}
            self.value = once[end]
        else:
            self._run(self.order)
            self.value = self.values[end]
        self.forwards = len(self.steps)
        self.slopes: dict[int, int] = {end: self.seed}
        for i in reversed(self.order):
            self._backward(i)

    def _in_parts(self) -> dict[int, list[int]]:
        """For each node, its connected component in the graph without pools, mostly the nodes of one sheet."""
        parts: dict[int, list[int]] = {}
        for i in self.order:
            if i not in self.of_pools:
                joined = [parts[used] for used in {self.nodes[i].src, self.nodes[i].dst} & parts.keys()]
                together = sorted({i}.union(*joined))
                parts |= dict.fromkeys(together, together)
        return parts

    def _run(self, part: Sequence[int]) -> None:
        """Run a part of the network, keeping all maps that backward steps read. The pools' outputs exist already."""
        for i in part:
            self._forward(i, self.values, self._is_read_backwards)

    def _forward(self, i: int, maps: dict[int, int], is_needed: Callable[[int, int], bool]) -> None:
        src, base = self.nodes[i].src, self.nodes[i].dst
        self.forward(i, maps, None if base < 0 or base == src or is_needed(base, i) else base)

    def _is_read_later(self, i: int, after: int) -> bool:
        """True if the map of node i is read after node `after` in the first forward pass of a network with pools.

        The pools' outputs and the input are read again later; all other maps are recomputed.
        """
        lasting = i in self.of_pools or (self.input is not None and self.nodes[i].src == PIXELS)
        return any(j > after or (lasting and j not in self.of_pools) for j in self.readers.get(i, ()))

    def _is_read_backwards(self, i: int, after: int) -> bool:
        """True if the map of node i is read after node `after` of the same part, forwards or backwards."""
        return i in self.of_pools or any(
            (j > after and j not in self.of_pools) or (self.nodes[j].src == i and _reads_its_source(self.nodes[j]))
            for j in self.readers.get(i, ())
        )

    def _backward(self, i: int) -> None:
        node = self.nodes[i]
        if node.src == PIXELS:
            if i in self.slopes:
                at = {"first": node.first, "second": node.second}
                self.steps.append(Pixels(node.place, PIXELS, self.slopes[i], node.shape, node.shape, **at))  # type: ignore[arg-type]
            return
        g = self.slopes[i]
        if node.per_bias:
            self.steps.append(Total(node.place, g, g, node.out_shape, node.out_shape, slot=self.slots))
            self.shares.append(Share(name_of(node.place, "bias_var"), self.slots, node.per_bias))
            self.slots += 1
        if node.src != NOTHING:
            self._to_source(node, g)
        if node.dst >= 0 and not self._stops(node.dst):
            if node.dst not in self.slopes:  # nothing else reads g any more
                self.slopes[node.dst] = g
                if node.keep != 1.0:
                    step = Op(node.place, g, g, node.out_shape, node.out_shape, scale=node.keep)
                    self.steps.append(step)
                self.spare += node.keep == 1.0
            else:
                dst, keep = self._slope_of(node.dst, math.prod(node.out_shape))
                self.steps.append(Op(node.place, g, dst, node.out_shape, node.out_shape, None, None, keep, node.keep))

    def _stops(self, i: int) -> bool:
        """True if no gradient is needed beyond a map: a product of images has no parameters."""
        return self.nodes[i].src == PIXELS and not self.to_images

    def _slope_of(self, i: int, size: int) -> tuple[int, float]:
        """Return the map of ∂L/∂map of node i, and the factor `keep` of its old content: 0 if it is new, else 1."""
        begun = i in self.slopes
        if not begun:
            self.slopes[i] = self.new(size)
        return self.slopes[i], float(begun)

    def _to_source(self, node: Op, g: int) -> None:
        stops, size = self._stops(node.src), math.prod(node.shape)
        sums: Any = None if node.sums is None else tuple(map(transposed, node.sums))
        if not _reads_its_source(node):
            if not stops:
                dst, keep = self._slope_of(node.src, size)
                self.steps.append(Op(node.place, g, dst, node.out_shape, node.shape, None, sums, keep, node.scale))
            return
        if node.src not in self.values:  # its part is run again at first use
            self._run(self.parts[node.src])
        value, times = self.values[node.src], g
        if sums is not None:
            times = self.new(size)
            self.steps.append(Op(node.place, g, times, node.out_shape, node.shape, None, sums))
        dst, keep = (value, float(node.src in self.slopes)) if stops else self._slope_of(node.src, size)
        self.steps.append(
            Back(
                node.place, value, dst, node.shape, node.shape, node.activation, None, keep, node.scale, 0.0,
                node.first, node.second, times=times, slot=self.slots, writes=not stops,
            )
        )  # fmt: skip
        self.shares += shares_of(node, self.slots)
        self.slots += 2


def _reads_its_source(node: Op) -> bool:
    """True if a backward step reads the map that the node has read."""
    return node.activation is not None or node.per_weight != 0.0


def shares_of(node: Op, slot: int) -> list[Share]:
    """Return the shares of the two sums of a `Back`, from `slot` on."""
    shares: list[Share] = []
    a = node.activation
    value = [(slot, 1.0)]  # the sum of times · f as a combination of the two sums
    if a is not None and a.formula.family is RELU_LIKE:
        alpha, beta = a.coefficients
        value = [(slot, alpha), (slot + 1, beta)]
    if node.per_weight:
        name = name_of(node.place, "weight_var")
        shares += [Share(name, s, node.per_weight * part) for s, part in value]
    if a is None:
        return shares
    if a.formula.no_gradient:
        raise NetworkError(a.formula.no_gradient, a.place)
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
