"""What commands share: networks by name, places to write to, tables, warnings as lines, the JSON last line."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cnngp.network import zoo
from cnngp.network.layers import Network, NetworkError
from cnngp.network.serialize import from_json

NETWORKS: dict[str, tuple[Callable[[], Network], str]] = {
    "resnet32": (lambda: zoo.resnet(32), "the paper's ResNet GP; also resnet8, 14, 20, 26, 44, 56, 110, …"),
    "convnet": (zoo.convnet, "the paper's ConvNet GP"),
    "residual_cnn": (zoo.residual_cnn, "the paper's Residual CNN GP"),
    "small_cnn": (zoo.small_cnn, "three 3 × 3 convolutions, for small images"),
    "dense_nngp": (zoo.dense_nngp, "three fully connected layers"),
}

Json = Annotated[bool, typer.Option("--json", help="Print a last line of JSON.")]
NetworkName = Annotated[str, typer.Option("--network", help="auto, a name of `cnngp networks`, or a JSON file.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Dtype = Annotated[str, typer.Option(help="float32 or float64.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads; all by default.")]
Seed = Annotated[int, typer.Option(min=0, help="The same seed draws the same networks.")]


def network_by_name(name: str) -> Network | None:
    """A network of the zoo, one from a JSON file, or None for "auto": chosen by the shape of the images."""
    if name == "auto":
        return None
    if name in NETWORKS:
        return NETWORKS[name][0]()
    depth = re.fullmatch(r"resnet(\d+)", name)
    if depth:
        return zoo.resnet(int(depth[1]))
    path = Path(name)
    if path.suffix == ".json":
        if not path.is_file():
            raise NetworkError(f"{path}: no such file; write it with network.to_json()")
        try:
            return from_json(path.read_text(encoding="utf-8"))
        except ValueError as error:  # of the network, or of bytes that are no text
            raise NetworkError(f"{path}: {error}") from None
    raise NetworkError(
        f"no network {name!r}: expected auto, {', '.join(NETWORKS)}, or a file made by network.to_json()"
    )


def zoo_name(network: Network) -> str:
    """The name that `network_by_name` knows a network by, else the code that makes it."""
    return next((name for name, (make, _) in NETWORKS.items() if make() == network), repr(network))


def check_writable(option: str, path: Path, *, folder: bool = True) -> None:
    """Refuse a folder (or a file) that cannot be written, before the work that would be lost. Makes nothing."""
    try:
        if not folder and path.is_dir():
            raise OSError(None, "it is a folder, and a file is wanted")
        if not folder and path.exists() and not os.access(path, os.W_OK):
            raise OSError(None, "the file is there and is not yours to change")
        place = path if folder else path.parent
        with tempfile.TemporaryFile(dir=next(p for p in (place, *place.absolute().parents) if p.exists())):
            pass
    except OSError as error:
        raise OSError(f"{option} {path} cannot be written: {error.strerror}; give another") from None


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


def say(name: str, value: str) -> None:
    """One line of a result; flushed, so that a pipe sees it at once."""
    first, *rest = value.splitlines() or [""]
    typer.echo(f"{name:<22} {first}")
    for line in rest:
        typer.echo(f"{'':<22} {line}")
    sys.stdout.flush()


def last_line(wanted: bool, result: dict[str, Any]) -> None:
    if wanted:
        typer.echo(json.dumps(result))


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Warnings as one line each, without the file names and lines of code that Python adds."""
    from cnngp.gp.exact import JitterWarning

    def show(message: Any, *_: Any, **__: Any) -> None:
        typer.echo(f"warning: {' '.join(str(message).split())}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("always", JitterWarning)
        warnings.showwarning = show
        yield
