"""Where a command's words go: to standard output; with --json to standard error, so that the JSON stands alone; with
--quiet nowhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, TextIO

import typer

from cnngp.common import progress
from cnngp.common.tables import visible


class _Output:
    def __init__(self) -> None:
        self.json = False
        self.quiet = False
        self.until_the_end = ExitStack()


_current = _Output()


@contextmanager
def one_command() -> Iterator[None]:
    """The options of a command end with it, also where one process runs several."""
    global _current
    _current = _Output()
    with _current.until_the_end:
        yield


def _json(wanted: bool) -> bool:
    _current.json = wanted
    return wanted


def _quiet(wanted: bool) -> bool:
    _current.quiet = wanted
    if wanted:
        _current.until_the_end.enter_context(progress.hidden())
    return wanted


Json = Annotated[
    bool,
    typer.Option(
        "--json",
        callback=_json,
        is_eager=True,
        help="Print JSON to standard output and everything else to standard error.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", callback=_quiet, is_eager=True, help="Print only warnings, errors and JSON.")
]


def shown(text: str) -> str:
    """Text for a terminal: names of others may not move the cursor there, or do more."""
    return "\n".join(visible(line) for line in text.expandtabs().split("\n"))


def tell(text: str = "") -> None:
    """One or more lines for people; flushed, so that a pipe sees them at once."""
    stream: TextIO | None = sys.stderr if _current.json else sys.stdout
    if _current.quiet or stream is None:  # Python has none where it was closed beforehand
        return
    typer.echo(shown(text), file=stream)
    stream.flush()


def say(name: str, value: str) -> None:
    """One line of a result under its name."""
    first, *rest = value.rstrip("\n").split("\n")
    tell("\n".join([f"{name:<22} {first}", *(f"{'':<22} {line}" for line in rest)]))


def warn(text: str) -> None:
    typer.echo(f"warning: {shown(' '.join(text.split()))}", err=True)


def last_line(wanted: bool, result: dict[str, Any]) -> None:
    """The whole result as one line of JSON."""
    if wanted:
        typer.echo(json.dumps(result))
