"""`cnngp reproduce`: the paper's tables and figures, each beside its published values."""

from __future__ import annotations

import math
import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from .common import Device, Threads, check_writable, table, warnings_as_lines
from .output import Json, Quiet, last_line, say, tell

AGAIN = 75
"""The exit code of a run that its budget ended: run again to go on (EX_TEMPFAIL of sysexits.h)."""


class Experiment(StrEnum):
    table1 = "table1"
    figure2 = "figure2"
    figure3 = "figure3"
    timings = "timings"
    pooled = "pooled"
    beyond = "beyond"
    cifar10 = "cifar10"
    all = "all"


def reproduce(
    experiment: Annotated[Experiment, typer.Argument(help="What to reproduce.")],
    quick: Annotated[bool, typer.Option("--quick", help="A small version that takes minutes on two cores.")] = False,
    rivals: Annotated[
        bool,
        typer.Option("--rivals", help="For table1: also run the other systems that the paper quotes."),
    ] = False,
    device: Device = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder for the results and the finished pieces.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder that contains mnist/ or cifar10/; by default CNNGP_DATA, then the cache."),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option(help="Let the workers of this Dask scheduler compute the kernels: tcp://host:8786.")
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Start no new piece after this many seconds; run again to continue.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random networks.")] = 0,
    threads: Threads = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce the paper. Finished pieces are kept: if it is interrupted, run it again and it continues."""
    from cnngp.paper.experiments import NAMES, PAGE
    from cnngp.paper.experiments import reproduce as run_experiment
    from cnngp.paper.setting import OutOfTime, Setting

    if rivals and experiment is not Experiment.table1:
        raise ValueError(f"--rivals belongs to table1; write: cnngp reproduce table1 --rivals, not {experiment.value}")
    if budget is not None and not (math.isfinite(budget) and budget > 0):
        raise ValueError(f"--budget {budget:g}: expected a positive number of seconds")
    folder = out if out is not None else Path("out") / ("reproduce-quick" if quick else "reproduce")
    check_writable("--out", folder)
    setting = Setting(
        out=folder,
        quick=quick,
        device=device,  # type: ignore[arg-type]
        threads=threads,
        seed=seed,
        data=data,
        scheduler=scheduler,
        budget=budget,
        say=lambda name, text: say(name, text) if name == "plan" else say("piece", f"{name}: {text}"),
    )
    actual = setting.actual_device  # refuses a device that is not there
    # And images that are not at hand, before anything is computed.
    if experiment is Experiment.cifar10:
        setting.dataset("cifar10")
    else:
        setting.dataset("mnist", "paper")
    if scheduler is not None:
        from cnngp.matrix.cluster.cluster import connect

        connect(scheduler).close()
    (folder / "pieces").mkdir(parents=True, exist_ok=True)
    say("engine", f"{actual}{'' if scheduler is None else f', kernels by the workers of {scheduler}'}")
    names = NAMES if experiment is Experiment.all else ("rivals" if rivals else experiment.value,)
    rows: list[dict[str, Any]] = []
    try:
        for name in names:
            with warnings_as_lines():
                doc = run_experiment(name, setting, _command(name, quick, seed, device, scheduler))
            tell()
            tell(_tables(doc))
            tell()
            rows += [{"experiment": name, **row} for row in doc["rows"]]
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; the finished pieces are kept in {folder / 'pieces'}: run the same command again and it goes "
            "on from there"
        ) from None
    except OutOfTime as error:
        typer.echo(f"stopped: {error}", err=True)
        last_line(as_json, {"command": "reproduce", "finished": False, "rows": rows})
        raise typer.Exit(AGAIN) from None
    say("page", str(folder / PAGE))
    last_line(as_json, {"command": "reproduce", "finished": True, "page": str(folder / PAGE), "rows": rows})


def _command(name: str, quick: bool, seed: int, device: str, scheduler: str | None) -> str:
    """The command that repeats an experiment; where its files go does not change it."""
    words = ["cnngp", "reproduce", *(["table1", "--rivals"] if name == "rivals" else [name])]
    words += ["--quick"] if quick else []
    words += ["--device", device] if device != "auto" else []
    words += ["--scheduler", scheduler] if scheduler is not None else []
    words += ["--seed", str(seed)] if seed else []
    return shlex.join(words)


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
        parts.append(f"{t.name}\n{table(lines, right=range(1, len(lines[0])))}")
    return "\n\n".join(parts)
