"""The command line of an experiment: the options of `cnngp reproduce`, and its kept pieces and page."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from cnngp.cli import interruptible, main
from cnngp.cli.common import Device, Seed, Threads
from cnngp.cli.output import Json, Quiet
from cnngp.cli.reproduce import Budget, DataFolder, Out, Quick, Scheduler, run_experiments


def commands(name: str, images: Sequence[str] = ("mnist", "paper")) -> typer.Typer:
    """The command line of `experiments.NAME`, which needs the data set `images` (its name and split)."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.command(help=f"Run the experiment {name}. If it is interrupted, run it again and it continues.")
    @interruptible
    def experiment(
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
        options = {"quick": quick, "device": device, "out": out, "data": data, "scheduler": scheduler}
        options |= {"budget": budget, "seed": seed, "threads": threads}
        words = ("python", "-m", f"experiments.{name}")
        run_experiments([(f"experiments.{name}", words)], options, as_json, images)

    return app


def run(name: str, images: Sequence[str] = ("mnist", "paper")) -> None:
    """Run the experiment with the options of the command line, and exit."""
    main(commands=commands(name, images))
