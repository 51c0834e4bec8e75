"""Reversed program → CUDA text: a pure function, tested without a card.

The text has three kernels:
    tables   an image with itself, forwards, in float64: its row of the table
    pairs    a block of threads for each pair: forwards and backwards, in the working precision
    selves   an image with itself, forwards and backwards, in float64: from the shares of its variances to the sums

A pair adds to sums over all pairs, and to the shares of its two images' variances. So that no two blocks add to the
same image at a time, a launch of `pairs` takes pairs in which every image stands once at most: a `phase`. An image's
shares are added up in the order of the phases, and so are the sums, of which every pair of a phase has its own. That
makes results the same in every run, on any number of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cnngp.kernel.program.steps import Reverse, as_program
from cnngp.kernel.series.packed import Rows

from ..layout import TableLayout
from ..math import PRIMITIVES
from ..source import SHARED_LIMIT, Launch
from .images import own_walk, selves_kernel, tables_kernel
from .pairs import pairs_kernel
from .parts import Memory
from .walk import BackWalk

MOST_THREADS = 512


@dataclass(frozen=True)
class GradientSource:
    """The text and all that a launch needs to know; `primitives` and `body` together are the text.

    A table row has `row` entries, an image collects `entries` shares of which the last `pixels` are those of its
    pixels, and `shares` has the parameters that each sum belongs to, with their factors.
    """

    dtype: str
    primitives: str
    body: str
    row: int
    entries: int
    pixels: int
    shares: tuple[tuple[tuple[str, float], ...], ...]
    tables: Launch
    pairs: Launch
    selves: Launch
    ints: NDArray[np.int32]
    reals: NDArray[np.float64]
    ways: NDArray[np.int32]

    @property
    def text(self) -> str:
        return self.primitives + self.body

    @property
    def slots(self) -> int:
        return max(1, len(self.shares))


def generate(
    reverse: Reverse,
    dtype: DTypeLike,
    series: Mapping[int, Rows] | None = None,
    shared_limit: int = SHARED_LIMIT,
) -> GradientSource:
    """The CUDA source of a gradient in float32 or float64; `series` and `shared_limit` as for kernels (source.py)."""
    real = {4: "float", 8: "double"}[np.dtype(dtype).itemsize]
    terms = {site: 2 * rows.count for site, rows in (series or {}).items()}
    layout = TableLayout.of(as_program(reverse), 1, terms)
    walk = BackWalk(reverse, layout, series or {})
    most = max(math.prod(op.out_shape) for op in walk.program.ops)
    threads = max(64, min(MOST_THREADS, -(-most // 64) * 32))
    pairs, selves = Memory.of_pairs(walk, real, shared_limit), Memory.of_images(walk, shared_limit)
    parts = [
        f"// gradients, {real}, path gradient\n",
        "#define ALL 0xffffffffu\n",
        walk.working(real),
        walk.common(),
        own_walk(walk),
        tables_kernel(walk, selves, threads),
        selves_kernel(walk, selves, threads),
        pairs_kernel(walk, pairs, threads),
    ]
    return GradientSource(
        real,
        PRIMITIVES[real],
        "\n".join(parts),
        layout.row,
        walk.entries,
        walk.pixels if walk.to_images else 0,
        tuple(walk.shares),
        Launch(threads, selves.shared, selves.scratch),
        Launch(threads, pairs.shared, pairs.scratch),
        Launch(threads, selves.shared, selves.scratch),
        walk.data.ints,
        walk.data.reals,
        walk.ways,
    )
