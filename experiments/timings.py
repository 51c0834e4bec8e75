"""Timings: kernels and solve of each network, and the ResNet's whole run from the files to the two errors.

The times of kernels and solves come from the pieces of Table 1. The whole run is a separate process with an empty CUDA
cache (`whole_run.py`), so that earlier computations do not affect it; on a GPU it is repeated with the compiled code of
the first run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cnngp.common.figures import new_figure, save_figure
from cnngp.datasets.dataset import Dataset
from cnngp.network import zoo
from cnngp.paper import table1
from cnngp.paper.results import BLUE, GREY, Results, row
from cnngp.paper.setting import Piece, Setting, release
from cnngp.paper.table1 import SplitImages

TITLE = "Timings"
EACH = "Each network: K(all), K(test, all), two exact fits"
KERNELS, SOLVE = 13_200.0, 43.0
"""Seconds published for the ResNet: 3 h 40 min for the kernels on two P100s, 43 s for the solve on one."""


@dataclass(frozen=True)
class TimingsPlan:
    """Size of the whole run; everything else is that of Table 1."""

    table1: table1.Table1Plan
    data: str = "mnist"
    depth: int = 32
    """Depth of the ResNet."""


def run(setting: Setting, plan: TimingsPlan | None = None, data: Dataset | None = None) -> Results:
    plan = plan or TimingsPlan(table1.QUICK if setting.quick else table1.FULL)
    sizes = plan.table1
    images = SplitImages.of(data or setting.dataset("mnist", "paper"), sizes.train, sizes.validation, sizes.test)
    cases = sizes.cases or table1.paper_cases()
    whole_seconds = 20.0 + 2.0 * table1.estimate(setting, zoo.resnet(plan.depth), images)
    depends = {"whole": plan.data, "network": zoo.resnet(plan.depth).fingerprint, **images.facts}
    of_all = Piece("timings-whole-run", lambda: _whole_run(setting, plan), depends, whole_seconds)
    whole, *found = setting.run([of_all, *(table1.case_piece(setting, case, images) for case in cases)])
    networks = {case.name: values for case, values in zip(cases, found, strict=True)}
    return Results(
        rows=_whole_rows(whole, setting.quick) + [row for name, of in networks.items() for row in _rows(name, of)],
        details={"whole_run": whole, "networks": networks},
        captions={"timings": "Seconds of the ResNet's whole run, ours and the paper's, on a logarithmic axis."},
    )


def _whole_rows(whole: dict[str, Any], quick: bool) -> list[Any]:
    parts: Sequence[tuple[str, str, float | None]] = (
        ("importing", "import", None),
        ("reading the files", "read", None),
        ("compiling", "compile", None),
        ("kernels", "kernels", None if quick else KERNELS),
        ("solve", "solve", None if quick else SOLVE),
        ("predictions", "predict", None),
        ("files to errors", "whole", None if quick else KERNELS + SOLVE),
        ("leave-one-out, beyond the paper", "leave_one_out", None),
    )
    heading = f"ResNet GP, from the files to the errors: {whole['pairs']:,} pairs (published: two P100s)"
    rows = []
    for name, key, published in parts:
        rows.append(row(heading, name, "seconds", unit="s", published=published, ours=whole["timing"][key]))
        if whole["again"] is not None:
            ours = whole["again"]["timing"][key]
            rows.append(
                row(heading, name, "seconds, with compiled code kept", unit="s", published=published, ours=ours)
            )
    rows.append(row(heading, "kernels", "pairs a second", unit="/s", ours=whole["pairs"] / whole["timing"]["kernels"]))
    for name, published in (("validation", 0.68), ("test", 0.84)):
        error = whole[f"{name}_error"]
        rows.append(
            row(heading, f"{name} error", "percent", unit="%", published=None if quick else published, ours=error)
        )
    return rows


def _rows(name: str, values: dict[str, Any]) -> list[Any]:
    heading = f"{EACH}: {values['pairs']:,} pairs"
    columns = (
        ("kernels", "s", values["kernel_seconds"]),
        ("pairs a second", "/s", values["pairs_per_second"]),
        ("solve, leave-one-out, checks", "s", values["solve_seconds"]),
        (f"the same of all {values['all']['images']:,}", "s", values["all"]["solve_seconds"]),
    )
    return [
        row(heading, name, quantity, unit=unit, ours=ours, seconds=values["seconds"])
        for quantity, unit, ours in columns
    ]


def _whole_run(setting: Setting, plan: TimingsPlan) -> dict[str, Any]:
    """Run `whole_run.py` in a separate process; on a GPU first without compiled code, and then again with it."""
    release(setting.actual_device)
    with tempfile.TemporaryDirectory() as cache:
        first = _process(setting, plan, cache)
        return first | {"again": _process(setting, plan, cache) if setting.actual_device == "cuda" else None}


def _process(setting: Setting, plan: TimingsPlan, cache: str) -> dict[str, Any]:
    sizes = plan.table1
    request = {
        "data": plan.data,
        "depth": plan.depth,
        "device": setting.actual_device,
        "threads": setting.threads,
        "sizes": [sizes.train, sizes.validation, sizes.test],
    }
    environment = os.environ | {"CUPY_CACHE_DIR": cache}
    if setting.data is not None:
        environment["CNNGP_DATA"] = str(setting.data)
    done = subprocess.run(
        [sys.executable, "-m", "experiments.whole_run", json.dumps(request)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise RuntimeError(f"the whole run failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def draw(results: Results, folder: Path) -> list[Path]:
    timing = results["details"]["whole_run"]["timing"]
    published = {r["result"]: r["published"] for r in results["rows"] if r["quantity"] == "seconds"}
    names = (("kernels", "kernels"), ("solve", "solve"), ("whole", "files to errors"))
    figure, axes = new_figure(6.4, 2.6)
    for i, (key, name) in enumerate(names):
        axes.barh(i - 0.2, timing[key], 0.36, color=BLUE, label="cnngp")
        axes.text(timing[key], i - 0.2, f" {timing[key]:,.3g} s", va="center", fontsize=8)
        if published[name] is not None:
            axes.barh(i + 0.2, published[name], 0.36, color=GREY, label="published")
            axes.text(published[name], i + 0.2, f" {published[name]:,.5g} s", va="center", fontsize=8)
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys(), frameon=False, fontsize=8, loc="upper right")
    axes.set_yticks(range(len(names)), [name for _, name in names], fontsize=8)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlim(right=10 * max(v for v in (*timing.values(), *published.values()) if v))
    axes.set_xlabel("seconds")
    return save_figure(figure, folder, "timings")


if __name__ == "__main__":
    from experiments.command import run as run_command

    run_command("timings")
