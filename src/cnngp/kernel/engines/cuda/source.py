"""program → CUDA text: a pure function, so it is tested, read and cached without a card.

The text has two kernels. `tables` runs the variance recursion of each image in float64 and leaves its table row;
`pairs` computes K for a tile of pairs. There are five ways to write `pairs`, chosen by the shapes alone:
    warp    maps up to 32 wide, in registers, the whole network in one launch (warp/)
    dense   one location: a matrix product, then scalars (dense.py)
    block   everything else without pools, in shared or global memory (block/)
    sheets  with pools: one image against shifted copies of the other (sheets/kernel.py)
    walk    any other network with pools, step by step (sheets/general.py)
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from cnngp.kernel.program import Kind, Program
from cnngp.kernel.series.packed import Rows
from cnngp.network.layers import Nonlinearity

from . import dense as cuda_dense
from .block.kernels import pair_kernel, table_kernel
from .block.walk import Walk
from .layout import TableLayout
from .math import PRIMITIVES, formulas
from .sheets import general
from .sheets import plan as sheet_plan
from .sheets import source as cuda_sheets
from .sheets.kernel import SheetLaunch, second_offsets
from .sheets.walk import SheetData, SheetWalk
from .warp import source as cuda_warp

Path = Literal["warp", "dense", "block", "sheets", "walk"]
SHARED_LIMIT = 227 * 1024


@dataclass(frozen=True)
class Launch:
    """Threads of a block, its dynamic shared memory, and its bytes of scratch in global memory."""

    threads: int
    shared: int
    scratch: int


@dataclass(frozen=True)
class CudaSource:
    """The text of a program's kernels and all that a launch needs to know.

    `primitives` and `body` together are the text; a test on a CPU replaces the first. A table row has `row` entries.
    A block of `pairs` covers `block_rows` × `block_columns` pairs; 0 × 0: blocks walk over all pairs.
    """

    path: Path
    dtype: str
    primitives: str
    body: str
    row: int
    tables: Launch
    pairs: Launch
    block_rows: int
    block_columns: int
    data: SheetData | None = None
    resident: int = 0
    """Blocks that a multiprocessor should hold, where blocks walk over all pairs; 0: not known."""
    kind: Kind = "nngp"
    """Of kind "ntk", `pairs` gives Θ too and takes where to write it behind the arguments that it always has."""

    @property
    def text(self) -> str:
        return self.primitives + self.body

    @property
    def content(self) -> bytes:
        """All that the results depend on."""
        data = b"" if self.data is None else self.data.ints.tobytes() + self.data.reals.tobytes()
        return self.text.encode() + data

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def generate(
    program: Program,
    dtype: DTypeLike,
    path: Path | None = None,
    series: Mapping[int, Rows] | None = None,
    shared_limit: int = SHARED_LIMIT,
    launch_shape: tuple[int, int, int, int] | None = None,
    fold: int | None = None,
) -> CudaSource:
    """The CUDA source of a program in float32 or float64.

    `shared_limit` is what a block may have of the card's shared memory, in bytes. `series` says, for each site of an
    Elementwise, which rows of its series the images need (see series/packed.py). `path`, `launch_shape` and `fold`
    override the choice, for tests and measurements.

    >>> from cnngp import zoo
    >>> from cnngp.kernel.program import lower
    >>> generate(lower(zoo.resnet(8), (1, 28, 28)), "float32").path
    'warp'
    """
    real = {4: "float", 8: "double"}[np.dtype(dtype).itemsize]
    if program.input is None:
        return _with_pools(program, real, path, series or {}, shared_limit, launch_shape)
    chosen: Path = path or (
        "dense" if cuda_dense.fits(program) else "warp" if cuda_warp.fits(program, real) else "block"
    )
    vector = {"float": 4, "double": 2}[real] if chosen == "warp" else 1
    if chosen != "warp":
        fold = 0
    elif fold is None:
        fold = cuda_warp.fold_from(program)
    layout = TableLayout.of(program, vector, {site: rows.count for site, rows in (series or {}).items()}, fold)
    walk = Walk(program, layout, series or {})
    tables = table_kernel(walk, real, shared_limit)
    parts = [*_head(program, real, chosen, walk.layers), walk.arrays(), tables.text]
    if chosen == "warp":
        warp = cuda_warp.warp_kernel(program, layout, real, shared_limit, launch_shape)
        parts.append(warp.text)
        pairs = Launch(warp.threads, warp.shared, 0)
        rows, columns = warp.rows, warp.columns * warp.pairs
    elif chosen == "dense":
        dense = cuda_dense.dense_kernel(walk, real)
        parts.append(dense.text)
        pairs = Launch(dense.threads, 0, 0)
        rows = columns = cuda_dense.TILE
    else:
        block = pair_kernel(walk, real, shared_limit)
        parts.append(block.text)
        pairs = Launch(block.threads, block.shared, block.scratch)
        rows = columns = 0
    return CudaSource(
        chosen,
        real,
        PRIMITIVES[real],
        _plain("\n".join(parts)),
        layout.row,
        Launch(tables.threads, tables.shared, tables.scratch),
        pairs,
        rows,
        columns,
        kind=program.kind,
    )


def _head(program: Program, real: str, path: Path, layers: Sequence[tuple[Nonlinearity, bool]]) -> list[str]:
    """What every text begins with."""
    head = f"// {program.network!r}\n// on {program.channels} x {program.spatial}, {real}, path {path}\n"
    return [
        head,
        "#define ALL 0xffffffffu\n",
        formulas(real, [layer for layer, _ in layers], program.theta is not None),
    ]


def _plain(text: str) -> str:
    """Without a bare function's address, which may stand in a comment."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _with_pools(
    program: Program,
    real: str,
    path: Path | None,
    series: Mapping[int, Rows],
    shared_limit: int,
    launch_shape: tuple[int, int, int, int] | None,
) -> CudaSource:
    """The source of a program of sheets: as a chain of segments where it is one, else in the general way."""
    chain = None if path == "walk" else sheet_plan.chain(program)
    if chain is not None and not cuda_sheets.fits(chain, real):
        chain = None
    if path == "sheets" and chain is None:
        raise ValueError("this network is not a chain of segments and pools that path='sheets' runs")
    vector = 1 if chain is None else {"float": 4, "double": 2}[real]
    align = 1 if chain is None else cuda_sheets.LINE // (4 if real == "float" else 8) // vector
    layout = TableLayout.of(program, vector, {site: rows.count for site, rows in series.items()}, align=align)
    walk = SheetWalk(program, layout, series)
    if chain is None:
        tables = general.table_kernel(walk, shared_limit, None, 0, layout.row)
        block = general.pair_kernel(walk, real, shared_limit)
        text = block.text
        pairs, row, resident, rows = Launch(block.threads, block.shared, block.scratch), layout.row, 0, 0
    else:
        shape = None if launch_shape is None else SheetLaunch(*launch_shape)
        kernel = cuda_sheets.sheet_kernel(walk, chain, real, shared_limit, shape)
        second, pixels, row = second_offsets(program, layout, chain.cycles)
        tables = general.table_kernel(walk, shared_limit, second, pixels, row, chain.cycles)
        text = kernel.text
        pairs, resident, rows = Launch(kernel.threads, kernel.shared, kernel.scratch), kernel.resident, kernel.pairs
    chosen: Path = "walk" if chain is None else "sheets"
    parts = [*_head(program, real, chosen, walk.layers), walk.common(), tables.text, text]
    return CudaSource(
        chosen,
        real,
        PRIMITIVES[real],
        _plain("\n".join(parts)),
        row,
        Launch(tables.threads, tables.shared, tables.scratch),
        pairs,
        rows,
        min(rows, 1),
        walk.data,
        resident,
        program.kind,
    )
