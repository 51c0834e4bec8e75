"""Where a command's words go: to standard output; with --json to standard error, so that the JSON stands alone; with
--quiet nowhere.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

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


def only_json(wanted: bool) -> bool:
    """The option --json: words go to standard error."""
    _current.json = wanted
    return wanted


def only_warnings(wanted: bool) -> bool:
    """The option --quiet: words and progress bars go nowhere."""
    _current.quiet = wanted
    if wanted:
        _current.until_the_end.enter_context(progress.hidden())
    return wanted


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


def last_line(result: dict[str, Any]) -> None:
    """The whole result as one line of JSON, where that is wanted."""
    if _current.json:
        typer.echo(json.dumps(result))


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Warnings as one line each, without the file names and lines of code that Python adds."""
    from cnngp.gp.linalg import JitterWarning

    def show(message: Any, *_: Any, **__: Any) -> None:
        warn(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", JitterWarning)
        warnings.showwarning = show
        yield
