"""The steps of a gradient's program: operations of the kernel, their transposes, and the sums that parameters get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .ops import NOTHING, Op, Program


@dataclass(frozen=True)
class Back(Op):
    """dst ← keep · dst + scale · f'(src) · times, where it `writes`, and the sums; no activation: f(K) = K.

    To the variances of both images goes scale · times · ∂f/∂K₁ and ∂f/∂K₂. `slot` is the first of two sums over all
    locations: of times · f(src), and of what the nonlinearity's own parameter needs. Of a RELU_LIKE they are those of
    times · R and of times · K, of an RBF those of times · f and of times · f · log f. Without writing `dst` is `src`.
    """

    times: int = NOTHING
    slot: int = 0
    writes: bool = True


@dataclass(frozen=True)
class Total(Op):
    """sums[slot] ← sums[slot] + Σ src."""

    slot: int = 0


@dataclass(frozen=True)
class Pixels(Op):
    """What a product of the two images, where `dst` is ∂L/∂map, gives to their pixels."""


@dataclass(frozen=True)
class Share:
    """A sum's part in the derivative by a parameter."""

    name: str
    slot: int
    factor: float


@dataclass(frozen=True)
class Reverse:
    """The program of a gradient: `buffers[seed]` starts as ∂L/∂K of the pair, `buffers[input]` as in `Program`.

    The first `forwards` of the `steps` are those of the kernel: after them K is in `buffers[value]`. After all of them
    the sums hold what the pair gives. The program's unit times their `shares` are the derivatives.
    """

    program: Program
    steps: tuple[Op, ...]
    forwards: int
    seed: int
    slots: int
    shares: tuple[Share, ...]
    value: int


def maps_of(step: Op) -> set[int]:
    """The maps that a step reads and writes."""
    return {v for v in (step.src, step.times if isinstance(step, Back) else NOTHING, step.dst) if v >= 0}


def renamed(step: Op, take: Callable[[int], int]) -> Op:
    """The step over the buffers that `take` gives its maps."""
    src = take(step.src) if step.src >= 0 else step.src
    if isinstance(step, Back):
        return replace(step, src=src, times=take(step.times), dst=take(step.dst))
    return replace(step, src=src, dst=take(step.dst))
