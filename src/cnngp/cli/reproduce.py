"""`cnngp reproduce`: the paper's tables and figures, each beside its published values."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cnngp.common.tables import aligned

from .common import Device, Seed, Threads, check_writable, warnings_as_lines
from .output import Json, Quiet, last_line, say, tell

AGAIN = 75
"""The exit code of a run that its budget ended: run again to go on (EX_TEMPFAIL of sysexits.h)."""

Quick = Annotated[bool, typer.Option("--quick", help="A small version that takes minutes on two cores.")]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder for the results and the finished pieces.")]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="FOLDER", help="Folder that contains mnist/; by default CNNGP_DATA, then the cache."
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Let the workers of this Dask scheduler compute the kernels: tcp://host:8786."
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Start no new piece after this many seconds; run again to continue."),
]


class Experiment(StrEnum):
    table1 = "table1"
    figure2 = "figure2"
    figure3 = "figure3"
    all = "all"


def reproduce(
    experiment: Annotated[Experiment, typer.Argument(help="What to reproduce.")],
    quick: Quick = False,
    device: Device = "auto",
    out: Out = None,
    data: DataFolder = None,
    scheduler: Scheduler = None,
    budget: Budget = None,
    seed: Seed = 0,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce the paper. Finished pieces are kept: if it is interrupted, run it again and it continues."""
    from cnngp.paper.experiments import NAMES

    names = NAMES if experiment is Experiment.all else (experiment.value,)
    run_experiments(
        [(f"cnngp.paper.{name}", ("cnngp", "reproduce", name)) for name in names],
        {"quick": quick, "device": device, "out": out, "data": data, "scheduler": scheduler}
        | {"budget": budget, "seed": seed, "threads": threads},
        as_json,
    )


def run_experiments(
    experiments: Sequence[tuple[str, Sequence[str]]],
    options: dict[str, Any],
    as_json: bool,
    images: Sequence[str] = ("mnist", "paper"),
) -> None:
    """Run experiments, each given as its module and the words of its command, and print their tables.

    `options` are those of `Setting`; `images` names the data set, which has to be there before anything is computed.
    """
    from cnngp.paper.experiments import PAGE
    from cnngp.paper.experiments import reproduce as run_experiment
    from cnngp.paper.setting import OutOfTime, Setting

    budget = options["budget"]
    if budget is not None and not (math.isfinite(budget) and budget > 0):
        raise ValueError(f"--budget {budget:g}: expected a positive number of seconds")
    folder = options["out"] or Path("out") / ("reproduce-quick" if options["quick"] else "reproduce")
    check_writable("--out", folder)
    setting = Setting(
        **(options | {"out": folder}),
        say=lambda name, text: say(name, text) if name == "plan" else say("piece", f"{name}: {text}"),
    )
    actual = setting.actual_device  # refuses a device that is not there
    setting.dataset(*images)  # type: ignore[arg-type]
    if setting.scheduler is not None:
        from cnngp.matrix.cluster.connection import connect

        connect(setting.scheduler).close()
    (folder / "pieces").mkdir(parents=True, exist_ok=True)
    workers = "" if setting.scheduler is None else f", kernels by the workers of {setting.scheduler}"
    say("engine", f"{actual}{workers}")
    rows: list[dict[str, Any]] = []
    report = {"command": shlex.join(experiments[0][1][:2])}
    try:
        for module, words in experiments:
            with warnings_as_lines():
                doc = run_experiment(module, setting, _command(words, setting))
            tell()
            tell(_tables(doc))
            tell()
            rows += [{"experiment": doc["experiment"], **row} for row in doc["rows"]]
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; the finished pieces are kept in {folder / 'pieces'}: run the same command again and it goes "
            "on from there"
        ) from None
    except OutOfTime as error:
        typer.echo(f"stopped: {error}", err=True)
        last_line(as_json, report | {"finished": False, "rows": rows})
        raise typer.Exit(AGAIN) from None
    say("page", str(folder / PAGE))
    last_line(as_json, report | {"finished": True, "page": str(folder / PAGE), "rows": rows})


def _command(words: Sequence[str], setting: Any) -> str:
    """The command that repeats an experiment; where its files go does not change it."""
    return shlex.join(
        [
            *words,
            *(["--quick"] if setting.quick else []),
            *(["--device", setting.device] if setting.device != "auto" else []),
            *(["--scheduler", setting.scheduler] if setting.scheduler is not None else []),
            *(["--seed", str(setting.seed)] if setting.seed else []),
        ]
    )


_BRACKETS = "In brackets: published values."
_BRACKETS_QUICK = """\
In brackets: published values. They are of the full experiment (50,000 training images in Table 1), and this is a
small version of it: larger errors are what one expects, not a failure."""


def _tables(doc: Any) -> str:
    """Ours, and the published values in brackets, with a line that says so."""
    from cnngp.paper.results import shown, tables

    parts = []
    if any(row["published"] is not None for row in doc["rows"]):
        parts.append(_BRACKETS_QUICK if doc["quick"] else _BRACKETS)
    for t in tables(doc["rows"]):
        lines = [("", *t.quantities)]
        for result, line in t.lines.items():
            cells = []
            for quantity in t.quantities:
                row = line.get(quantity)
                numbers = [] if row is None or row["ours"] is None else [shown(row["ours"], row["unit"])]
                if row is not None and row["published"] is not None:
                    numbers.append(f"[{shown(row['published'], row['unit'])}]")
                cells.append(" ".join(numbers))
            lines.append((result, *cells))
        parts.append(f"{t.name}\n{aligned(lines, right=range(1, len(lines[0])))}")
    return "\n\n".join(parts)
