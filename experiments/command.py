"""The command line of an experiment: the options of `cnngp reproduce`, and its kept pieces and page."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from cnngp.cli import main
from cnngp.cli.options import Asked, add_command
from cnngp.cli.reproduce import run_experiments


def commands(name: str, images: Sequence[str] = ("mnist", "paper")) -> typer.Typer:
    """The command line of `experiments.NAME`, which needs the data set `images` (its name and split)."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

    def experiment(asked: Asked) -> None:
        run_experiments([(f"experiments.{name}", ("python", "-m", f"experiments.{name}"))], asked, images)

    experiment.__doc__ = f"Run the experiment {name}. If it is interrupted, run it again and it continues."
    add_command(app, "experiment", experiment)
    return app


def run(name: str, images: Sequence[str] = ("mnist", "paper")) -> None:
    """Run the experiment with the options of the command line, and exit."""
    main(commands=commands(name, images))
