"""A network as a graph of calls, and its way back to `Sequential` and `Sum`. Nothing here knows PyTorch.

A module's forward is a graph: values, and for each the call that made it. A cnngp network is a tree of layers in series
and sums in parallel. `Graph.network` finds the tree of a graph, by the dominators of its sums; a graph that has none is
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_

from cnngp.network.composition import State, check_network, state_after
from cnngp.network.geometry import PaddingMode
from cnngp.network.layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Identity,
    Layer,
    NetworkError,
    Sequential,
    Sum,
    as_layer,
)

Pairs = tuple[tuple[int, int], ...]


class Refused(NetworkError):
    """A call that has no exact kernel; the message starts with its name."""


@dataclass(frozen=True)
class Input:
    pass


@dataclass(frozen=True)
class Add:
    pass


@dataclass(frozen=True)
class Scale:
    """Multiplication by a constant."""

    factor: float


@dataclass(frozen=True)
class Pad:
    pads: Pairs
    mode: PaddingMode


@dataclass(frozen=True)
class Cut:
    """The last locations of each axis dropped."""

    ends: tuple[int, ...]


@dataclass(frozen=True)
class Mean:
    """The mean over all locations, of which PyTorch may keep axes of size one; `fold` chooses the layer."""

    size: tuple[int, ...]


Call = Layer | Input | Add | Scale | Pad | Cut | Mean
POOLS = (AvgPool, GlobalAvgPool, Mean)
_WEIGHTED = (Conv, ConvTranspose, Dense)


@dataclass
class Vertex:
    name: str
    call: Call
    inputs: tuple[int, ...]


@dataclass
class Graph:
    """Vertices in the order of the calls, so inputs come before what uses them. Vertex 0 is the input."""

    allow_non_gaussian: bool = False
    vertices: list[Vertex] = field(default_factory=lambda: [Vertex("the input", Input(), ())])
    output: int = 0

    def add(self, name: str, call: Call, inputs: Sequence[int]) -> int:
        self.vertices.append(Vertex(name, call, tuple(inputs)))
        return len(self.vertices) - 1

    def users(self, i: int) -> list[Vertex]:
        """What reads vertex i, once for each time it does."""
        return [v for v in self.vertices for j in v.inputs if j == i]

    def drop_unused(self) -> None:
        """Calls that the output does not depend on are left without inputs, so that nothing counts them."""
        needed = {self.output}
        for i in reversed(range(len(self.vertices))):
            if i in needed:
                needed.update(self.vertices[i].inputs)
            elif i:
                self.vertices[i] = Vertex(self.vertices[i].name, Identity(), ())

    def network(self) -> Layer:
        """The network of a folded graph, or `Refused` with the name of the call that stands in the way."""
        _check_states(self)
        tree = _Tree(self)
        net = _series(tree.chain(self.output, 0))
        try:
            check_network(net)
        except NetworkError as error:
            raise Refused(f"{self.vertices[self.output].name}: {error}") from None
        return net


# ---- Gaussian or not -------------------------------------------------------------------------------------------------


def _check_states(graph: Graph) -> None:
    """The checks of composition.py, at each call, so that messages name the module's own parts."""
    states: list[State] = []
    for v in graph.vertices:
        before = [states[j] for j in v.inputs]
        match v.call:
            case Input():
                states.append(State.INPUT)
            case Add():
                if State.NON_GAUSSIAN in before and not graph.allow_non_gaussian:
                    source = graph.vertices[v.inputs[before.index(State.NON_GAUSSIAN)]]
                    raise Refused(
                        f"{v.name}: adds the output of the nonlinearity {source.name}, which is not Gaussian, so the "
                        "kernels do not add (a residual block has to add before its nonlinearity: pre-activation)"
                    )
                worst = [s for s in (State.NON_GAUSSIAN, State.INPUT) if s in before]
                states.append(worst[0] if worst else State.GAUSSIAN)
            case Scale() | Pad() | Cut() | Mean():
                raise AssertionError(f"{v} was not folded")
            case layer:
                state = before[0] if before else State.GAUSSIAN  # what nothing reads has no inputs
                try:
                    states.append(state_after(layer, state, v.name))
                except NetworkError as error:
                    images = ", or do it to the images and import the module without it"
                    raise Refused(f"{error}{images if state is State.INPUT else ''}") from None


# ---- the tree of a graph ---------------------------------------------------------------------------------------------


