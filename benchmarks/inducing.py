"""Inducing images on MNIST with the paper's split, compared with the exact GP:

    python -m benchmarks.inducing --data FOLDER --train 50000 --inducing 10000 --seeds 5 --device cuda [--shifts]

FOLDER is `mnist` with its four files, or the folder that contains it. The paper reports 0.68 % (validation) and 0.84 %
(test) for the exact GP of resnet(32) on 50,000 images. Every fit chooses its inducing images, noise and discount from
the training images; `--seeds` repeats it with other random states. With `--shifts`, every training image occurs five
times: unchanged, and shifted by one pixel up, down, left and right. `--wrong 0.1` gives a tenth of the training images
a wrong label.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from cnngp import GPClassifier, Kernel, datasets, zoo
from cnngp.datasets.augmentation import shifted

NETWORKS = {"resnet32": lambda: zoo.resnet(32), "small_cnn": zoo.small_cnn, "convnet": zoo.convnet}


def read(folder: Path, train: int, validation: int, test: int) -> tuple[Any, ...]:
    """The paper's split: X, y, and (name, images, labels) of the other two sets."""
    holds_it = folder if (folder / "mnist").is_dir() else folder.resolve().parent
    data = datasets.load("mnist", split="paper", data=holds_it)
    assert data.X_validation is not None
    assert data.y_validation is not None
    others = (
        ("validation", data.X_validation[:validation], data.y_validation[:validation]),
        ("test", data.X_test[:test], data.y_test[:test]),
    )
    return data.X[:train], data.y[:train], others


def exact(kernel: Kernel, X: Any, y: Any, others: Any) -> dict[str, float]:
    start = time.perf_counter()
    clf = GPClassifier(kernel).fit(X, y)
    result = {name: 100.0 * (1.0 - clf.score(images, labels)) for name, images, labels in others}
    return result | {"leave_one_out": 100.0 * clf.loo_error_, "seconds": time.perf_counter() - start}


def fitted(kernel: Kernel, X: Any, y: Any, others: Any, inducing: int, choice: str, seed: int) -> dict[str, float]:
    rows = np.random.default_rng(seed).choice(len(X), inducing, replace=False) if choice == "random" else inducing
    begun = time.perf_counter()
    clf = GPClassifier(kernel, inducing=rows, random_state=seed).fit(X, y)
    seconds = time.perf_counter() - begun
    result = {name: 100.0 * (1.0 - clf.score(images, labels)) for name, images, labels in others}
    return result | {
        "leave_one_out": 100.0 * clf.loo_error_,
        "log_loss": -float(np.mean(np.log(_of_labels(clf, *others[0][1:])))),
        "discount": clf.gp_.discount,
        "noise": clf.gp_.noise / float(clf.gp_.basis.diagonal.mean()),
        "jitter": clf.fit_report_.jitter,
        "fit_seconds": seconds,
    }


def _of_labels(clf: GPClassifier, X: Any, y: Any) -> Any:
    """Predicted probabilities of the true classes."""
    return clf.predict_proba(X)[np.arange(len(y)), np.searchsorted(clf.classes_, y)]


def run(options: argparse.Namespace) -> dict[str, Any]:
    X, y, others = read(options.data, options.train, options.validation, options.test)
    if options.wrong:
        rng = np.random.default_rng(0)
        wrong = rng.random(len(y)) < options.wrong
        y = np.where(wrong, (y + rng.integers(1, 10, len(y))) % 10, y)
    kernel = Kernel(NETWORKS[options.network](), device=options.device)
    result: dict[str, Any] = {
        "network": options.network,
        "train": len(X),
        "inducing": options.inducing,
        "choice": options.choice,
        "shifts": options.shifts,
        "wrong": options.wrong,
        "device": kernel.device,
    }
    if options.exact:
        result["exact"] = exact(kernel, X, y, others)
        show("exact", result["exact"])
    if options.shifts:
        X, y = shifted(X, y)
    result["images"] = len(X)
    result["fits"] = []
    for seed in range(options.seeds):
        result["fits"].append(fitted(kernel, X, y, others, options.inducing, options.choice, seed))
        show(f"random state {seed}", result["fits"][-1])
    for name, of in (("mean", np.mean), ("worst", np.max)):
        result[name] = {key: float(of([fit[key] for fit in result["fits"]])) for key in ("validation", "test")}
        show(name, result[name])
    return result


def show(name: str, values: dict[str, float]) -> None:
    cells = [f"{key} {value:.4g}" + (" %" if key in ("validation", "test") else "") for key, value in values.items()]
    print(f"{name:16} {', '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--train", type=int, default=50_000)
    parser.add_argument("--validation", type=int, default=10_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--inducing", type=int, default=10_000)
    parser.add_argument("--choice", choices=("rounds", "random"), default="rounds")
    parser.add_argument("--network", choices=tuple(NETWORKS), default="resnet32")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--wrong", type=float, default=0.0, help="share of the training labels that are made wrong")
    parser.add_argument("--shifts", action="store_true")
    parser.add_argument("--exact", action="store_true", help="fit the exact GP as well, for comparison")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = run(options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
