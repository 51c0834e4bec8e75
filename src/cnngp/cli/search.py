"""`cnngp search`: a search over networks. Data and a space in; a table, plots and the best network out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from cnngp.common.tables import percent

from . import values
from .common import (
    Aspect,
    Columns,
    Data,
    Device,
    Dtype,
    InputShape,
    Kind,
    MaxPixels,
    Seed,
    Size,
    SkipBad,
    Threads,
    Train,
    check_engine,
    check_writable,
    read_data,
    warnings_as_lines,
)
from .output import Json, Quiet, last_line, say, tell, warn


def search(
    data: Data = "digits",
    space: Annotated[
        str, typer.Option(metavar="SPACE", help="paper-cnn, paper-residual, wide or pooled.")
    ] = "paper-cnn",
    draws: Annotated[
        int,
        typer.Option(
            metavar="N",
            parser=values.whole(1),
            help="Number of networks in all; those already in the study are not repeated.",
        ),
    ] = 27,
    train: Train = None,
    validation: Annotated[
        int | None, typer.Option(metavar="N", parser=values.whole(1), help="Use only the first N validation images.")
    ] = None,
    full: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N[@IMAGES]",
            help="Score the best again: 3 takes the best three with all training images, 20@10000 the best twenty "
            "with 10,000. May be repeated.",
        ),
    ] = None,
    size: Size = None,
    aspect: Aspect = "squash",
    skip_bad: SkipBad = False,
    max_pixels: MaxPixels = None,
    columns: Columns = None,
    input_shape: InputShape = None,
    test: Annotated[
        bool, typer.Option("--test", help="Also give the chosen network's error on the test images.")
    ] = False,
    seed: Seed = 0,
    study: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Journal file or URL of a database that keeps every draw; by default in OUTPUT."
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            parser=values.choice("random", "tpe"),
            help="How networks are drawn: random, or tpe, which learns from the draws before.",
        ),
    ] = "random",
    processes: Annotated[
        int, typer.Option(metavar="N", parser=values.whole(1), help="Number of processes on this machine.")
    ] = 1,
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Address of a Dask scheduler, such as tcp://host:8786.")
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    threads: Threads = None,
    kind: Kind = "nngp",
    best: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the best network; by default OUTPUT/best.json.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder for plots and results.json; by default out/search-DATA-SPACE."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for a network by draws from a space, scored by the validation error of the exact GP."""
    from cnngp.search import random_search, split_for
    from cnngp.search.space import find_space

    rungs = [_rung(text) for text in full or ()]
    drawn_from = find_space(space)
    if scheduler is None:
        check_engine(None, device, dtype, threads, kind)
    images = read_data(
        data,
        split=split_for(data),
        size=size,
        aspect=aspect,
        skip_bad=skip_bad,
        max_pixels=max_pixels,
        columns=columns,
        input_shape=input_shape,
    )
    folder = output if output is not None else Path("out") / f"search-{images.name}-{space}"
    file = best if best is not None else folder / "best.json"
    kept = study if study is not None else str(folder / "study.journal")
    check_writable("--output", folder)
    check_writable("--best", file, folder=False)
    if "://" not in kept:
        check_writable("--study", Path(kept), folder=False)
    say("data", repr(images).strip("<>"))
    say("study", kept)
    with warnings_as_lines():
        result = random_search(
            images,
            drawn_from,
            draws,
            train=train,
            validation=validation,
            full=rungs,
            test=test,
            seed=seed,
            study=kept,
            sampler=sampler,
            device=device,  # type: ignore[arg-type]
            dtype=dtype,
            threads=threads,
            kind=kind,  # type: ignore[arg-type]
            processes=processes,
            scheduler=scheduler,
            before_test=lambda found: _write(file, folder / "results.json", found),
        )
    say("search", f"{space} on {result.images}")
    say("engine", result.trials[0].score.engine.split(" ")[0])
    say("draws", f"{len(result.trials):,}, {result.invalid:,} invalid ones replaced")
    for failure in result.failures.values():
        warn(f"no result of {failure}")
    tell()
    tell(result.table())
    tell()
    _say_outcome(result)
    _write(file, folder / "results.json", result)
    files = {"best network": str(file), "results": str(folder / "results.json"), **_plots(folder, result)}
    tell()
    for kind, path in files.items():
        say(kind, path)
    say("time", f"{result.seconds:.1f} s")
    last_line(as_json, {"command": "search", "seed": seed, "files": files, **_summary(result)})


def _rung(text: str) -> tuple[int, int | None]:
    """3, or 20@10000 for the best twenty with 10,000 images."""
    found = re.fullmatch(r"(\d+)(?:@(\d+))?", text)
    if not found:
        raise ValueError(f"--full {text}: expected how many, such as 3, or how many at which size, such as 20@10000")
    return int(found[1]), int(found[2]) if found[2] else None


def _say_outcome(result: Any) -> None:
    for rung in result.rungs:
        lines = (
            f"draw {t.draw}: validation {percent(t.error, 2)}, leave-one-out {percent(t.score.loo_error, 2)}"
            for t in rung.trials
        )
        say(f"with {rung.train:,} images", "\n".join(lines))
    chosen = result.best
    say(
        "chosen",
        f"draw {chosen.draw}, by the validation error: {percent(chosen.error, 2)} with {chosen.score.train:,} images",
    )
    if result.test is not None:
        look = result.test
        seen = "looked at once" if look.looks == 1 else f"the study has looked at it with {look.looks} networks"
        say("test", f"{percent(look.error, 2)} of {look.images:,} images; {seen}")


def _write(best: Path, results: Path, result: Any) -> None:
    from cnngp.common.files import write_atomically

    write_atomically(best, result.best.network_json + "\n")
    write_atomically(results, json.dumps(result.as_dict(), indent=1) + "\n")


def _plots(folder: Path, result: Any) -> dict[str, str]:
    try:
        return {path.name: str(path) for path in result.plot(folder)}
    except ImportError as error:
        say("plots", f"not drawn: {error}")
        return {}


def _summary(result: Any) -> dict[str, Any]:
    """Everything but the list of all draws, which results.json has."""
    return {key: value for key, value in result.as_dict().items() if key != "trials"}
