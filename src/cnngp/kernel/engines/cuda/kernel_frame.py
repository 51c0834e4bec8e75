"""Common parts of all kernels: launch parameters, the layout of an image's table row, and the writer of code lines.

A table row holds, for one image, its pixels and then the numbers that each nonlinearity needs, in the order in which
the pair kernel reads them. Kernels in which a lane walks down a column read `vector` rows at once (16 bytes), so their
element (r, c) of a plane of width W is at ((r / vector)·W + c)·vector + r % vector.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from cnngp.kernel.program import Program, Shape

from .formula_text.device_functions import text_of
from .formula_text.formula_writer import literal

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory available to a block on an H100 or H200."""
# Further arguments of `pairs` in programs of a tangent kernel.
THETA_ARGUMENTS = ", real* __restrict__ theta, real* __restrict__ theta_mirror"


@dataclass(frozen=True)
class Launch:
    """Threads of a block, its bytes of dynamic shared memory, and its bytes of scratch in global memory.

    A block of `pairs` covers `rows` × `columns` pairs. With `resident` > 0 a multiprocessor should hold that many
    blocks, which loop over the work; with 0 each block has its own piece. `given` names the arrays that follow a
    kernel's arguments: scratch memory, and entries of `Card.numbers`.
    """

    threads: int
    shared: int
    scratch: int = 0
    rows: int = 1
    columns: int = 1
    resident: int = 0
    given: tuple[str, ...] = ()

    def blocks(self, n: int, m: int) -> int:
        """Number of blocks that cover n × m pairs, if each has its own."""
        return -(-n // self.rows) * -(-m // self.columns)


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
    """Layout of a table row of length `row`. The planes of `input` are its channels."""

    vector: int
    input: Site
    sites: dict[int, Site]
    row: int
    fold: int = 0
    """Maps of an even width from this one on are folded: a lane holds two columns. 0: none are."""
    align: int = 1
    """Rows of `vector` rows are padded to a multiple of this many columns."""
    second: dict[int, int] = field(default_factory=dict)
    """Offsets of the numbers of an image read as the second one, if different: by site, and `PIXELS` for its pixels."""
    cycles: dict[int, int] = field(default_factory=dict)
    """`cycles` of a `Chain` (sheets/sheet_chain.py)."""

    def folds(self, shape: Shape) -> bool:
        return folds(shape, self.fold)

    def held(self, shape: Shape) -> Shape:
        """Shape of a map as rows of registers and columns of lanes; if folded, (r, c) is at (2r + c % 2, c / 2)."""
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
        """Make the layout of a program. `series`: the number of table entries at a site for the terms of its series."""
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


class Writer:
    """Collects the lines of a kernel's body and the helper functions that they call."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.functions: dict[object, str] = {}
        self.definitions: list[str] = []
        self.lines: list[str] = []
        self.depth = 2

    def put(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line if not line.startswith("#") else line for line in lines]

    @contextmanager
    def block(self, *head: str) -> Iterator[None]:
        """Put lines that open a brace, then what is put inside the context, then the closing brace."""
        self.put(*head)
        self.depth += 1
        yield
        self.depth -= 1
        self.put("}")

    def define(self, key: object, prefix: str, text: str) -> str:
        """Return the name of a helper, which is written only once; it replaces `NAME` in the text."""
        if key not in self.functions:
            name = f"{prefix}_{sum(n.startswith(prefix + '_') for n in self.functions.values())}"
            self.functions[key] = name
            self.definitions.append(text.replace("NAME", name))
        return self.functions[key]

    def array(self, prefix: str, kind: str, values: tuple[object, ...]) -> str:
        """Return the name of an array of constants."""
        text = f"{kind} NAME[{len(values)}] = {{{', '.join(map(str, values))}}};"
        return self.define((prefix, kind, values), prefix, text)

    def number(self, value: float) -> str:
        return literal(value, self.dtype)

    def per_row(self, rows: int, statement: str) -> None:
        self.put("#pragma unroll", f"for (int r = 0; r < {rows}; r++) {statement}")


def stores(K: str, tangents: bool, indent: str = " " * 8) -> str:
    """Statements that write a pair's results: K, or with `tangents` Θ from `T`, and K only if it is needed."""
    lines = [f"out[i * ld + j] = {K};", f"if (mirror) mirror[j * ld + i] = {K};"]
    if tangents:
        lines = ["if (out) " + lines[0], *lines[1:], "theta[i * ld + j] = T;"]
        lines.append("if (theta_mirror) theta_mirror[j * ld + i] = T;")
    return "\n".join(indent + line for line in lines)
