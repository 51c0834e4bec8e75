"""Register form of a program: its steps, with maps renamed so that a result may overwrite its source."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cnngp.kernel.program import NOTHING, Activation, Op, Program, Shape
from cnngp.network.geometry import AxisSum


@dataclass(frozen=True)
class Map:
    """A map held in registers: the number of its array, its shape, and whether it is known to be nonnegative."""

    name: int
    shape: Shape
    nonneg: bool


@dataclass(frozen=True)
class Step:
    """An operation on registers: `dst` is a new map or, with `op.keep`, the map that is added to."""

    op: Op
    src: Map
    dst: Map
    live: frozenset[Map]
    """The maps that are needed after this step."""
    times: Map | None = None
    """Map by which a slope is multiplied, besides `op.tangent.own` · src; None for zero."""
    beside: Step | None = None
    """Step for Θ in the same pass: the operation of the slope on the same source, or the same sums."""

    @property
    def activation(self) -> Activation | None:
        return self.op.activation

    @property
    def curve(self) -> Activation:
        """The nonlinearity of a step that has one."""
        assert self.op.activation is not None
        return self.op.activation

    @property
    def both(self) -> tuple[Step, ...]:
        """The step, and the one beside it."""
        return (self,) if self.beside is None else (self, self.beside)

    @property
    def factor(self) -> Map | None:
        """Map that is read besides K: the factor of a slope, or without a slope the source of the step for Θ."""
        if self.beside is not None and self.beside.op.tangent is None:
            return self.beside.src
        return (self.beside or self).times

    @property
    def read(self) -> frozenset[Map]:
        """The maps that f, f' and the sums read."""
        return frozenset(m for s in self.both for m in (s.src, s.times) if m is not None)


@dataclass(frozen=True)
class Registers:
    """A program on registers: its initial maps, its steps, and the maps of K and optionally Θ."""

    starts: tuple[Map, ...]
    steps: tuple[Step, ...]
    ends: tuple[Map, ...]

    @property
    def before(self) -> list[frozenset[Map]]:
        """The maps that are needed before each step."""
        return [frozenset(self.starts), *(s.live for s in self.steps[:-1])]


def in_registers(program: Program, nonneg: bool = False, inputs: Sequence[int] | None = None) -> Registers:
    """Convert a program to steps on registers, with maps renamed so that a result may overwrite its source.

    A program's buffers do not allow this, but registers do: code is straight-line and each map is a new set of values.
    This saves registers, and repeated blocks get the same names, so they can be one loop. An operation with a slope and
    the following one with the nonlinearity itself are one step, which needs the maps of both at once.

    `inputs` are the buffers of the initial maps, if not the program's own input: K, and optionally another one.
    `nonneg`: the initial K cannot be negative.
    """
    inputs = [program.input] if inputs is None and program.input is not None else inputs
    assert inputs is not None
    ops = tuple(map(_without_single_places, program.ops))
    groups = _in_pairs(ops) if program.theta is not None else [(i,) for i in range(len(ops))]
    # Value → last group that reads it. A value is its operation's index; −1, −2 are the inputs.
    last_read: dict[int, int] = {}
    value_in = {buffer: -1 - k for k, buffer in enumerate(inputs)}
    reads: list[tuple[int, int | None, int | None]] = []
    for g, group in enumerate(groups):
        for i in group:
            op = ops[i]
            base = value_in[op.dst] if op.keep != 0.0 else None
            times = None if op.tangent is None or op.tangent.times == NOTHING else value_in[op.tangent.times]
            reads.append((value_in[op.src], base, times))
            last_read |= {value: g for value in reads[i] if value is not None}
            value_in[op.dst] = i
    for end in (program.output, program.theta):
        if end is not None:
            last_read[value_in[end]] = len(groups)

    starts = tuple(Map(k, program.shape, nonneg and k == 0) for k in range(len(inputs)))
    maps = {-1 - k: m for k, m in enumerate(starts)}
    steps: list[Step] = []
    for g, group in enumerate(groups):
        bases = {i: maps[base].name for i in group if (base := reads[i][1]) is not None}
        taken = {m.name for v, m in maps.items() if last_read.get(v, -1) > g} | set(bases.values())
        made: dict[int, Map] = {}
        for i in reversed(group):
            name = bases.get(i)
            if name is None:
                # Sums alone run one after the other, Θ's first, which must not overwrite the other source.
                kept = {maps[reads[group[-1]][0]].name} if i != group[-1] and ops[i].activation is None else set()
                name = next(n for n in itertools.count() if n not in taken | kept)
                taken.add(name)
            source, base, _ = reads[i]
            positive = ops[i].tangent is None and (base is None or maps[base].nonneg)  # slopes may have any sign
            sign = "of K" if (a := ops[i].activation) is None else a.formula.sign
            positive = positive and (sign == "nonnegative" or (sign == "of K" and maps[source].nonneg))
            made[i] = Map(name, ops[i].out_shape, positive)
        maps |= made
        live = frozenset(m for v, m in maps.items() if last_read.get(v, -1) > g)
        beside = None
        for i in group:
            source, _, times = reads[i]
            beside = Step(ops[i], maps[source], made[i], live, None if times is None else maps[times], beside)
        assert beside is not None
        steps.append(beside)
    ends = tuple(maps[value_in[end]] for end in (program.output, program.theta) if end is not None)
    return Registers(starts, tuple(steps), ends)


def _in_pairs(ops: Sequence[Op]) -> list[tuple[int, ...]]:
    """Group the operations' indices, in order: an operation for Θ goes with the same operation for K right after it."""
    found: list[tuple[int, ...]] = []
    for i, op in enumerate(ops):
        before = ops[i - 1] if found and len(found[-1]) == 1 else None
        alike = before is not None and (
            (op.src == before.src and before.tangent is not None)
            if op.activation is not None
            else (op.src != before.src and op.sums is not None and op.shape == before.shape)
        )
        if (
            before is not None
            and alike
            and op.tangent is None
            and (op.activation, op.sums) == (before.activation, before.sums)
            and before.dst not in (op.src, op.dst)
        ):
            found[-1] = (i - 1, i)
        else:
            found.append((i,))
    return found


def _without_single_places(op: Op) -> Op:
    """Replace sums along axes of one location by a factor: a window reads the same number k times, or not at all.

    Circular, reflected and replicated padding copies the only location; a stride may skip it.
    """
    if op.sums is None:
        return op
    times = 1
    sums: list[AxisSum] = []
    for s in op.sums:
        single = s.size == s.out_size == 1
        times *= len(s.sources[0]) if single else 1
        sums.append(AxisSum(1, ((0,),)) if single else s)
    a, b, c = sums
    return replace(op, sums=None if all(s.is_identity for s in sums) else (a, b, c), scale=op.scale * times)
