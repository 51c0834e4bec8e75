"""`cnngp search`: search over networks. Data and a search space in; a table and the best network out."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cnngp.common.files import write_atomically
from cnngp.common.tables import percent

from .inputs import check_engine, check_writable, read_data
from .options import Asked
from .output import last_line, say, tell, warn, warnings_as_lines


def search(asked: Asked) -> None:
    """Search for a good network at random. Draws from a space are scored by the validation error of their exact GP."""
    from cnngp.search import random_search, split_for
    from cnngp.search.space import find_space

    rungs = [_rung(text) for text in asked.full or ()]
    drawn_from = find_space(asked.space)
    if asked.scheduler is None:
        check_engine(None, asked)
    images = read_data(asked, split=split_for(asked.data))
    folder = asked.output or Path("out") / f"search-{images.name}-{asked.space}"
    file, results = asked.best or folder / "best.json", folder / "results.json"
    kept = asked.study or str(folder / "study.journal")
    check_writable("--output", folder)
    check_writable("--best", file, folder=False)
    if "://" not in kept:
        check_writable("--study", Path(kept), folder=False)
    say("data", repr(images).strip("<>"))
    say("study", kept)
    same = ("train", "validation", "test", "seed", "sampler", "device", "dtype", "threads", "kind", "processes")
    with warnings_as_lines():
        result = random_search(
            images,
            drawn_from,
            asked.draws,
            full=rungs,
            study=kept,
            scheduler=asked.scheduler,
            **{name: getattr(asked, name) for name in same},
        )
    say("search", f"{asked.space} on {result.images}")
    say("engine", result.trials[0].score.engine.split(" ")[0])
    say("draws", f"{len(result.trials):,}, {result.invalid:,} invalid ones replaced")
    for failure in result.failures.values():
        warn(f"no result of {failure}")
    tell()
    tell(result.table())
    tell()
    for rung in result.rungs:
        scored = [(t.draw, percent(t.error, 2), percent(t.score.loo_error, 2)) for t in rung]
        lines = [f"draw {draw}: validation {error}, leave-one-out {loo}" for draw, error, loo in scored]
        say(f"with {rung[0].score.train:,} images", "\n".join(lines))
    best, error = result.best, percent(result.best.error, 2)
    say("chosen", f"draw {best.draw}, by the validation error: {error} with {best.score.train:,} images")
    if result.test is not None:
        seen = "looked at once" if result.looks == 1 else f"the study has looked at it with {result.looks} networks"
        say("test", f"{percent(result.test.error, 2)} of {result.test.validation:,} images; {seen}")
    write_atomically(file, best.network_json + "\n")
    write_atomically(results, json.dumps(result.as_dict(), indent=1) + "\n")
    files = {"best network": str(file), "results": str(results)}
    tell()
    for kind, path in files.items():
        say(kind, path)
    say("time", f"{result.seconds:.1f} s")
    told = {name: value for name, value in result.as_dict().items() if name != "trials"}  # results.json has all draws
    last_line({"command": "search", "seed": asked.seed, "files": files, **told})


def _rung(text: str) -> tuple[int, int | None]:
    """Parse --full: 3, or 20@10000 for the best twenty with 10,000 images."""
    found = re.fullmatch(r"(\d+)(?:@(\d+))?", text)
    if not found:
        raise ValueError(f"--full {text}: expected how many, such as 3, or how many at which size, such as 20@10000")
    return int(found[1]), int(found[2]) if found[2] else None
