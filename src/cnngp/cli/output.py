"""Printed output of a command: to standard output; with --json to standard error, so that standard output holds only
JSON; with --quiet nowhere.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TextIO

import click

from cnngp.common import progress
from cnngp.common.tables import visible

_json = _quiet = False


@contextmanager
def speaking(json: bool = False, quiet: bool = False) -> Iterator[None]:
    """Route the output of one command: to standard error with `json`, nowhere with `quiet`, which hides bars too."""
    global _json, _quiet
    before = _json, _quiet
    _json, _quiet = json, quiet
    try:
        with progress.hidden() if quiet else nullcontext():
            yield
    finally:
        _json, _quiet = before


def shown(text: str) -> str:
    """Text made safe for a terminal: control characters in file or class names must not reach it."""
    return "\n".join(visible(line) for line in text.expandtabs().split("\n"))


def tell(text: str = "") -> None:
    """Print one or more lines for people, flushed so that a pipe sees them at once."""
    stream: TextIO | None = sys.stderr if _json else sys.stdout
    if _quiet or stream is None:  # Python sets it to None if it was closed before the start
        return
    with progress.beside_bars(stream):
        click.echo(shown(text), file=stream)
        stream.flush()


def say(name: str, value: str) -> None:
    """Print one result under its name; further lines are indented below it."""
    first, *rest = value.rstrip("\n").split("\n")
    tell("\n".join([f"{name:<22} {first}", *(f"{'':<22} {line}" for line in rest)]))


def warn(text: str) -> None:
    with progress.beside_bars(sys.stderr):
        click.echo(f"warning: {shown(' '.join(text.split()))}", err=True)


def last_line(result: dict[str, Any]) -> None:
    """Print the whole result as one line of JSON, if --json is given."""
    if _json:
        click.echo(json.dumps(result))


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print each warning as one line, without the file name and line of code that Python adds."""
    from cnngp.gp.linalg import JitterWarning

    def show(message: Any, *_: Any, **__: Any) -> None:
        warn(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", JitterWarning)
        warnings.showwarning = show
        yield
