"""A fault-injection campaign: `python -m benchmarks.faults --minutes 30`.

    python -m benchmarks.faults --minutes 30 --seed 7
    python -m benchmarks.faults --minutes 5 --only store

Random faults until the time is up, each kind for the same time: kills, flipped bits, moved and lost files, links, full
disks, dying and frozen workers, crafted files, and generated networks against the reference. Prints a table of faults
and outcomes, and exits with an error if anything went wrong: an incorrect number, an error message of more than one
line, or a foreign file changed. docs/reliability.md has the promises that it tests.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .campaign import Trial, campaign, table
from .clusters import Workers
from .files import CraftedModels, Models
from .networks import Networks
from .pictures import Pictures, Sharing
from .searches import SearchKills
from .stores import Flips, FullDisks, Kills, Links, Losses, Metadata, Moves, Replaced, SolveKills, Stores
from .victim import Victim


def kinds(folder: Path, stack: contextlib.ExitStack) -> dict[type[Trial], Callable[[], Trial]]:
    """Factories of the trials of each kind; shared parts, such as finished stores, are made once when first needed."""

    @functools.cache
    def stores() -> Stores:
        return Stores(folder)

    @functools.cache
    def victim() -> Victim:
        return stack.enter_context(contextlib.closing(Victim()))

    @functools.cache
    def models() -> Models:
        return Models(folder)

    return {
        Flips: lambda: Flips(stores()),
        Moves: lambda: Moves(stores()),
        Losses: lambda: Losses(stores()),
        Metadata: lambda: Metadata(stores()),
        Links: lambda: Links(stores()),
        Replaced: lambda: Replaced(stores()),
        FullDisks: FullDisks,
        Kills: lambda: Kills(victim()),
        SolveKills: lambda: SolveKills(stores(), victim()),
        Models: models,
        CraftedModels: lambda: CraftedModels(models()),
        SearchKills: lambda: SearchKills(victim()),
        Pictures: Pictures,
        Sharing: Sharing,
        Workers: lambda: stack.enter_context(contextlib.closing(Workers())),
        Networks: Networks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="by default another one every time")
    parser.add_argument("--only", default="", help="kinds of faults whose description holds this text")
    parser.add_argument("--json", action="store_true", help="a last line for machines")
    asked = parser.parse_args()
    logging.getLogger("cnngp").setLevel(logging.CRITICAL)  # warnings about damage are expected here
    with tempfile.TemporaryDirectory(prefix="cnngp-faults-") as place, contextlib.ExitStack() as stack:
        chosen = [make() for kind, make in kinds(Path(place), stack).items() if asked.only in kind.name]
        began = time.monotonic()
        rows = campaign(chosen, asked.minutes, asked.seed, lambda text: print(text, flush=True))
    print(table(rows))
    minutes = (time.monotonic() - began) / 60
    machine = f"{os.cpu_count()} cores of {platform.machine()}, {platform.system()}"
    print(f"\n{minutes:.1f} minutes, seed {asked.seed}, {machine}")
    if asked.json:
        found = {row.trial.name: dict(row.outcomes) | {"wrong": row.wrong} for row in rows}
        print(json.dumps({"minutes": minutes, "seed": asked.seed, "faults": found}))
    if any(row.wrong for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
