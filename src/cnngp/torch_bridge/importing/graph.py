"""Turn the graph of a module's calls into a tree of `Sequential` and `Sum`. Nothing here knows PyTorch.

A module's forward is a graph: values, and for each the call that made it. A cnngp network is a tree of layers in series
and sums in parallel. Calls with which all terms of a sum begin stand before the sum; the rest of each term is a branch.
An error that the network raises at a place such as layers[2] is reported for the call that became the layer there.

Padding, cropping and constant factors are separate calls in PyTorch but arguments of a layer here: `fold` moves them
into the adjacent layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cnngp.network.composition import check_network
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
    Padding,
    ReLU,
    Sequential,
    Sum,
    as_layer,
)
from cnngp.network.placed import shape_table
from cnngp.network.shapes import shape_text, windows

Pairs = tuple[tuple[int, int], ...]
UNKNOWN = Conv(1)
"""Placeholder for a refused call, so that all problems can be reported: its output is Gaussian for any input."""


class Refused(NetworkError):
    """Error for a call that has no exact kernel; `vertex` is its number if it is raised by the graph."""

    def __init__(self, message: str, vertex: int = 0) -> None:
        super().__init__(message)
        self.vertex = vertex


# ---- calls that are no layers ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Add:
    pass


@dataclass(frozen=True)
class Mean:
    """Mean over all locations; the graph chooses the layer, because PyTorch may keep axes of size one."""

    size: tuple[int, ...]


@dataclass(frozen=True)
class Scale:
    """Multiplication by a constant."""

    factor: float

    def into(self, call: Call, behind: bool) -> Call | None:
        """The layer with the factor absorbed, which comes after the layer if `behind`, else before it; or None."""
        match call:
            case ReLU() if behind or self.factor > 0:  # relu(a z) = a relu(z)
                return ReLU(call.gain * self.factor)
            case Conv() | ConvTranspose() | Dense():
                bias_var = call.bias_var * self.factor**2 if behind else call.bias_var
                return replace(call, weight_var=call.weight_var * self.factor**2, bias_var=bias_var)
            case Scale() if behind:
                return Scale(call.factor * self.factor)
            case _:
                return None

    def __str__(self) -> str:
        return (
            f"the factor {self.factor:.6g} stands neither right after a layer with weights or a ReLU nor "
            "right before one, so no layer can take it up; put it on the last layer of the branch"
        )


@dataclass(frozen=True)
class Pad:
    """Padding: locations added before and after each axis, or dropped where the numbers are negative."""

    pads: Pairs
    mode: PaddingMode

    def into(self, call: Call, behind: bool) -> Call | None:
        """A convolution with this padding absorbed, or a transposed one with this cropping after it; or None."""
        if not isinstance(call, Conv | ConvTranspose):
            return None
        axes = len(self.pads)
        own = windows(call, axes, "")
        if isinstance(call, ConvTranspose):
            if not behind or max(map(max, self.pads)) > 0:
                return None
            # Dropping locations equals more padding at the start, or less output_padding at the end.
            extra = call.output_padding if isinstance(call.output_padding, tuple) else (call.output_padding,) * axes
            pads = tuple((w.before - before, w.after) for w, (before, _) in zip(own, self.pads, strict=True))
            return transposed_padding(call, pads, [e + after for e, (_, after) in zip(extra, self.pads, strict=True)])
        if behind or min(map(min, self.pads)) < 0:
            return None
        if any(w.before or w.after for w in own) and (call.padding_mode, self.mode) != ("zeros", "zeros"):
            return None  # two paddings are one padding only if both are zeros
        both = tuple((a + w.before, b + w.after) for (a, b), w in zip(self.pads, own, strict=True))
        return spelled(replace(call, padding=both, padding_mode=self.mode), axes)

    def __str__(self) -> str:
        if min(map(min, self.pads)) < 0:
            return "cropping other than right after a transposed convolution"
        return "padding that does not go straight into a convolution"


@dataclass(frozen=True)
class Fork:
    """Chains that start from one value and whose results are added."""

    branches: list[Chain]


Call: TypeAlias = Layer | Add | Scale | Pad | Mean
Chain: TypeAlias = "list[tuple[int, Call | Fork]]"
"""Calls in series, each with its vertex number."""


# ---- the graph and its network ---------------------------------------------------------------------------------------


@dataclass
class Vertex:
    name: str
    call: Call
    inputs: tuple[int, ...]


class Graph:
    """Vertices in the order of the calls, so inputs precede their users. Vertex 0 is the input."""

    def __init__(self, allow_non_gaussian: bool = False) -> None:
        self.allow_non_gaussian = allow_non_gaussian
        self.vertices = [Vertex("the input", Identity(), ())]
        self.output = 0
        self.non_gaussian: set[int] = set()
        """Sums that are not Gaussian but allowed by `allow_non_gaussian`."""

    def add(self, name: str, call: Call, inputs: Sequence[int]) -> int:
        self.vertices.append(Vertex(name, call, tuple(inputs)))
        return len(self.vertices) - 1

    def network(self, input_shape: Sequence[int] | None) -> Layer:
        """Return the network, or raise `Refused` for the call that prevents it; a shape is needed to check sizes."""
        while True:
            try:
                chain = fold(self._chain())
                net = self._series(chain)
                with _told_of(chain, self.output):
                    check_network(net)
                    output = () if input_shape is None else shape_table(net, input_shape).output
                break
            except Refused as error:
                is_sum = isinstance(self.vertices[error.vertex].call, Add)
                if not self.allow_non_gaussian or not is_sum or error.vertex in self.non_gaussian:
                    raise
                self.non_gaussian.add(error.vertex)
        if math.prod(output) != 1:
            raise Refused(
                f"the module's output has {shape_text(output)} locations, and a Gaussian process here has one; end in "
                "Flatten and Linear",
                self.output,
            )
        return net

    def _chain(self) -> Chain:
        """The chain of calls from the input to the output."""
        read = [j for v in self.vertices for j in v.inputs]
        chains: list[Chain] = [[]]  # from the input to each vertex
        terms: dict[int, list[int]] = {}
        for i, v in enumerate(self.vertices[1:], start=1):
            if isinstance(v.call, Add):
                # a + b + c is one sum of three: a sum used only as a first term is merged into the outer one.
                first, *rest = v.inputs
                opened = first in terms and read.count(first) == 1
                terms[i] = [*(terms[first] if opened else [first]), *rest]
                chains.append(self._joined([chains[t] for t in terms[i]], i))
            else:
                call = self._pool(i, v.call) if isinstance(v.call, Mean) else v.call
                chains.append([*chains[v.inputs[0]], (i, call)])
        return chains[self.output]

    def _pool(self, i: int, mean: Mean) -> Layer:
        """`AvgPool`, which keeps the axes, if a filter or a pool reads the result, else `GlobalAvgPool`."""
        reached = {i}
        for j, v in enumerate(self.vertices):
            if not reached.isdisjoint(v.inputs):
                reached.add(j)
                if isinstance(v.call, Conv | ConvTranspose | AvgPool):
                    return AvgPool(compact(mean.size))
        return GlobalAvgPool()

    def _joined(self, terms: list[Chain], end: int) -> Chain:
        """The common beginning of all terms of the sum `end`, then a fork of their rests, grouped the same way."""
        common = 0
        while all(len(term) > common and term[common][0] == terms[0][common][0] for term in terms):
            common += 1
        groups: dict[int, list[Chain]] = {}  # by the next call; a term without one is a branch of its own
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
        """Convert a folded chain to a layer."""
        made: list[Layer] = []
        for i, call in chain:
            if isinstance(call, Fork):
                branches = list(map(self._series, call.branches))
                with _told_of([(i, call)], i):
                    call = Sum(*branches, allow_non_gaussian=i in self.non_gaussian)
            assert not isinstance(call, Add | Scale | Pad | Mean), call
            made.append(call)
        with _told_of(chain, self.output):
            if len(made) == 1:
                return made[0]
            return as_layer(Sequential(*made)) if made else Identity()


def _weights(chain: Chain) -> set[int]:
    """Calls with weights in a chain. The others are fixed functions of their input and may appear twice."""
    inside = [branch for _, call in chain if isinstance(call, Fork) for branch in call.branches]
    return {i for i, call in chain if isinstance(call, Conv | ConvTranspose | Dense)}.union(*map(_weights, inside))


@contextmanager
def _told_of(chain: Chain, vertex: int) -> Iterator[None]:
    """Re-raise a `NetworkError` at a place of the chain's network as `Refused` by the call that became that place.

    For a place that is no call, such as the skip of a sum, the enclosing call is used, or else `vertex`.
    """
    try:
        yield
    except Refused:
        raise
    except NetworkError as error:
        place = list(map(int, re.findall(r"\d+", error.place)))
        while chain and (len(chain) == 1 or place):
            i, place = (0, place) if len(chain) == 1 else (place[0], place[1:])
            vertex, call = chain[i]
            if not isinstance(call, Fork) or not place:
                break
            chain, place = call.branches[place[0]], place[1:]
        raise Refused(error.message, vertex) from None


# ---- factors, padding and cropping -----------------------------------------------------------------------------------


def fold(chain: Chain) -> Chain:
    """Return the chain with factors, padding and cropping moved into the arguments of the adjacent layers."""
    chain = [(i, Fork(list(map(fold, call.branches))) if isinstance(call, Fork) else call) for i, call in chain]
    for kind in (Scale, Pad):
        for at in reversed(range(len(chain))):
            vertex, call = chain[at]
            if isinstance(call, kind):
                before, after = chain[:at], chain[at + 1 :]
                if (behind := _taken_up(before, call, behind=True)) is not None:
                    chain = behind + after
                elif (front := _taken_up(after, call, behind=False)) is not None:
                    chain = before + front
                else:
                    raise Refused(str(call), vertex)
    return chain


def _taken_up(chain: Chain, given: Scale | Pad, behind: bool) -> Chain | None:
    """Absorb a factor or padding that comes after the chain (`behind`) into its last layer, else into its first.

    For a fork, every branch absorbs it. None if there is no such layer or it cannot absorb it.
    """
    if not chain:
        return None
    at = len(chain) - 1 if behind else 0
    vertex, call = chain[at]
    changed: Call | Fork | None
    if isinstance(given, Scale) and isinstance(call, AvgPool | GlobalAvgPool | Pad):  # these commute with a factor
        inner = _taken_up(chain[:at] if behind else chain[1:], given, behind)
        if inner is None:
            return None
        return [*inner, (vertex, call)] if behind else [(vertex, call), *inner]
    if isinstance(call, Fork):
        branches = [_taken_up(branch, given, behind) for branch in call.branches]
        made = [branch for branch in branches if branch is not None]
        changed = Fork(made) if len(made) == len(branches) else None
    else:
        changed = given.into(call, behind)
    return None if changed is None else [*chain[:at], (vertex, changed), *chain[at + 1 :]]


# ---- canonical spelling of padding, so that the fingerprint equals that of the network written by hand ---------------


def compact(values: Sequence[int]) -> int | tuple[int, ...]:
    """(3, 3) as 3: the usual spelling, which the fingerprint depends on."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def spelled(call: Conv, axes: int) -> Conv:
    """The same convolution with its padding in the shortest spelling."""
    along = windows(call, axes, "")
    pads = tuple((w.before, w.after) for w in along)
    padding = _padding_of(pads, [w.reach - 1 for w in along])
    return replace(call, padding=padding, padding_mode=call.padding_mode if any(map(any, pads)) else "zeros")


