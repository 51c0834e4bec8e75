"""program → CUDA text: a pure function, so it is tested, read and cached without a card.

The text has a kernel `tables`, which runs the variance recursion of each image in float64 and leaves its table row, and
a kernel `pairs`, which computes K for a tile of pairs. There are four ways to write `pairs`, chosen by the shapes:

    warp    maps up to 32 wide, in registers, the whole network in one launch (warp/)
    dense   one location: a matrix product, then scalars (dense_kernel.py)
    sheets  with pools: one image against shifted copies of the other (sheets/)
    walk    any other network, operation by operation (walk_kernels.py)

A gradient's text walks too; it has a third kernel, for images with themselves (gradient_kernels.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from cnngp.kernel.program import PIXELS, Program
from cnngp.kernel.program.steps import Reverse
from cnngp.kernel.series.packed import Rows

from . import dense_kernel as cuda_dense
from . import gradient_kernels
from .kernel_frame import SHARED_LIMIT, Launch, comment
from .math import PRIMITIVES, formulas
from .program_data import BackwardData, ProgramData
from .program_walk import common
from .sheets import sheet_chain as sheet_plan
from .sheets import sheet_launch as cuda_sheets
from .sheets.sheet_kernel import SheetLaunch, second_offsets
from .table_layout import TableLayout
from .walk_kernels import pairs_kernel, tables_kernel
from .warp import warp_launch as cuda_warp

Path = Literal["warp", "dense", "sheets", "walk"]


@dataclass(frozen=True)
class CudaSource:
    """The text of a program's kernels, the program's numbers, and all that a launch needs to know.

    `primitives` and `body` together are the text; a test on a CPU replaces the first. A block of `pairs` covers
    `block_rows` × `block_columns` pairs; 0 × 0: blocks walk over all pairs, and `pairs` reads the numbers too.
    """

    path: Path
    dtype: str
    primitives: str
    body: str
    data: ProgramData
    tables: Launch
    pairs: Launch
    block_rows: int = 0
    block_columns: int = 0
    resident: int = 0
    """Blocks that a multiprocessor should hold, where blocks walk over all pairs; 0: not known."""
    self_pairs: Launch | None = None
    """Launch for images with themselves, of a gradient."""

    @property
    def text(self) -> str:
        return self.primitives + self.body

    @property
    def row(self) -> int:
        """Entries of a table row."""
        return self.data.row

    @property
    def launches(self) -> dict[str, Launch]:
        """The kernels by name."""
        found = {"tables": self.tables, "pairs": self.pairs}
        return found if self.self_pairs is None else {**found, "self_pairs": self.self_pairs}

    @property
    def backward(self) -> BackwardData:
        """Shares and sums of a gradient."""
        assert self.data.backward is not None
        return self.data.backward

    def blocks(self, n: int, m: int) -> int:
        """The blocks that cover n × m pairs, where each has its own."""
        return -(-n // self.block_rows) * -(-m // self.block_columns)

    @property
    def content(self) -> bytes:
        """All that the results depend on."""
        return self.text.encode() + self.data.ints.tobytes() + self.data.reals.tobytes()

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
    writer = _Writer(program, _real(dtype), series or {}, shared_limit, launch_shape)
    chosen = path or writer.fastest()
    match chosen:
        case "sheets":
            return writer.sheets()
        case "warp":
            return writer.warp(cuda_warp.fold_from(program) if fold is None else fold)
        case "dense":
            return writer.dense()
        case "walk":
            return writer.walk()


def generate_gradient(
    reverse: Reverse,
    dtype: DTypeLike,
    series: Mapping[int, Rows] | None = None,
    shared_limit: int = SHARED_LIMIT,
) -> CudaSource:
    """The CUDA source of a gradient; arguments as those of `generate`."""
    real = _real(dtype)
    layout = TableLayout.of(reverse.program, 1, {site: 2 * rows.count for site, rows in (series or {}).items()})
    data = ProgramData(reverse.program, layout, series or {}, reverse)
    tables, tables_launch = tables_kernel(data, shared_limit)
    pairs, pairs_launch = gradient_kernels.pairs_kernel(data, real, shared_limit)
    selves, selves_launch = gradient_kernels.self_pairs_kernel(data, shared_limit)
    body = "\n".join(
        [
            f"// gradients, {real}, path walk\n",
            "#define ALL 0xffffffffu\n",
            formulas(real, [layer for layer, _ in data.layers]),
            common(data, gradient_kernels.exact_formulas(data)),
            gradient_kernels.SUMS,
            tables,
            selves,
            pairs,
        ]
    )
    return CudaSource("walk", real, PRIMITIVES[real], body, data, tables_launch, pairs_launch, self_pairs=selves_launch)


class _Writer:
    """Writes the source of one program on any of the paths."""

    def __init__(
        self,
        program: Program,
        real: str,
        series: Mapping[int, Rows],
        shared_limit: int,
        launch_shape: tuple[int, int, int, int] | None,
    ) -> None:
        self.program, self.real, self.series, self.shared_limit = program, real, series, shared_limit
        self.launch_shape = launch_shape
        self.vector = {"float": 4, "double": 2}[real]

    @cached_property
    def chain(self) -> sheet_plan.Chain | None:
        """The program as segments and pools, where the kernel for these takes it."""
        found = sheet_plan.chain(self.program)
        return found if found is not None and cuda_sheets.fits(found, self.real) else None

    def fastest(self) -> Path:
        if self.program.input is None:
            return "walk" if self.chain is None else "sheets"
        if cuda_dense.fits(self.program):
            return "dense"
        return "warp" if cuda_warp.fits(self.program, self.real) else "walk"

    def layout(self, vector: int, fold: int = 0, align: int = 1) -> TableLayout:
        terms = {site: rows.count for site, rows in self.series.items()}
        return TableLayout.of(self.program, vector, terms, fold, align)

    def warp(self, fold: int) -> CudaSource:
        layout = self.layout(self.vector, fold)
        data = ProgramData(self.program, layout, self.series)
        warp = cuda_warp.warp_kernel(self.program, layout, self.real, self.shared_limit, self.launch_shape)
        pairs = Launch(warp.threads, warp.shared, 0)
        return self._source("warp", data, warp.text, pairs, warp.rows, warp.columns * warp.pairs)

    def dense(self) -> CudaSource:
        data = ProgramData(self.program, self.layout(1), self.series)
        dense = cuda_dense.dense_kernel(data, self.real)
        return self._source("dense", data, dense.text, Launch(dense.threads, 0, 0), cuda_dense.TILE, cuda_dense.TILE)

    def walk(self) -> CudaSource:
        data = ProgramData(self.program, self.layout(1), self.series)
        return self._source("walk", data, *pairs_kernel(data, self.real, self.shared_limit))

    def sheets(self) -> CudaSource:
        chain = self.chain
        if chain is None:
            raise ValueError("this network is not a chain of segments and pools that path='sheets' runs")
        align = cuda_sheets.LINE // (4 if self.real == "float" else 8) // self.vector
        layout = self.layout(self.vector, align=align)
        second, pixels, row = second_offsets(self.program, layout, chain.cycles)
        data = ProgramData(self.program, layout, self.series, None, {PIXELS: pixels, **second}, row)
        shape = None if self.launch_shape is None else SheetLaunch(*self.launch_shape)
        kernel = cuda_sheets.sheet_kernel(data, chain, self.real, self.shared_limit, shape)
        pairs = Launch(kernel.threads, kernel.shared, kernel.scratch)
        return self._source("sheets", data, kernel.text, pairs, kernel.pairs, 1, kernel.resident, chain.cycles)

    def _source(
        self,
        path: Path,
        data: ProgramData,
        text: str,
        pairs: Launch,
        block_rows: int = 0,
        block_columns: int = 0,
        resident: int = 0,
        cycles: Mapping[int, int] | None = None,
    ) -> CudaSource:
        """The parts of a text one after the other: formulas, what kernels share, and the kernels."""
        tables, launch = tables_kernel(data, self.shared_limit, cycles)
        # A walk does not depend on the network's parameters, and the name of its text should not either.
        head = f"// {self.real}, path walk\n" if path == "walk" else comment(self.program, self.real, path)
        formula = formulas(self.real, [layer for layer, _ in data.layers], data.tangents)
        parts = [head, "#define ALL 0xffffffffu\n", formula, common(data), tables, text]
        body = re.sub(r" at 0x[0-9a-f]+", "", "\n".join(parts))  # a bare function's address may stand in a comment
        primitives = PRIMITIVES[self.real]
        return CudaSource(path, self.real, primitives, body, data, launch, pairs, block_rows, block_columns, resident)


def _real(dtype: DTypeLike) -> str:
    return {4: "float", 8: "double"}[np.dtype(dtype).itemsize]
