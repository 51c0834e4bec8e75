"""Command line of an experiment, with the options, kept pieces and page of `cnngp reproduce`."""

from __future__ import annotations

from collections.abc import Sequence

from cnngp.cli import main
from cnngp.cli.options import Asked, Command
from cnngp.cli.reproduce import run_experiments


def commands(name: str, images: Sequence[str] = ("mnist", "paper")) -> Command:
    """Command line of `experiments.NAME`, which needs the data set `images` (its name and split)."""

    def experiment(asked: Asked) -> None:
        run_experiments([(f"experiments.{name}", ("python", "-m", f"experiments.{name}"))], asked, images)

    experiment.__doc__ = f"Run the experiment {name}. If it is interrupted, run it again and it continues."
    return Command("experiment", experiment)


def run(name: str, images: Sequence[str] = ("mnist", "paper")) -> None:
    """Run the experiment with the options on the command line, and exit."""
    main(commands=commands(name, images))
