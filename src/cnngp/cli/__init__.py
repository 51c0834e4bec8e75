"""The command line: arguments in, tables out, no mathematics. One file a command; bad input is one line."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from .classify import classify
from .gram import gram
from .info import info
from .networks import networks
from .predict import predict
from .reproduce import reproduce
from .sample import sample
from .search import search
from .view import view

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from cnngp import __version__

        typer.echo(f"cnngp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Exact Gaussian processes from infinitely wide convolutional networks."""


class _Interrupted(Exception):
    """Ctrl-C with what the command has to say about it: Typer would end the process without a word."""


def _interruptible(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run_command(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as error:
            raise _Interrupted(str(error) or "interrupted") from None

    return run_command


for _command in (classify, gram, predict, view, sample, search, reproduce, networks, info):
    app.command()(_interruptible(_command))


# Newer Typers carry a copy of Click, older ones import it: this reaches the base of usage errors in both.
_UsageError: Any = typer.BadParameter.__base__


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 bad data or not possible, 2 bad arguments, 130 interrupted."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """The exit code of one command line. CNNGP_DEBUG=1 shows tracebacks."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        result = app(words or ["--help"], prog_name="cnngp", standalone_mode=False)
    except _UsageError as error:
        return _fail(error.format_message(), 2)
    except (KeyboardInterrupt, typer.Abort, _Interrupted) as error:
        return _fail(str(error) or "interrupted", 130)
    except MemoryError as error:
        return _fail(str(error) or "not enough memory", 1)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        if os.environ.get("CNNGP_DEBUG"):
            raise
        return _fail(str(error) or type(error).__name__, 1)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    return code
