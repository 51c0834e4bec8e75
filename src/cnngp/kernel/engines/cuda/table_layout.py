"""Layout of an image's table row.

A table row holds, for one image, its pixels and then the numbers that each nonlinearity needs, in the order in which
the pair kernel reads them. Kernels in which a lane walks down a column read `vector` rows at once (16 bytes), so there
element (r, c) of a plane of width W is at ((r / vector)·W + c)·vector + r % vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cnngp.kernel.program import Program, Shape

from .formula_text.device_functions import text_of


def folds(shape: Shape, fold: int) -> bool:
    return fold > 0 and shape[2] >= fold and shape[2] % 2 == 0


def held(shape: Shape, fold: int) -> Shape:
    depth, height, width = shape
    return (depth, 2 * height, width // 2) if folds(shape, fold) else shape


@dataclass(frozen=True)
class Site:
    """Place of a nonlinearity's numbers in a table row: `planes` planes of `plane` entries each from `offset` on."""

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
    align: int = 1
    """Rows of `vector` rows are padded to a multiple of this many columns."""
    second: dict[int, int] = field(default_factory=dict)
    """Where an image read as the second one has its numbers, if elsewhere: by site, and its pixels under `PIXELS`."""

    def folds(self, shape: Shape) -> bool:
        return folds(shape, self.fold)

    def held(self, shape: Shape) -> Shape:
        """A map's shape as rows of registers and columns of lanes; folded, element (r, c) is at (2r + c % 2, c / 2)."""
        return held(shape, self.fold)

    def pitch(self, width: int) -> int:
        """Distance of groups of rows, in columns."""
        return -(-width // self.align) * self.align

    @classmethod
    def of(
        cls,
        program: Program,
        series: Mapping[int, int],
        vector: int = 1,
        fold: int = 0,
        align: int = 1,
    ) -> TableLayout:
        """`series`: how many numbers an Elementwise keeps at its site for the terms of its series."""
        end = 0

        def site(count: int, shape: Shape) -> Site:
            nonlocal end
            depth, height, width = held(shape, fold)
            pitch = -(-width // align) * align
            plane = depth * -(-height // vector) * vector * pitch if vector > 1 else math.prod(shape)
            here = Site(end, count, plane, shape)
            end += count * plane
            return here

        pixels = site(program.channels, program.shape)
        sites = {a.site: site(text_of(a.layer).planes + series.get(a.site, 0), a.shape) for a in program.activations}
        return cls(vector, pixels, sites, -(-end // vector) * vector, fold, align)
