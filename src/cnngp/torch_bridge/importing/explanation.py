"""`explain`: a table of every call of a module's forward, with what it becomes or why it cannot be imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cnngp.common.tables import aligned
from cnngp.network.layers import Network, NetworkError

from .importer import Row, read_module
from .weights import Variances


@dataclass(frozen=True, repr=False)
class Explanation:
    """Rows in the order of the calls, then the sub-modules that forward never calls; `str` is the table.

    `network` is what `from_torch` returns, or None, and then `problem` says why.
    """

    rows: tuple[Row, ...]
    network: Network | None
    problem: str

    @property
    def ok(self) -> bool:
        return self.network is not None

    @property
    def refused(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.refused)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"Explanation({len(self.rows)} calls, {len(self.refused)} refused, ok={self.ok})"

    def __str__(self) -> str:
        cells = [("name", "in PyTorch", "output", "becomes")]
        for row in self.rows:
            told = f"NO: {row.told}" if row.refused else row.told
            cells.append((row.name, row.kind, " × ".join(map(str, row.output)), told))
        return "\n".join(
            [aligned(cells, right=[2]), f"\n{self.network!r}" if self.ok else f"\nno Gaussian process: {self.problem}"]
        )


def explain_module(module: Any, input_shape: Sequence[int], allow_non_gaussian: bool) -> Explanation:
    found = read_module(module, input_shape, Variances("measured", None, None), allow_non_gaussian)
    called = {row.name for row in found.rows}
    idle = [
        Row(name, type(part).__name__, (), "never called by forward", False)
        for name, part in module.named_modules()
        if name and not any(True for _ in part.children()) and name not in called
    ]
    rows = (*found.rows, *idle)
    try:
        return Explanation(rows, found.network(input_shape), "")
    except NetworkError as error:
        return Explanation(rows, None, str(error))
