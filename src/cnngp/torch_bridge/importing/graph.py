"""A module's calls as a graph, and the graph as `Sequential` and `Sum`. Nothing here knows PyTorch.

A module's forward is a graph: values, and for each the call that made it. A cnngp network is a tree of layers in series
and sums in parallel. A sum's terms have the calls in common that all of them begin with; what is left of them are its
branches. What the network itself refuses, by a place such as layers[2], is told of the call that came to stand there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cnngp.network import layers
from cnngp.network.composition import check_network
from cnngp.network.layers import Layer, NetworkError
from cnngp.network.placed import shape_table
from cnngp.network.shapes import shape_text

from .fold import Add, Call, Chain, Fork, Mean, Pad, Refused, Scale, compact, fold

UNKNOWN = layers.Conv(1)
"""What stands for a call that was refused, so that all that is wrong can be told: Gaussian whatever it was given."""


@dataclass
class Vertex:
    name: str
    call: Call
    inputs: tuple[int, ...]


class Graph:
    """Vertices in the order of the calls, so inputs come before what uses them. Vertex 0 is the input."""

    def __init__(self, allow_non_gaussian: bool = False) -> None:
        self.allow_non_gaussian = allow_non_gaussian
        self.vertices = [Vertex("the input", layers.Identity(), ())]
        self.output = 0
        self.non_gaussian: set[int] = set()
        """The sums that are no Gaussian process, and allowed all the same."""

    def add(self, name: str, call: Call, inputs: Sequence[int]) -> int:
        self.vertices.append(Vertex(name, call, tuple(inputs)))
        return len(self.vertices) - 1

    def network(self, input_shape: Sequence[int] | None) -> Layer:
        """The network, or `Refused` with the call that stands in the way; without a shape, sizes are not looked at."""
        while True:
            try:
                return self._network(input_shape)
            except Refused as error:
                is_sum = isinstance(self.vertices[error.vertex].call, Add)
                if not self.allow_non_gaussian or not is_sum or error.vertex in self.non_gaussian:
                    raise
                self.non_gaussian.add(error.vertex)

    def _network(self, input_shape: Sequence[int] | None) -> Layer:
        chain = fold(self._chain())
        net = self._series(chain)
        with _told_of(chain, self.output):
            check_network(net)
            output = () if input_shape is None else shape_table(net, input_shape).output
        if math.prod(output) != 1:
            raise Refused(
                f"the module's output has {shape_text(output)} locations, and a Gaussian process here has one; end in "
                "Flatten and Linear",
                self.output,
            )
        return net

    def _chain(self) -> Chain:
        """The calls from the input to the output."""
        read = [j for v in self.vertices for j in v.inputs]
        chains: list[Chain] = [[]]  # to each vertex
        terms: dict[int, list[int]] = {}
        for i, v in enumerate(self.vertices[1:], start=1):
            if isinstance(v.call, Add):
                # a + b + c is one sum of three: a sum used only as a first term is opened.
                first, *rest = v.inputs
                opened = first in terms and read.count(first) == 1
                terms[i] = [*(terms[first] if opened else [first]), *rest]
                chains.append(self._joined([chains[t] for t in terms[i]], i))
            else:
                call = self._pool(i, v.call) if isinstance(v.call, Mean) else v.call
                chains.append([*chains[v.inputs[0]], (i, call)])
        return chains[self.output]

    def _pool(self, i: int, mean: Mean) -> Layer:
        """A pool that keeps the axes where a filter or a pool reads its result, else a global one."""
        reached = {i}
        for j, v in enumerate(self.vertices):
            if not reached.isdisjoint(v.inputs):
                reached.add(j)
                if isinstance(v.call, layers.Conv | layers.ConvTranspose | layers.AvgPool):
                    return layers.AvgPool(compact(mean.size))
        return layers.GlobalAvgPool()

    def _joined(self, terms: list[Chain], end: int) -> Chain:
        """What all terms of the sum `end` begin with, and the rest of each as a branch; branches do the same."""
        common = 0
        while all(len(term) > common and term[common][0] == terms[0][common][0] for term in terms):
            common += 1
        groups: dict[int, list[Chain]] = {}  # by the next call; a term that has none is a branch of its own
        for k, term in enumerate(terms):
            groups.setdefault(term[common][0] if len(term) > common else -k, []).append(term[common:])
        branches = [group[0] if len(group) == 1 else self._joined(group, end) for group in groups.values()]
        seen: set[int] = set()
        for weights in map(_weights, branches):
            if weights & seen:
                raise Refused(
                    f"{self.vertices[max(weights & seen)].name} feeds several of its terms, but not by one path "
                    "through all of them, so the graph is not made of layers in series and sums in parallel",
                    end,
                )
            seen |= weights
        return [*terms[0][:common], (end, Fork(branches))]

    def _series(self, chain: Chain) -> Layer:
        """A folded chain as a layer."""
        made: list[Layer] = []
        for i, call in chain:
            if isinstance(call, Fork):
                branches = list(map(self._series, call.branches))
                with _told_of([(i, call)], i):
                    call = layers.Sum(*branches, allow_non_gaussian=i in self.non_gaussian)
            assert not isinstance(call, Add | Scale | Pad | Mean), call
            made.append(call)
        with _told_of(chain, self.output):
            if len(made) == 1:
                return made[0]
            return layers.as_layer(layers.Sequential(*made)) if made else layers.Identity()


def _weights(chain: Chain) -> set[int]:
    """The calls with weights in a chain. The others are functions of their input and may stand twice."""
    weighted = layers.Conv | layers.ConvTranspose | layers.Dense
    inside = [branch for _, call in chain if isinstance(call, Fork) for branch in call.branches]
    return {i for i, call in chain if isinstance(call, weighted)}.union(*map(_weights, inside))


@contextmanager
def _told_of(chain: Chain, vertex: int) -> Iterator[None]:
    """What the network of a chain refuses at a place, as refused by the call that came to stand there."""
    try:
        yield
    except Refused:
        raise
    except NetworkError as error:
        place = list(map(int, re.findall(r"\d+", error.place)))
        raise Refused(error.message, _vertex_at(chain, place, vertex)) from None


def _vertex_at(chain: Chain, place: list[int], vertex: int) -> int:
    """The call at a place; of what is no call, such as the skip of a sum, `vertex`, in which it stands."""
    if not chain or (len(chain) > 1 and not place):
        return vertex
    i, rest = (0, place) if len(chain) == 1 else (place[0], place[1:])
    vertex, call = chain[i]
    return _vertex_at(call.branches[rest[0]], rest[1:], vertex) if isinstance(call, Fork) and rest else vertex
