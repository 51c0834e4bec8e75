"""Encoding of a program as numbers on the GPU, which a block of threads reads as it walks through it (program_walk.py).

A program with pools can have tens of thousands of operations, so they are data, not text. The text depends on the
nonlinearities and on sizes. The text of a gradient does not depend on the network's parameters, so a search over these
compiles it once. The same numbers serve pairs of images and, in float64, an image with itself; for gradients they
include the backward steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from cnngp.kernel.program import NOTHING, PIXELS, Op, Program, Shape
from cnngp.kernel.program.ops import Back, Pixels, Reverse, Total
from cnngp.kernel.series.packed import Rows
from cnngp.network.geometry import AxisSum
from cnngp.network.layers import Nonlinearity

from ..kernel_frame import TableLayout

OPERATION, BACKWARD, TOTAL, TO_PIXELS = range(4)
"""Kinds of steps. All but the first belong to gradients: see program/ops.py."""
MOST_KNOWN = 24
"""Largest number of sums along axes that get code for their sizes, because each takes time to compile."""


class Pass(NamedTuple):
    """Sums along one axis: `results` in number, with `inner` elements at each location.

    They are over windows of `k` locations `step` apart, the first of output m at m · stride + start, with zeros
    outside; or (k < 0) over locations that are listed from `start` on.
    """

    size: int
    out: int
    inner: int
    results: int
    k: int
    stride: int
    step: int
    start: int


class Copy(NamedTuple):
    """Copy of planes of `size` numbers, `width` per row, to a table row: at `offset`, and at `twice` for second images.

    `twice` is 0 if second images have no part of their own (sheets/sheet_steps.py).
    """

    source: int
    planes: int
    size: int
    width: int
    pitch: int
    offset: int
    plane: int
    twice: int


class ProgramData:
    """The numbers of a program or, with `reverse`, of its gradient, and their properties that the text depends on.

    `size` is the number of elements of all maps, with two temporary maps at the end for results between sums.
    """

    def __init__(
        self, program: Program, layout: TableLayout, series: Mapping[int, Rows], reverse: Reverse | None = None
    ) -> None:
        self.program, self.layout, self.series = program, layout, series
        self.tangents = program.theta is not None
        self.pixels = program.channels * math.prod(program.shape)
        self.sites = max(1, len(program.activations))
        ops, self.forwards = program.ops, len(program.ops)
        """Number of steps before the first backward step."""
        if reverse is not None:  # the number of steps must not depend on parameters: spare ones do nothing
            spare = Op("", NOTHING, reverse.seed, (0, 1, 1), (0, 1, 1))
            ops, self.forwards = (*reverse.steps, *[spare] * reverse.spare), reverse.forwards
        if program.input is not None:  # the product of the two images is an operation like the others
            product = Op("", PIXELS, program.input, program.shape, program.shape)
            ops, self.forwards = (product, *ops), self.forwards + 1
        self.ops = ops
        self.moving = any(not op.is_still for op in ops)
        """True with pools, where an image is paired with itself at two locations."""
        self.whole = all(op.first == op.second == (0, 0, 0) and op.shape == self._table(op) for op in ops)
        """True if the locations of all maps are those of the tables."""
        self.shifts: list[int] = []
        self.shifts_at: dict[int, int] = {}
        """Start of the steps of each series' rows in `shifts`: even rows from here backwards, odd rows forwards."""
        for at, rows in series.items():
            self.shifts_at[at] = len(self.shifts) + len(rows.every[0])
            self.shifts += [*reversed(rows.every[0]), *rows.every[1]]
        self._formulas: dict[Hashable, tuple[Nonlinearity, bool]] = {}
        *self.buffers, end = accumulate(program.buffers, initial=0)
        value = program.output if reverse is None else reverse.value
        self.ends = [self.buffers[v] for v in (value, program.theta) if v is not None]
        """Offsets of the maps that end as K and, in a tangent kernel's program, Θ."""
        self.backward = None if reverse is None else BackwardData(reverse, self)
        self._passes: dict[tuple[Pass, ...], int] = {}
        self._lists: list[int] = []
        self._known: dict[AxisSum, int] = {}
        sizes = [layout.sites[a.site].planes * a.size for a in program.activations]
        *starts, self.own_size = accumulate(sizes, initial=0)
        self.own = {a.site: start for a, start in zip(program.activations, starts, strict=True)}
        """Offsets of the nonlinearities' numbers in the float64 table of one image, by site."""
        self.temporary = 1
        self.numbered = [self._ints(op) for op in ops]
        self.layers = list(self._formulas.values())
        """The formulas that operations use, (nonlinearity, True for its slope)."""
        self.size = end + 2 * self.temporary
        self._every_pass = [one for sums in self._passes for one in sums]
        steps = [list(numbers.values()) for numbers in self.numbered]
        copies = [self._copy(number, at) for number, at in {PIXELS: 0, **self.own}.items()]
        parts: list[Sequence[Sequence[int]]] = [steps, self._every_pass, [self._lists], copies]
        self.passes_at, self.lists_at, self.copies_at, _ = accumulate(sum(map(len, part)) for part in parts)
        self.ints = np.array([n for part in parts for numbers in part for n in numbers], np.int32)
        factors = [_reals(op) for op in ops]
        reals = [*(x for numbers in factors for x in numbers.values()), program.unit, program.theta_unit]
        self.reals = np.array(reals, np.float64)
        self.units_at = len(reals) - 2
        self.structs = {
            "Op": ("int", tuple(self.numbered[0])),
            "Numbers": ("double", tuple(factors[0])),
            "Pass": ("int", Pass._fields),
            "Copy": ("int", Copy._fields),
        }
        """Type and field names of the structs by which the text reads the numbers."""

    def _table(self, op: Op) -> Shape:
        """Shape of the whole map in a table, of which an operation may read a part."""
        return self.program.shape if op.src == PIXELS else op.shape if op.activation is None else op.activation.shape

    def _ints(self, op: Op) -> dict[str, int]:
        """Integers of a step: `struct Op` of the text. Maps and tables are given by their offsets."""
        a, table, formula = op.activation, self._table(op), -1
        if a is not None:
            # In a gradient, layers with different parameters share the formula of their family.
            key = (a.layer if self.backward is None else a.formula.family), op.tangent is not None
            self._formulas.setdefault(key, (a.layer, op.tangent is not None))
            formula = list(self._formulas).index(key)
        sums = self._sums(op)
        if sums and sums not in self._passes:  # equal sequences of sums are stored once
            self._passes[sums] = sum(map(len, self._passes))
        if sums or (self.backward is not None and not op.is_still):
            self.temporary = max(self.temporary, math.prod(op.shape), *(one.results for one in sums))
        first, second = ((o[0] * table[1] + o[1]) * table[2] + o[2] for o in (op.first, op.second))
        site = None if a is None else self.layout.sites[a.site]
        rows = None if a is None else self.series.get(a.site)
        found = {
            "kind": OPERATION,
            # maps, number of the nonlinearity's formula or -1, elements that are read and written
            "src": op.src if op.src in (PIXELS, NOTHING) else self.buffers[op.src],
            "dst": self.buffers[op.dst],
            "formula": formula,
            "size": math.prod(op.shape),
            "out_size": math.prod(op.out_shape),
            # the sheet, and the whole map in the tables; the sheet's offset in it for each image
            "width": op.shape[2],
            "height": op.shape[1],
            "table_width": table[2],
            "table_plane": table[1] * table[2],
            "first": first,
            "second": second,
            "still": int(op.is_still),
            # the nonlinearity's numbers in a table row, and in the float64 table of one image
            "offset": 0 if site is None else site.offset,
            "plane": 0 if site is None else site.plane,
            "own": 0 if a is None else self.own[a.site],
            "whole": 0 if a is None else a.size,
            "site": 0 if a is None else a.site,
            # sums along axes
            "first_pass": self._passes.get(sums, 0),
            "passes": len(sums),
            # the series of an Elementwise: its offset, its even and odd rows, the steps between their powers
            "series": 0 if rows is None else rows.at,
            "even": 0 if rows is None else rows.even,
            "odd": 0 if rows is None else rows.odd,
            "shifts": 0 if a is None else self.shifts_at.get(a.site, 0),
            # the map by which a slope is multiplied, -1 for none
            "times": -1 if op.tangent is None or op.tangent.times == NOTHING else self.buffers[op.tangent.times],
            # backward steps: 1 if a map is written, offset of the shares of variances, the two sums, -1 for none
            "writes": 0,
            "shares": 0,
            "slot": -1,
            "extra_slot": -1,
        }
        return found if self.backward is None else found | self.backward.numbers(op, self.buffers)

    def _sums(self, op: Op) -> tuple[Pass, ...]:
        """Sums along axes that an operation makes, one after the other."""
        shape, found = list(op.shape), []
        for axis, s in enumerate(op.sums or ()):
            if s.is_identity:
                continue
            shape[axis] = s.out_size
            window = s.window
            if window is not None and window.padding is not None:
                where = window.k, window.stride, window.dilation, window.start
            else:
                where = -1, 0, 0, self._known.setdefault(s, len(self._lists))
                if where[-1] == len(self._lists):
                    ends = accumulate(map(len, s.sources), initial=len(self._lists) + 2 * s.out_size)
                    self._lists += [n for begin, row in zip(ends, s.sources, strict=False) for n in (begin, len(row))]
                    self._lists += [nu for row in s.sources for nu in row]
            found.append(Pass(s.size, s.out_size, math.prod(shape[axis + 1 :]), math.prod(shape), *where))
        return tuple(found)

    def _copy(self, number: int, at: int) -> Copy:
        """Copy of the pixels, or of a nonlinearity's numbers."""
        layout = self.layout
        site = layout.input if number == PIXELS else layout.sites[number]
        size, width, pitch = math.prod(site.shape), site.shape[2], layout.pitch(layout.held(site.shape)[2])
        return Copy(at, site.planes, size, width, pitch, site.offset, site.plane, layout.second.get(number, 0))

    @property
    def known_passes(self) -> list[tuple[Pass, list[int]]]:
        """The sums with the most work, each with its indices among all passes."""
        passes = self._every_pass
        work: Counter[Pass] = Counter()
        for op in self.numbered:
            for one in passes[op["first_pass"] : op["first_pass"] + op["passes"]]:
                work[one] += one.results * max(one.k, 1)
        most = [one for one, _ in work.most_common(MOST_KNOWN)]
        return [(one, [n for n, other in enumerate(passes) if other == one]) for one in most]


