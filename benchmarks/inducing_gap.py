"""Check what a fit with inducing images reports about itself, against the exact GP and unseen images:

    python -m benchmarks.inducing_gap [--device cuda] [--train 4000] [--inducing 800] [--seeds 2] [--sets mnist,hard]

The sets are plain digits, digits with a tenth of the labels wrong, rotated, scaled and shifted digits over a texture
(`benchmarks.recipes`), and digits blended with another digit. Training and unseen images are drawn together from
MNIST's training set, so that they differ only by chance; then the leave-one-out error should equal the error on unseen
images, and the exact GP's error should lie where the fit report expects it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import GPClassifier, Kernel, datasets, zoo

from .recipes import hard

SETS = ("mnist", "wrong", "hard", "blend")


def images(name: str, n: int, seed: int) -> tuple[Any, Any]:
    """`n` images of a set with their labels, in random order."""
    rng = np.random.default_rng(seed)
    mnist = datasets.mnist()
    rows = rng.permutation(len(mnist.X))[: 2 * n]
    X, y = mnist.X[rows[:n]], mnist.y[rows[:n]]
    if name == "wrong":
        y = np.where(rng.random(n) < 0.1, (y + rng.integers(1, 10, n)) % 10, y)
    if name == "hard":
        X = hard(X, seed)
    if name == "blend":
        share = rng.uniform(0.5, 0.8, (n, 1, 1, 1)).astype(np.float32)
        X = share * X + (1 - share) * mnist.X[rows[n:]]
    return X, y


def run(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    n = options.train
    X, y = images(name, n + options.unseen, seed)
    kernel = Kernel(zoo.small_cnn(), device=options.device)
    exact = GPClassifier(kernel, noise="loo").fit(X[:n], y[:n])
    clf = GPClassifier(kernel, inducing=options.inducing, random_state=seed).fit(X[:n], y[:n])
    a, b = (np.asarray(model.predict(X[n:]) != y[n:], float) for model in (clf, exact))
    report = clf.fit_report_
    return {
        "set": name,
        "seed": seed,
        "exact": float(b.mean()),
        "inducing": float(a.mean()),
        "leave_one_out": clf.loo_error_,
        "of": len(clf.loo_rows_),
        "above": float((a - b).mean()),
        "said": report.excess,
        "said_uncertainty": report.excess_uncertainty,
        "discount": clf.gp_.discount,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=4000)
    parser.add_argument("--inducing", type=int, default=800)
    parser.add_argument("--unseen", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.sets.split(","):
        for seed in range(options.seeds):
            rows.append(row := run(name, seed, options))
            print(
                f"{name:6} exact {row['exact']:7.2%}  inducing {row['inducing']:7.2%}  leave-one-out "
                f"{row['leave_one_out']:7.2%} of {row['of']:,}  above the exact {row['above']:6.2%}, said "
                f"{row['said']:6.2%} ± {row['said_uncertainty']:.2%}  discount {row['discount']:g}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
