"""What the CUDA code of a program rests on: the layout of an image's table row, and maps as registers.

A table row holds, for one image, its pixels and then the numbers that each nonlinearity needs, in the order in which
the pair kernel reads them. Kernels in which a lane walks down a column read `vector` rows at once (16 bytes), so there
element (r, c) of a plane of width W is at ((r / vector)·W + c)·vector + r % vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cnngp.kernel.program import Activation, Op, Program, Shape
from cnngp.network.geometry import AxisSum

from .math import nonnegative, planes


def folds(shape: Shape, fold: int) -> bool:
    return fold > 0 and shape[2] >= fold and shape[2] % 2 == 0


def held(shape: Shape, fold: int) -> Shape:
    depth, height, width = shape
    return (depth, 2 * height, width // 2) if folds(shape, fold) else shape


@dataclass(frozen=True)
class Site:
    """Where a table row keeps a nonlinearity's numbers: `planes` planes of `plane` entries each from `offset` on."""

    offset: int
    planes: int
    plane: int
    shape: Shape


@dataclass(frozen=True)
class TableLayout:
    """The input's planes are its channels. `row` is the length of a table row."""

    vector: int
    input: Site
    sites: dict[int, Site]
    row: int
    fold: int = 0
    """Maps of an even width from this one on lie folded: a lane holds two columns. 0: none do."""

    def folds(self, shape: Shape) -> bool:
        return folds(shape, self.fold)

    def held(self, shape: Shape) -> Shape:
        """A map's shape as rows of registers and columns of lanes; folded, element (r, c) is at (2r + c % 2, c / 2)."""
        return held(shape, self.fold)

    @classmethod
    def of(cls, program: Program, vector: int, terms: Mapping[int, int] | None = None, fold: int = 0) -> TableLayout:
        """`terms`: how many terms of its series an Elementwise keeps, by site."""
        end = 0

        def site(count: int, shape: Shape) -> Site:
            nonlocal end
            depth, height, width = held(shape, fold)
            plane = depth * -(-height // vector) * vector * width if vector > 1 else math.prod(shape)
            here = Site(end, count, plane, shape)
            end += count * plane
            return here

        pixels = site(program.channels, program.shape)
        sites = {a.site: site(planes(a.layer, (terms or {}).get(a.site, 0)), a.shape) for a in program.activations}
        return cls(vector, pixels, sites, -(-end // vector) * vector, fold)


@dataclass(frozen=True)
class Map:
    """A map held in registers: which array, its shape, and whether it can be negative."""

    name: int
    shape: Shape
    nonneg: bool


@dataclass(frozen=True)
class Step:
    """An operation on registers: `dst` is a fresh map or, with `op.keep`, the one that is added to."""

    op: Op
    src: Map
    dst: Map
    live: frozenset[Map]
    """The maps that are needed after this step."""

    @property
    def activation(self) -> Activation | None:
        return self.op.activation


def in_registers(program: Program, nonneg: bool = False) -> tuple[Map, tuple[Step, ...]]:
    """The input map and the program's steps, with maps renamed so that a result may replace what it was made from.

    A program's buffers do not allow that, but registers do: code is straight-line and each map is a new set of values.
    It saves registers, and it gives blocks that repeat the same names, so they can be one loop. `nonneg`: the input
    map cannot be negative.
    """
    ops = tuple(map(_without_single_places, program.ops))
    last_read: dict[int, int] = {}  # value → last step that reads it; a value is the index of its step, −1 the input
    value_in = {program.input: -1}
    reads: list[tuple[int, int | None]] = []
    for i, op in enumerate(ops):
        base = value_in[op.dst] if op.keep != 0.0 else None
        reads.append((value_in[op.src], base))
        last_read[value_in[op.src]] = i
        if base is not None:
            last_read[base] = i
        value_in[op.dst] = i
    last_read[value_in[program.output]] = len(ops)

    maps = {-1: Map(0, program.shape, nonneg)}
    steps: list[Step] = []
    for i, op in enumerate(ops):
        source, base = reads[i]
        src = maps[source]
        if base is not None:
            name = maps[base].name
        else:
            taken = {m.name for v, m in maps.items() if last_read.get(v, -1) > i}
            name = min(n for n in range(len(taken) + 1) if n not in taken)
        a = op.activation
        positive = src.nonneg if a is None else nonnegative(a.layer, src.nonneg)
        if base is not None:
            positive = positive and maps[base].nonneg
        dst = Map(name, op.out_shape, positive)
        maps[i] = dst
        maps = {v: m for v, m in maps.items() if last_read.get(v, -1) > i}
        steps.append(Step(op, src, dst, frozenset(maps.values())))
    return Map(0, program.shape, nonneg), tuple(steps)


def _without_single_places(op: Op) -> Op:
    """The operation with sums along axes of one place as a factor: there a window reads the same number k times, or 0.

    Circular, reflected and replicated padding copies the one place there is; a stride may jump over it.
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
