"""What the commands share: options, checks of output paths, tables, warnings on one line."""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cnngp.network.layers import NetworkError
from cnngp.network.names import NETWORKS as NETWORKS
from cnngp.network.names import network_by_name as network_by_name
from cnngp.network.names import zoo_name as zoo_name

from .output import say, warn

Data = Annotated[
    str,
    typer.Option(
        help="digits, mnist, fashion_mnist, cifar10, an .npz file, or a folder with one sub-folder per class."
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        metavar="HxW", help="Resize the images of a folder to this height and width, such as 48x64, or 48 for both."
    ),
]
Aspect = Annotated[
    str,
    typer.Option(
        help="squash: stretch images of another shape to that size; pad: keep their shape, with black borders."
    ),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be read, instead of stopping.")]
NetworkName = Annotated[str, typer.Option("--network", help="auto, a name from `cnngp networks`, or a JSON file.")]
Train = Annotated[int | None, typer.Option(help="Use only the first N training images.")]
SplitName = Annotated[str, typer.Option("--split", help="standard, or paper (mnist and fashion_mnist).")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="float32 or float64.")]
Kind = Annotated[str, typer.Option(help="nngp: the kernel of the Gaussian process; ntk: the neural tangent kernel.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; by default, all.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed draws the same networks.")]


def read_data(data: str, split: str, size: str | None, aspect: str, skip_bad: bool) -> Any:
    """The images that the options ask for, and a line for each note about how they were read."""
    from cnngp.datasets import load
    from cnngp.datasets.images import check_size

    found = load(
        data,
        split=split,  # type: ignore[arg-type]
        size=None if size is None else check_size(size),
        aspect=aspect,  # type: ignore[arg-type]
        skip_bad=skip_bad,
    )
    for note in found.notes:
        say("note", note)
    return found


def check_writable(option: str, path: Path, *, folder: bool = True) -> None:
    """Refuse a folder (or a file) that cannot be written, before the work that would be lost. Makes nothing."""
    try:
        if not folder and path.is_dir():
            raise OSError(None, "it is a folder, not a file")
        if not folder and path.exists() and not os.access(path, os.W_OK):
            raise OSError(None, "you have no permission to change this file")
        target = path if folder else path.parent
        with tempfile.TemporaryFile(dir=next(p for p in (target, *target.absolute().parents) if p.exists())):
            pass
    except OSError as error:
        raise OSError(f"{option} {path} cannot be written: {error.strerror}; choose another") from None


def parse_shape(text: str) -> tuple[int, ...]:
    """1,28,28 or 1x28x28 as a tuple."""
    parts = re.split(r"[,x×]", text)
    if not all(part.strip().isdigit() for part in parts):
        raise NetworkError(f"shape {text!r}: expected channels,height,width such as 1,28,28")
    return tuple(int(part) for part in parts)


def number_or_word(name: str, text: str) -> Any:
    """0.01 as a number, ml or loo as a word; the estimator judges the word."""
    try:
        return float(text)
    except ValueError:
        if text.isalpha():
            return text
        raise ValueError(f"--{name} {text}: expected a number or a word such as ml") from None


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """Aligned columns; those named in `right` to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = (
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Warnings as one line each, without the file names and lines of code that Python adds."""
    from cnngp.gp.jitter import JitterWarning

    def show(message: Any, *_: Any, **__: Any) -> None:
        warn(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", JitterWarning)
        warnings.showwarning = show
        yield
