"""`cnngp sample`: draws finite networks at growing width, checks that they go to the kernel, and draws the picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from . import values
from .common import (
    Aspect,
    Columns,
    Data,
    InputShape,
    MaxPixels,
    NetworkName,
    Seed,
    Size,
    SkipBad,
    check_writable,
    network_by_name,
    read_data,
    zoo_name,
)
from .output import Json, Quiet, last_line, say, tell


def sample(
    data: Data = "digits",
    size: Size = None,
    aspect: Aspect = "squash",
    skip_bad: SkipBad = False,
    max_pixels: MaxPixels = None,
    columns: Columns = None,
    input_shape: InputShape = None,
    network: NetworkName = "small_cnn",
    images: Annotated[
        int,
        typer.Option(
            metavar="N", parser=values.whole(1), help="Number of images, taken from the start of the training set."
        ),
    ] = 4,
    channels: Annotated[
        str, typer.Option(metavar="N,N,…", help="Numbers of channels in the first stage, such as 4,16,64.")
    ] = "4,16,64",
    samples: Annotated[
        int, typer.Option(metavar="N", parser=values.whole(20), help="Number of networks drawn at each width.")
    ] = 1000,
    outputs: Annotated[
        int,
        typer.Option(
            metavar="N",
            parser=values.whole(1),
            help="Outputs per network; more of them make the estimates more precise.",
        ),
    ] = 64,
    seed: Seed = 0,
    device: Annotated[
        str,
        typer.Option(
            metavar="cpu|cuda", parser=values.choice("cpu", "cuda"), help="Where the finite networks run: cpu or cuda."
        ),
    ] = "cpu",
    output: Annotated[Path, typer.Option(metavar="FILE", help="File for the picture: .png, .pdf or .svg.")] = Path(
        "sample.png"
    ),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Draw finite random networks and compare the covariance of their outputs with the kernel."""
    from cnngp.common.progress import progress_bar
    from cnngp.network.names import default_network
    from cnngp.torch_bridge.limits import check_limit

    widths = _widths(channels)
    if output.suffix not in (".png", ".pdf", ".svg"):
        raise ValueError(f"--output {output}: expected a .png, .pdf or .svg file")
    check_writable("--output", output, folder=False)
    _check_device(device)
    net = network_by_name(network)
    read = read_data(
        data,
        size=size,
        aspect=aspect,
        skip_bad=skip_bad,
        max_pixels=max_pixels,
        columns=columns,
        input_shape=input_shape,
        whole=True,
    )
    X = read.some(images).X
    name = network if net is not None else f"{zoo_name(default_network(X.shape[1:], len(X)))} (chosen)"
    say("data", f"{len(X)} images of {data}")
    say("network", name)
    say("engine", f"finite networks: torch on {device}; kernel: float64 on cpu")
    total = len(set(widths)) * samples
    with progress_bar(total, "sampling", "network", keep=True) as bar:
        report = check_limit(
            net or default_network(X.shape[1:], len(X)),
            X,
            widths,
            samples,
            seed,
            outputs=outputs,
            device=device,
            progress=bar.update,
        )
    tell()
    tell(str(report))
    tell()
    files = _picture(report, output)
    last_line(as_json, {"command": "sample", "network": network, "files": files, **_facts(report)})


def _widths(text: str) -> list[int]:
    try:
        widths = [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"--channels {text}: expected integers with commas, such as 4,16,64") from None
    if len(set(widths)) < 2 or min(widths) < 1:
        raise ValueError(f"--channels {text}: give at least two different positive widths, such as 4,16,64")
    return widths


def _check_device(name: str) -> None:
    from cnngp.torch_bridge import need_torch

    need_torch("cnngp sample")
    from cnngp.torch_bridge.sampling.drawing import torch_device

    torch_device(name)


def _picture(report: Any, output: Path) -> dict[str, str]:
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        report.plot(str(output))
    except ImportError as error:
        say("picture", f"not drawn: {error}")
        return {}
    say("picture", str(output))
    return {"picture": str(output)}


def _facts(report: Any) -> dict[str, Any]:
    rows = []
    for w in report.widths:
        deviation, chance = report.deviation(w)
        rows.append(
            {
                "channels": w.channels,
                "deviation": deviation,
                "by_chance": chance,
                "amplitude": w.amplitude,
                "amplitude_error": w.amplitude_error,
            }
        )
    return {
        "verdict": report.verdict,
        "sentence": report.sentence,
        "samples": report.samples,
        "amplitude": report.amplitude,
        "amplitude_error": report.amplitude_error,
        "widths": rows,
    }
