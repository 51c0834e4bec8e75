"""A module's calls as a graph, and the graph as `Sequential` and `Sum`. Nothing here knows PyTorch.

A module's forward is a graph: values, and for each the call that made it. A cnngp network is a tree of layers in series
and sums in parallel. `Graph.network` finds the tree of a graph by the dominators of its sums; a graph that has none is
refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from cnngp.network.composition import State, check_network, state_after
from cnngp.network.layers import Conv, ConvTranspose, Dense, Identity, Layer, NetworkError, Sequential, Sum, as_layer

from .fold import Add, Call, Chain, Fork, Mean, Pad, Refused, Scale, fold


@dataclass(frozen=True)
class Vertex:
    name: str
    call: Call
    inputs: tuple[int, ...]
    state: State
    above: int
    """The vertices that it is made from, itself included, as bits: deep graphs have many."""
    dominator: int
    """The last vertex that every path from the input to it goes through."""
    depth: int
    """How many dominators there are above it."""


class Graph:
    """Vertices in the order of the calls, so inputs come before what uses them. Vertex 0 is the input."""

    def __init__(self, allow_non_gaussian: bool = False) -> None:
        self.allow_non_gaussian = allow_non_gaussian
        self.vertices = [Vertex("the input", Identity(), (), State.INPUT, 1, 0, 0)]
        self.readers = [0]
        """How often each vertex is read."""
        self.weighted = 0
        """The vertices with weights, as bits."""
        self.output = 0

    def add(self, name: str, call: Call, inputs: Sequence[int], state: State | None = None) -> int:
        """A new vertex; its state follows from its inputs unless it is given. `Refused` where it is not Gaussian."""
        i = len(self.vertices)
        state = self._state(call, inputs) if state is None else state
        above = reduce(or_, (self.vertices[j].above for j in inputs), 1 << i)
        dominator = self._common(inputs)
        depth = self.vertices[dominator].depth + 1
        self.vertices.append(Vertex(name, call, tuple(inputs), state, above, dominator, depth))
        self.readers.append(0)
        for j in inputs:
            self.readers[j] += 1
        if isinstance(call, Conv | ConvTranspose | Dense):
            self.weighted |= 1 << i
        return i

    def _state(self, call: Call, inputs: Sequence[int]) -> State:
        """The checks of composition.py, at each call, so that messages name the module's own parts."""
        before = [self.vertices[j].state for j in inputs]
        if isinstance(call, Add):
            if State.NON_GAUSSIAN in before and not self.allow_non_gaussian:
                source = self.vertices[inputs[before.index(State.NON_GAUSSIAN)]]
                raise Refused(
                    f"adds the output of the nonlinearity {source.name}, which is not Gaussian, so the "
                    "kernels do not add (a residual block has to add before its nonlinearity: pre-activation)"
                )
            return next((state for state in (State.NON_GAUSSIAN, State.INPUT) if state in before), State.GAUSSIAN)
        if isinstance(call, Scale | Pad | Mean):
            return before[0]
        try:
            return state_after(call, before[0], "")
        except NetworkError as error:
            images = ", or do it to the images and import the module without it"
            raise Refused(f"{error}{images if before[0] is State.INPUT else ''}") from None

    def network(self) -> Layer:
        """The network, or `Refused` with the name of the call that stands in the way."""
        net = _series(fold(self._chain(self.output, 0)))
        try:
            check_network(net)
        except NetworkError as error:
            raise Refused(f"{self.vertices[self.output].name}: {error}") from None
        return net

    def _common(self, vertices: Iterable[int]) -> int:
        """The last vertex that every path from the input to any of these goes through."""
        first, *rest = vertices
        for other in rest:
            while first != other:
                if self.vertices[first].depth >= self.vertices[other].depth:
                    first = self.vertices[first].dominator
                else:
                    other = self.vertices[other].dominator
        return first

    def _chain(self, end: int, start: int) -> Chain:
        """The calls from vertex `start` to vertex `end`."""
        chain: Chain = []
        while end != start:
            v = self.vertices[end]
            call = self._parallel(self._terms(end), v.dominator, v.name) if isinstance(v.call, Add) else v.call
            chain.append((v.name, call))
            end = v.dominator
        return chain[::-1]

    def _terms(self, i: int) -> list[int]:
        """What a sum adds up. a + b + c is one sum of three: a sum used only as a first term is opened."""
        first, *rest = self.vertices[i].inputs
        opened = isinstance(self.vertices[first].call, Add) and self.readers[first] == 1
        return [*(self._terms(first) if opened else [first]), *rest]

    def _parallel(self, terms: list[int], start: int, name: str) -> Fork:
        """The terms as branches from `start`. Terms that share a part become a sum inside one branch."""
        for sharing in (self._inside, self._weighted_inside):
            groups = _groups(terms, [sharing(t, start) for t in terms])
            stuck = [group for group in groups if len(group) > 1 and self._common(group) == start]
            if not stuck:
                break
        else:
            bits = [self._weighted_inside(t, start) for t in stuck[0]]
            common = max(a & b for i, a in enumerate(bits) for b in bits[:i])
            shared = self.vertices[common.bit_length() - 1].name
            raise Refused(
                f"{name}: {shared} feeds several of its terms, but not by one path through all of them, so the graph "
                "is not made of layers in series and sums in parallel"
            )
        branches = []
        for group in groups:
            fork = self._common(group)
            inner = [(name, self._parallel(group, fork, name))] if len(group) > 1 else []
            branches.append([*self._chain(fork, start), *inner])
        return Fork(branches, any(self.vertices[t].state is State.NON_GAUSSIAN for t in terms))

    def _inside(self, end: int, start: int) -> int:
        """The vertices between `start` and `end`, with `end`."""
        return self.vertices[end].above & ~self.vertices[start].above

    def _weighted_inside(self, end: int, start: int) -> int:
        """Those with weights between `start` and them. The others are functions of `start` and may stand twice."""
        left = self._inside(end, start)
        reached = 0
        while left:
            i = left.bit_length() - 1
            left ^= 1 << i
            if self._inside(i, start) & self.weighted:
                reached |= 1 << i
        return reached


def _groups(terms: list[int], parts: list[int]) -> list[list[int]]:
    """Terms joined where they share a part, in the order of their first members."""
    groups: list[tuple[list[int], int]] = []
    for term, part in zip(terms, parts, strict=True):
        joined = [group for group in groups if group[1] & part]
        members = [t for group in joined for t in group[0]] + [term]
        merged = (members, reduce(or_, (group[1] for group in joined), part))
        at = groups.index(joined[0]) if joined else len(groups)
        groups = [*groups[:at], merged, *(group for group in groups[at:] if group not in joined)]
    return [members for members, _ in groups]


def _series(chain: Chain) -> Layer:
    """A folded chain as a layer."""
    layers: list[Layer] = []
    for name, call in chain:
        if isinstance(call, Fork):
            try:
                call = Sum(*map(_series, call.branches), allow_non_gaussian=call.allow_non_gaussian)
            except NetworkError as error:
                raise Refused(f"{name}: {error}") from None
        assert not isinstance(call, Add | Scale | Pad | Mean), call
        layers.append(call)
    return layers[0] if len(layers) == 1 else as_layer(Sequential(*layers)) if layers else Identity()
