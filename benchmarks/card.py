"""All tests and benchmarks that need a GPU, in one command: `python -m benchmarks.card OUT [--before TREE]`.

Runs the tests that need a GPU, compute-sanitizer over one network for each kind of CUDA kernel, and the speeds of
kernels, tangent kernels, pools and gradients; with `--before`, alternately, the speeds of another checkout too. Prints
a table at the end. Each step leaves its log and figures in the folder OUT, and finished steps are not run again: after
a time limit, the same command continues.

    python -m benchmarks.card out --only tests         # only steps whose names begin with "tests"
    python -m benchmarks.card out --minutes 9          # starts no step after nine minutes
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import AvgPool, Conv, Dense, Elementwise, Kernel, ReLU, Sequential
from cnngp.network import Network, reference

C: list[Network] = [Conv(3), ReLU()]
FORMS: dict[str, tuple[Network, tuple[int, ...]]] = {
    "warp": (Sequential(*C * 3, Dense()), (1, 12, 12)),
    "dense": (Sequential(Dense(), ReLU(), Dense()), (40,)),
    "sheets": (Sequential(*C, AvgPool(2), *C, AvgPool(2), Dense()), (1, 8, 8)),
    "walk": (Sequential(*C * 2, Dense()), (1, 5, 40)),
    "series": (Sequential(Conv(3), Elementwise("tanh"), AvgPool(2), Dense()), (1, 6, 6)),
}
"""A small network for each kind of CUDA kernel."""


@dataclass(frozen=True)
class Step:
    """A command; `both` runs it in the other checkout too. `{figures}` in it is the file to which it writes figures."""

    name: str
    command: tuple[str, ...]
    both: bool = False


def steps(data: str | None) -> list[Step]:
    test = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu")
    first = ("tests/kernel/test_cuda_gpu.py", "tests/kernel/test_cuda_gradient.py")
    sweep = "tests/kernel/test_geometries.py"
    found = [
        Step("tests: engine and gradients", (*test, *first)),
        Step("tests: geometries", (*test, sweep)),
        Step("tests: all others", (*test, "tests", *(f"--ignore={path}" for path in (*first, sweep)))),
    ]
    for form in FORMS:
        own = (sys.executable, "-m", "benchmarks.card", "--form", form)
        found += [
            Step(f"sanitizer: {tool}, {form}", ("compute-sanitizer", "--tool", tool, "--error-exitcode", "1", *own))
            for tool in ("memcheck", "racecheck")
        ]
    given = () if data is None else ("--data", data)
    for kind in ("nngp", "ntk"):
        module = (sys.executable, "-m", "benchmarks.gpu", "--kind", kind, "--json", "{figures}", "--no-torch", *given)
        pools = (sys.executable, "-m", "benchmarks.gpu_pools", "--kind", kind, "--json", "{figures}")
        found.append(Step(f"speed: kernels, {kind}", module, both=True))
        found.append(Step(f"speed: pools, {kind}", (*pools, "--double") if kind == "nngp" else pools, both=True))
    gradients = (sys.executable, "-m", "benchmarks.gradients", "--device", "cuda", "--json")
    return [*found, Step("speed: gradients", gradients, both=True)]


def run(step: Step, which: str, tree: Path, out: Path) -> dict[str, Any]:
    """Run a step, or read its earlier result; return its status, seconds and figures."""
    stem = "".join(c if c.isalnum() else "-" for c in f"{step.name}, {which}")
    done, figures = out / f"{stem}.json", out / f"{stem}.figures"
    if done.exists():
        return dict(json.loads(done.read_text()))
    begun = time.perf_counter()
    command = [part.format(figures=figures) for part in step.command]
    if shutil.which(command[0]) is None:
        return {"status": f"{command[0]} is not there", "seconds": 0.0, "rows": {}}
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    (out / f"{stem}.log").write_text(ran.stdout + ran.stderr)
    rows: dict[str, float] = {}
    if figures.exists():
        for row in json.loads(figures.read_text())["rows"]:
            shape = "×".join(map(str, row["input"]))
            rows[f"{row['network']}, {shape}, {row['dtype']}"] = row["pairs"]
    elif "--json" in command and ran.returncode == 0:
        rows = {name: found["pairs/s"] for name, found in json.loads(ran.stdout.splitlines()[-1]).items()}
    seconds = time.perf_counter() - begun
    last = (ran.stdout.strip() or ran.stderr.strip() or "nothing was printed").splitlines()[-1]
    result = {"status": "ok" if ran.returncode == 0 else f"FAILED ({last[:80]})", "seconds": seconds, "rows": rows}
    if ran.returncode == 0:
        done.write_text(json.dumps(result))
    return result


def compare(form: str) -> None:
    """Compare K, Θ and a gradient of a small network on the GPU with the float64 reference and the CPU engine."""
    net, shape = FORMS[form]
    X = np.random.default_rng(0).normal(size=(7, *shape)).astype(np.float32)
    card, cpu = (Kernel(net, device=device, check=False) for device in ("cuda", "cpu"))
    pairs: list[tuple[Any, Any]] = [(card(X), reference.kernel(net, X))]
    pairs += [(card(X[:3], X[3:]), reference.kernel(net, X[:3], X[3:])), *zip(card.both(X), cpu.both(X), strict=True)]
    of_card, of_cpu = (np.array(list(k.gradient(X, None, np.ones((7, 7))).values())) for k in (card, cpu))
    pairs.append((of_card, of_cpu))
    for found, expected in pairs:
        error = float(np.abs(found - expected).max() / np.abs(expected).max())
        print(f"{form}: error {error:.1e}")
        if not error < 1e-4:
            raise SystemExit(f"{form}: the card's numbers are wrong")


def table(results: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Table of the status of every step, and of pairs/s now, before, and their ratio."""
    lines = ["| step | result | seconds |", "|---|---|---|"]
    for name, found in results.items():
        lines.append(f"| {name} | {found['now']['status']} | {found['now']['seconds']:.0f} |")
    lines += ["", "| network | M pairs/s | before | ratio |", "|---|---|---|---|"]
    for name, found in results.items():
        earlier = found.get("before", {}).get("rows", {})
        for row, rate in found["now"]["rows"].items():
            old = earlier.get(row)
            compared = "| |" if old is None else f"{old / 1e6:.3f} | {rate / old:.3f} |"
            lines.append(f"| {name.removeprefix('speed: ')}: {row} | {rate / 1e6:.3f} | {compared}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, help="folder for logs and figures")
    parser.add_argument("--before", type=Path, help="another checkout, whose speeds go beside these")
    parser.add_argument("--data", help="folder with MNIST's train-images-idx3-ubyte.gz")
    parser.add_argument("--only", default="", help="the steps whose names begin so")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no step after so many minutes")
    parser.add_argument("--form", choices=list(FORMS), help="only compare one small network on the card")
    options = parser.parse_args()
    if options.form:
        compare(options.form)
        return
    if options.out is None:
        parser.error("name a folder for logs and figures")
    options.out.mkdir(parents=True, exist_ok=True)
    here, begun = Path(__file__).resolve().parents[1], time.perf_counter()
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for step in steps(options.data):
        if not step.name.startswith(options.only):
            continue
        if time.perf_counter() - begun > 60.0 * options.minutes:
            print("out of time; the same command goes on from here")
            break
        trees = {"now": here}
        if step.both and options.before is not None:
            trees["before"] = options.before.resolve()
        results[step.name] = {which: run(step, which, tree, options.out.resolve()) for which, tree in trees.items()}
        print(f"{step.name}: {results[step.name]['now']['status']}", flush=True)
    text = table(results)
    (options.out / "table.md").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