class BackwardData:
    """Numbers that the backward steps of a gradient add to those of a program.

    Each image collects `entries` shares: those of its variances, and then those of its pixels if needed. There are
    `slots` sums; `shares[s]` has the parameters to which sum s contributes, with their factors. A program with pools
    has sums for each of its sheets; those that contribute to the same parameters with the same factors are merged here.
    """

    def __init__(self, reverse: Reverse, data: ProgramData) -> None:
        self.seed = data.buffers[reverse.seed]
        self.to_images = any(isinstance(step, Pixels) for step in reverse.steps)
        self.variances = max(1, reverse.program.elements)
        self.pixels = data.pixels * self.to_images
        self.entries = self.variances + self.pixels
        belongs: dict[int, tuple[tuple[str, float], ...]] = {}
        for share in reverse.shares:
            belongs[share.slot] = (*belongs.get(share.slot, ()), (share.name, share.factor))
        self.shares = tuple(dict.fromkeys(belongs.values()))
        self.slots = max(1, len(self.shares))
        self._slot_of = {slot: self.shares.index(parts) for slot, parts in belongs.items()}

    def numbers(self, step: Op, buffers: Sequence[int]) -> dict[str, int]:
        """Numbers of a step that an ordinary operation does not have."""
        match step:
            case Back():
                slot, extra = (self._slot_of.get(step.slot + k, -1) for k in range(2))
                shares = 0 if step.activation is None else step.activation.offset
                sums = {"slot": slot, "extra_slot": extra, "shares": shares}
                return {"kind": BACKWARD, "times": buffers[step.times], "writes": int(step.writes), **sums}
            case Total():
                return {"kind": TOTAL, "slot": self._slot_of.get(step.slot, -1)}
            case Pixels():
                return {"kind": TO_PIXELS, "shares": self.variances}
            case _:
                return {}


def _reals(op: Op) -> dict[str, float]:
    """Factors of a step: `struct Numbers` of the text."""
    a = op.activation
    alpha, beta = (0.0, 0.0) if a is None else a.coefficients
    unit, own = 1.0 if a is None else a.unit, 0.0 if op.tangent is None else op.tangent.own
    affine = {"keep": op.keep, "scale": op.scale, "bias": op.bias}
    return {"unit": unit, "alpha": alpha, "beta": beta, **affine, "own": own}
