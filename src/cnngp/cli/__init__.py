"""The command line: arguments in, tables out, no mathematics. One file a command; bad input is one line."""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .classify import classify
from .gram import gram
from .info import info
from .networks import networks
from .output import one_command, shown
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


def interruptible(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with Ctrl-C as an error that `run` reports in one line."""

    @functools.wraps(command)
    def run_command(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt as error:
            raise _Interrupted(str(error) or "interrupted") from None

    return run_command


class _Command(TyperCommand):
    """Help in the usual form: newer Typers put braces around arguments, and the names of Python's types beside them."""

    def get_help(self, ctx: Any) -> str:
        usage, end, rest = super().get_help(ctx).partition("\n\n")
        usage = re.sub(r"(?<= )(\{\w+\}|\[\w+\])", lambda found: found[0].strip("{}").upper(), usage)
        return usage + end + re.sub(r"^  (\w+(?:\.\.\.)?) <([^>]*)>", _argument, rest, flags=re.MULTILINE)


def _argument(found: re.Match[str]) -> str:
    """The name of an argument, with its choices where it has some, in as many columns as before."""
    return (f"  {found[1].upper()}" + (f" <{found[2]}>" if "|" in found[2] else "")).ljust(len(found[0]))


# Each command with its line in the list, which Typer cuts off where it is too long, and examples for its own page.
_COMMANDS: tuple[tuple[Callable[..., None], str, tuple[str, ...]], ...] = (
    (
        classify,
        "Fit an exact GP to images and write a report.",
        (
            "cnngp classify",
            "cnngp classify --data photos/ --size 32 --suspects suspects.csv",
            "cnngp classify --data mnist --network resnet32 --train 1000",
        ),
    ),
    (
        predict,
        "Predict the class of image files.",
        ("cnngp predict out/photos-auto-400/model.gp new.jpg more-photos/",),
    ),
    (
        view,
        "Try images on a model, and clean labels.",
        ("cnngp view out/photos-auto-400/model.gp",),
    ),
    (
        gram,
        "Compute a kernel matrix into a store.",
        (
            "cnngp gram --data mnist --network resnet32 --plan",
            "cnngp gram --data mnist --network resnet32 --store mnist.zarr",
            "cnngp gram --status mnist.zarr",
        ),
    ),
    (
        search,
        "Search for a good network at random.",
        ("cnngp search --data mnist --space paper-cnn --draws 27 --train 10000 --full 3",),
    ),
    (
        sample,
        "Compare finite networks with their kernel.",
        ("cnngp sample --network small_cnn --channels 4,16,64",),
    ),
    (reproduce, "Reproduce the paper's tables and figures.", ("cnngp reproduce all --quick",)),
    (
        networks,
        "List the built-in networks.",
        ("cnngp networks", "cnngp networks resnet32 --input-shape 1,28,28"),
    ),
    (info, "Show versions, engines, threads and memory.", ("cnngp info --json",)),
)
for _command, _line, _examples in _COMMANDS:
    _epilog = "\b\n" + "\n".join([f"Example{'s' if len(_examples) > 1 else ''}:", *(f"  {e}" for e in _examples)])
    app.command(cls=_Command, short_help=_line, epilog=_epilog)(interruptible(_command))


# Newer Typers carry a copy of Click, older ones import it: this reaches the base of usage errors in both.
_UsageError: Any = typer.BadParameter.__base__


# The code of a program whose reader went away: 128 + SIGPIPE.
_CLOSED = 141


def main(arguments: list[str] | None = None, commands: typer.Typer = app) -> None:
    """Run the command line (that of `commands`) and exit.

    0 done, 1 bad data or not possible, 2 bad arguments, 130 interrupted, 141 nobody reads the output (`| head`).
    """
    code = run(arguments, commands)
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BrokenPipeError:
        code = _CLOSED
    if code == _CLOSED:  # what is left in a buffer has nowhere to go, and Python would complain of it at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def run(arguments: list[str] | None = None, commands: typer.Typer = app) -> int:
    """The exit code of one command line. CNNGP_DEBUG=1 shows tracebacks."""
    program, nothing = ("cnngp", ["--help"]) if commands is app else (None, [])
    words = sys.argv[1:] if arguments is None else arguments
    try:
        with one_command():
            result = commands(words or nothing, prog_name=program, standalone_mode=False)
    except SystemExit as error:  # Click's answer to an output that nobody reads
        if isinstance(error.__context__, BrokenPipeError):
            return _CLOSED
        raise
    except _UsageError as error:
        return _fail(_plain(error.format_message()), 2)
    except (KeyboardInterrupt, typer.Abort, _Interrupted) as error:
        return _fail(str(error) or "interrupted", 130)
    except MemoryError as error:
        return _fail(str(error) or "not enough memory", 1)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        if os.environ.get("CNNGP_DEBUG"):
            raise
        return _fail(re.sub(r"\bdevice='(\w+)'", r"--device \1", str(error)) or type(error).__name__, 1)
    return result if isinstance(result, int) else 0


# How newer Typers say what they cannot read, and what it means.
_WORDS = {
    "Value error, ": "",
    "Input should be a valid number, unable to parse string as a number": "expected a number",
    "Input should be a valid integer, unable to parse string as an integer": "expected a whole number",
    "Input should be ": "expected a value ",
}


def _plain(message: str) -> str:
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message


def _fail(message: str, code: int) -> int:
    typer.echo(f"error: {shown(' '.join(message.split()))}", err=True)
    return code
