"""Common parts of a campaign's trials: checks of a result, the main loop, and the table."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cnngp.cluster import ClusterError
from cnngp.common.arrays import DataError
from cnngp.common.errors import ModelFileError, StoreError
from cnngp.gp.checks import MatrixError
from cnngp.kernel.engines.base import RangeError
from cnngp.network.layers import NetworkError

# Errors meant for users: any other exception after a fault is a bug of this package.
OURS = (StoreError, ModelFileError, ClusterError, MatrixError, DataError, NetworkError, RangeError)
SAME, FOUND, REFUSED = "as if nothing had happened", "damage found and made good", "one line"


class Wrong(AssertionError):
    """Raised for an incorrect number, an error not meant for users, or a foreign file changed."""


class Trial(Protocol):
    """One kind of fault. `name` is for the table; each call injects one random fault in an empty folder."""

    name: str
    promise: str

    def __call__(self, rng: random.Random, folder: Path) -> str: ...


def refused(call: Callable[[], Any], *more: type[BaseException]) -> Any | None:
    """Return `call()`, or None if it raises an error for users, which must have one line."""
    try:
        return call()
    except (*OURS, *more) as error:
        if "\n" in str(error) or not str(error):
            raise Wrong(f"not one line: {error!r}") from error
        return None


def expect(right: bool, what: str) -> None:
    if not right:
        raise Wrong(what)


@dataclass
class Row:
    """Outcomes of one kind of fault."""

    trial: Trial
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def campaign(trials: list[Trial], minutes: float, seed: int, say: Callable[[str], None]) -> list[Row]:
    """Run trials until the time is up, giving each kind the same total time."""
    rows = [Row(trial) for trial in trials]
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        row = min(rows, key=lambda r: r.seconds)  # the same time for each kind
        number = sum(row.outcomes.values()) + len(row.wrong) + 1
        began = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="cnngp-faults-"))
        try:
            row.outcomes[row.trial(random.Random(f"{seed}/{row.trial.name}/{number}"), folder)] += 1
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            row.wrong.append(f"number {number}: {type(error).__name__}: {error} ({where})")
            say(f"WRONG  {row.trial.name}, {row.wrong[-1]}")
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        row.seconds += time.monotonic() - began
    return rows


def table(rows: list[Row]) -> str:
    lines = [
        f"| what was done | times | {SAME} | {FOUND} | {REFUSED} | wrong |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        counts = [row.outcomes[kind] for kind in (SAME, FOUND, REFUSED)]
        cells = [f"{sum(counts) + len(row.wrong):,}", *(f"{count:,}" for count in counts), f"{len(row.wrong):,}"]
        lines.append(f"| {row.trial.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)
