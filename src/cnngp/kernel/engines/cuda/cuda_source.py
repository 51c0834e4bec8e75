"""Generation of CUDA text from a program: a pure function, so it is tested, read and cached without a GPU.

The text has a kernel `tables`, which runs the variance recursion of each image in float64 and writes its table row, and
a kernel `pairs`, which computes K for a tile of pairs. There are four kinds of `pairs`, chosen by the shapes:

    warp    maps up to 32 wide, in registers, the whole network in one launch (warp/)
    dense   one location: a matrix product, then scalars (dense_kernel.py)
    sheets  with pools: one image against shifted copies of the other (sheets/)
    walk    any other network, operation by operation (walk/)

A gradient's text is of the kind `walk`, with further kernels for its pairs and for images with themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from cnngp.kernel.program import Program
from cnngp.kernel.program.ops import Reverse
from cnngp.kernel.series.packed import Rows

from . import dense_kernel
from .formula_text.device_functions import PRIMITIVES, formulas
from .kernel_frame import SHARED_LIMIT, Launch, TableLayout
from .sheets import sheet_kernel
from .sheets.sheet_chain import chain
from .sheets.sheet_steps import with_second
from .walk.program_data import BackwardData, ProgramData
from .walk.program_walk import common
from .walk.walk_kernels import gradient_kernels, pairs_kernel, tables_kernel
from .warp import warp_kernel

Path = Literal["warp", "dense", "sheets", "walk"]


@dataclass(frozen=True)
class CudaSource:
    """The text of a program's kernels, the program's numbers, and the launch parameters of each kernel.

    The text is `primitives` and `body` together; a test on a CPU replaces the first.
    """

    path: Path
    dtype: str
    primitives: str
    body: str
    data: ProgramData
    launches: dict[str, Launch]

    @property
    def text(self) -> str:
        return self.primitives + self.body

    @property
    def pairs(self) -> Launch:
        return self.launches["pairs"]

    @property
    def backward(self) -> BackwardData:
        """Data of a gradient's shares and sums."""
        assert self.data.backward is not None
        return self.data.backward

    @property
    def content(self) -> bytes:
        """Everything on which the results depend, as bytes."""
        return self.text.encode() + self.data.ints.tobytes() + self.data.reals.tobytes()


def generate(
    program: Program,
    dtype: DTypeLike,
    path: Path | None = None,
    series: Mapping[int, Rows] | None = None,
    shared_limit: int = SHARED_LIMIT,
    launch_shape: tuple[int, int, int, int] | None = None,
) -> CudaSource:
    """Write the CUDA source of a program in float32 or float64.

    `shared_limit` is the shared memory available to a block, in bytes. `series` gives, for each site of an Elementwise,
    the rows of its series that the images need (see series/packed.py). `path` and `launch_shape` override the choice,
    for tests and measurements.

    >>> from cnngp import zoo
    >>> from cnngp.kernel.program import lower
    >>> generate(lower(zoo.resnet(8), (1, 28, 28)), "float32").path
    'warp'
    """
    real, rows = _real(dtype), series or {}
    segments = chain(program) if path in (None, "sheets") else None
    if segments is not None and not sheet_kernel.fits(segments, real):
        segments = None
    if path is None:
        if program.input is None:
            path = "walk" if segments is None else "sheets"
        else:
            path = "dense" if dense_kernel.fits(program) else "warp" if warp_kernel.fits(program, real) else "walk"
    terms, vector = {at: each.count for at, each in rows.items()}, {"float": 4, "double": 2}[real]
    match path:
        case "warp":
            layout = TableLayout.of(program, terms, vector, warp_kernel.fold_from(program))
            text, pairs = warp_kernel.KernelWriter(program, layout, real).kernel(shared_limit, launch_shape)
            data = ProgramData(program, layout, rows)
        case "sheets":
            if segments is None:
                raise ValueError("this network is not a chain of segments and pools that path='sheets' runs")
            layout = TableLayout.of(program, terms, vector, align=sheet_kernel.LINE // 16)
            data = ProgramData(program, with_second(program, layout, segments.cycles), rows)
            text, pairs = sheet_kernel.sheet_kernel(data, segments, real, shared_limit, launch_shape)
        case "dense" | "walk":
            data = ProgramData(program, TableLayout.of(program, terms), rows)
            dense = path == "dense"
            text, pairs = dense_kernel.dense_kernel(data, real) if dense else pairs_kernel(data, real, shared_limit)
    return _source(path, real, data, text, {"pairs": pairs}, shared_limit)


def generate_gradient(
    reverse: Reverse,
    dtype: DTypeLike,
    series: Mapping[int, Rows] | None = None,
    shared_limit: int = SHARED_LIMIT,
) -> CudaSource:
    """Write the CUDA source of a gradient; the arguments are those of `generate`."""
    real, rows = _real(dtype), series or {}
    # Room for all terms of a series and their derivatives, so that the text does not depend on the images.
    terms = {at: 2 * sum(map(len, each.every)) for at, each in rows.items()}
    data = ProgramData(reverse.program, TableLayout.of(reverse.program, terms), rows, reverse)
    pairs, launch = pairs_kernel(data, real, shared_limit)
    text, launches = gradient_kernels(data, real, shared_limit)
    return _source("walk", real, data, pairs + text, {"pairs": launch, **launches}, shared_limit)


def _source(
    path: Path, real: str, data: ProgramData, kernels: str, launches: dict[str, Launch], shared_limit: int
) -> CudaSource:
    """Join the parts of a text: formulas, code that kernels share, and the kernels."""
    formula = formulas(real, [layer for layer, _ in data.layers], data.tangents, data.backward is not None)
    tables, launch = tables_kernel(data, shared_limit)
    body = f"#define ALL 0xffffffffu\n\n{formula}\n{common(data, path == 'walk')}\n{tables}{kernels}"
    return CudaSource(path, real, PRIMITIVES[real], body, data, {"tables": launch, **launches})


def _real(dtype: DTypeLike) -> str:
    return {4: "float", 8: "double"}[np.dtype(dtype).itemsize]
