"""Layout of a program over a warp: pairs side by side in stages, repeated blocks as loops.

Pure functions of the program, without CUDA text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from ..kernel_frame import TableLayout, held
from ..registers import Map, Registers, Step

LANES = 32
PACKS = (1, 2, 4, 8)  # numbers of pairs that one warp can process together


@dataclass(frozen=True)
class Stage:
    """Consecutive steps with `pack` pairs side by side in the warp, from the maps `live_in` to the maps `live_out`."""

    pack: int
    steps: tuple[Step, ...]
    live_in: tuple[Map, ...]
    live_out: tuple[Map, ...]

    @property
    def lanes(self) -> int:
        """Number of lanes of one pair: its columns and a gap."""
        return LANES // self.pack


def stages(registers: Registers, fold: int) -> tuple[Stage, ...]:
    """The cheapest division into stages, by dynamic programming over a rough count of instructions per pair.

    Handing maps from one stage to the next costs a store and a load of each live row.
    """
    steps, before = registers.steps, registers.before

    def fits(i: int, pack: int) -> bool:
        maps = before[i] | steps[i].live | steps[i].read | {s.dst for s in steps[i].both}
        return pack * max(held(m.shape, fold)[2] for m in maps) <= LANES

    def work(i: int, pack: int) -> float:
        step = steps[i]
        down, out = held(step.op.shape, fold)[1], held(step.op.out_shape, fold)[1]
        rows = 14 * down * (step.activation is not None) + 7 * out + (9 * down + 7 * out) * (step.beside is not None)
        return rows / pack

    def hand_over(i: int, old: int, new: int) -> float:
        rows = sum(held(m.shape, fold)[1] for m in before[i])
        return (3 * rows + 30) * (1 / old + 1 / new) if old != new else 0.0

    best: dict[int, tuple[float, tuple[int, ...]]] = {p: (work(0, p), (p,)) for p in PACKS if fits(0, p)}
    for i in range(1, len(steps)):
        best = {
            p: min((cost + hand_over(i, old, p) + work(i, p), (*path, p)) for old, (cost, path) in best.items())
            for p in PACKS
            if fits(i, p)
        }
    path = min(best.values())[1]
    cuts = [0, *(i for i in range(1, len(path)) if path[i] != path[i - 1]), len(path)]
    return tuple(
        Stage(path[a], steps[a:b], *(tuple(sorted(m, key=lambda m: m.name)) for m in (before[a], steps[b - 1].live)))
        for a, b in pairwise(cuts)
    )


def parked(plan: Sequence[Stage], pack: int) -> tuple[list[dict[int, int]], int]:
    """Offsets at which each stage stores its maps in shared memory, and the number of entries needed.

    Even stages are stored from 0 on, odd ones after them.
    """
    sizes = [[pack * math.prod(m.shape) for m in s.live_out] for s in plan[:-1]]
    even, odd = (max(map(sum, sizes[k::2]), default=0) for k in (0, 1))
    parks = [
        dict(zip((m.name for m in s.live_out), accumulate(sizes[k], initial=even * (k % 2)), strict=False))
        for k, s in enumerate(plan[:-1])
    ]
    return parks, -(-(even + odd) // 4) * 4


@dataclass(frozen=True)
class Loop:
    """Repetitions of a block; `steps[b][k]` is step k of repetition b. A single block is repeated once.

    `stride` is the distance of table entries from one repetition to the next.
    """

    steps: tuple[tuple[Step, ...], ...]
    stride: int


def loops(steps: Sequence[Step], layout: TableLayout) -> tuple[Loop, ...]:
    """Group the steps into loops over repeated blocks, so that code size does not grow with depth."""
    found: list[Loop] = []
    i = 0
    while i < len(steps):
        best = Loop((tuple(steps[i : i + 1]),), 0)
        for period in range(1, (len(steps) - i) // 2 + 1):
            loop = _repetitions(steps, i, period, layout)
            if (len(loop.steps) - 1) * period > (len(best.steps) - 1) * len(best.steps[0]):
                best = loop
        found.append(best)
        i += len(best.steps) * len(best.steps[0])
    return tuple(found)


def _repetitions(steps: Sequence[Step], start: int, period: int, layout: TableLayout) -> Loop:
    blocks = [tuple(steps[start : start + period])]
    stride: int | None = None
    while True:
        a = start + len(blocks) * period
        block = tuple(steps[a : a + period])
        if len(block) < period or any(_shape_of(x) != _shape_of(y) for x, y in zip(block, blocks[0], strict=True)):
            break
        moves = {_moved(y, x, layout) for x, y in zip(block, blocks[-1], strict=True) if x.activation is not None}
        if len(moves) > 1 or (stride is not None and moves and moves != {stride}):
            break
        stride = moves.pop() if moves else 0
        blocks.append(block)
    return Loop(tuple(blocks), stride or 0)


def _moved(step: Step, following: Step, layout: TableLayout) -> int:
    """Distance of table entries from one nonlinearity to another."""
    return layout.sites[following.curve.site].offset - layout.sites[step.curve.site].offset


def _shape_of(step: Step) -> object:
    """Key in which two steps must agree to share code; numbers may differ, because they are looked up in tables."""
    op, a = step.op, step.activation
    own = (step.src, step.dst, op.shape, op.sums, op.keep == 0.0, op.bias == 0.0, a and (a.layer, a.shape))
    return (own, op.tangent is None, step.times, step.beside and _shape_of(step.beside))


@dataclass(frozen=True)
class Run:
    """Consecutive steps that share their core, f and the sums, and differ only in their input and output arrays.

    The core works in place on the array `work`: a step whose source is another array copies it there first, and one
    whose result is another array combines it afterwards. A block of two such steps then takes half the code, which
    fits into the instruction cache closest to the scheduler; the copies cost less than the fetches. The map for Θ has a
    work array of its own, `beside`.
    """

    steps: tuple[Step, ...]
    work: int
    stride: int
    beside: int | None = None

    @property
    def carried(self) -> list[tuple[int, list[tuple[Map, Step]]]]:
        """For each work array, the map that is copied into it at every step, and the step that runs on it."""
        found: list[tuple[int, list[tuple[Map, Step]]]] = [(self.work, [(s.src, s) for s in self.steps])]
        if self.beside is not None:
            pairs = [(s.factor, s.beside) for s in self.steps]
            found.append((self.beside, [(t, b) for t, b in pairs if t is not None and b is not None]))
        return found


RUN_CODE = 640  # instructions of a loop's body from which on a run is worth its copies


def segments(stage: Stage, layout: TableLayout) -> tuple[Loop | Run, ...]:
    """Group the steps of a stage into loops and runs."""
    found: list[Loop | Run] = []
    rest: list[Step] = []
    i = 0
    while i < len(stage.steps):
        run = _run(stage, i, layout)
        if run is None:
            rest.append(stage.steps[i])
            i += 1
        else:
            found += [*loops(rest, layout), run]
            rest = []
            i += len(run.steps)
    return (*found, *loops(rest, layout))


def _run(stage: Stage, start: int, layout: TableLayout) -> Run | None:
    """Longest run from a step on, if there is one with more than one kind of step and enough code to save."""
    first = stage.steps[start]
    if first.activation is None or first.op.sums is None or 2 * 18 * first.op.shape[1] < RUN_CODE:
        return None
    best: Run | None = None
    for work, beside in _work_arrays(first):
        steps: list[Step] = []
        stride = 0
        for i in range(start, len(stage.steps)):
            step = stage.steps[i]
            before = stage.steps[i - 1].live if i else frozenset(stage.live_in)
            made = {s.dst for s in step.both}
            in_use = {m.name for m in before if m not in step.read or m in step.live - made}
            if _core(step) != _core(first) or (work, beside) not in _work_arrays(step):
                break
            if {work, beside} & in_use:
                break  # the array holds a map that is needed later
            moved = _moved(steps[-1], step, layout) if steps else 0
            if len(steps) >= 2 and moved != stride:
                break
            stride = moved
            steps.append(step)
        kinds = {(s.src.name, s.dst.name) for s in steps}
        if len(kinds) > 1 and len(steps) >= 3 and (best is None or len(steps) > len(best.steps)):
            best = Run(tuple(steps), work, stride, beside)
    return best


def _work_arrays(step: Step) -> list[tuple[int, int | None]]:
    """Arrays on which a step can work in place, for K and for the step beside it."""
    own = sorted({step.src.name, step.dst.name})
    if step.beside is None:
        return [(work, None) for work in own]
    if step.factor is None:
        return []
    others = sorted({step.factor.name, step.beside.dst.name})
    return [(work, other) for work in own for other in others if other != work]


def _core(step: Step) -> object:
    a, both = step.activation, step.beside is not None
    return (step.op.shape, step.op.sums, step.src.nonneg, a and (a.layer, a.shape), both, step.op.tangent is None)
