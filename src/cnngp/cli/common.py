"""What commands share: networks by name, tables, warnings as lines, the JSON last line."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import zoo
from ..network import Network, NetworkError
from ..serialize import from_json

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
Threads = Annotated[int | None, typer.Option(help="CPU threads; all by default.")]


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
        return from_json(path.read_text(encoding="utf-8"))
    raise NetworkError(
        f"no network {name!r}: expected auto, {', '.join(NETWORKS)}, or a file made by network.to_json()"
    )


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
    """Warnings of this package as one line each, without Python's file names; others as they come."""
    from ..gp import JitterWarning

    with warnings.catch_warnings():
        warnings.simplefilter("always", JitterWarning)
        python = warnings.showwarning

        def show(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
            if category.__module__.startswith("cnngp"):
                typer.echo(f"warning: {message}", err=True)
            else:
                python(message, category, *args, **kwargs)

        warnings.showwarning = show
        yield
