"""Padding, cropping and constant factors are calls of their own in PyTorch and arguments of a layer here.

`fold` moves them into the layers next to them, and spells every padding the way a person would, so that an imported
network has the fingerprint of the same network written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cnngp.network.geometry import PaddingMode
from cnngp.network.layers import (
    AvgPool,
    Conv,
    ConvTranspose,
    Dense,
    GlobalAvgPool,
    Layer,
    NetworkError,
    Padding,
    ReLU,
)
from cnngp.network.shapes import windows

Pairs = tuple[tuple[int, int], ...]


class Refused(NetworkError):
    """A call that has no exact kernel; `vertex` is its number in the graph, where the graph refuses it."""

    def __init__(self, message: str, vertex: int = 0) -> None:
        super().__init__(message)
        self.vertex = vertex


@dataclass(frozen=True)
class Add:
    pass


@dataclass(frozen=True)
class Mean:
    """The mean over all locations, of which PyTorch may keep axes of size one; the graph chooses the layer."""

    size: tuple[int, ...]


@dataclass(frozen=True)
class Scale:
    """Multiplication by a constant."""

    factor: float

    def into(self, call: Call, behind: bool) -> Call | None:
        """The layer with the factor in it that stands `behind` the layer or before it, or None."""
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
    """Locations added before and after each axis; where the numbers are negative, dropped."""

    pads: Pairs
    mode: PaddingMode

    def into(self, call: Call, behind: bool) -> Call | None:
        """A convolution with this padding before it, or a transposed one with this cropping `behind` it."""
        if isinstance(call, ConvTranspose) and behind and max(map(max, self.pads)) <= 0:
            return self._cropped(call)
        if not isinstance(call, Conv) or behind or min(map(min, self.pads)) < 0:
            return None
        own = windows(call, len(self.pads), "")
        if any(w.before or w.after for w in own) and (call.padding_mode, self.mode) != ("zeros", "zeros"):
            return None  # two paddings are one padding only if both are zeros
        both = tuple((a + w.before, b + w.after) for (a, b), w in zip(self.pads, own, strict=True))
        return spelled(replace(call, padding=both, padding_mode=self.mode), len(own))

    def _cropped(self, call: ConvTranspose) -> ConvTranspose:
        """Dropping locations is that much more padding, or less output_padding."""
        axes = len(self.pads)
        extra = call.output_padding if isinstance(call.output_padding, tuple) else (call.output_padding,) * axes
        own = windows(call, axes, "")
        pads = tuple((w.before - before, w.after) for w, (before, _) in zip(own, self.pads, strict=True))
        return transposed_padding(call, pads, [e + after for e, (_, after) in zip(extra, self.pads, strict=True)])

    def __str__(self) -> str:
        if min(map(min, self.pads)) < 0:
            return "cropping other than right after a transposed convolution"
        return "padding that does not go straight into a convolution"


@dataclass(frozen=True)
class Fork:
    """Chains from one value, whose results are added."""

    branches: list[Chain]


Call: TypeAlias = Layer | Add | Scale | Pad | Mean
Chain: TypeAlias = "list[tuple[int, Call | Fork]]"
"""Calls in series, each with its number in the graph."""


def fold(chain: Chain) -> Chain:
    """The chain with its factors, its padding and its cropping as arguments of the layers next to them."""
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
    """The chain with what stands `behind` it in its last layer, or what stands before it in its first.

    Of a fork it is every branch's. None where there is no such layer or it cannot be changed.
    """
    if not chain:
        return None
    *rest, (vertex, call) = chain if behind else chain[::-1]
    changed: Call | Fork | None = call
    if isinstance(given, Scale) and isinstance(call, AvgPool | GlobalAvgPool | Pad):  # the mean of what has the factor
        inner = _taken_up(rest if behind else rest[::-1], given, behind)
        if inner is None:
            return None
        rest = inner if behind else inner[::-1]
    elif isinstance(call, Fork):
        branches = [_taken_up(branch, given, behind) for branch in call.branches]
        made = [branch for branch in branches if branch is not None]
        changed = Fork(made) if len(made) == len(branches) else None
    else:
        changed = given.into(call, behind)
    if changed is None:
        return None
    found: Chain = [*rest, (vertex, changed)]
    return found if behind else found[::-1]


# ---- how a person would write it -------------------------------------------------------------------------------------


def compact(values: Sequence[int]) -> int | tuple[int, ...]:
    """(3, 3) as 3: the spelling a person would use, and the fingerprint it has."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def spelled(call: Conv, axes: int) -> Conv:
    """The same convolution with its padding as a person would write it."""
    along = windows(call, axes, "")
    pads = tuple((w.before, w.after) for w in along)
    padding = _padding_of(pads, [w.reach - 1 for w in along])
    return replace(call, padding=padding, padding_mode=call.padding_mode if any(map(any, pads)) else "zeros")


def _padding_of(pads: Pairs, reach: Sequence[int]) -> Padding:
    """The shortest spelling of a padding: "same" where it is that, then "valid", an int, ints, pairs."""
    if all((before, after) == (r // 2, r - r // 2) for (before, after), r in zip(pads, reach, strict=True)):
        return "same"
    if not any(map(any, pads)):
        return "valid"
    if all(before == after for before, after in pads):
        return compact([before for before, _ in pads])
    return tuple(before if before == after else (before, after) for before, after in pads)


def transposed_padding(call: ConvTranspose, pads: Pairs, extra: Sequence[int]) -> ConvTranspose:
    """The layer with this padding and output_padding (negative: cropped), spelled "same" where it gives size·stride.

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
