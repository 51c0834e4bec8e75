"""Padding, cropping and constant factors are calls of their own in PyTorch and arguments of a layer here.

`fold` moves them into the layers next to them, and spells every padding the way a person would, so that an imported
network has the fingerprint of the same network written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    """A call that has no exact kernel."""


@dataclass(frozen=True)
class Add:
    pass


@dataclass(frozen=True)
class Scale:
    """Multiplication by a constant."""

    factor: float


@dataclass(frozen=True)
class Pad:
    """Locations added before and after each axis; where the numbers are negative, dropped."""

    pads: Pairs
    mode: PaddingMode


@dataclass(frozen=True)
class Mean:
    """The mean over all locations, of which PyTorch may keep axes of size one; `fold` chooses the layer."""

    size: tuple[int, ...]


@dataclass(frozen=True)
class Fork:
    """Chains from one value, whose results are added."""

    branches: list[Chain]
    allow_non_gaussian: bool


Call: TypeAlias = Layer | Add | Scale | Pad | Mean
Chain: TypeAlias = "list[tuple[str, Call | Fork]]"
"""Calls in series, each with its name."""


def fold(chain: Chain) -> Chain:
    """The chain with its factors, its padding and its cropping as arguments of the layers next to them."""
    return _with_means(_folded(chain), read=False)


def _folded(chain: Chain) -> Chain:
    chain = [
        (name, replace(call, branches=list(map(_folded, call.branches))) if isinstance(call, Fork) else call)
        for name, call in chain
    ]
    kinds: dict[type, Callable[[Chain, Chain, str, Any], Chain]] = {Scale: _fold_scale, Pad: _fold_pad}
    for kind, fold_one in kinds.items():
        for i in reversed(range(len(chain))):
            name, call = chain[i]
            if isinstance(call, kind):
                chain = fold_one(chain[:i], chain[i + 1 :], name, call)
    return chain


def _fold_scale(before: Chain, after: Chain, name: str, scale: Scale) -> Chain:
    through = (AvgPool, GlobalAvgPool, Mean, Pad)  # the mean of what has the factor
    folded = _changed(before, -1, partial(_scaled, factor=scale.factor), through)
    if folded is not None:
        return folded + after
    folded = _changed(after, 0, partial(_scaled_input, factor=scale.factor), through)
    if folded is None:
        raise Refused(
            f"{name}: the factor {scale.factor:.6g} stands neither right after a layer with weights or a ReLU nor "
            "right before one, so no layer can take it up; put it on the last layer of the branch"
        )
    return before + folded


def _fold_pad(before: Chain, after: Chain, name: str, pad: Pad) -> Chain:
    if min(map(min, pad.pads)) < 0:
        last = before[-1][1] if before else None
        if not isinstance(last, ConvTranspose) or max(map(max, pad.pads)) > 0:
            raise Refused(f"{name}: cropping other than right after a transposed convolution")
        return [*before[:-1], (before[-1][0], _cropped(last, pad.pads)), *after]
    folded = _changed(after, 0, partial(_padded, pad=pad), ())
    if folded is None:
        raise Refused(f"{name}: padding that does not go straight into a convolution")
    return before + folded


def _changed(chain: Chain, end: int, change: Callable[[Call], Call | None], through: tuple[type, ...]) -> Chain | None:
    """The chain with `change` done to its first layer (end 0) or its last (end -1), of a fork to that of every branch.

    Calls `through` which a change passes are skipped. None where there is no such layer or it cannot be changed.
    """
    if not chain:
        return None
    name, call = chain[end]
    rest: Chain | None = chain[1:] if end == 0 else chain[:-1]
    changed: Call | Fork | None = call
    if isinstance(call, through):
        rest = _changed(chain[1:] if end == 0 else chain[:-1], end, change, through)
    elif isinstance(call, Fork):
        branches = [_changed(branch, end, change, through) for branch in call.branches]
        made = [branch for branch in branches if branch is not None]
        changed = replace(call, branches=made) if len(made) == len(branches) else None
    else:
        changed = change(call)
    if changed is None or rest is None:
        return None
    return [(name, changed), *rest] if end == 0 else [*rest, (name, changed)]


def _scaled(call: Call, factor: float) -> Call | None:
    """The layer followed by a constant factor, where that is a layer too: gain·a, or variances times a²."""
    match call:
        case ReLU():
            return ReLU(call.gain * factor)
        case Conv() | ConvTranspose() | Dense():
            return replace(call, weight_var=call.weight_var * factor**2, bias_var=call.bias_var * factor**2)
        case Scale():
            return Scale(call.factor * factor)
        case _:
            return None


def _scaled_input(call: Call, factor: float) -> Call | None:
    """The layer preceded by a constant factor: relu(a z) = a relu(z) for a > 0, or weight_var·a²."""
    match call:
        case ReLU() if factor > 0:
            return ReLU(call.gain * factor)
        case Conv() | ConvTranspose() | Dense():
            return replace(call, weight_var=call.weight_var * factor**2)
        case _:
            return None


def _padded(call: Call, pad: Pad) -> Call | None:
    if not isinstance(call, Conv):
        return None
    own = windows(call, len(pad.pads), "")
    if any(w.before or w.after for w in own) and (call.padding_mode, pad.mode) != ("zeros", "zeros"):
        return None  # two paddings are one padding only if both are zeros
    both = tuple((a + w.before, b + w.after) for (a, b), w in zip(pad.pads, own, strict=True))
    return spelled(replace(call, padding=both, padding_mode=pad.mode), len(own))


def _cropped(call: ConvTranspose, pads: Pairs) -> ConvTranspose:
    """Dropping locations is that much more padding, or less output_padding."""
    axes = windows(call, len(pads), "")
    extra = call.output_padding if isinstance(call.output_padding, tuple) else (call.output_padding,) * len(pads)
    return transposed_padding(
        call,
        tuple((w.before - before, w.after) for w, (before, _) in zip(axes, pads, strict=True)),
        [e + after for e, (_, after) in zip(extra, pads, strict=True)],
        *zip(*((w.kernel, w.stride, w.dilation) for w in axes), strict=True),
    )


def _with_means(chain: Chain, read: bool) -> Chain:
    """Each mean as a pool that keeps its axes, where a filter or a pool reads them before a Dense does, else as a
    global pool. `read`: whether one reads what the chain gives."""
    done: Chain = []
    for name, call in reversed(chain):
        if isinstance(call, Mean):
            call = AvgPool(compact(call.size)) if read else GlobalAvgPool()
        elif isinstance(call, Fork):
            call = replace(call, branches=[_with_means(branch, read) for branch in call.branches])
        done.append((name, call))
        read = _reads(call, read)
    return done[::-1]


def _reads(call: Call | Fork, after: bool) -> bool:
    """Whether a filter or a pool reads the axes of what `call` is given; `after`: whether one reads its result's."""
    if isinstance(call, Fork):
        found = False
        for branch in call.branches:
            read = after
            for _, inner in reversed(branch):
                read = _reads(inner, read)
            found |= read
        return found
    return isinstance(call, Conv | ConvTranspose | AvgPool) or (after and not isinstance(call, Dense | GlobalAvgPool))