def _padding_of(pads: Pairs, reach: Sequence[int]) -> Padding:
    """Shortest spelling of a padding: "same" if it applies, then "valid", an int, ints, pairs."""
    if all((before, after) == (r // 2, r - r // 2) for (before, after), r in zip(pads, reach, strict=True)):
        return "same"
    if not any(map(any, pads)):
        return "valid"
    if all(before == after for before, after in pads):
        return compact([before for before, _ in pads])
    return tuple(before if before == after else (before, after) for before, after in pads)


def transposed_padding(call: ConvTranspose, pads: Pairs, extra: Sequence[int]) -> ConvTranspose:
    """The layer with this padding and output_padding (negative: cropped), spelled "same" if it gives size·stride.

    With reach = dilation·(k − 1) the output has (size − 1)·stride + reach + 1 − before − after + extra locations.
    "same" is before = ⌊reach/2⌋ and size·stride locations, so reach + 1 − before − after + extra = stride.
    """
    zipped: list[Any] = list(zip(pads, extra, windows(call, len(pads), ""), strict=True))
    if all(b == (w.reach - 1) // 2 and w.reach + e - b - a == w.stride for (b, a), e, w in zipped):
        return replace(call, padding="same", output_padding=0)
    moved = tuple((b, a - min(e, 0)) for (b, a), e, _ in zipped)
    return replace(
        call, padding=_padding_of(moved, [-1] * len(moved)), output_padding=compact([max(e, 0) for e in extra])
    )
