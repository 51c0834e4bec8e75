"""The command line of an experiment: the options of `cnngp reproduce`, and its kept pieces and page."""

from __future__ import annotations

from collections.abc import Sequence

from cnngp.cli import main
from cnngp.cli.options import Asked, Command
from cnngp.cli.reproduce import run_experiments


def commands(name: str, images: Sequence[str] = ("mnist", "paper")) -> Command:
    """The command line of `experiments.NAME`, which needs the data set `images` (its name and split)."""

    def experiment(asked: Asked) -> None:
        run_experiments([(f"experiments.{name}", ("python", "-m", f"experiments.{name}"))], asked, images)

    experiment.__doc__ = f"Run the experiment {name}. If it is interrupted, run it again and it continues."
    return Command("experiment", experiment)


def run(name: str, images: Sequence[str] = ("mnist", "paper")) -> None:
    """Run the experiment with the options of the command line, and exit."""
    main(commands=commands(name, images))
