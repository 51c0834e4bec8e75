"""Effect of learning a network's variances: three networks on MNIST and on small digits.

    python -m benchmarks.learn [--data mnist digits] [--sizes 100 500 …] [--networks pooled …] [--json FILE]

Each column is an exact GP on the first N training images, tested on the same test images:

- default: the variances of the network as written, the noise by leave-one-out (`noise="loo"`).
- likelihood, leave-one-out: `learn=` with two starts of twelve steps, on at most 300 of the training images.
- random search: random networks (each group of variances times a log-normal factor of e^±1.5; zero bias variances first
  set to positive values), each with its best noise, compared by the same leave-one-out loss on the same images, for as
  many seconds as learning by leave-one-out took.

Nothing is chosen by the test images. Results are printed, and kept in the file of --json if it is given.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import GELU, AvgPool, Conv, Dense, GPClassifier, ReLU, Sequential, datasets
from cnngp.estimators import Learning
from cnngp.estimators.labels import ClassTargets, Coding
from cnngp.estimators.learning import Problem, groups_of, moved, opened
from cnngp.estimators.training_images import balanced
from cnngp.gp import calibration
from cnngp.kernel.kernel import Kernel
from cnngp.network import Network

NETWORKS: dict[str, Network] = {
    "pooled": Sequential(
        *(Conv(5, stride=2), ReLU(), Conv(3), ReLU(), AvgPool(2), Conv(3), ReLU(), Dense()),
    ),
    "biases": Sequential(
        *(Conv(5, bias_var=0.1), ReLU(), Conv(5, stride=2, bias_var=0.1), ReLU(), Conv(3, bias_var=0.1), ReLU()),
        Dense(bias_var=0.1),
    ),
    "GELU": Sequential(Conv(5, bias_var=0.1), GELU(), Conv(5, stride=2, bias_var=0.1), GELU(), Dense(bias_var=0.1)),
}
SIZES = {"mnist": (100, 500, 1000, 2000), "digits": (100, 500)}
TEST = {"mnist": 1000, "digits": 500}
SEARCH: dict[str, int] = {"images": 300, "starts": 2, "steps": 12}
METHODS = ("default", "likelihood", "leave-one-out", "random search")


def random_search(network: Network, X: Any, y: Any, seconds: float) -> tuple[Network, float, int]:
    """Best of the networks drawn within `seconds`, its noise in units of mean k(x, x), and the number of draws."""
    begun = time.perf_counter()
    classes = np.unique(y)
    targets = ClassTargets(Coding(classes), y)
    rows = balanced(targets.Y, SEARCH["images"], 0)
    problem = Problem(Kernel(network, "cpu"), X[rows], targets.Y[rows], "loo", 0.0, "ml", targets.slopes)
    given = network.parameters()
    groups = groups_of(network, given, tied=True)
    values = opened(problem, given, groups)
    rng = np.random.default_rng(0)
    best, draws = (np.inf, network, 0.0), 0
    while time.perf_counter() - begun < seconds:
        drawn = given if draws == 0 else moved(values, groups, rng.normal(0.0, 1.5, len(groups)))
        log_noise, loss = problem.best_noise(problem.matrix(problem.of(drawn)))
        best = min(best, (loss, network.with_parameters(drawn), float(np.exp(log_noise))), key=lambda found: found[0])
        draws += 1
    return best[1], best[2], draws


def row(method: str, network: Network, data: datasets.Dataset, seconds: float) -> dict[str, Any]:
    begun = time.perf_counter()
    extra: dict[str, Any] = {}
    if method == "random search":
        network, noise, extra["draws"] = random_search(network, data.X, data.y, seconds)
        searched = time.perf_counter() - begun
        noise *= float(Kernel(network, "cpu").diag(data.X).mean())
        clf = GPClassifier(network, noise=noise, device="cpu").fit(data.X, data.y)
    else:
        rule = {"likelihood": "likelihood", "leave-one-out": "loo"}.get(method)
        learn = None if rule is None else Learning(rule, **SEARCH)  # type: ignore[arg-type]
        clf = GPClassifier(network, noise=0.0 if rule else "loo", learn=learn, device="cpu").fit(data.X, data.y)
        searched = 0.0 if clf.learned_ is None else clf.learned_.seconds
        if clf.learned_ is not None:
            extra = {"before": clf.learned_.before, "after": clf.learned_.after, "matrices": len(clf.learned_.path)}
    scores = calibration.scores(clf.predict_proba(data.X_test), np.searchsorted(clf.classes_, data.y_test))
    return extra | {
        "error": scores.error,
        "nll": scores.nll,
        "loo_error": clf.loo_error_,
        "search_s": searched,
        "network": repr(clf.network_),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--sizes", nargs="+", type=int)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--json", type=Path, help="keep results here, and go on where an earlier run was")
    options = parser.parse_args()
    kept: dict[str, Any] = {}
    if options.json is not None and options.json.exists():
        kept = json.loads(options.json.read_text(encoding="utf-8"))["results"]
    print("| data, N | network | " + " | ".join(f"{m}: error, NLL" for m in METHODS) + " | seconds |")
    print("|" + "---|" * (3 + len(METHODS)))
    for name in options.data:
        for n in options.sizes or SIZES[name]:
            data = datasets.load(name).take(n, TEST[name])
            for kind in options.networks:
                cells, seconds = [], 0.0
                for method in METHODS:
                    key = f"{name} {n} {kind} {method}"
                    if key not in kept:
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore", UserWarning)
                            kept[key] = row(method, NETWORKS[kind], data, seconds)
                    seconds = kept[key]["search_s"]
                    cells.append(f"{100 * kept[key]['error']:.1f} %, {kept[key]['nll']:.3f}")
                    if options.json is not None:
                        told = {"results": kept, "search": SEARCH, "test": TEST, "machine": platform.processor()}
                        options.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
                print(f"| {name}, {n:,} | {kind} | " + " | ".join(cells) + f" | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
