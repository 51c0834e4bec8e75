"""The command line: arguments in, tables out, no mathematics. A command's module is imported when the command runs."""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module

import click

from cnngp import __version__

from .options import SETTINGS, Command, Interrupted
from .output import shown

_COMMANDS = {
    "classify": (
        "fit",
        "cnngp classify",
        "cnngp classify --data photos/ --size 32 --suspects suspects.csv",
        "cnngp classify --data mnist --network resnet32 --train 1000",
    ),
    "regress": ("fit", "cnngp regress --data apples.csv --columns weight"),
    "predict": (
        "models",
        "cnngp predict out/photos-auto-400/model.gp new.jpg more-photos/",
        "cnngp predict out/photos-auto-400 new.jpg --coverage 0.9",
    ),
    "view": ("models", "cnngp view out/photos-auto-400/model.gp"),
    "gram": (
        "gram",
        "cnngp gram --data mnist --network resnet32 --plan",
        "cnngp gram --data mnist --network resnet32 --store mnist.zarr",
        "cnngp gram --status mnist.zarr",
    ),
    "search": ("search", "cnngp search --data mnist --space paper-cnn --draws 27 --train 10000 --full 3"),
    "sample": ("sample", "cnngp sample --network small_cnn --channels 4,16,64"),
    "reproduce": ("reproduce", "cnngp reproduce all --quick"),
    "networks": ("networks", "cnngp networks", "cnngp networks resnet32 --input-shape 1,28,28"),
    "info": ("networks", "cnngp info --json"),
}
"""Module and examples of each command."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context | None) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        file, *examples = _COMMANDS[cmd_name]
        return Command(cmd_name, getattr(import_module(f".{file}", __package__), cmd_name), examples)


@click.group(cls=_Commands, context_settings=SETTINGS)
@click.version_option(__version__, message="cnngp %(version)s", help="Print the version and exit.")
def app() -> None:
    """Exact Gaussian processes from infinitely wide convolutional networks."""


# Exit code when the reader of the output has closed the pipe: 128 + SIGPIPE.
_CLOSED = 141


def main(arguments: list[str] | None = None, commands: click.Command = app) -> None:
    """Run the command line of `commands` and exit.

    Exit codes: 0 success, 1 bad data or a failure, 2 bad arguments, 130 interrupted, 141 output pipe closed (`| head`).
    """
    code = run(arguments, commands)
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except BrokenPipeError:
        code = _CLOSED
    if code == _CLOSED:  # otherwise Python would report an error at exit, when it flushes the remaining buffer
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(code)


def run(arguments: list[str] | None = None, commands: click.Command = app) -> int:
    """Run one command line and return its exit code. CNNGP_DEBUG=1 shows tracebacks."""
    program, nothing = ("cnngp", ["--help"]) if commands is app else (None, [])
    words = sys.argv[1:] if arguments is None else arguments
    try:
        result = commands.main(words or nothing, prog_name=program, standalone_mode=False)
    except SystemExit:  # Click raises it here only when the output pipe is closed
        return _CLOSED
    except click.UsageError as error:
        return _fail(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort, Interrupted) as error:
        return _fail(str(error) or "interrupted", 130)
    except MemoryError as error:
        return _fail(str(error) or "not enough memory", 1)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        if os.environ.get("CNNGP_DEBUG"):
            raise
        return _fail(re.sub(r"\bdevice='(\w+)'", r"--device \1", str(error)) or type(error).__name__, 1)
    return result if isinstance(result, int) else 0


def _fail(message: str, code: int) -> int:
    click.echo(f"error: {shown(' '.join(message.split()))}", err=True)
    return code