# ---- how a person would write it -------------------------------------------------------------------------------------


def compact(values: Sequence[int]) -> int | tuple[int, ...]:
    """(3, 3) as 3: the spelling a person would use, and the fingerprint it has."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def spelled(call: Conv, axes: int) -> Conv:
    """The same convolution with its padding as a person would write it."""
    along = windows(call, axes, "")
    pads = tuple((w.before, w.after) for w in along)
    padding = _padding_of(pads, [w.dilation * (w.kernel - 1) for w in along])
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


def transposed_padding(
    call: ConvTranspose,
    pads: Pairs,
    extra: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> ConvTranspose:
    """The layer with this padding and output_padding (negative: cropped), spelled "same" where it gives size·stride.

    With reach = dilation·(k − 1) the output has (size − 1)·stride + reach + 1 − before − after + extra locations.
    "same" is before = ⌊reach/2⌋ and size·stride locations, so reach + 1 − before − after + extra = stride.
    """
    reach = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    zipped = list(zip(pads, extra, reach, stride, strict=True))
    if all(b == r // 2 and r + 1 + e - b - a == s for (b, a), e, r, s in zipped):
        return replace(call, padding="same", output_padding=0)
    moved = tuple((b, a - min(e, 0)) for (b, a), e, _, _ in zipped)
    return replace(
        call, padding=_padding_of(moved, [-1] * len(moved)), output_padding=compact([max(e, 0) for e in extra])
    )
