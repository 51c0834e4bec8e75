"""The steps of a gradient's program: operations of the kernel, their transposes, and the sums that parameters get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from .ops import PIXELS, Activation, Op, Program, Shape


@dataclass(frozen=True)
class Back:
    """dst ← keep · dst + scale · f'(src) · times, without `dst` only the sums; no activation: f(K) = K.

    To the variances of both images goes scale · times · ∂f/∂K₁ and ∂f/∂K₂. `slot` is the first of two sums over all
    locations: of times · f(src), and of what the nonlinearity's own parameter needs. Of a RELU_LIKE they are those of
    times · R and of times · K, of an RBF those of times · f and of times · f · log f.
    """

    place: str
    src: int
    times: int
    dst: int | None
    shape: Shape
    activation: Activation | None
    keep: float
    scale: float
    slot: int
    first: Shape = (0, 0, 0)
    second: Shape = (0, 0, 0)


@dataclass(frozen=True)
class Total:
    """sums[slot] ← sums[slot] + Σ src."""

    place: str
    src: int
    shape: Shape
    slot: int


@dataclass(frozen=True)
class Pixels:
    """What a product of the two images, where `src` is ∂L/∂map, gives to their pixels."""

    place: str
    src: int
    shape: Shape
    first: Shape
    second: Shape


Step: TypeAlias = Op | Back | Total | Pixels


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
    steps: tuple[Step, ...]
    forwards: int
    seed: int
    slots: int
    shares: tuple[Share, ...]
    value: int


def maps_of(step: Step) -> list[int]:
    """The maps that a step reads and writes, those that it reads first."""
    match step:
        case Op():
            return [v for v in (step.src, step.dst) if v >= 0]
        case Back():
            return [step.src, step.times, *([] if step.dst is None else [step.dst])]
        case Total() | Pixels():
            return [step.src]


def renamed(step: Step, take: Callable[[int], int]) -> Step:
    """The step over the buffers that `take` gives its maps."""
    match step:
        case Op():
            return replace(step, src=take(step.src) if step.src >= 0 else step.src, dst=take(step.dst))
        case Back():
            dst = None if step.dst is None else take(step.dst)
            return replace(step, src=take(step.src), times=take(step.times), dst=dst)
        case Total() | Pixels():
            return replace(step, src=take(step.src))


def as_program(found: Reverse) -> Program:
    """The program with its steps as operations, for what lays operations out: backward steps have no sums."""

    def op(step: Step) -> Op:
        match step:
            case Op():
                return step
            case Back():
                return Op(
                    step.place, step.src, step.src if step.dst is None else step.dst, step.shape, step.shape,
                    step.activation, None, step.keep, step.scale, 0.0, step.first, step.second,
                )  # fmt: skip
            case Total():
                return Op(step.place, step.src, step.src, step.shape, step.shape, None, None, 1.0, 1.0, 0.0)
            case Pixels():
                return Op(
                    step.place, PIXELS, step.src, step.shape, step.shape, None, None, 0.0, 1.0, 0.0, step.first,
                    step.second,
                )  # fmt: skip

    return replace(found.program, ops=tuple(map(op, found.steps)))
