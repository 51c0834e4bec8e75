"""Launches of kernels of every kind, the lines of their text, and the statements that write their results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .formula_text.formula_writer import literal

SHARED_LIMIT = 227 * 1024
"""Bytes of shared memory that a block may have on an H100 or H200."""
# Behind the other arguments of `pairs` in programs of a tangent kernel.
THETA_ARGUMENTS = ", real* __restrict__ theta, real* __restrict__ theta_mirror"


@dataclass(frozen=True)
class Launch:
    """Threads of a block, its bytes of dynamic shared memory, and its bytes of scratch in global memory.

    A block of `pairs` covers `rows` × `columns` pairs. Where a multiprocessor should hold `resident` blocks, they walk
    over the work; 0: each has its own. `given` is what stands behind a kernel's arguments: scratch memory, and by name
    what `Card.numbers` has.
    """

    threads: int
    shared: int
    scratch: int = 0
    rows: int = 1
    columns: int = 1
    resident: int = 0
    given: tuple[str, ...] = ()

    def blocks(self, n: int, m: int) -> int:
        """The blocks that cover n × m pairs, where each has its own."""
        return -(-n // self.rows) * -(-m // self.columns)


class Writer:
    """Lines of a kernel's body, and the helpers that they call."""

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
        """Lines that end in a brace, with what is put inside, and the closing brace."""
        self.put(*head)
        self.depth += 1
        yield
        self.depth -= 1
        self.put("}")

    def define(self, key: object, prefix: str, text: str) -> str:
        """The name of a helper, written once however often it is used; `NAME` in the text stands for it."""
        if key not in self.functions:
            name = f"{prefix}_{sum(n.startswith(prefix + '_') for n in self.functions.values())}"
            self.functions[key] = name
            self.definitions.append(text.replace("NAME", name))
        return self.functions[key]

    def array(self, prefix: str, kind: str, values: tuple[object, ...]) -> str:
        """The name of an array of constants."""
        text = f"{kind} NAME[{len(values)}] = {{{', '.join(map(str, values))}}};"
        return self.define((prefix, kind, values), prefix, text)

    def number(self, value: float) -> str:
        return literal(value, self.dtype)

    def per_row(self, rows: int, statement: str) -> None:
        self.put("#pragma unroll", f"for (int r = 0; r < {rows}; r++) {statement}")


def stores(K: str, tangents: bool, indent: str = " " * 8) -> str:
    """Statements that write a pair's results; beside Θ, in `T`, K only where it is wanted."""
    lines = [f"out[i * ld + j] = {K};", f"if (mirror) mirror[j * ld + i] = {K};"]
    if tangents:
        lines = ["if (out) " + lines[0], *lines[1:], "theta[i * ld + j] = T;"]
        lines.append("if (theta_mirror) theta_mirror[j * ld + i] = T;")
    return "\n".join(indent + line for line in lines)