class _Tree:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.dominator = [0] * len(graph.vertices)
        self.depth = [0] * len(graph.vertices)
        self.above: list[int] = []  # each vertex with all it is made from, as bits: deep graphs have many
        self.weighted = sum(1 << i for i, v in enumerate(graph.vertices) if isinstance(v.call, _WEIGHTED))
        for i, v in enumerate(graph.vertices):
            self.above.append(reduce(or_, (self.above[j] for j in v.inputs), 1 << i))
            if v.inputs:
                self.dominator[i] = self.common(v.inputs)
                self.depth[i] = self.depth[self.dominator[i]] + 1

    def common(self, vertices: Iterable[int]) -> int:
        """The last vertex that every path from the input to any of these goes through."""
        first, *rest = vertices
        for other in rest:
            while first != other:
                if self.depth[first] >= self.depth[other]:
                    first = self.dominator[first]
                else:
                    other = self.dominator[other]
        return first

    def chain(self, end: int, start: int) -> list[Layer]:
        """The layers from vertex `start` to vertex `end`."""
        layers: list[Layer] = []
        while end != start:
            v = self.graph.vertices[end]
            if isinstance(v.call, Add):
                layers.append(self.parallel(self.terms(end), self.dominator[end], v.name))
                end = self.dominator[end]
            else:
                assert not isinstance(v.call, Input | Scale | Pad | Cut | Mean), v
                layers.append(v.call)
                end = v.inputs[0]
        return layers[::-1]

    def terms(self, i: int) -> list[int]:
        """What a sum adds up. a + b + c is one sum of three: a sum used only as a first term is opened."""
        first, *rest = self.graph.vertices[i].inputs
        opened = isinstance(self.graph.vertices[first].call, Add) and len(self.graph.users(first)) == 1
        return [*(self.terms(first) if opened else [first]), *rest]

    def parallel(self, terms: list[int], start: int, name: str) -> Layer:
        """Sum of the terms as branches from `start`. Terms that share a part become a sum inside one branch."""
        for sharing in (self.inside, self.weighted_inside):
            groups = _groups(terms, [sharing(t, start) for t in terms])
            if all(len(group) == 1 or self.common(group) != start for group in groups):
                break
        else:
            stuck = next(group for group in groups if len(group) > 1 and self.common(group) == start)
            bits = [self.weighted_inside(t, start) for t in stuck]
            common = max(a & b for i, a in enumerate(bits) for b in bits[:i])
            shared = self.graph.vertices[common.bit_length() - 1].name
            raise Refused(
                f"{name}: {shared} feeds several of its terms, but not by one path through all of them, so the graph "
                "is not made of layers in series and sums in parallel"
            )
        branches = []
        for group in groups:
            if len(group) == 1:
                branches.append(_series(self.chain(group[0], start)))
            else:
                fork = self.common(group)
                branches.append(_series([*self.chain(fork, start), self.parallel(group, fork, name)]))
        try:
            return Sum(*branches, allow_non_gaussian=self.graph.allow_non_gaussian and self.non_gaussian(terms))
        except NetworkError as error:
            raise Refused(f"{name}: {error}") from None

    def inside(self, end: int, start: int) -> int:
        """The vertices between `start` and `end`, with `end`."""
        return self.above[end] & ~self.above[start]

    def weighted_inside(self, end: int, start: int) -> int:
        """Those with weights between `start` and them. The others are functions of `start` and may stand twice."""
        inside = self.inside(end, start)
        reached, left = 0, inside
        while left:
            i = left.bit_length() - 1
            left ^= 1 << i
            if self.inside(i, start) & self.weighted:
                reached |= 1 << i
        return reached

    def non_gaussian(self, terms: list[int]) -> bool:
        return any(self.ends_in_nonlinearity(t) for t in terms)

    def ends_in_nonlinearity(self, i: int) -> bool:
        v = self.graph.vertices[i]
        if isinstance(v.call, Add):
            return any(map(self.ends_in_nonlinearity, v.inputs))
        if isinstance(v.call, POOLS):
            return self.ends_in_nonlinearity(v.inputs[0])
        return not isinstance(v.call, (*_WEIGHTED, Input))


def _groups(terms: list[int], parts: list[int]) -> list[list[int]]:
    """Terms joined where they share a part, in the order of their first members."""
    groups: list[tuple[list[int], int]] = []
    for term, part in zip(terms, parts, strict=True):
        joined = [g for g in groups if g[1] & part]
        members = [t for g in joined for t in g[0]] + [term]
        merged = (members, reduce(or_, (g[1] for g in joined), part))
        at = groups.index(joined[0]) if joined else len(groups)
        groups = [*groups[:at], merged, *(g for g in groups[at:] if g not in joined)]
    return [members for members, _ in groups]


def _series(layers: Sequence[Layer]) -> Layer:
    return layers[0] if len(layers) == 1 else as_layer(Sequential(*layers)) if layers else Identity()
