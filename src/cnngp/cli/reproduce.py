"""`cnngp reproduce`: the paper's tables and figures, each beside its published values."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cnngp.common.tables import aligned

from .inputs import check_writable
from .options import Asked
from .output import last_line, say, tell, warnings_as_lines

_SETTING = ("quick", "device", "data", "scheduler", "budget", "seed", "threads")
AGAIN = 75
"""Exit code when the time budget is used up: run again to continue (EX_TEMPFAIL of sysexits.h)."""


def reproduce(asked: Asked) -> None:
    """Reproduce the paper's tables and figures. Finished pieces are kept, so an interrupted run can continue."""
    from cnngp.paper.results import NAMES

    names = NAMES if asked.experiment == "all" else (asked.experiment,)
    run_experiments([(f"cnngp.paper.{name}", ("cnngp", "reproduce", name)) for name in names], asked)


def run_experiments(
    experiments: Sequence[tuple[str, Sequence[str]]], asked: Asked, images: Sequence[str] = ("mnist", "paper")
) -> None:
    """Run experiments, each given as its module and the words of its command, and print their tables.

    `images` names the data set and its split; it is loaded first, so that missing data raises before anything runs.
    """
    from cnngp.paper.results import PAGE
    from cnngp.paper.results import reproduce as run_experiment
    from cnngp.paper.setting import OutOfTime, Setting

    folder = asked.out or Path("out") / ("reproduce-quick" if asked.quick else "reproduce")
    check_writable("--out", folder)
    setting = Setting(
        **{name: getattr(asked, name) for name in _SETTING},
        out=folder,
        say=lambda name, text: say(name, text) if name == "plan" else say("piece", f"{name}: {text}"),
    )
    actual = setting.actual_device  # raises if the device is missing
    setting.dataset(*images)  # type: ignore[arg-type]
    if setting.scheduler is not None:
        from cnngp.cluster import connect

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
        click.echo(f"stopped: {error}", err=True)
        last_line(report | {"finished": False, "rows": rows})
        raise click.exceptions.Exit(AGAIN) from None
    say("page", str(folder / PAGE))
    last_line(report | {"finished": True, "page": str(folder / PAGE), "rows": rows})


def _command(words: Sequence[str], setting: Any) -> str:
    """The command that repeats an experiment, without --out, which does not change the results."""
    said = [*words, *(["--quick"] if setting.quick else [])]
    for name, usual in (("device", "auto"), ("scheduler", None), ("seed", 0)):
        value = getattr(setting, name)
        said += [f"--{name}", str(value)] if value != usual else []
    return shlex.join(said)


def _tables(doc: Any) -> str:
    """Tables as text: our values with published values in brackets, under a line that explains the brackets."""
    from cnngp.paper.results import shown, tables

    parts = []
    if any(row["published"] is not None for row in doc["rows"]):
        full = ", of the full experiment; larger errors are no failure here" if doc["quick"] else ""
        parts.append(f"In brackets: published values{full}.")
    for t in tables(doc["rows"]):
        lines = [("", *t.quantities)]
        for result, line in t.lines.items():
            cells = []
            for quantity in t.quantities:
                row = line.get(quantity, {"ours": None, "published": None, "unit": ""})
                ours, published = (shown(row[key], row["unit"]) for key in ("ours", "published"))
                cells.append(f"{ours} [{published}]".strip() if published else ours)
            lines.append((result, *cells))
        parts.append(f"{t.name}\n{aligned(lines, right=range(1, len(lines[0])))}")
    return "\n\n".join(parts)
