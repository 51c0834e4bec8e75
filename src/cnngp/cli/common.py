"""What the commands share: options, checks of output paths, tables, warnings on one line."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cnngp.network.names import NETWORKS as NETWORKS
from cnngp.network.names import network_by_name as network_by_name
from cnngp.network.names import zoo_name as zoo_name

from . import values
from .output import say, warn

Data = Annotated[
    str,
    typer.Option(
        metavar="DATA",
        parser=values.data,
        help="digits, mnist, fashion_mnist, cifar10, an .npz file, a folder with one sub-folder per class, or a table "
        "(.csv) of image files.",
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Column of a table with the labels, or several with commas between."),
]
InputShape = Annotated[
    str | None,
    typer.Option(
        metavar="C,H,W",
        parser=values.shape(2),
        help="What each row of an .npz file is, channels first: 1,128 for signals, 3,32,32 for images.",
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        metavar="HxW",
        parser=values.size,
        help="Resize the images of a folder or table to this height and width, such as 48x64, or 48 for both.",
    ),
]
Aspect = Annotated[
    str,
    typer.Option(
        metavar="squash|pad",
        parser=values.choice("squash", "pad"),
        help="squash: stretch images of another shape to that size; pad: keep their shape, with black borders.",
    ),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out files that cannot be read, instead of stopping.")]
MaxPixels = Annotated[
    int | None,
    typer.Option(metavar="N", parser=values.whole(1), help="Refuse image files of more pixels; by default 40 million."),
]
NetworkName = Annotated[
    str, typer.Option("--network", metavar="NAME", help="auto, a name from `cnngp networks`, or a JSON file.")
]
RecipeFile = Annotated[
    Path | None,
    typer.Option("--recipe", metavar="FILE.json", help="A recipe that recipe.to_json() made, instead of a network."),
]
Train = Annotated[
    int | None, typer.Option(metavar="N", parser=values.whole(1), help="Use only the first N training images.")
]
SplitName = Annotated[
    str,
    typer.Option(
        "--split",
        metavar="standard|paper",
        parser=values.choice("standard", "paper"),
        help="paper: the paper's split of mnist or fashion_mnist, with validation images.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda", parser=values.choice("auto", "cpu", "cuda"), help="auto takes the GPU if there is one."
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="TYPE", parser=values.choice("float32", "float64"), help="Precision of the kernel: float32 or float64."
    ),
]
Kind = Annotated[
    str,
    typer.Option(
        metavar="nngp|ntk",
        parser=values.choice("nngp", "ntk"),
        help="nngp: the kernel of the Gaussian process; ntk: the neural tangent kernel.",
    ),
]
Threads = Annotated[int | None, typer.Option(metavar="N", parser=values.whole(1), help="CPU threads; by default, all.")]
Seed = Annotated[int, typer.Option(metavar="N", parser=values.whole(0), help="The same seed draws the same networks.")]


def read_data(
    data: str,
    *,
    split: str = "standard",
    size: str | None = None,
    aspect: str = "squash",
    skip_bad: bool = False,
    max_pixels: int | None = None,
    columns: str | None = None,
    input_shape: str | None = None,
    whole: bool = False,
) -> Any:
    """The images that the options ask for, and a line for each note about how they were read."""
    from cnngp.datasets import load
    from cnngp.datasets.images import check_size

    found = load(
        data,
        split=split,  # type: ignore[arg-type]
        size=None if size is None else check_size(size),
        aspect=aspect,  # type: ignore[arg-type]
        skip_bad=skip_bad,
        max_pixels=max_pixels,
        columns=columns,
        input_shape=None if input_shape is None else values.shape_of(input_shape),
        whole=whole,
    )
    for note in found.notes:
        say("note", note)
    return found


def check_engine(network: Any, device: str, dtype: str, threads: int | None, kind: str) -> None:
    """Refuse a device that is not there, or a network without such a kernel, before images are read."""
    from cnngp.common.devices import actual_device
    from cnngp.kernel.kernel import Kernel

    actual_device(device)  # type: ignore[arg-type]
    if network is not None:
        Kernel(network, device, dtype, threads, kind)  # type: ignore[arg-type]


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


def number_or_word(text: str) -> Any:
    """0.01 as a number, ml or loo as a word, after `values` has seen it."""
    return text if text.isalpha() else float(text)


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
